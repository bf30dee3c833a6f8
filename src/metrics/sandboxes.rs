//! Counts decisions by sandbox, with a limit on how many sandboxes get a series of their own.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use policy::{Answer, SandboxId};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use super::register;

/// The first sandboxes that act get a series each, the rest share one: a page of metrics stays readable, and a fleet
/// of short-lived sandboxes cannot make it grow.
const NAMED: usize = 100;

/// The label of all sandboxes beyond [`NAMED`].
const OTHER: &str = "other";

/// The label of clients that are no known sandbox.
const UNKNOWN: &str = "unknown";

/// The counters of one label.
#[derive(Clone, Debug)]
struct Counts {
    allow: IntCounter,
    deny: IntCounter,
    ask: IntCounter,
}

impl Counts {
    fn new(all: &IntCounterVec, sandbox: &str) -> Self {
        let series = |answer: Answer| all.with_label_values(&[sandbox, answer.as_str()]);
        Self { allow: series(Answer::Allow), deny: series(Answer::Deny), ask: series(Answer::Ask) }
    }

    fn count(&self, answer: Answer) {
        match answer {
            Answer::Allow => self.allow.inc(),
            Answer::Deny => self.deny.inc(),
            Answer::Ask => self.ask.inc(),
        }
    }
}

/// Decisions by sandbox.
#[derive(Debug)]
pub(super) struct SandboxCounts {
    all: IntCounterVec,
    named: RwLock<HashMap<SandboxId, Counts>>,
    other: Counts,
    unknown: Counts,
}

impl SandboxCounts {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let all = IntCounterVec::new(
            Opts::new(
                "tidegate_sandbox_decisions_total",
                "Attempts by sandbox and decision. The first 100 sandboxes are named, the rest are `other`.",
            ),
            &["sandbox", "decision"],
        );
        let all = register(registry, all)?;
        let (other, unknown) = (Counts::new(&all, OTHER), Counts::new(&all, UNKNOWN));
        Ok(Self { all, named: RwLock::default(), other, unknown })
    }

    pub(super) fn count(&self, sandbox: Option<&SandboxId>, answer: Answer) {
        let Some(sandbox) = sandbox else { return self.unknown.count(answer) };
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = named.get(sandbox) {
            return counts.count(answer);
        }
        if named.len() >= NAMED {
            return self.other.count(answer);
        }
        drop(named);
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        // Others may have filled the last places since.
        if named.len() >= NAMED && !named.contains_key(sandbox) {
            return self.other.count(answer);
        }
        named
            .entry(sandbox.clone())
            .or_insert_with(|| Counts::new(&self.all, sandbox.as_str()))
            .count(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_beyond_the_limit_share_one_series() {
        let counts = SandboxCounts::new(&Registry::new()).expect("a fresh registry");
        for number in 0..NAMED + 5 {
            let id = SandboxId::parse(&format!("s{number}")).expect("a sandbox name");
            counts.count(Some(&id), Answer::Deny);
            counts.count(Some(&id), Answer::Deny);
        }
        counts.count(None, Answer::Deny);
        assert_eq!(counts.named.read().expect("no panic under the lock").len(), NAMED);
        assert_eq!((counts.other.deny.get(), counts.unknown.deny.get()), (10, 1));
    }
}
