//! Compiling: from the tables that authors wrote to the policy that is served.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::identity::Identities;
use crate::policy::{Policy, Sandbox};
use crate::rule::{Action, RuleRef};
use crate::ruleset::{RuleSet, RuleView};
use crate::source::{RuleConflict, Source};

impl Policy {
    /// Compiles what authors wrote.
    ///
    /// # Errors
    /// Every plain entry that stands beside a rule with methods or paths for the same host and port in one sandbox
    /// (`rule_shadowed`): the entry would look as if it allowed everything there, and allows nothing. Names of
    /// policies, registries and internal tables that do not exist were refused when the file was read; here they open nothing.
    pub fn compile(source: Source) -> Result<Self, Vec<RuleConflict>> {
        let mut sets: HashMap<Arc<str>, Arc<RuleSet>> = HashMap::new();
        let mut pinned: HashMap<Arc<str>, Vec<Arc<str>>> = HashMap::new();
        for policy in source.policies {
            pinned.insert(Arc::clone(&policy.name), policy.registries);
            let set = RuleSet::new(Arc::clone(&policy.name), policy.place.file, policy.rules);
            let set = set.with_lists(policy.lists);
            sets.insert(policy.name, Arc::new(set));
        }
        let mut internals: HashMap<Arc<str>, Arc<RuleSet>> = HashMap::new();
        for table in source.internals {
            let name = format!("internal.{}", table.name).into();
            let set = RuleSet::new(name, table.place.file, vec![table.rule]);
            internals.insert(table.name, Arc::new(set));
        }
        let mut registries: HashMap<Arc<str>, Arc<RuleSet>> = HashMap::new();
        for table in source.registries {
            let name = format!("registry.{}", table.name).into();
            let set = RuleSet::new(name, table.place.file, table.rules);
            registries.insert(table.name, Arc::new(set));
        }
        let evidence = source
            .sandboxes
            .iter()
            .flat_map(|sandbox| sandbox.identify.iter().map(move |evidence| (&sandbox.id, evidence)));
        let identities = Identities::new(evidence);
        let mut conflicts = Vec::new();
        // Many sandboxes share their policies, and then their conflicts.
        let mut judged = HashSet::new();
        let mut sandboxes = HashMap::new();
        for table in source.sandboxes {
            let named = table.policies.iter().filter_map(|name| sets.get(name));
            // Two policies may name one registry.
            let mut seen = HashSet::new();
            let of_policies = table.policies.iter().filter_map(|name| pinned.get(name)).flatten();
            let pulled =
                of_policies.filter(|name| seen.insert(*name)).filter_map(|name| registries.get(name));
            let opened = table.internal.iter().filter_map(|name| internals.get(name));
            let sets: Vec<_> = named.chain(pulled).chain(opened).cloned().collect();
            if judged.insert(sets.iter().map(Arc::as_ptr).collect::<Vec<_>>()) {
                conflicts.extend(shadowed(&sets));
            }
            let sandbox = Sandbox {
                id: table.id.clone(),
                sets,
                labels: table.labels,
                mode: table.mode,
                hints: table.hints,
                limits: table.limits,
                owners: table.owners.clone(),
            };
            sandboxes.insert(table.id, Arc::new(sandbox));
        }
        if conflicts.is_empty() {
            Ok(Self { sandboxes, identities, addresses: source.addresses })
        } else {
            Err(conflicts)
        }
    }
}

/// Finds plain entries beside narrowing rules that cover the same host and a port of theirs.
fn shadowed(sets: &[Arc<RuleSet>]) -> Vec<RuleConflict> {
    let allows = || {
        let rules = sets.iter().flat_map(|set| set.rules().zip(0..).map(move |(rule, at)| (set, at, rule)));
        rules.filter(|(.., rule)| rule.action() == Action::Allow)
    };
    let narrowing: Vec<_> = allows().filter(|(.., rule)| rule.narrows()).collect();
    if narrowing.is_empty() {
        return Vec::new();
    }
    let to_ref = |set: &Arc<RuleSet>, at| RuleRef::new(Arc::clone(set), at);
    let plain = allows().filter(|(.., rule)| !rule.narrows());
    let conflicts = plain.filter_map(|(set, at, plain)| {
        let host = plain.host();
        let hides = |rule: RuleView<'_>| rule.host().covers(host) && rule.ports().overlaps(plain.ports());
        let (other, beside, _) = narrowing.iter().find(|(.., rule)| hides(*rule))?;
        Some(RuleConflict { plain: to_ref(set, at), narrowing: to_ref(other, *beside) })
    });
    conflicts.collect()
}
