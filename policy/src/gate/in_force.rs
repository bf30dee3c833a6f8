//! What a gate judges by: swapped whole, so that every judgement sees one state of it.

use std::sync::Arc;

use super::Generation;
use super::approvals::asks;
use crate::approval::{Approvals, Approved};
use crate::attempt::Attempt;
use crate::decide::View;
use crate::policy::Policy;
use crate::sandbox::SandboxId;
use crate::special::LocalAddresses;
use crate::time::Timestamp;

/// A policy in force, with the addresses of the gateway's host as they are now.
#[derive(Debug)]
pub(super) struct InForce {
    pub(super) policy: Arc<Policy>,
    pub(super) local: Arc<LocalAddresses>,
    pub(super) approvals: Arc<Approvals>,
    pub(super) generation: Generation,
}

impl InForce {
    /// For attempts that have not come: what was approved for one alone counts for none of them.
    pub(super) fn view(&self, now: Timestamp) -> View<'_> {
        let approved = Approved::standing(&self.approvals);
        View { policy: &self.policy, local: &self.local, now, approved }
    }

    pub(super) fn view_for(&self, attempt: &Attempt, now: Timestamp) -> View<'_> {
        let view = self.view(now);
        View { approved: view.approved.of_attempt(attempt.id, attempt.tunnel), ..view }
    }

    /// The same in the next generation.
    pub(super) fn next(&self) -> Self {
        Self {
            policy: Arc::clone(&self.policy),
            local: Arc::clone(&self.local),
            approvals: Arc::clone(&self.approvals),
            generation: Generation(self.generation.0 + 1),
        }
    }

    /// The approvals that another policy leaves: of what its rules ask for as well. What has ended goes too.
    pub(super) fn approvals_under(&self, policy: &Policy, now: Timestamp) -> Arc<Approvals> {
        if self.approvals.is_empty() {
            return Arc::clone(&self.approvals);
        }
        let is_same = |id: &SandboxId| match (self.policy.sandbox(id), policy.sandbox(id)) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            _ => false,
        };
        Arc::new(self.approvals.retaining(|approval| {
            let stands = || is_same(&approval.binding.sandbox) || asks(policy, &self.local, approval, now);
            approval.holds_at(now) && stands()
        }))
    }
}
