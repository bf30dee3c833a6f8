//! Connections (RFC 7766): pipelined queries, answered as their answers come.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use policy::{Entrance, Peer};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::handler::{Begun, Outcome, Query};
use crate::reply::Transport;
use crate::server::{Client, Shared};

/// How long a connection may be idle between queries.
const IDLE: Duration = Duration::from_secs(10);

/// How long a query may take to arrive, from its first byte on.
const ARRIVAL: Duration = Duration::from_secs(5);

/// How long a reply may take to leave.
const DEPARTURE: Duration = Duration::from_secs(10);

/// The largest query that is read.
const MAX_QUERY: usize = 4096;

/// Replies that wait for a slow reader; beyond them queries are not read either.
const MAX_WAITING: usize = 16;

/// How long to wait when the process has no descriptor left for a connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(50);

pub(super) async fn serve(
    shared: &Arc<Shared>,
    listener: TcpListener,
    entrance: Entrance,
    closed: watch::Receiver<()>,
) -> std::io::Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let peer = entrance.peer(Some(from));
                // Over a limit a client is closed at once; dropping the stream does it.
                let Ok(room) = Arc::clone(&shared.room).try_acquire_owned() else { continue };
                let Some(slot) = shared.connections.enter(&Client::of(&peer, from)) else { continue };
                let (shared, closed) = (Arc::clone(shared), closed.clone());
                tokio::spawn(async move {
                    converse(shared, stream, peer, closed).await;
                    drop((slot, room));
                });
            }
            // The peer gave up between its handshake and our accept.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) if error.raw_os_error().is_some() => {
                tracing::warn!(%error, "cannot accept a DNS connection");
                tokio::time::sleep(NO_DESCRIPTOR).await;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn converse(shared: Arc<Shared>, stream: TcpStream, peer: Peer, closed: watch::Receiver<()>) {
    let (reader, writer) = stream.into_split();
    let (replies, outbox) = mpsc::channel(MAX_WAITING);
    // The writer ends when the reader and every open query have dropped their sender.
    tokio::join!(ask(shared, reader, peer, replies, closed), write(writer, outbox));
}

async fn ask(
    shared: Arc<Shared>,
    reader: OwnedReadHalf,
    peer: Peer,
    replies: mpsc::Sender<Vec<u8>>,
    mut closed: watch::Receiver<()>,
) {
    let mut reader = BufReader::with_capacity(MAX_QUERY + 2, reader);
    let mut message = Vec::new();
    for _ in 0..shared.limits.queries_per_connection {
        tokio::select! {
            read = read(&mut reader, &mut message) => if read.is_none() { return },
            // The sender is dropped when the server stops; nothing is ever sent.
            _ = closed.changed() => return,
        }
        match shared.handler.begin(&peer, &message) {
            // What is no query will not become one.
            Begun::Silent => return,
            Begun::Ended(query, outcome) => {
                if replies.send(reply(&shared, query, outcome).await).await.is_err() {
                    return;
                }
            }
            Begun::Open(query, open) => {
                let (shared, replies, query) = (Arc::clone(&shared), replies.clone(), query.to_owned());
                tokio::spawn(async move {
                    let outcome = shared.handler.finish(*open).await;
                    // The connection may be gone.
                    let _ = replies.send(reply(&shared, query.borrow(), outcome).await).await;
                });
            }
        }
    }
}

/// Reads one query; `None` where the client has no more, is too slow, or sends too much.
async fn read(reader: &mut BufReader<OwnedReadHalf>, message: &mut Vec<u8>) -> Option<()> {
    let high = timeout(IDLE, reader.read_u8()).await.ok()?.ok()?;
    let rest = async {
        let low = reader.read_u8().await.ok()?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 || length > MAX_QUERY {
            return None;
        }
        message.resize(length, 0);
        reader.read_exact(message).await.ok().map(drop)
    };
    timeout(ARRIVAL, rest).await.ok()?
}

async fn reply(shared: &Shared, query: Query<'_>, outcome: Outcome) -> Vec<u8> {
    let settled = outcome.settle().await;
    let mut framed = vec![0; 2];
    shared.handler.reply(query, &settled, Transport::Tcp, &mut framed);
    let length = u16::try_from(framed.len() - 2).unwrap_or_default();
    if let Some(prefix) = framed.first_chunk_mut() {
        *prefix = length.to_be_bytes();
    }
    framed
}

async fn write(mut writer: OwnedWriteHalf, mut outbox: mpsc::Receiver<Vec<u8>>) {
    while let Some(reply) = outbox.recv().await {
        match timeout(DEPARTURE, writer.write_all(&reply)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
