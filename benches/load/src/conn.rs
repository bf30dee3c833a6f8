//! Client connections: direct or through a proxy by CONNECT, plain or TLS.

use crate::common::{Res, guard};
use crate::sys::bind_address_no_port;
use clap::Args as ClapArgs;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Options shared by every command that opens tunnels.
#[derive(ClapArgs, Clone)]
pub struct Target {
    /// Proxy address; required unless --direct
    #[arg(long)]
    pub proxy: Option<SocketAddr>,
    /// No proxy: connect to --target itself (the limit)
    #[arg(long)]
    pub direct: bool,
    /// Origin address
    #[arg(long, default_value = "127.0.0.1:18080")]
    pub target: SocketAddr,
    /// Host name put in CONNECT and Host (default: the target's IP)
    #[arg(long)]
    pub host: Option<String>,
    /// Basic proxy credentials, user:password
    #[arg(long)]
    pub proxy_auth: Option<String>,
    /// Ask for the tunnel by SOCKS5 (RFC 1928), not by CONNECT
    #[arg(long, conflicts_with_all = ["direct", "no_connect", "proxy_auth"])]
    pub socks5: bool,
    /// The proxy is a plain TCP forwarder: send no CONNECT
    #[arg(long)]
    pub no_connect: bool,
    /// TLS inside the tunnel; certificates are not verified
    #[arg(long)]
    pub tls: bool,
    /// Spread client sources over this many 127.0.1.x addresses (port exhaustion)
    #[arg(long, default_value_t = 0)]
    pub sources: u32,
    /// Give up on one operation after this many milliseconds
    #[arg(long, default_value_t = 5000)]
    pub timeout_ms: u64,
    /// Process id(s) of the proxy, for CPU and memory (descendants are added)
    #[arg(long, value_delimiter = ',')]
    pub pid: Vec<u32>,
    /// Name for this run in the output
    #[arg(long, default_value = "")]
    pub label: String,
    /// Permit addresses other than loopback
    #[arg(long)]
    pub allow_non_loopback: bool,
}

/// What is said to the proxy before the tunnel is ours.
enum Hello {
    /// Nothing: direct, or a plain TCP forwarder.
    Nothing,
    /// The CONNECT head.
    Connect(Vec<u8>),
    /// The SOCKS5 request, sent after the greeting has been answered.
    Socks5(Vec<u8>),
}

/// A `Target` made ready: prebuilt request bytes and TLS configuration.
pub struct Dialer {
    pub addr: SocketAddr,
    hello: Hello,
    pub auth_header: String,
    pub authority: String,
    pub tls: Option<(TlsConnector, Arc<rustls::ClientConfig>, rustls::pki_types::ServerName<'static>)>,
    pub sources: u32,
    next: AtomicU32,
    pub timeout: Duration,
}

impl Target {
    pub fn dialer(&self) -> Res<Dialer> {
        guard(self.target, self.allow_non_loopback)?;
        let addr = if self.direct {
            self.target
        } else {
            guard(self.proxy.ok_or("--proxy or --direct is needed")?, self.allow_non_loopback)?
        };
        let name = self.host.clone().unwrap_or_else(|| self.target.ip().to_string());
        let authority = format!("{}:{}", name, self.target.port());
        let auth_header = match &self.proxy_auth {
            Some(a) => format!("Proxy-Authorization: Basic {}\r\n", base64(a.as_bytes())),
            None => String::new(),
        };
        let hello = if self.direct || self.no_connect {
            Hello::Nothing
        } else if self.socks5 {
            Hello::Socks5(socks5_request(&name, self.target.port())?)
        } else {
            let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{auth_header}\r\n");
            Hello::Connect(head.into_bytes())
        };
        let tls = if self.tls {
            let mut cfg = rustls::ClientConfig::builder()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(NoVerify))
                .with_no_client_auth();
            // Full handshakes each time, so that every tunnel costs the same.
            cfg.resumption = rustls::client::Resumption::disabled();
            let cfg = Arc::new(cfg);
            let sn = rustls::pki_types::ServerName::try_from(name.clone())?;
            Some((TlsConnector::from(cfg.clone()), cfg, sn))
        } else {
            None
        };
        Ok(Dialer {
            addr,
            hello,
            auth_header,
            authority,
            tls,
            sources: self.sources,
            next: AtomicU32::new(0),
            timeout: Duration::from_millis(self.timeout_ms),
        })
    }
}

impl Dialer {
    fn source(&self) -> Option<SocketAddr> {
        if self.sources == 0 || !self.addr.is_ipv4() {
            return None;
        }
        let i = self.next.fetch_add(1, Ordering::Relaxed) % self.sources;
        let ip = Ipv4Addr::new(127, 0, 1 + (i / 250) as u8, 1 + (i % 250) as u8);
        Some(SocketAddr::new(IpAddr::V4(ip), 0))
    }

