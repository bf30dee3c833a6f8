//! Compiling: from the tables that authors wrote to the policy that is served.

use std::collections::HashSet;
use std::sync::Arc;

use crate::identity::Identities;
use crate::policy::Policy;
use crate::rule::{Action, RuleRef};
use crate::ruleset::{RuleSet, RuleView};
use crate::shared::SharedMap;
use crate::source::{RuleConflict, Source};
use crate::tables::Tables;

impl Policy {
    /// Compiles what authors wrote.
    ///
    /// # Errors
    /// Every plain entry that stands beside a rule with methods or paths for the same host and port in one sandbox
    /// (`rule_shadowed`): the entry would look as if it allowed everything there, and allows nothing. Names of
    /// policies, registries and internal tables that do not exist were refused when the file was read; here they open nothing.
    pub fn compile(source: Source) -> Result<Self, Vec<RuleConflict>> {
        let tables = Tables::compile(source.policies, source.internals, source.registries);
        let evidence = source
            .sandboxes
            .iter()
            .flat_map(|sandbox| sandbox.identify.iter().map(move |evidence| (&sandbox.id, evidence)));
        let identities = Identities::new(evidence);
        let mut conflicts = Vec::new();
        // Many sandboxes share their policies, and then their conflicts.
        let mut judged = HashSet::new();
        let mut sandboxes = SharedMap::default();
        for table in source.sandboxes {
            let sandbox = tables.sandbox(table);
            if judged.insert(sandbox.sets.iter().map(Arc::as_ptr).collect::<Vec<_>>()) {
                conflicts.extend(shadowed(&sandbox.sets));
            }
            sandboxes.insert(sandbox.id.clone(), Arc::new(sandbox));
        }
        if conflicts.is_empty() {
            let tables = Arc::new(tables);
            Ok(Self { sandboxes, identities, addresses: source.addresses, tables })
        } else {
            Err(conflicts)
        }
    }
}

/// Finds plain entries beside narrowing rules that cover the same host and a port of theirs.
pub(crate) fn shadowed(sets: &[Arc<RuleSet>]) -> Vec<RuleConflict> {
    let rules = || sets.iter().flat_map(|set| set.rules().zip(0..).map(move |(rule, at)| (set, at, rule)));
    let narrowing: Vec<_> =
        rules().filter(|(.., rule)| rule.action() != Action::Deny && rule.narrows()).collect();
    if narrowing.is_empty() {
        return Vec::new();
    }
    let to_ref = |set: &Arc<RuleSet>, at| RuleRef::new(Arc::clone(set), at);
    // A plain entry of `ask` beside them is none: whoever asks for the rest is asked for.
    let plain = rules().filter(|(.., rule)| rule.action() == Action::Allow && !rule.narrows());
    let conflicts = plain.filter_map(|(set, at, plain)| {
        let host = plain.host();
        let hides = |rule: RuleView<'_>| rule.host().covers(host) && rule.ports().overlaps(plain.ports());
        let (other, beside, _) = narrowing.iter().find(|(.., rule)| hides(*rule))?;
        Some(RuleConflict { plain: to_ref(set, at), narrowing: to_ref(other, *beside) })
    });
    conflicts.collect()
}
