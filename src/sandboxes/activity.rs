//! When sandboxes with an idle timeout last did anything: made an attempt, or moved a byte.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use policy::{Event, Observer, Receipt, SandboxId, Timestamp};

/// The sandboxes that are watched, with what they did last.
#[derive(Debug, Default)]
pub struct Activity {
    /// Whether there is any: most gateways have none, and pay one load for it.
    some: AtomicBool,
    watched: RwLock<HashMap<SandboxId, Watched>>,
}

#[derive(Debug)]
struct Watched {
    timeout: Duration,
    /// In nanoseconds since 1970.
    last: AtomicU64,
    /// What its open streams had carried when they were last looked at.
    bytes: AtomicU64,
}

impl Activity {
    /// Watches a sandbox from now on, or no longer where there is no timeout.
    pub(super) fn watch(&self, id: &SandboxId, timeout: Option<Duration>, now: Timestamp) {
        let mut watched = self.watched.write().unwrap_or_else(PoisonError::into_inner);
        match timeout {
            Some(timeout) => {
                let fresh = Watched { timeout, last: now.nanos().into(), bytes: AtomicU64::new(0) };
                watched.insert(id.clone(), fresh);
            }
            None => {
                watched.remove(id);
            }
        }
        self.some.store(!watched.is_empty(), Ordering::Relaxed);
    }

    /// Whether anybody is watched.
    pub(super) fn watches_some(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// Notes what the open streams of sandboxes have carried by now.
    pub(super) fn carried(&self, sums: &HashMap<SandboxId, u64>, now: Timestamp) {
        for (id, watched) in self.watched.read().unwrap_or_else(PoisonError::into_inner).iter() {
            let sum = sums.get(id).copied().unwrap_or_default();
            // Fewer than before means that one has ended, which is something done as well.
            if watched.bytes.swap(sum, Ordering::Relaxed) != sum {
                watched.touch(now);
            }
        }
    }

    /// Notes that a sandbox is not to be judged by what it did so far: it is paused, or was just resumed.
    pub(super) fn excuse(&self, id: &SandboxId, now: Timestamp) {
        if let Some(watched) = self.watched.read().unwrap_or_else(PoisonError::into_inner).get(id) {
            watched.touch(now);
        }
    }

    /// The sandboxes that have done nothing for as long as their timeout.
    pub(super) fn idle(&self, now: Timestamp) -> Vec<SandboxId> {
        let watched = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        let idle = |watched: &Watched| {
            let last = Timestamp::from_nanos(watched.last.load(Ordering::Relaxed));
            Duration::from_nanos(now.since(last)) >= watched.timeout
        };
        watched.iter().filter(|(_, watched)| idle(watched)).map(|(id, _)| id.clone()).collect()
    }
}

impl Watched {
    fn touch(&self, at: Timestamp) {
        self.last.fetch_max(at.nanos(), Ordering::Relaxed);
    }
}

impl Observer for Activity {
    fn record(&self, event: &Event<'_>) -> Receipt {
        if self.watches_some()
            && let Event::Decision(decision) = event
            && let Some(id) = decision.attempt.sandbox()
        {
            self.excuse(id, decision.at);
        }
        Receipt::written()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_idle_once_nothing_of_it_moved_for_its_timeout() {
        let at = Timestamp::from_secs;
        let id = SandboxId::parse("a").expect("a name");
        let activity = Activity::default();
        activity.watch(&id, Some(Duration::from_secs(10)), at(100));
        assert!(activity.idle(at(109)).is_empty());
        assert_eq!(activity.idle(at(110)), vec![id.clone()]);
        let sums = |bytes| HashMap::from([(id.clone(), bytes)]);
        activity.carried(&sums(5), at(110));
        assert!(activity.idle(at(119)).is_empty());
        activity.carried(&sums(5), at(119));
        assert_eq!(activity.idle(at(120)), vec![id.clone()], "the same sum is nothing new");
        activity.excuse(&id, at(125));
        activity.excuse(&id, at(90));
        assert!(activity.idle(at(130)).is_empty(), "no step back");
        activity.watch(&id, None, at(130));
        assert!(activity.idle(at(999)).is_empty() && !activity.watches_some());
    }
}
