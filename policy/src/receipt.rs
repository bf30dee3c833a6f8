//! Receipts: the promise that an event was written before anybody is answered.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The audit is required and an event could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit log is required and cannot be written")]
pub struct AuditLost;

/// Resolves when an observer has written an event, or cannot.
///
/// An inbound awaits it before it replies, so that every connection that an origin saw has its line, also after a
/// crash.
#[must_use = "an answer must not leave before its event is written"]
pub struct Receipt(State);

enum State {
    Written,
    Lost,
    Waiting(Pin<Box<dyn Future<Output = Result<(), AuditLost>> + Send>>),
}

impl Receipt {
    /// The event is written, or writing it is not required.
    pub const fn written() -> Self {
        Self(State::Written)
    }

    /// The event could not be written, and it is required.
    pub const fn lost() -> Self {
        Self(State::Lost)
    }

    /// The event will have been written, or be lost, when `write` resolves.
    pub fn waiting(write: impl Future<Output = Result<(), AuditLost>> + Send + 'static) -> Self {
        Self(State::Waiting(Box::pin(write)))
    }

    /// Whether nothing need be waited for.
    #[must_use]
    pub const fn is_written(&self) -> bool {
        matches!(self.0, State::Written)
    }

    /// Waits in place, for who holds several: then awaiting the receipt does not wait.
    pub(crate) fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Waiting(write) = &mut self.0 {
            self.0 = match write.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => State::Written,
                Poll::Ready(Err(AuditLost)) => State::Lost,
                Poll::Pending => return Poll::Pending,
            };
        }
        Poll::Ready(())
    }
}

impl Future for Receipt {
    type Output = Result<(), AuditLost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Written => Poll::Ready(Ok(())),
            State::Lost => Poll::Ready(Err(AuditLost)),
            State::Waiting(write) => write.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Written => "Receipt(written)",
            State::Lost => "Receipt(lost)",
            State::Waiting(_) => "Receipt(waiting)",
        })
    }
}
