//! A client's stream inside TLS. What FIN and RST are to TCP, close_notify and its absence are here (RFC 8446 section 6.1).

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream as Session;

/// A TLS session over TCP. Dropping it says close_notify, unless it is to be reset.
#[derive(Debug)]
pub struct TlsStream {
    session: Session<TcpStream>,
    is_reset: AtomicBool,
}

impl TlsStream {
    pub(super) const fn new(session: Session<TcpStream>) -> Self {
        Self { session, is_reset: AtomicBool::new(false) }
    }

    /// The connection below.
    pub(crate) fn tcp(&self) -> &TcpStream {
        self.session.get_ref().0
    }

    /// Makes the close that follows a reset, which no close_notify precedes: the client must not take what it has for the
    /// whole.
    pub(crate) fn reset_on_close(&self) {
        self.is_reset.store(true, Ordering::Relaxed);
        // Failing leaves a close without close_notify, which says the same.
        let _ = self.tcp().set_zero_linger();
    }

    /// Ready once the kernel has everything that was written and takes more.
    pub(crate) fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.session).poll_flush(cx))?;
        self.tcp().poll_write_ready(cx)
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if *self.is_reset.get_mut() {
            return;
        }
        let (tcp, session) = self.session.get_mut();
        session.send_close_notify();
        // As much as the kernel takes now: nobody waits for a client that does not read.
        while session.wants_write() && matches!(session.write_tls(&mut Now(tcp)), Ok(1..)) {}
    }
}

/// Writes what can be written without waiting.
struct Now<'a>(&'a TcpStream);

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().session).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().session).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().session).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().session).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().session).poll_shutdown(cx)
    }
}
