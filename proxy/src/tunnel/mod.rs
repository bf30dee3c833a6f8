//! The tunnel: copies bytes between a client and its upstream until both have finished.
//!
//! ```text
//! client ──read──▶ per-thread buffer ──write──▶ upstream     small messages
//! client ─splice─▶ borrowed pipe    ─splice──▶ upstream      the bulk phase (Linux)
//! ```
//!
//! Nothing is held while a tunnel waits: the buffer and the pipe belong to the thread and are borrowed for
//! the length of one poll. Only bytes that one side has sent and the other would not take stay with the
//! tunnel. That is what makes an idle tunnel cost two sockets and a few hundred bytes: a relay that keeps
//! one buffer across an await needs 36 KiB (measured with 9,000 tunnels), `copy_bidirectional` 18 KiB.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use policy::Reason;
use tokio::time::{Instant, sleep_until};

use self::flow::Flow;
use crate::stream::Stream;

mod flow;
mod meter;
#[cfg(target_os = "linux")]
pub(crate) mod pipe;
#[cfg(not(target_os = "linux"))]
#[path = "pipe_none.rs"]
pub(crate) mod pipe;
#[cfg(test)]
mod tests;

pub use meter::Meter;
pub(crate) use meter::{Counted, Gauge, Over};

/// The idle limit is looked at this many times in its length, so a tunnel ends between one and one and a
/// quarter limits after its last byte, and no byte has to touch a timer.
const IDLE_LOOKS: u32 = 4;

/// A dialled stream this old gets keep-alive. Most end before, and three system calls are saved for each of them; the
/// first probe comes within 90 s of silence all the same.
const AGED: Duration = Duration::from_secs(30);

/// One tunnel, ready to run.
#[derive(Debug)]
pub struct Tunnel {
    /// The side that asked.
    pub client: Stream,
    /// The side that was dialled.
    pub upstream: Stream,
    /// Bytes that the client has sent already and that the upstream must see first. Whoever took them has counted
    /// them.
    pub to_upstream: Vec<u8>,
    /// Bytes that the upstream has sent already and that the client must see first, counted as well.
    pub to_client: Vec<u8>,
    /// Counts the bytes and ends the tunnel from outside.
    pub meter: Arc<Meter>,
    /// A tunnel with no byte either way for this long is closed. Long-lived streams must keep alive below it.
    pub idle: Duration,
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Bytes taken from the client.
    pub up: u64,
    /// Bytes taken from the upstream.
    pub down: u64,
    /// From the start of the copying to its end.
    pub duration: Duration,
    /// Why it ended.
    pub cause: Cause,
}

/// Why a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Both sides finished; the client did so first.
    ClientEof,
    /// Both sides finished; the upstream did so first.
    UpstreamEof,
    /// The client's stream failed; the upstream was reset.
    ClientReset,
    /// The upstream's stream failed; the client was reset.
    UpstreamReset,
    /// No byte passed either way for the idle limit.
    Idle,
    /// A limit of its sandbox was reached; both sides were reset.
    Over(Reason),
    /// [`Meter::kill`] ended it; both sides were reset.
    Killed,
}

/// Which of a direction's two streams failed, if one did. What the error was says nothing more: a peer that reset, died
/// or became unreachable is gone.
#[derive(Debug)]
enum Failed {
    Source,
    Sink,
    /// Neither: the first byte is one to stop at.
    Stopped,
    /// Neither: a limit of the sandbox is reached.
    Over(Reason),
}

impl From<Over> for Failed {
    fn from(Over(limit): Over) -> Self {
        Self::Over(limit)
    }
}

impl Tunnel {
    /// Copies until both directions have finished, a stream fails, the tunnel idles out or is killed. The streams
    /// close when the tunnel is dropped.
    pub async fn run(&mut self) -> Closed {
        let started = Instant::now();
        // A tunnel that stops nowhere has no other way to end.
        let cause = self.copy(None).await.unwrap_or(Cause::Killed);
        self.end(cause, started)
    }

    /// The same, unless the first byte that the client sends is `first`: then nothing of the client's has been
    /// passed on, and `None` gives the tunnel back with what the client has sent in `to_upstream`.
    pub(crate) async fn run_unless(&mut self, first: u8) -> Option<Closed> {
        let started = Instant::now();
        if self.to_upstream.first() == Some(&first) {
            return None;
        }
        let cause = self.copy(Some(first).filter(|_| self.to_upstream.is_empty())).await?;
        Some(self.end(cause, started))
    }

