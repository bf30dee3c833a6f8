//! What rules ask for: attempts that wait, and what people have approved.

use std::sync::Arc;
use std::time::Duration;

use super::Gate;
use super::in_force::InForce;
use crate::approval::{Approval, Approvals, Approved};
use crate::attempt::{Attempt, AttemptId};
use crate::decide::{Silent, View};
use crate::decision::{Decision, Denial, Unsettled};
use crate::event::{Answer, DecisionEvent, Event};
use crate::pending::Pending;
use crate::policy::{Policy, Verdict};
use crate::reason::Reason;
use crate::special::LocalAddresses;
use crate::time::Timestamp;

/// Why there is no approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotApproved {
    /// The policy in force allows or denies it.
    #[error("the policy in force does not ask for this any more")]
    NotAsked,
    /// Its sandbox has as many as it may have.
    #[error("the sandbox has {} approvals already; revoke some", crate::approval::MOST)]
    TooMany,
}

/// Whether an attempt still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// It does.
    Still,
    /// It was approved.
    Approved,
    /// The policy has changed: no rule asks for it any more, or its client is another sandbox.
    Changed,
}

/// Whether a rule asks for what was approved, wherever its sandbox is in its life.
pub(super) fn asks(policy: &Policy, local: &LocalAddresses, approval: &Approval, now: Timestamp) -> bool {
    let view = View { policy, local, now, approved: Approved::NONE };
    let sandbox = policy.sandbox(&approval.binding.sandbox);
    sandbox.is_some_and(|sandbox| {
        matches!(view.decide_for(sandbox, &approval.asked, &mut Silent), Verdict::Ask(..))
    })
}

impl Gate {
    /// The same with approvals that stand from the beginning.
    #[must_use]
    pub fn with_approvals(self, approvals: Arc<Approvals>) -> Self {
        self.replace(|held| InForce { approvals: Arc::clone(&approvals), ..held.next() });
        self
    }

    /// The approvals in force. Some may have ended.
    #[must_use]
    pub fn approvals(&self) -> Arc<Approvals> {
        Arc::clone(&self.in_force.load().approvals)
    }

    /// Puts an approval in force. Whoever waits for it is then to be judged anew, with [`Gate::awaits`].
    ///
    /// # Errors
    /// Where it would approve nothing, or its sandbox has too many.
    pub fn approve(&self, approval: Approval, now: Timestamp) -> Result<Arc<Approval>, NotApproved> {
        let (approval, now) = (Arc::new(approval), self.advance(now));
        let mut outcome = Ok(());
        self.in_force.rcu(|held| {
            outcome = if asks(&held.policy, &held.local, &approval, now) {
                Ok(())
            } else {
                Err(NotApproved::NotAsked)
            };
            let all = held.approvals.retaining(|each| each.holds_at(now)).with(&approval);
            match (outcome, all) {
                (Ok(()), Some(all)) => Arc::new(InForce { approvals: Arc::new(all), ..held.next() }),
                (Ok(()), None) => {
                    outcome = Err(NotApproved::TooMany);
                    Arc::clone(held)
                }
                (Err(_), _) => Arc::clone(held),
            }
        });
        outcome.map(|()| approval)
    }

    /// Takes an approval out of force. Live streams are then to be judged anew with [`Gate::still_allows`].
    pub fn revoke(&self, id: AttemptId, now: Timestamp) {
        let now = self.advance(now);
        self.replace(|held| {
            let left = held.approvals.retaining(|each| each.id != id && each.holds_at(now));
            InForce { approvals: Arc::new(left), ..held.next() }
        });
    }

    /// An attempt has ended: an approval for it alone is used up.
    pub(super) fn spend_approval(&self, attempt: &Attempt) {
        if let Some(sandbox) = attempt.sandbox() {
            self.in_force.load().approvals.of(sandbox).iter().for_each(|approval| approval.spend(attempt.id));
        }
    }

    /// Whether an attempt still waits, by the policy and the approvals in force.
    #[must_use]
    pub fn awaits(&self, attempt: &Attempt, now: Timestamp) -> Awaits {
        let (held, now) = (self.in_force.load(), self.advance(now));
        if held.policy.identities.identify(&attempt.peer).ok() != attempt.sandbox() {
            return Awaits::Changed;
        }
        match held.view_for(attempt, now).decide(attempt.identity(), &attempt.ask, &mut Silent) {
            Verdict::Ask(..) => Awaits::Still,
            Verdict::Allow(_, grant) if grant.is_approved() => Awaits::Approved,
            Verdict::Allow(..) | Verdict::Deny(..) => Awaits::Changed,
        }
    }

    /// Decides an attempt anew that has waited: what was approved is judged by the policy in force now.
    pub fn resume(&self, pending: Pending, now: Timestamp) -> Decision {
        let is_same = {
            let held = self.in_force.load();
            held.policy.identities.identify(&pending.attempt.peer).ok() == pending.attempt.sandbox()
        };
        match is_same {
            true => self.check_as(pending.attempt, None, now),
            // Nobody was asked about its client as another sandbox.
            false => Decision::Deny(self.refuse_pending(pending, Reason::PolicyChanged, now)),
        }
    }

    /// Refuses an attempt that waits.
    pub fn refuse_pending(&self, pending: Pending, reason: Reason, now: Timestamp) -> Unsettled<Denial> {
        let now = self.advance(now);
        self.deny(pending.into_denial(reason), now)
    }

    /// Refuses an attempt that would wait, to a sandbox that is over a limit.
    pub fn refuse_pending_over(
        &self,
        pending: Pending,
        limit: Reason,
        wait: Duration,
        now: Timestamp,
    ) -> Unsettled<Denial> {
        let now = self.advance(now);
        self.deny(pending.into_denial(limit).with_wait(wait), now)
    }

    /// Records that a look-up in a namespace was answered by what stands for the name there, although a person must
    /// approve whatever is sent to it.
    pub fn answered_pending(&self, pending: Pending, rcode: u16, now: Timestamp) -> Unsettled<Pending> {
        let now = self.advance(now);
        let receipt = self.observer.record(&Event::Decision(DecisionEvent {
            attempt: &pending.attempt,
            at: now,
            sandbox: Some(&pending.sandbox),
            answer: Answer::Ask,
            reason: Some(Reason::ApprovalPending),
            would_deny: None,
            rule: pending.rule(),
            approval: None,
            generation: pending.generation,
            address: None,
            rcode: Some(rcode),
        }));
        Unsettled::new(pending, receipt)
    }
}
