//! Sandboxes that join and leave a policy one at a time, without compiling the rest of it anew.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use crate::compile::shadowed;
use crate::life::Life;
use crate::policy::Policy;
use crate::sandbox::SandboxId;
use crate::source::{RuleConflict, SandboxSource};

/// Why a sandbox cannot join.
#[derive(Clone, Debug, PartialEq)]
pub enum Clash {
    /// There is one of this name.
    Named,
    /// Some client would be known as this one as well.
    Known(SandboxId),
    /// A plain entry stands beside a rule with methods or paths.
    Shadowed(RuleConflict),
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named => f.write_str("the config has a sandbox of this name"),
            Self::Known(other) => write!(f, "the same clients are known as sandbox {other}"),
            Self::Shadowed(RuleConflict { plain, narrowing }) => {
                write!(f, "rule_shadowed: {plain} allows nothing where {narrowing} limits methods or paths")
            }
        }
    }
}

impl Policy {
    /// Takes a sandbox in.
    ///
    /// # Errors
    /// Why it cannot join; the policy is then as it was.
    pub fn join(&mut self, table: SandboxSource) -> Result<(), Clash> {
        self.join_all([table]).pop().map_or(Ok(()), |(_, clash)| Err(clash))
    }

    /// Takes in those that can join, and tells why the others cannot.
    pub fn join_all(&mut self, tables: impl IntoIterator<Item = SandboxSource>) -> Vec<(SandboxId, Clash)> {
        let mut clashes = Vec::new();
        // Many sandboxes share their policies, and then their conflicts.
        let mut judged = HashSet::new();
        for table in tables {
            let id = table.id.clone();
            if self.sandboxes.contains_key(&id) {
                clashes.push((id, Clash::Named));
                continue;
            }
            if let Some(other) =
                table.identify.iter().find_map(|evidence| self.identities.overlapping(evidence))
            {
                clashes.push((id, Clash::Known(other.clone())));
                continue;
            }
            let sandbox = self.tables.sandbox(table);
            let sets: Vec<_> = sandbox.sets.iter().map(Arc::as_ptr).collect();
            if !judged.contains(&sets) {
                if let Some(conflict) = shadowed(&sandbox.sets).into_iter().next() {
                    clashes.push((id, Clash::Shadowed(conflict)));
                    continue;
                }
                judged.insert(sets);
            }
            for evidence in &sandbox.identify {
                self.identities.insert(&id, evidence);
            }
            self.sandboxes.insert(id, Arc::new(sandbox));
        }
        clashes
    }

    /// Lets a sandbox go: nobody is known as it from then on.
    pub fn leave(&mut self, id: &SandboxId) {
        let Some(sandbox) = self.sandboxes.remove(id) else { return };
        for evidence in &sandbox.identify {
            self.identities.remove(id, evidence);
        }
    }

    /// Puts a sandbox at another place in its life.
    pub fn set_life(&mut self, id: &SandboxId, life: Life) {
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            let mut other = crate::policy::Sandbox::clone(sandbox);
            other.life = life;
            *sandbox = Arc::new(other);
        }
    }
}

#[cfg(test)]
mod tests;
