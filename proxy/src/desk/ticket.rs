//! The place of one attempt among those that wait.

use std::sync::Arc;

use dns::clock::now;
use policy::{AttemptId, Binding, Pending, Reason};
use tokio::sync::oneshot;

use super::{Desk, Outcome};

/// Why an attempt waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// It may be allowed now: the gate is to judge it anew.
    Judge,
    /// A person has declined it.
    Denied,
    /// Nobody has answered in time.
    TimedOut,
    /// Its client has left, or is sent away.
    Left,
}

/// What becomes of an attempt that was to wait.
pub(crate) enum Filed {
    /// It waits.
    Waits(Ticket),
    /// Too many wait.
    Full(Pending),
}

/// An attempt that waits. Dropped before it was woken, it leaves and is on record as one that waited in vain.
#[derive(Debug)]
pub(crate) struct Ticket {
    desk: Arc<Desk>,
    binding: Binding,
    /// The id of the attempt, also once it was given back.
    pub(super) attempt: AttemptId,
    pending: Option<Pending>,
    woken: oneshot::Receiver<Woken>,
}

impl Ticket {
    pub(super) fn new(
        desk: Arc<Desk>,
        binding: Binding,
        pending: Pending,
        woken: oneshot::Receiver<Woken>,
    ) -> Self {
        let attempt = pending.attempt().id;
        Self { desk, binding, attempt, pending: Some(pending), woken }
    }

    /// Waits until it is woken.
    pub(crate) async fn woken(&mut self) -> Woken {
        // The desk wakes before it forgets.
        (&mut self.woken).await.unwrap_or(Woken::Judge)
    }

    /// Gives the attempt back, which waits no longer.
    ///
    /// # Panics
    /// Never: nobody else takes it out.
    #[expect(clippy::expect_used, reason = "taken out here alone, and the ticket is gone then")]
    pub(crate) fn give_back(mut self, woken: Woken) -> Pending {
        let outcome = if woken == Woken::TimedOut { Outcome::TimedOut } else { Outcome::Left };
        self.desk.leave(&self.binding, self.attempt, outcome);
        self.pending.take().expect("the attempt that waits")
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.desk.leave(&self.binding, self.attempt, Outcome::Left);
            // Nobody waits for an answer any more, so nobody waits for the record either.
            drop(self.desk.gate.refuse_pending(pending, Reason::ApprovalPending, now()));
        }
    }
}
