//! One side of an exchange: a stream with what was read ahead of its use and what is still to be sent.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use policy::Reason;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::body::{BadBody, Transfer};
use crate::hold::left;
use crate::stream::{BUFFER, Stream, with_buffer};
use crate::tunnel::pipe::{self, Filled, Pipe};
use crate::tunnel::{Gauge, Over};

/// So many reads of this size in a row are the bulk of a body.
const STREAK: u8 = 4;
const LARGE: usize = 16 * 1024;

/// A side that rests keeps no more memory than this for each direction.
const KEPT: usize = 4 * 1024;

/// A body of a refused request up to this size is read and dropped, so that the connection can go on.
pub(crate) const DRAINED: u64 = 64 * 1024;

/// How much a side that is being closed may still send, and for how long, before it is reset.
const LINGER_BYTES: usize = 1024 * 1024;
const LINGER: Duration = Duration::from_secs(1);

/// A stream with its leftovers.
#[derive(Debug)]
pub(crate) struct Leg {
    stream: Stream,
    unread: Vec<u8>,
    used: usize,
    unsent: Vec<u8>,
    sent: usize,
    /// What is to be sent behind that, in the bulk of a large body.
    pipe: Option<Pipe>,
    large_reads: u8,
}

/// Which side of a transfer failed, and how.
#[derive(Debug)]
pub(crate) enum PumpError {
    /// The sender closed too early or was lost.
    Source,
    /// The sender's body is malformed.
    Body,
    /// The receiver was lost.
    Sink,
    /// A limit of the sandbox is reached: not one more byte is taken.
    Over(Reason),
}

impl Leg {
    /// A side on which `unread` has come already.
    pub(crate) fn new(stream: Stream, unread: Vec<u8>) -> Self {
        Self { stream, unread, used: 0, unsent: Vec::new(), sent: 0, pipe: None, large_reads: 0 }
    }

    /// What was read and not used.
    pub(crate) fn unread(&self) -> &[u8] {
        self.unread.get(self.used..).unwrap_or_default()
    }

