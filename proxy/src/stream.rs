//! The kinds of stream that a client can come in on, as one type.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::tls::TlsStream;

/// How long a silent peer is believed before the kernel asks whether it is still there.
///
/// NATs on the way forget a flow after a few minutes (RFC 5382 asks for two hours and is not obeyed), and a
/// tunnel may rest for an hour, so both sides are kept warm.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);

/// What one read can take. Larger buffers leave the second-level cache; 8 KiB costs twice the CPU in bulk.
pub(crate) const BUFFER: usize = 64 * 1024;

thread_local! {
    static BUFFERS: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into_boxed_slice());
}

/// Lends the thread's buffer for one read, so that no stream owns one while it waits.
pub(crate) fn with_buffer<R>(work: impl FnOnce(&mut ReadBuf<'_>) -> R) -> R {
    BUFFERS.with_borrow_mut(|buffer| work(&mut ReadBuf::new(buffer)))
}

/// A connected byte stream: TCP, a unix socket that stands for one sandbox, or TLS with a client.
#[derive(Debug)]
pub enum Stream {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A unix stream socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Sends small writes at once and lets the kernel notice a dead peer. Failure is not fatal: the stream
    /// works without either.
    pub fn tune(&self) {
        match self {
            Self::Tcp(tcp) => tune(tcp),
            Self::Tls(tls) => tune(tls.tcp()),
            Self::Unix(_) => {}
        }
    }

    /// Lets the kernel notice a dead peer, from now on.
    pub(crate) fn keep_alive(&self) {
        match self {
            Self::Tcp(tcp) => keep_alive(tcp),
            Self::Tls(tls) => keep_alive(tls.tcp()),
            Self::Unix(_) => {}
        }
    }

    /// Makes the close that follows a reset (RFC 1122 §4.2.2.13): the peer learns at once that the stream
    /// was cut, and does not take what it has for the whole. A unix socket can only be closed.
    pub fn reset_on_close(&self) {
        match self {
            // Failing leaves an orderly close, which still ends the stream.
            Self::Tcp(tcp) => drop(tcp.set_zero_linger()),
            Self::Tls(tls) => tls.reset_on_close(),
            Self::Unix(_) => {}
        }
    }

    /// The socket, where its bytes are those of the stream: only then may the kernel move them by itself.
    pub(crate) fn plain(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tcp(tcp) => Some(tcp.as_fd()),
            Self::Unix(unix) => Some(unix.as_fd()),
            Self::Tls(_) => None,
        }
    }

    /// Sends bytes, and waits until the kernel has them.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await?;
        self.flush().await
    }

    /// Reads once, at most [`BUFFER`] bytes, and appends what came. 0 is the end of the stream.
    pub(crate) fn poll_read_more(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        with_buffer(|buffer| {
            ready!(Pin::new(self).poll_read(cx, buffer))?;
            into.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }

    /// [`Stream::poll_read_more`], waited for.
    pub(crate) async fn read_more(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read_more(cx, into)).await
    }

    /// Reads what is there, without waiting.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.try_read(into),
            Self::Unix(unix) => unix.try_read(into),
            // What is there is not what it means.
            Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Ready where a plain socket has something; for TLS only a read can tell.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_read_ready(cx),
            Self::Unix(unix) => unix.poll_read_ready(cx),
            Self::Tls(_) => Poll::Ready(Ok(())),
        }
    }

    /// Ready once everything that was written is with the kernel, and it takes more.
    pub(crate) fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_write_ready(cx),
            Self::Unix(unix) => unix.poll_write_ready(cx),
            Self::Tls(tls) => tls.poll_write_ready(cx),
        }
    }

    /// Runs a system call on the descriptor of a plain socket, and forgets the readiness if it would block.
    pub(crate) fn try_io<R>(
        &self,
        interest: Interest,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        match self {
            Self::Tcp(tcp) => tcp.try_io(interest, || call(tcp.as_fd())),
            Self::Unix(unix) => unix.try_io(interest, || call(unix.as_fd())),
            Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Sets what every TCP stream of a tunnel has: no delay, and keep-alive.
pub(crate) fn tune(tcp: &impl AsFd) {
    send_at_once(tcp);
    keep_alive(tcp);
}

/// Sends small writes at once.
pub(crate) fn send_at_once(tcp: &impl AsFd) {
    let _ = socket2::SockRef::from(tcp).set_tcp_nodelay(true);
}

/// Lets the kernel notice a dead peer.
fn keep_alive(tcp: &impl AsFd) {
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    let _ = socket2::SockRef::from(tcp).set_tcp_keepalive(&keepalive);
}

impl From<TcpStream> for Stream {
    fn from(tcp: TcpStream) -> Self {
        Self::Tcp(tcp)
    }
}

impl From<UnixStream> for Stream {
    fn from(unix: UnixStream) -> Self {
        Self::Unix(unix)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Unix(unix) => Pin::new(unix).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Unix(unix) => Pin::new(unix).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Self::Unix(unix) => Pin::new(unix).poll_write_vectored(cx, bufs),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // These have no buffer of their own.
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
