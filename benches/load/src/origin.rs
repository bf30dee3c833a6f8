//! Test origin. HTTP/1.1 with keep-alive:
//!   GET /bytes/N   N bytes          POST /echo   the request body back
//!   POST /sink     body discarded   anything     "ok\n"
//! The same over TLS (self-signed, made at start), and a raw TCP port whose
//! first line chooses: `ECHO`, `SINK n` (then "OK\n") or `SOURCE n`.

use crate::common::{Res, guard, runtime};
use crate::conn::find_end;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value = "127.0.0.1:18080")]
    http: SocketAddr,
    #[arg(long, default_value = "127.0.0.1:18443")]
    tls: SocketAddr,
    #[arg(long, default_value = "127.0.0.1:18081")]
    raw: SocketAddr,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[arg(long)]
    allow_non_loopback: bool,
    /// Write the TLS certificate (PEM) here
    #[arg(long)]
    cert_out: Option<String>,
    /// Extra DNS name in the certificate
    #[arg(long, default_value = "allowed.test")]
    name: String,
}

const BLOCK: usize = 256 * 1024;

pub fn listener(a: SocketAddr) -> io::Result<TcpListener> {
    let s = if a.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    s.set_reuseaddr(true)?;
    s.bind(a)?;
    s.listen(65_535)
}

pub fn run(a: Args) -> Res<()> {
    for x in [a.http, a.tls, a.raw] {
        guard(x, a.allow_non_loopback)?;
    }
    let ck =
        rcgen::generate_simple_self_signed(vec![a.name.clone(), "localhost".into(), "127.0.0.1".into()])?;
    if let Some(p) = &a.cert_out {
        std::fs::write(p, ck.cert.pem())?;
    }
    let key = rustls::pki_types::PrivateKeyDer::try_from(ck.signing_key.serialize_der())?;
    let cfg = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![ck.cert.der().clone()], key)?;
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(cfg));
    runtime(a.threads)?.block_on(async move {
        let (h, t, r) = (listener(a.http)?, listener(a.tls)?, listener(a.raw)?);
        eprintln!("origin: http {} tls {} raw {}", a.http, a.tls, a.raw);
        loop {
            tokio::select! {
                Ok((s, _)) = h.accept() => {
                    let _ = s.set_nodelay(true);
                    tokio::spawn(async move { let _ = http(s).await; });
                }
                Ok((s, _)) = t.accept() => {
                    let _ = s.set_nodelay(true);
                    let tls = tls.clone();
                    tokio::spawn(async move {
                        if let Ok(s) = tls.accept(s).await { let _ = http(s).await; }
                    });
                }
                Ok((s, _)) = r.accept() => {
                    let _ = s.set_nodelay(true);
                    tokio::spawn(async move { let _ = raw(s).await; });
                }
                else => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    })
}

/// Serve HTTP/1.1 on one connection until it closes. Buffers grow on demand, so
/// that an idle connection costs the origin little.
async fn http<S: AsyncRead + AsyncWrite + Unpin>(mut s: S) -> io::Result<()> {
    let mut buf: Vec<u8> = Vec::with_capacity(1024);
    let mut out: Vec<u8> = Vec::with_capacity(256);
    loop {
        let end = loop {
            if let Some(e) = find_end(&buf) {
                break e;
            }
            if buf.len() > 64 * 1024 {
                return Ok(());
            }
            if s.read_buf(&mut buf).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&buf[..end]).into_owned();
        let mut path = head.split(' ').nth(1).unwrap_or("/");
        if let Some(rest) = path.strip_prefix("http://") {
            path = rest.find('/').map(|i| &rest[i..]).unwrap_or("/");
        }
        let mut body_len = 0usize;
        let mut chunked = false;
        let mut close = false;
        for l in head.split("\r\n").skip(1) {
            if let Some((k, v)) = l.split_once(':') {
                if k.eq_ignore_ascii_case("content-length") {
                    body_len = v.trim().parse().unwrap_or(0);
                } else if k.eq_ignore_ascii_case("connection") && v.trim().eq_ignore_ascii_case("close") {
                    close = true;
                } else if k.eq_ignore_ascii_case("transfer-encoding") {
                    chunked = true;
                }
            }
        }
        buf.drain(..end);
        if chunked {
            // The load tool never sends chunks, but a proxy may re-frame a body.
            s.write_all(b"HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .await?;
            return Ok(());
        }
        out.clear();
        if path == "/sink" {
            let mut left = body_len - buf.len().min(body_len);
            let used = buf.len().min(body_len);
            buf.drain(..used);
            let mut b = vec![0u8; BLOCK.min(left.max(1))];
            while left > 0 {
                let w = b.len().min(left);
                let n = s.read(&mut b[..w]).await?;
                if n == 0 {
                    return Ok(());
                }
                left -= n;
            }
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n");
        } else {
            while buf.len() < body_len {
                if s.read_buf(&mut buf).await? == 0 {
                    return Ok(());
                }
            }
            if path == "/echo" {
                out.extend_from_slice(
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {body_len}\r\n\r\n").as_bytes(),
                );
                out.extend_from_slice(&buf[..body_len]);
            } else if let Some(n) = path.strip_prefix("/bytes/").and_then(|n| n.parse::<usize>().ok()) {
                out.extend_from_slice(
                    format!("HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {n}\r\n\r\n")
                        .as_bytes(),
                );
                let first = n.min(4096);
                out.resize(out.len() + first, b'x');
                if n > first {
                    s.write_all(&out).await?;
                    out.clear();
                    let block = vec![b'x'; BLOCK];
                    let mut left = n - first;
                    while left > 0 {
                        let w = BLOCK.min(left);
                        s.write_all(&block[..w]).await?;
                        left -= w;
                    }
                }
            } else {
                out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n");
            }
            buf.drain(..body_len);
        }
        if !out.is_empty() {
            s.write_all(&out).await?;
        }
        s.flush().await?;
        if close {
            let _ = s.shutdown().await;
            return Ok(());
        }
    }
}

/// The raw TCP port; see the module text.
async fn raw<S: AsyncRead + AsyncWrite + Unpin>(mut s: S) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let b = s.read_u8().await?;
        if b == b'\n' {
            break;
        }
        line.push(b);
        if line.len() > 64 {
            return Ok(());
        }
    }
    let line = String::from_utf8_lossy(&line).into_owned();
    let mut w = line.split(' ');
    let verb = w.next().unwrap_or("");
    let mut left: usize = w.next().and_then(|x| x.trim().parse().ok()).unwrap_or(0);
    let mut b = vec![b'x'; BLOCK];
    match verb {
        "SINK" => {
            while left > 0 {
                let want = BLOCK.min(left);
                let n = s.read(&mut b[..want]).await?;
                if n == 0 {
                    return Ok(());
                }
                left -= n;
            }
            s.write_all(b"OK\n").await?;
        }
        "SOURCE" => {
            while left > 0 {
                let n = BLOCK.min(left);
                s.write_all(&b[..n]).await?;
                left -= n;
            }
        }
        _ => loop {
            let n = s.read(&mut b).await?;
            if n == 0 {
                return Ok(());
            }
            s.write_all(&b[..n]).await?;
        },
    }
    s.shutdown().await
}
