//! One question over TCP, for an answer that does not fit into a datagram (RFC 7766).

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::LookupError;

/// Sends a query and reads the answer. The caller holds the clock; the length field bounds the answer at 64 KiB.
pub(super) async fn exchange(server: SocketAddr, query: &[u8]) -> Result<Vec<u8>, LookupError> {
    over_stream(server, query).await.map_err(|_| LookupError::Unreachable)
}

async fn over_stream(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    #[expect(clippy::disallowed_methods, reason = "an upstream socket of the resolver")]
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let length = u16::try_from(query.len()).map_err(std::io::Error::other)?;
    let framed = [&length.to_be_bytes()[..], query].concat();
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
