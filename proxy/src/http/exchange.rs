//! One request and its response between two connections: both bodies at once, each byte as it comes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use policy::Reason;
use tokio::time::Instant;

use super::body::Transfer;
use super::leg::{Leg, PumpError};
use super::response::{Asked, BadResponse, Relayed, Scan, relay};
use crate::tunnel::{Expired, Meter, expired};

/// What a client may send ahead of the next request before it is left in the kernel.
const READ_AHEAD: usize = 32 * 1024;

/// A client that closes its sending side so soon after its request only says that nothing more follows (`nc -N`);
/// later it has gone away.
const SAYS_LAST: Duration = Duration::from_secs(1);

/// One request whose head stands in the upstream's outbox, and the way back.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    /// The side that asked.
    pub(crate) client: &'a mut Leg,
    /// The side that answers.
    pub(crate) upstream: &'a mut Leg,
    /// What was asked.
    pub(crate) asked: &'a Asked,
    /// The request's body on its way up.
    pub(crate) body: Transfer,
    /// Counts the bytes and ends the exchange from outside.
    pub(crate) meter: &'a Meter,
    /// Where the exchange is part of a tunnel: ends it from outside as well.
    pub(crate) tunnel: Option<&'a Meter>,
    /// An exchange with no byte either way for this long is ended.
    pub(crate) idle: Duration,
}

/// How an exchange ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The response was passed on to its end.
    Whole {
        /// Whether the client's connection may carry another request.
        keep_client: bool,
        /// Whether the upstream's connection may carry another request.
        keep_upstream: bool,
    },
    /// The upstream has changed to the protocol that was asked for: the rest is a tunnel.
    Switched,
    /// There is no final response, and the client is to be told why.
    Unanswered(Fault),
    /// The response had begun and cannot be brought to its end.
    Cut {
        /// Whether its end can be taken for that of the response, unless the connection is reset.
        unframed: bool,
    },
    /// The client went away.
    ClientGone,
    /// A limit of the sandbox was reached.
    Over(Reason),
    /// [`Meter::kill`] ended it.
    Killed,
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The upstream closed before it said anything: a connection that was kept too long ends so.
    Silent,
    /// The upstream closed within the head of its response.
    Closed,
    /// The upstream answered something that is not passed on.
    Bad(BadResponse),
    /// The upstream did not answer in time.
    Slow,
    /// The body of the request is malformed.
    Body,
}

impl Fault {
    /// The reason that the record of the exchange's end carries.
    pub(crate) const fn reason(self) -> Reason {
        match self {
            Self::Slow => Reason::UpstreamTimeout,
            Self::Silent | Self::Closed | Self::Bad(_) => Reason::UpstreamConnectFailed,
            Self::Body => Reason::BadRequest,
        }
    }
}

/// The way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Up {
    Sending,
    /// The whole request has been sent; the client is watched for its going away.
    Sent(Instant),
    /// The same, and nothing more will come from the client.
    Last,
    /// The upstream takes no more of it.
    Refused,
}

/// The way down.
#[derive(Debug)]
enum Down {
    Head(Scan),
    Switching,
    Body { body: Transfer, unframed: bool, keep: Keep },
    Done(Keep),
}

#[derive(Clone, Copy, Debug)]
struct Keep {
    client: bool,
    upstream: bool,
}