    /// Notes that so many bytes of [`Self::unread`] have been used.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.used += bytes;
        if self.used >= self.unread.len() {
            self.used = 0;
            rest(&mut self.unread);
        }
    }

    /// Takes everything that was read and not used.
    pub(crate) fn take_unread(&mut self) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.unread);
        all.drain(..std::mem::take(&mut self.used).min(all.len()));
        all
    }

    /// Gives back what was taken and not used. Nothing may have been read since.
    pub(crate) fn put_back(&mut self, bytes: Vec<u8>) {
        self.unread = bytes;
        self.used = 0;
    }

    /// What is to be sent, to append to.
    pub(crate) const fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.unsent
    }

    /// The stream.
    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The stream and what was read ahead of its use.
    pub(crate) fn into_parts(mut self) -> (Stream, Vec<u8>) {
        let unread = self.take_unread();
        (self.stream, unread)
    }

    /// Sends what is to be sent.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(waiting @ [_, ..]) = self.unsent.get(self.sent..) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                wrote => self.sent += wrote,
            }
        }
        self.sent = 0;
        rest(&mut self.unsent);
        while let Some(mut pipe) = self.pipe.take() {
            if pipe.is_empty() {
                pipe.give_back();
                break;
            }
            let ready = self.stream.poll_write_ready(cx);
            let drained =
                if matches!(ready, Poll::Ready(Ok(()))) { pipe.drain(&self.stream) } else { Ok(()) };
            self.pipe = Some(pipe);
            ready!(ready)?;
            match drained {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
                Ok(()) | Err(_) => {}
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Reads once and keeps what came. 0 is the end of the stream.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.stream.poll_read_more(cx, &mut self.unread)
    }

    /// [`Self::poll_fill`], waited for.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        poll_fn(|cx| self.poll_fill(cx)).await
    }

    /// Resolves when the other side ends or fails. What it sends meanwhile is kept.
    pub(crate) async fn left(&mut self) {
        left(&mut self.stream, &mut self.unread).await;
    }

    /// Sends what is to be sent and closes, so that the other side gets all of it.
    ///
    /// A close with bytes unread is a reset, which can overtake what was sent (RFC 9112 §9.6): so what still comes is
    /// read and dropped for a moment.
    pub(crate) async fn finish(mut self) {
        let closing = async {
            poll_fn(|cx| self.poll_flush(cx)).await?;
            self.stream.shutdown().await?;
            self.consume(self.unread.len());
            let mut read = 0;
            while read < LINGER_BYTES {
                match self.fill().await? {
                    0 => break,
                    bytes => {
                        read += bytes;
                        self.consume(bytes);
                    }
                }
            }
            io::Result::Ok(())
        };
        // It is closed either way.
        let _ = timeout(LINGER, closing).await;
    }

    /// Sends what is to be sent, then reads and drops a body of `left` bytes. Returns whether all of it came in time.
    pub(crate) async fn drain(&mut self, mut left: u64, within: Duration) -> bool {
        let draining = async {
            poll_fn(|cx| self.poll_flush(cx)).await?;
            loop {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(self.unread().len());
                self.consume(here);
                left -= here as u64;
                if left == 0 {
                    return io::Result::Ok(true);
                }
                if self.fill().await? == 0 {
                    return Ok(false);
                }
            }
        };
        matches!(timeout(within, draining).await, Ok(Ok(true)))
    }

    /// Carries a body from this side to `sink` until its end, each part as soon as it comes. `gauge` says how much
    /// may be taken, and hears of every byte that was.
    pub(crate) fn poll_pump(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut Self,
        body: &mut Transfer,
        gauge: Gauge<'_>,
    ) -> Poll<Result<(), PumpError>> {
        loop {
            // Before the flush, so that a head and the body that came with it leave together.
            if !body.is_done() && !self.unread().is_empty() && sink.unsent.len() < BUFFER {
                let mut reserved = gauge.reserve(self.unread().len())?;
                let mut input = self.unread().get(..reserved.room()).unwrap_or_default();
                let before = input.len();
                body.digest(&mut input, &mut sink.unsent).map_err(PumpError::from)?;
                let used = before - input.len();
                self.consume(used);
                reserved.took(used);
            }
            ready!(sink.poll_flush(cx)).map_err(|_| PumpError::Sink)?;
            if body.is_done() {
                return Poll::Ready(Ok(()));
            }
            if self.unread().is_empty() {
                let spliced = self.large_reads >= STREAK && ready!(self.poll_splice(cx, sink, body, gauge))?;
                if !spliced {
                    ready!(self.poll_pass(cx, sink, body, gauge))?;
                }
            }
        }
    }

    /// Moves the bulk of a body that needs no look from socket to socket, as a tunnel does: half the CPU of copying it.
    /// `false` where there is nothing to be had this way; a read will tell why.
    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut Self,
        body: &mut Transfer,
        gauge: Gauge<'_>,
    ) -> Poll<Result<bool, PumpError>> {
        // A pipe takes up to its size, which must not reach into the next message.
        let is_plain = self.stream.plain().is_some() && sink.stream.plain().is_some();
        if !is_plain || body.plain(pipe::SIZE) < pipe::SIZE {
            return Poll::Ready(Ok(false));
        }
        ready!(self.stream.poll_read_ready(cx)).map_err(|_| PumpError::Source)?;
        let mut reserved = gauge.reserve(pipe::SIZE)?;
        let Some(mut pipe) = Pipe::borrow() else { return Poll::Ready(Ok(false)) };
        match pipe.fill(&self.stream, reserved.room()).map_err(|_| PumpError::Source)? {
            Filled::Bytes(bytes) => {
                reserved.took(bytes);
                body.passed(bytes);
                if bytes < LARGE {
                    self.large_reads = 0;
                }
                sink.pipe = Some(pipe);
                Poll::Ready(Ok(true))
            }
            Filled::Nothing | Filled::Unsupported => {
                pipe.give_back();
                self.large_reads = 0;
                Poll::Ready(Ok(false))
            }
        }
    }

    /// One read, and one write of what needs no look.
    fn poll_pass(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut Self,
        body: &mut Transfer,
        gauge: Gauge<'_>,
    ) -> Poll<Result<(), PumpError>> {
        let mut reserved = gauge.reserve(BUFFER)?;
        with_buffer(|buffer| {
            let mut buffer = buffer.take(reserved.room());
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)).map_err(|_| PumpError::Source)?;
            let mut got = buffer.filled();
            if got.is_empty() {
                return Poll::Ready(body.closed(&mut sink.unsent).map_err(PumpError::from));
            }
            let before = got.len();
            self.large_reads = if before < LARGE { 0 } else { self.large_reads.saturating_add(1) };
            let (plain, looked_at) = got.split_at_checked(body.plain(got.len())).unwrap_or_default();
            got = looked_at;
            if !plain.is_empty() {
                let wrote = match Pin::new(&mut sink.stream).poll_write(cx, plain) {
                    Poll::Ready(Ok(wrote)) => wrote,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(PumpError::Sink)),
                    Poll::Pending => 0,
                };
                sink.unsent.extend_from_slice(plain.get(wrote..).unwrap_or_default());
                body.passed(plain.len());
            }
            body.digest(&mut got, &mut sink.unsent).map_err(PumpError::from)?;
            reserved.took(before - got.len());
            self.unread.extend_from_slice(got);
            Poll::Ready(Ok(()))
        })
    }
}

impl From<Over> for PumpError {
    fn from(Over(limit): Over) -> Self {
        Self::Over(limit)
    }
}

impl From<BadBody> for PumpError {
    fn from(bad: BadBody) -> Self {
        match bad {
            BadBody::Short => Self::Source,
            BadBody::Chunk(_) => Self::Body,
        }
    }
}

/// Empties a buffer and gives back what is more than a resting stream needs.
fn rest(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT {
        *buffer = Vec::new();
    }
}
