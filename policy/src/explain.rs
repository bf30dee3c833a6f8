//! Explaining: the decision with its steps, by the very code that serves, and nothing recorded.

use std::net::IpAddr;
use std::sync::Arc;

use crate::approval::Approval;
use crate::attempt::Ask;
use crate::decide::{Silent, View};
use crate::destination::Host;
use crate::event::Answer;
use crate::gate::Resolved;
use crate::policy::{Need, Verdict};
use crate::reason::Reason;
use crate::rule::RuleRef;
use crate::sandbox::SandboxId;

/// A decision with its steps.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What is said to it.
    pub answer: Answer,
    /// Why it is denied, waits or fails; `None` where it is allowed.
    pub reason: Option<Reason>,
    /// The approval that lets through what a rule asks for.
    pub approval: Option<Arc<Approval>>,
    /// In learn mode: what would have denied it.
    pub would_deny: Option<Reason>,
    /// The rule that decides, or the nearest miss.
    pub rule: Option<RuleRef>,
    /// For look-ups: whether a denied name exists as far as the policy tells.
    pub name_exists: bool,
    /// What was looked at, in order.
    pub steps: Vec<String>,
    /// The addresses to vet without a look-up, where the attempt is allowed and they are known.
    pub known_addresses: Option<Vec<IpAddr>>,
}

impl Explanation {
    fn of(verdict: Verdict, ask: &Ask, steps: Vec<String>) -> Self {
        let mut told = Self {
            answer: Answer::Allow,
            reason: None,
            approval: None,
            would_deny: None,
            rule: None,
            name_exists: false,
            steps,
            known_addresses: None,
        };
        match verdict {
            Verdict::Allow(sandbox, grant) => {
                told.steps.push(format!("limits: of sandbox {}: {}", sandbox.id, sandbox.limits));
                if let Some((rule, limits)) =
                    grant.rule.as_ref().and_then(|rule| Some((rule, rule.rule().limits()?)))
                {
                    told.steps.push(format!("limits: of {rule:?}, for each sandbox: {limits}"));
                }
                told.would_deny = grant.would_deny;
                told.known_addresses = match ask.host() {
                    Some(Host::Address(address)) => Some(vec![address]),
                    _ => grant.rule.as_ref().and_then(|rule| rule.rule().internal()?.pinned()),
                };
                told.rule = grant.rule;
                if let Need::Given(approval) = grant.approval {
                    told.approval = Some(approval);
                }
            }
            Verdict::Ask(_, grant) => {
                told.answer = Answer::Ask;
                told.reason = Some(Reason::ApprovalPending);
                told.rule = grant.rule;
            }
            Verdict::Deny(_, finding) => {
                told.answer = Answer::Deny;
                told.reason = Some(finding.reason);
                told.name_exists = finding.name_exists;
                told.rule = finding.rule;
            }
        }
        told
    }
}

impl View<'_> {
    /// Explains an attempt up to resolving.
    #[must_use]
    pub fn explain(&self, sandbox: &SandboxId, ask: &Ask) -> Explanation {
        let mut steps = Vec::new();
        let verdict = self.decide(Ok(sandbox), ask, &mut steps);
        Explanation::of(verdict, ask, steps)
    }

    /// Explains a captured connection up to resolving. Where the name decides that it shows, this is what becomes of one
    /// that shows none: explain the name for any other.
    #[must_use]
    pub fn explain_captured(&self, sandbox: &SandboxId, ask: &Ask) -> Explanation {
        let mut steps = Vec::new();
        if let Some(verdict) = self.decide_captured(Ok(sandbox), ask, &mut steps) {
            return Explanation::of(verdict, ask, steps);
        }
        steps.push(
            "captured: the name that it shows by TLS or Host decides, on this port; it shows none".to_owned(),
        );
        Explanation::of(self.decide(Ok(sandbox), ask, &mut Silent), ask, steps)
    }

    /// Explains what becomes of an allowed attempt once its name has resolved.
    pub fn explain_resolved(
        &self,
        told: &mut Explanation,
        sandbox: &SandboxId,
        ask: &Ask,
        found: Resolved<'_>,
    ) {
        let Some(sandbox) = self.policy.sandbox(sandbox) else { return };
        if told.reason.is_some() {
            return;
        }
        if let Err(reason) = self.vet(sandbox, told.rule.as_ref(), ask, found, &mut told.steps) {
            told.answer = Answer::Deny;
            told.reason = Some(reason);
            told.name_exists = true;
        }
    }
}
