//! One direction of a tunnel: from one stream's end of input to the other stream's half-close.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite};

use super::pipe::{Filled, Pipe, SIZE};
use super::{Failed, Gauge};
use crate::stream::{BUFFER, Stream, with_buffer};

/// A read of this size counts as bulk. Below it a copy is cheaper than moving pages.
const LARGE: usize = 16 * 1024;

/// So many large reads in a row begin the bulk phase, and so many small ones end it.
const STREAK: u8 = 4;

/// So many moves a direction may make before the thread's other tasks get their turn: at most 2 MiB.
const TURN: u32 = 8;

/// One direction.
#[derive(Debug)]
pub(super) struct Flow {
    held: Held,
    phase: Phase,
    end: End,
    stop_at: Option<u8>,
}

/// What was taken from the source and is not yet with the sink.
#[derive(Debug)]
enum Held {
    Nothing,
    Bytes { bytes: Vec<u8>, sent: usize },
    Pipe(Pipe),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Read and write, and count large reads.
    Messages { large: u8 },
    /// Splice, and count small ones.
    Bulk { small: u8 },
    /// One of the sockets cannot be spliced.
    CopyOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// The source has finished; the sink must be told once it has everything.
    Eof,
    /// Both know.
    Done,
}

impl Flow {
    /// A direction whose sink must see `first` before anything else, and which stops before it passes anything on,
    /// should the next byte of the source be `stop_at`.
    pub(super) fn new(first: Vec<u8>, stop_at: Option<u8>) -> Self {
        let held = if first.is_empty() { Held::Nothing } else { Held::Bytes { bytes: first, sent: 0 } };
        Self { held, phase: Phase::Messages { large: 0 }, end: End::Open, stop_at }
    }

    /// Bytes that were taken from the source and are not with the sink.
    pub(super) fn into_held(self) -> Vec<u8> {
        match self.held {
            Held::Bytes { mut bytes, sent } => bytes.split_off(sent.min(bytes.len())),
            Held::Pipe(pipe) => pipe.into_bytes(),
            Held::Nothing => Vec::new(),
        }
    }

    /// Whether both ends know that the source has finished.
    pub(super) fn is_done(&self) -> bool {
        self.end == End::Done
    }

    /// Moves what can be moved now. Ready once the source has finished and the sink has been half-closed;
    /// `gauge` says how much may be taken from the source, and hears of every byte that was. A sink that has `finished` itself needs no half-close: the
    /// close that follows says the same.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
        finished: bool,
        gauge: Gauge<'_>,
    ) -> Poll<Result<(), Failed>> {
        for _ in 0..TURN {
            if self.end == End::Done {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_deliver(cx, sink)).map_err(|_| Failed::Sink)?;
            if self.end == End::Eof {
                // What TLS has not sent yet would be lost with it.
                let ended = if finished {
                    Pin::new(&mut *sink).poll_flush(cx)
                } else {
                    Pin::new(&mut *sink).poll_shutdown(cx)
                };
                ready!(ended).map_err(|_| Failed::Sink)?;
                self.end = End::Done;
                return Poll::Ready(Ok(()));
            }
            // What the sink will not take is better left in the source's receive buffer: its window closes
            // and the sender waits, and no memory of ours is tied up.
            ready!(sink.poll_write_ready(cx)).map_err(|_| Failed::Sink)?;
            match self.phase {
                Phase::Bulk { small } => ready!(self.poll_splice(cx, source, sink, small, gauge))?,
                Phase::Messages { .. } | Phase::CopyOnly => ready!(self.poll_copy(cx, source, sink, gauge))?,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Hands over what is held.
    fn poll_deliver(&mut self, cx: &mut Context<'_>, sink: &mut Stream) -> Poll<io::Result<()>> {
        loop {
            match &mut self.held {
                Held::Nothing => return Poll::Ready(Ok(())),
                Held::Bytes { bytes, sent } => {
                    let rest = bytes.get(*sent..).unwrap_or_default();
                    if rest.is_empty() {
                        self.held = Held::Nothing;
                        return Poll::Ready(Ok(()));
                    }
                    match ready!(Pin::new(&mut *sink).poll_write(cx, rest))? {
                        0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                        wrote => *sent += wrote,
                    }
                }
                Held::Pipe(pipe) => {
                    if pipe.is_empty() {
                        if let Held::Pipe(pipe) = std::mem::replace(&mut self.held, Held::Nothing) {
                            pipe.give_back();
                        }
                        return Poll::Ready(Ok(()));
                    }
                    ready!(sink.poll_write_ready(cx))?;
                    match pipe.drain(sink) {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            }
        }
    }

    /// One read and one write through the thread's buffer.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
        gauge: Gauge<'_>,
    ) -> Poll<Result<(), Failed>> {
        let mut reserved = gauge.reserve(BUFFER)?;
        with_buffer(|buffer| {
            let mut buffer = buffer.take(reserved.room());
            ready!(Pin::new(source).poll_read(cx, &mut buffer)).map_err(|_| Failed::Source)?;
            let got = buffer.filled();
            if got.is_empty() {
                self.end = End::Eof;
                return Poll::Ready(Ok(()));
            }
            reserved.took(got.len());
            if let Some(byte) = self.stop_at.take()
                && got.first() == Some(&byte)
            {
                self.held = Held::Bytes { bytes: got.to_vec(), sent: 0 };
                return Poll::Ready(Err(Failed::Stopped));
            }
            if let Phase::Messages { large } = self.phase {
                self.phase = match large + 1 {
                    _ if got.len() < LARGE => Phase::Messages { large: 0 },
                    STREAK.. if sink.plain().is_none() => Phase::CopyOnly,
                    STREAK.. => Phase::Bulk { small: 0 },
                    large => Phase::Messages { large },
                };
            }
            let wrote = match Pin::new(sink).poll_write(cx, got) {
                Poll::Ready(Ok(wrote)) => wrote,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Sink)),
                Poll::Pending => 0,
            };
            if let Some(rest @ [_, ..]) = got.get(wrote..) {
                self.held = Held::Bytes { bytes: rest.to_vec(), sent: 0 };
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Fills a pipe from the source, if there is one to be had; else, or when nothing comes that way, one
    /// copy, which also waits.
    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
        small: u8,
        gauge: Gauge<'_>,
    ) -> Poll<Result<(), Failed>> {
        ready!(source.poll_read_ready(cx)).map_err(|_| Failed::Source)?;
        let Some(mut pipe) = Pipe::borrow() else {
            return self.poll_copy(cx, source, sink, gauge);
        };
        let mut reserved = gauge.reserve(SIZE)?;
        match pipe.fill(source, reserved.room()).map_err(|_| Failed::Source)? {
            Filled::Bytes(bytes) => {
                reserved.took(bytes);
                self.phase = match small + 1 {
                    _ if bytes >= LARGE => Phase::Bulk { small: 0 },
                    STREAK.. => Phase::Messages { large: 0 },
                    small => Phase::Bulk { small },
                };
                self.held = Held::Pipe(pipe);
                return Poll::Ready(Ok(()));
            }
            Filled::Nothing => {}
            Filled::Unsupported => self.phase = Phase::CopyOnly,
        }
        pipe.give_back();
        drop(reserved);
        self.poll_copy(cx, source, sink, gauge)
    }
}