    fn end(&self, cause: Cause, started: Instant) -> Closed {
        match cause {
            // A peer must not take a cut stream for a whole one.
            Cause::ClientReset | Cause::UpstreamReset | Cause::Over(_) | Cause::Killed => {
                self.client.reset_on_close();
                self.upstream.reset_on_close();
            }
            Cause::ClientEof | Cause::UpstreamEof | Cause::Idle => {}
        }
        Closed { up: self.meter.up(), down: self.meter.down(), duration: started.elapsed(), cause }
    }

    async fn copy(&mut self, stop_at: Option<u8>) -> Option<Cause> {
        let Self { client, upstream, to_upstream, to_client, meter, idle } = self;
        let mut up = Flow::new(mem::take(to_upstream), stop_at);
        let mut down = Flow::new(mem::take(to_client), None);
        let aged = AtomicBool::new(false);
        let mut expired = pin!(expired(*idle, meter, &aged));
        let mut first = None;
        let cause = poll_fn(|cx| {
            if meter.poll_killed(cx).is_ready() {
                return Poll::Ready(Some(Cause::Killed));
            }
            // Its idle time stands still as well: nobody could keep it alive.
            if meter.is_held() {
                return Poll::Pending;
            }
            let finished = (up.is_done(), down.is_done());
            let up = up.poll(cx, client, upstream, finished.1, meter.upward());
            let down = down.poll(cx, upstream, client, finished.0, meter.downward());
            match (&up, &down) {
                (Poll::Ready(Err(Failed::Stopped)), _) | (_, Poll::Ready(Err(Failed::Stopped))) => {
                    return Poll::Ready(None);
                }
                (Poll::Ready(Err(Failed::Over(limit))), _) | (_, Poll::Ready(Err(Failed::Over(limit)))) => {
                    return Poll::Ready(Some(Cause::Over(*limit)));
                }
                (Poll::Ready(Err(Failed::Source)), _) | (_, Poll::Ready(Err(Failed::Sink))) => {
                    return Poll::Ready(Some(Cause::ClientReset));
                }
                (Poll::Ready(Err(Failed::Sink)), _) | (_, Poll::Ready(Err(Failed::Source))) => {
                    return Poll::Ready(Some(Cause::UpstreamReset));
                }
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => {
                    return Poll::Ready(Some(first.unwrap_or(Cause::ClientEof)));
                }
                (Poll::Ready(Ok(())), Poll::Pending) => {
                    first.get_or_insert(Cause::ClientEof);
                }
                (Poll::Pending, Poll::Ready(Ok(()))) => {
                    first.get_or_insert(Cause::UpstreamEof);
                }
                (Poll::Pending, Poll::Pending) => {}
            }
            let expired = expired.as_mut().poll(cx);
            if aged.swap(false, Ordering::Relaxed) {
                upstream.keep_alive();
            }
            expired.map(|expired| match expired {
                Expired::Idle => Some(Cause::Idle),
                Expired::Old => Some(Cause::Over(Reason::LimitLifetime)),
            })
        })
        .await;
        if cause.is_none() {
            *to_upstream = up.into_held();
            *to_client = down.into_held();
        }
        cause
    }
}

/// What time has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    /// No byte has moved for the idle limit.
    Idle,
    /// It has lasted as long as its sandbox allows.
    Old,
}

/// Returns once no byte has moved for `idle`, or the stream's own time is over. Says with `aged`, once, that the stream
/// lives long enough for keep-alive to matter.
pub(crate) async fn expired(idle: Duration, meter: &Meter, aged: &AtomicBool) -> Expired {
    let pause = idle / IDLE_LOOKS;
    // The first look may come early, and then says nothing of silence.
    let (mut wait, mut young) = (pause.min(AGED), Some(aged));
    let mut seen = total(meter);
    let mut quiet = 0;
    while quiet < IDLE_LOOKS {
        let look = Instant::now() + wait;
        sleep_until(meter.ends().map_or(look, |end| end.min(look))).await;
        if meter.ends().is_some_and(|end| end <= Instant::now()) {
            return Expired::Old;
        }
        if let Some(aged) = young.take() {
            aged.store(true, Ordering::Relaxed);
        }
        let now = total(meter);
        quiet = if now == seen && wait == pause { quiet + 1 } else { 0 };
        (seen, wait) = (now, pause);
    }
    Expired::Idle
}

fn total(meter: &Meter) -> u64 {
    meter.up().wrapping_add(meter.down())
}