    /// TCP only, to the proxy (or the target when direct).
    pub async fn tcp(&self) -> io::Result<TcpStream> {
        let s = match self.source() {
            Some(src) => {
                let sock = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
                bind_address_no_port(&sock)?;
                sock.bind(&src.into())?;
                TcpSocket::from_std_stream(sock.into()).connect(self.addr).await?
            }
            None => TcpStream::connect(self.addr).await?,
        };
        s.set_nodelay(true)?;
        Ok(s)
    }

    /// A whole tunnel: TCP, CONNECT and, where asked, TLS.
    pub async fn open(&self) -> io::Result<Conn> {
        let mut s = self.tcp().await?;
        match &self.hello {
            Hello::Nothing => {}
            Hello::Connect(head) => connect(&mut s, head).await?,
            Hello::Socks5(request) => socks5(&mut s, request).await?,
        }
        match &self.tls {
            None => Ok(Conn::Plain(s)),
            Some((c, _, sn)) => Ok(Conn::Tls(Box::new(c.connect(sn.clone(), s).await?))),
        }
    }

    /// `open` with the configured time limit.
    pub async fn open_timed(&self) -> io::Result<Conn> {
        timed(self.timeout, self.open()).await
    }

    /// The same tunnel on a blocking socket (for exact timing in threads).
    pub fn open_blocking(&self) -> io::Result<BlockingConn> {
        use std::io::{Read, Write};
        let mut s = std::net::TcpStream::connect_timeout(&self.addr, self.timeout)?;
        s.set_nodelay(true)?;
        s.set_read_timeout(Some(self.timeout))?;
        match &self.hello {
            Hello::Nothing => {}
            Hello::Connect(request) => {
                s.write_all(request)?;
                let mut head = Vec::new();
                let mut b = [0u8; 1024];
                while find_end(&head).is_none() {
                    let n = s.read(&mut b)?;
                    if n == 0 {
                        return Err(closed("closed during CONNECT"));
                    }
                    head.extend_from_slice(&b[..n]);
                }
                check_status(&head)?;
            }
            Hello::Socks5(request) => {
                s.write_all(&SOCKS5_GREETING)?;
                let mut b = [0u8; 10];
                s.read_exact(&mut b[..2])?;
                s.write_all(request)?;
                s.read_exact(&mut b)?;
                check_socks5(&b)?;
            }
        }
        match &self.tls {
            None => Ok(BlockingConn::Plain(s)),
            Some((_, cfg, sn)) => {
                let c = rustls::ClientConnection::new(cfg.clone(), sn.clone()).map_err(io::Error::other)?;
                Ok(BlockingConn::Tls(Box::new(rustls::StreamOwned::new(c, s))))
            }
        }
    }
}

fn closed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, what)
}

/// Send a CONNECT head and read the answer. A refusal is read to the end of its body, so that closing does not
/// reset a connection on which the proxy is still writing.
async fn connect(s: &mut TcpStream, head: &[u8]) -> io::Result<()> {
    s.write_all(head).await?;
    let mut buf = [0u8; 4096];
    let mut n = 0;
    let end = loop {
        let r = s.read(&mut buf[n..]).await?;
        if r == 0 {
            return Err(closed("closed during CONNECT"));
        }
        n += r;
        if let Some(end) = find_end(&buf[..n]) {
            break end;
        }
        if n == buf.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "head too long"));
        }
    };
    let refused = check_status(&buf[..n]);
    if refused.is_err() {
        let mut left = parse_head(&buf[..end]).map_or(0, |(_, len)| len.saturating_sub(n - end));
        while left > 0 {
            let want = left.min(buf.len());
            match s.read(&mut buf[..want]).await? {
                0 => break,
                r => left -= r,
            }
        }
    }
    refused
}

const SOCKS5_GREETING: [u8; 3] = [5, 1, 0];

/// The greeting, its answer, the request, its answer: two round trips, as clients do.
async fn socks5(s: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    s.write_all(&SOCKS5_GREETING).await?;
    let mut b = [0u8; 10];
    s.read_exact(&mut b[..2]).await?;
    s.write_all(request).await?;
    s.read_exact(&mut b).await?;
    check_socks5(&b)
}

fn socks5_request(name: &str, port: u16) -> Res<Vec<u8>> {
    let mut v = vec![5, 1, 0, 3, u8::try_from(name.len())?];
    v.extend_from_slice(name.as_bytes());
    v.extend_from_slice(&port.to_be_bytes());
    Ok(v)
}

fn check_socks5(reply: &[u8; 10]) -> io::Result<()> {
    match reply[1] {
        0 => Ok(()),
        code => Err(io::Error::other(format!("{REFUSED} SOCKS5 reply {code}"))),
    }
}

/// How the text of a refusal starts.
pub const REFUSED: &str = "CONNECT refused:";

/// Run with a time limit, as an io::Error.
pub async fn timed<T>(d: Duration, f: impl std::future::Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(d, f).await {
        Ok(r) => r,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "timed out")),
    }
}

