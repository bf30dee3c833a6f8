//! Steps of a permit that may be cancelled: whoever leaves in the middle leaves a record.

use super::Gate;
use crate::decision::Permit;
use crate::reason::Reason;

/// A step of a permit: a look-up, or a connection that is being made. Dropped before [`UnderWay::over`], as where a
/// client's namespace closes meanwhile, the attempt is on record as let through and failed: an origin or a name server
/// may have seen it.
#[derive(Debug)]
#[must_use = "dropped, it records that the step was cancelled"]
pub struct UnderWay<'a> {
    gate: &'a Gate,
    permit: &'a Permit,
    reason: Reason,
    over: bool,
}

impl Gate {
    /// Begins a step of a permit; cancelled, it has failed for `reason`, one of the `upstream_*` ones.
    pub const fn under_way<'a>(&'a self, permit: &'a Permit, reason: Reason) -> UnderWay<'a> {
        UnderWay { gate: self, permit, reason, over: false }
    }
}

impl UnderWay<'_> {
    /// The step has come to its end, whatever that is: the permit goes on, and is recorded later.
    pub fn over(mut self) {
        self.over = true;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.over {
            // Nobody waits for an answer any more, so nobody waits for the record either.
            drop(self.gate.record_allow(self.permit, self.gate.now(), Some(self.reason), None, None));
        }
    }
}
