//! Whose clients there are, and what is said to those whose sandbox is over a limit.

use std::sync::Arc;
use std::time::Duration;

use super::Gate;
use crate::attempt::Attempt;
use crate::decision::{Denial, Permit, Unsettled};
use crate::identity::{Identities, Means, Stranger};
use crate::policy::{Finding, Sandbox};
use crate::reason::Reason;
use crate::sandbox::{Peer, SandboxId};

impl Gate {
    /// The sandbox behind a client, as the policy in force knows it.
    ///
    /// # Errors
    /// Why it is no known one.
    pub fn identify(&self, peer: &Peer) -> Result<SandboxId, Stranger> {
        self.in_force.load().policy.identities.identify(peer).cloned()
    }

    /// A sandbox as the policy in force knows it.
    #[must_use]
    pub fn sandbox(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.in_force.load().policy.sandbox(id).cloned()
    }

    /// Whether some sandbox is known by a token.
    #[must_use]
    pub fn takes_tokens(&self) -> bool {
        self.in_force.load().policy.identities.take_tokens()
    }

    /// Refuses an attempt of a sandbox that is over a limit, for which `wait` may help.
    pub fn refuse_over(&self, attempt: Attempt, limit: Reason, wait: Duration) -> Unsettled<Denial> {
        let held = self.in_force.load();
        let now = self.advance(attempt.at);
        let sandbox = attempt.sandbox().and_then(|id| held.policy.sandbox(id)).cloned();
        let denial = Denial::new(attempt, sandbox, Finding::bare(limit), held.generation);
        self.deny(denial.with_wait(wait), now)
    }

    /// Refuses what the policy allows, to a sandbox that is over a limit.
    pub fn refuse_permit_over(&self, permit: Permit, limit: Reason, wait: Duration) -> Unsettled<Denial> {
        let now = self.advance(permit.attempt.at);
        let finding = Finding { rule: permit.grant.rule.clone(), ..Finding::bare(limit) };
        self.deny(permit.into_denial(finding).with_wait(wait), now)
    }
}

/// Whose a client is, and by what that is known.
pub(super) fn recognized(
    identities: &Identities,
    peer: &Peer,
) -> (Result<SandboxId, Stranger>, Option<Means>) {
    let known = identities.recognize(peer);
    (known.map(|(id, _)| id.clone()), known.ok().map(|(_, means)| means))
}
