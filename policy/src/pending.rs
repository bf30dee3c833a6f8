//! Attempts that wait for a person.

use std::sync::Arc;

use crate::approval::Binding;
use crate::attempt::Attempt;
use crate::decision::{Denial, FirstBytes, Unsettled};
use crate::gate::Generation;
use crate::pattern::HostView;
use crate::policy::{Finding, Grant, Sandbox};
use crate::reason::Reason;
use crate::rule::RuleRef;

/// The gate's word that an attempt may not go on before a person has approved it. It is on record once it is resumed or
/// refused.
#[derive(Debug)]
pub struct Pending {
    pub(crate) attempt: Attempt,
    pub(crate) sandbox: Arc<Sandbox>,
    /// What it would be let through with.
    pub(crate) grant: Grant,
    pub(crate) generation: Generation,
}

impl Pending {
    /// The attempt that waits.
    #[must_use]
    pub const fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// The sandbox, as the policy knew it when it decided.
    #[must_use]
    pub const fn sandbox(&self) -> &Arc<Sandbox> {
        &self.sandbox
    }

    /// The rule that asks.
    #[must_use]
    pub const fn rule(&self) -> Option<&RuleRef> {
        self.grant.rule.as_ref()
    }

    /// The generation under which it asks.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// What an approval of it would bind; `None` for a look-up, which has no port.
    #[must_use]
    pub fn binding(&self) -> Option<Binding> {
        Binding::of(&self.sandbox.id, &self.attempt.ask)
    }

    /// Whether the rule names the host itself: not by a wildcard.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.rule().is_some_and(|rule| matches!(rule.rule().host(), HostView::Exact(_)))
    }

    /// What the first bytes of its tunnel would have to be.
    #[must_use]
    pub fn first_bytes(&self) -> FirstBytes {
        self.grant.first_bytes(&self.attempt.ask)
    }

    /// The denial of it. In a namespace its name has an address, so that it exists there.
    pub(crate) fn into_denial(self, reason: Reason) -> Denial {
        let name_exists = self.attempt.peer.namespace.is_some();
        let finding = Finding { reason, rule: self.grant.rule, name_exists };
        Denial::new(self.attempt, Some(self.sandbox), finding, self.generation)
    }
}

impl Unsettled<Pending> {
    /// Waits until it is on record that a look-up was answered with an address which leads nowhere yet.
    ///
    /// # Errors
    /// Where it cannot be and must be: the answer is not to be sent.
    pub async fn settle(self) -> Result<Pending, Denial> {
        match self.receipt.await {
            Ok(()) => Ok(self.value),
            Err(_) => Err(self.value.into_denial(Reason::AuditUnavailable)),
        }
    }
}
