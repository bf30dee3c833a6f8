//! The compiled tables that sandboxes name: policies, the registries that these pull in, and internal tables.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::policy::Sandbox;
use crate::ruleset::RuleSet;
use crate::source::{InternalSource, PolicySource, RegistrySource, SandboxSource};

/// Rule sets by the names that sandboxes write. A sandbox that joins later finds them here.
#[derive(Debug, Default)]
pub struct Tables {
    policies: HashMap<Arc<str>, Arc<RuleSet>>,
    /// The registries that each policy names.
    pinned: HashMap<Arc<str>, Vec<Arc<str>>>,
    internals: HashMap<Arc<str>, Arc<RuleSet>>,
    registries: HashMap<Arc<str>, Arc<RuleSet>>,
}

impl Tables {
    pub(crate) fn compile(
        policies: Vec<PolicySource>,
        internals: Vec<InternalSource>,
        registries: Vec<RegistrySource>,
    ) -> Self {
        let mut all = Self::default();
        for policy in policies {
            all.pinned.insert(Arc::clone(&policy.name), policy.registries);
            let set = RuleSet::new(Arc::clone(&policy.name), policy.place.file, policy.rules);
            let set = set.with_lists(policy.lists);
            all.policies.insert(policy.name, Arc::new(set));
        }
        for table in internals {
            let name = format!("internal.{}", table.name).into();
            let set = RuleSet::new(name, table.place.file, vec![table.rule]);
            all.internals.insert(table.name, Arc::new(set));
        }
        for table in registries {
            let name = format!("registry.{}", table.name).into();
            let set = RuleSet::new(name, table.place.file, table.rules);
            all.registries.insert(table.name, Arc::new(set));
        }
        all
    }

    /// Whether there is a `[policy.NAME]`.
    #[must_use]
    pub fn has_policy(&self, name: &str) -> bool {
        self.policies.contains_key(name)
    }

    /// Whether there is an `[internal.NAME]`.
    #[must_use]
    pub fn has_internal(&self, name: &str) -> bool {
        self.internals.contains_key(name)
    }

    /// The names of the policies, and of the internal tables.
    pub(crate) fn names(&self) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        (self.policies.keys().cloned().collect(), self.internals.keys().cloned().collect())
    }

    /// Every rule set.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Arc<RuleSet>> {
        self.policies.values().chain(self.internals.values()).chain(self.registries.values())
    }

    /// A sandbox with what it names. What does not exist opens nothing.
    pub(crate) fn sandbox(&self, table: SandboxSource) -> Sandbox {
        let named = table.policies.iter().filter_map(|name| self.policies.get(name));
        // Two policies may name one registry.
        let mut seen = HashSet::new();
        let of_policies = table.policies.iter().filter_map(|name| self.pinned.get(name)).flatten();
        let pulled =
            of_policies.filter(|name| seen.insert(*name)).filter_map(|name| self.registries.get(name));
        let opened = table.internal.iter().filter_map(|name| self.internals.get(name));
        let sets = named.chain(pulled).chain(opened).cloned().collect();
        Sandbox {
            id: table.id,
            sets,
            identify: table.identify,
            labels: table.labels,
            mode: table.mode,
            hints: table.hints,
            local_peers: table.local_peers.clone(),
            limits: table.limits,
            owners: table.owners,
            life: table.life,
        }
    }
}
