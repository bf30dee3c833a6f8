//! Judging the names that aliases lead to, before anybody is asked for them.

use std::sync::Arc;

use super::Gate;
use crate::attempt::Ask;
use crate::decision::Permit;
use crate::hostname::Hostname;
use crate::policy::Sandbox;

/// Judges aliases for one permit, so that a denied name is never resolved. It may outlive the permit, and judges by
/// the policy in force at each moment.
#[derive(Clone, Debug)]
pub struct AliasJudge {
    gate: Arc<Gate>,
    sandbox: Arc<Sandbox>,
    ask: Ask,
}

impl Gate {
    /// A judge of the aliases that a look-up under this permit may follow.
    #[must_use]
    pub fn alias_judge(self: &Arc<Self>, permit: &Permit) -> AliasJudge {
        let (gate, sandbox) = (Arc::clone(self), Arc::clone(permit.sandbox()));
        AliasJudge { gate, sandbox, ask: permit.attempt().ask.clone() }
    }
}

impl AliasJudge {
    /// Whether the name may be asked for: [`Gate::vet`] refuses a chain that holds one that may not.
    #[must_use]
    pub fn allows(&self, alias: &Hostname) -> bool {
        let held = self.gate.in_force.load();
        let view = held.view(self.gate.now());
        let sandbox = held.policy.sandbox(&self.sandbox.id).unwrap_or(&self.sandbox);
        view.judge_alias(sandbox, &self.ask, &[], alias).is_ok()
    }
}
