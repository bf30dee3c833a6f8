//! What people answer to what rules ask: put in force, on record, and told to whoever waits.
//!
//! ```text
//! approve ─▶ in force ─▶ on record ─▶ whoever waits is woken ─▶ answered
//! revoke  ─▶ in force ─▶ tunnels are cut ─▶ on record ─▶ answered
//! ```
//!
//! Questions wait at the proxy's desk, approvals stand in the gate beside the policy. Neither outlives the gateway: after
//! a restart nobody waits any more, and what was approved is asked for again.

use std::sync::Arc;

use policy::{Approval, AttemptId, Consent, SandboxId};
use proxy::Desk;
use proxy::desk::{NotAnswered, Question};

use crate::app::Core;
use crate::audit::{ApprovalChange, By, Notice};
use crate::sandboxes::Span;

/// The answers of people to what one gateway asks.
#[derive(Clone, Debug)]
pub(crate) struct Approvals(Core);

/// What a caller sees of questions and approvals.
#[derive(Debug)]
pub(crate) struct Held {
    /// What waits, the oldest first.
    pub(crate) pending: Vec<Question>,
    /// What was approved and holds, the oldest first.
    pub(crate) approvals: Vec<Arc<Approval>>,
}

impl Approvals {
    /// Those of this gateway.
    pub(crate) const fn of(core: Core) -> Self {
        Self(core)
    }

    /// Where questions wait.
    pub(crate) fn desk(&self) -> &Desk {
        self.0.gateway.desk()
    }

    /// What waits and what was approved, as far as a caller may see it.
    pub(crate) fn held(&self, span: &Span) -> Held {
        let mut pending = self.desk().questions_now();
        pending.retain(|question| self.is_seen(span, &question.binding.sandbox));
        let (now, all) = (dns::clock::now(), self.0.gate.approvals());
        let seen = |approval: &&Arc<Approval>| {
            approval.holds_at(now) && self.is_seen(span, &approval.binding.sandbox)
        };
        let mut approvals: Vec<_> = all.iter().filter(seen).cloned().collect();
        approvals.sort_by_key(|approval| (approval.given_at, approval.id));
        Held { pending, approvals }
    }

    /// Whether a sandbox is there for a caller.
    pub(crate) fn is_seen(&self, span: &Span, sandbox: &SandboxId) -> bool {
        self.0.gate.sandbox(sandbox).is_some_and(|sandbox| span.covers(&sandbox.labels))
    }

    /// Approves a question.
    pub(crate) async fn approve(
        &self,
        id: AttemptId,
        consent: Consent,
        by: &By,
        span: &Span,
    ) -> Result<Arc<Approval>, NotAnswered> {
        let may = |question: &Question| self.is_seen(span, &question.binding.sandbox);
        let approval = self.desk().approve(id, consent, may)?;
        // Before whoever waits is woken, whose line then comes after this one.
        self.note(&approval, ApprovalChange::Approve(approval.term), by).await;
        self.changed();
        Ok(approval)
    }

    /// Declines a question.
    pub(crate) async fn deny(&self, id: AttemptId, by: &By, span: &Span) -> Result<Question, NotAnswered> {
        let may = |question: &Question| self.is_seen(span, &question.binding.sandbox);
        let question = self.desk().deny(id, may)?;
        let notice = Notice::Approval {
            id: question.id,
            binding: &question.binding,
            sandbox: Some(&question.sandbox),
            change: ApprovalChange::Deny,
            asked_at: question.asked_at,
            by,
        };
        // Declined is declined: a lost line is told by the audit itself.
        let _ = self.0.audit.note(notice).await;
        Ok(question)
    }

    /// Takes an approval back: what it let through is cut.
    pub(crate) async fn revoke(&self, id: AttemptId, by: &By, span: &Span) -> Option<Arc<Approval>> {
        let now = dns::clock::now();
        let approval = self.0.gate.approvals().iter().find(|approval| approval.id == id).cloned();
        let approval = approval
            .filter(|approval| approval.holds_at(now) && self.is_seen(span, &approval.binding.sandbox))?;
        self.0.gate.revoke(id, now);
        self.changed();
        self.note(&approval, ApprovalChange::Revoke, by).await;
        Some(approval)
    }

    async fn note(&self, approval: &Approval, change: ApprovalChange, by: &By) {
        let sandbox = self.0.gate.sandbox(&approval.binding.sandbox);
        let notice = Notice::Approval {
            id: approval.id,
            binding: &approval.binding,
            sandbox: sandbox.as_deref(),
            change,
            asked_at: approval.asked_at,
            by,
        };
        // Where the audit is required and lost, nothing is let through by itself.
        let _ = self.0.audit.note(notice).await;
    }

    fn changed(&self) {
        self.0.gateway.policy_changed();
        let generation = self.0.gate.generation();
        self.0.metrics.generation(generation);
        self.0.status.generation(generation);
    }
}