fn check_status(b: &[u8]) -> io::Result<()> {
    if b.len() >= 12 && b.starts_with(b"HTTP/1.") && &b[8..10] == b" 2" {
        return Ok(());
    }
    let line = b.split(|c| *c == b'\r').next().unwrap_or(b"");
    Err(io::Error::other(format!("{REFUSED} {}", String::from_utf8_lossy(line))))
}

/// Index just past the blank line that ends an HTTP head.
pub fn find_end(b: &[u8]) -> Option<usize> {
    b.windows(4).position(|w| w == b"\r\n\r\n").map(|i| i + 4)
}

/// Content-Length and status of a complete response head.
pub fn parse_head(head: &[u8]) -> io::Result<(u16, usize)> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "bad response head");
    let text = std::str::from_utf8(head).map_err(|_| bad())?;
    let mut lines = text.split("\r\n");
    let status =
        lines.next().and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok()).ok_or_else(bad)?;
    let mut len = None;
    for l in lines {
        if let Some((k, v)) = l.split_once(':')
            && k.eq_ignore_ascii_case("content-length")
        {
            len = v.trim().parse().ok();
        }
    }
    Ok((status, len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no content-length"))?))
}

/// One request, one response with Content-Length; body bytes are discarded.
/// Bytes after the response stay unread. Returns (status, body length).
pub async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    s: &mut S,
    req: &[u8],
    buf: &mut [u8],
) -> io::Result<(u16, usize)> {
    s.write_all(req).await?;
    read_response(s, buf).await
}

/// Read one response; see `exchange`.
pub async fn read_response<S: AsyncRead + Unpin>(s: &mut S, buf: &mut [u8]) -> io::Result<(u16, usize)> {
    let mut n = 0;
    let end = loop {
        let r = s.read(&mut buf[n..]).await?;
        if r == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed before response"));
        }
        n += r;
        if let Some(e) = find_end(&buf[..n]) {
            break e;
        }
        if n == buf.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "head too long"));
        }
    };
    let (status, len) = parse_head(&buf[..end])?;
    let mut got = n - end;
    while got < len {
        let want = buf.len().min(len - got);
        let r = s.read(&mut buf[..want]).await?;
        if r == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed in body"));
        }
        got += r;
    }
    if status != 200 {
        return Err(io::Error::other(format!("status {status}")));
    }
    Ok((status, len))
}

pub fn base64(b: &[u8]) -> String {
    const T: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for c in b.chunks(3) {
        let v = (c[0] as u32) << 16 | (*c.get(1).unwrap_or(&0) as u32) << 8 | *c.get(2).unwrap_or(&0) as u32;
        for i in 0..4 {
            out.push(if i <= c.len() { T[(v >> (18 - 6 * i)) as usize & 63] as char } else { '=' });
        }
    }
    out
}

/// A client stream, plain or TLS.
pub enum Conn {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Conn {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, b: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Conn::Plain(s) => Pin::new(s).poll_read(cx, b),
            Conn::Tls(s) => Pin::new(s.as_mut()).poll_read(cx, b),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, b: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Conn::Plain(s) => Pin::new(s).poll_write(cx, b),
            Conn::Tls(s) => Pin::new(s.as_mut()).poll_write(cx, b),
        }
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Conn::Plain(s) => Pin::new(s).poll_flush(cx),
            Conn::Tls(s) => Pin::new(s.as_mut()).poll_flush(cx),
        }
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Conn::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Conn::Tls(s) => Pin::new(s.as_mut()).poll_shutdown(cx),
        }
    }
}

/// A blocking client stream, plain or TLS.
pub enum BlockingConn {
    Plain(std::net::TcpStream),
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>>),
}

impl io::Read for BlockingConn {
    fn read(&mut self, b: &mut [u8]) -> io::Result<usize> {
        match self {
            BlockingConn::Plain(s) => s.read(b),
            BlockingConn::Tls(s) => s.read(b),
        }
    }
}

impl io::Write for BlockingConn {
    fn write(&mut self, b: &[u8]) -> io::Result<usize> {
        match self {
            BlockingConn::Plain(s) => s.write(b),
            BlockingConn::Tls(s) => s.write(b),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            BlockingConn::Plain(s) => s.flush(),
            BlockingConn::Tls(s) => s.flush(),
        }
    }
}

/// Accept any certificate: the subject is speed, and the origin is ours.
#[derive(Debug)]
struct NoVerify;

impl rustls::client::danger::ServerCertVerifier for NoVerify {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn base64_known() {
        assert_eq!(base64(b"user:pass"), "dXNlcjpwYXNz");
        assert_eq!(base64(b"a"), "YQ==");
        assert_eq!(base64(b"ab"), "YWI=");
    }
    #[test]
    fn head_parsing() {
        let h = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n";
        assert_eq!(find_end(h), Some(h.len()));
        assert_eq!(parse_head(h).unwrap(), (200, 12));
    }
    #[test]
    fn socks5_request_names_host_and_port() {
        assert_eq!(socks5_request("a.test", 443).unwrap(), b"\x05\x01\0\x03\x06a.test\x01\xbb");
    }
}