impl Exchange<'_> {
    /// Runs it to its end.
    pub(crate) async fn run(mut self) -> Ended {
        let (idle, meter, tunnel) = (self.idle, self.meter, self.tunnel);
        let mut up = Up::Sending;
        let mut down = Down::Head(Scan::default());
        let aged = AtomicBool::new(false);
        let mut expired = pin!(expired(idle, meter, &aged));
        poll_fn(|cx| {
            if meter.poll_killed(cx).is_ready()
                || tunnel.is_some_and(|tunnel| tunnel.poll_killed(cx).is_ready())
            {
                return Poll::Ready(Ended::Killed);
            }
            if meter.is_held() || tunnel.is_some_and(Meter::is_held) {
                return Poll::Pending;
            }
            if let Poll::Ready(ended) = self.poll_up(cx, &mut up, &down) {
                return Poll::Ready(ended);
            }
            if let Poll::Ready(ended) = self.poll_down(cx, up, &mut down) {
                return Poll::Ready(ended);
            }
            let expired = expired.as_mut().poll(cx);
            if aged.swap(false, Ordering::Relaxed) {
                self.upstream.stream().keep_alive();
            }
            if let Expired::Old = ready!(expired) {
                return Poll::Ready(Ended::Over(Reason::LimitLifetime));
            }
            Poll::Ready(match &down {
                Down::Head(_) => Ended::Unanswered(Fault::Slow),
                Down::Body { unframed, .. } => Ended::Cut { unframed: *unframed },
                Down::Switching | Down::Done(_) => Ended::Cut { unframed: false },
            })
        })
        .await
    }

    /// Sends the request, then watches the client. Ready only where the exchange ends here.
    fn poll_up(&mut self, cx: &mut Context<'_>, up: &mut Up, down: &Down) -> Poll<Ended> {
        let Self { client, upstream, body, meter, .. } = self;
        if *up == Up::Sending {
            match ready!(client.poll_pump(cx, upstream, body, meter.upward())) {
                Ok(()) => *up = Up::Sent(Instant::now()),
                // It may have answered before it stopped reading (RFC 9112 §9.5).
                Err(PumpError::Sink) => *up = Up::Refused,
                Err(PumpError::Over(limit)) => return Poll::Ready(Ended::Over(limit)),
                Err(PumpError::Source) => return Poll::Ready(Ended::ClientGone),
                Err(PumpError::Body) if down.answered() => return Poll::Ready(Ended::Cut { unframed: true }),
                Err(PumpError::Body) => return Poll::Ready(Ended::Unanswered(Fault::Body)),
            }
        }
        let Up::Sent(at) = *up else { return Poll::Pending };
        while client.unread().len() < READ_AHEAD {
            match ready!(client.poll_fill(cx)) {
                // The end of the client's sending side does not tell a client that waits from one that has gone, and
                // closing the response is how MCP clients cancel. Early, it is the former: `printf … | nc -N`.
                Ok(0) if !down.answered() && at.elapsed() < SAYS_LAST => {
                    *up = Up::Last;
                    break;
                }
                Ok(0) | Err(_) => return Poll::Ready(Ended::ClientGone),
                Ok(_) => {}
            }
        }
        Poll::Pending
    }

    /// Passes the response on. Ready once the exchange has ended.
    fn poll_down(&mut self, cx: &mut Context<'_>, up: Up, down: &mut Down) -> Poll<Ended> {
        loop {
            let Self { client, upstream, meter, .. } = self;
            match down {
                Down::Head(scan) => match scan.end(upstream.unread()) {
                    Ok(Some(end)) => match self.relay_head(end) {
                        Ok(next) => *down = next,
                        Err(bad) => return Poll::Ready(Ended::Unanswered(Fault::Bad(bad))),
                    },
                    Err(bad) => return Poll::Ready(Ended::Unanswered(Fault::Bad(bad))),
                    Ok(None) => {
                        // An interim response may wait there.
                        let Ok(()) = ready!(client.poll_flush(cx)) else {
                            return Poll::Ready(Ended::ClientGone);
                        };
                        match ready!(upstream.poll_fill(cx)) {
                            Ok(1..) => {}
                            Ok(0) | Err(_) if upstream.unread().is_empty() => {
                                return Poll::Ready(Ended::Unanswered(Fault::Silent));
                            }
                            Ok(0) | Err(_) => return Poll::Ready(Ended::Unanswered(Fault::Closed)),
                        }
                    }
                },
                Down::Switching => {
                    let Ok(()) = ready!(client.poll_flush(cx)) else { return Poll::Ready(Ended::ClientGone) };
                    return Poll::Ready(Ended::Switched);
                }
                Down::Body { body, unframed, keep } => {
                    match ready!(upstream.poll_pump(cx, client, body, meter.downward())) {
                        Ok(()) => *down = Down::Done(*keep),
                        Err(PumpError::Over(limit)) => return Poll::Ready(Ended::Over(limit)),
                        Err(PumpError::Sink) => return Poll::Ready(Ended::ClientGone),
                        Err(PumpError::Source | PumpError::Body) => {
                            return Poll::Ready(Ended::Cut { unframed: *unframed });
                        }
                    }
                }
                Down::Done(keep) => {
                    let sent = matches!(up, Up::Sent(_) | Up::Last);
                    if !sent && up != Up::Refused && keep.upstream && upstream.unread().is_empty() {
                        // Answered before the request was whole. Some origins read on; one that does not, closes.
                        let _ = ready!(upstream.poll_fill(cx));
                    }
                    return Poll::Ready(Ended::Whole {
                        keep_client: sent && keep.client,
                        // Bytes behind the response are not the answer to the next request.
                        keep_upstream: sent && keep.upstream && upstream.unread().is_empty(),
                    });
                }
            }
        }
    }

    /// Writes the head that is `end` bytes long for the client.
    fn relay_head(&mut self, end: usize) -> Result<Down, BadResponse> {
        let head = self.upstream.unread().get(..end).unwrap_or_default();
        let relayed = relay(head, self.asked, self.client.outbox())?;
        self.upstream.consume(end);
        self.meter.add_down(end);
        Ok(match relayed {
            Relayed::Interim => Down::Head(Scan::default()),
            Relayed::Switched => Down::Switching,
            Relayed::Final { from, to, keep_upstream, keep_client } => Down::Body {
                body: Transfer::new(from, to),
                unframed: to == super::body::Extent::UntilClose,
                keep: Keep { client: keep_client, upstream: keep_upstream },
            },
        })
    }
}

impl Down {
    const fn answered(&self) -> bool {
        !matches!(self, Self::Head(_))
    }
}

#[cfg(test)]
mod tests;
