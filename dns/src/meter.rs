//! Meters: how much of something each party has under way.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts what each party has under way, up to a limit. Holds no entry for who has nothing.
#[derive(Debug)]
pub(crate) struct Meter<K: Eq + Hash> {
    limit: usize,
    counts: Mutex<HashMap<K, usize>>,
}

/// One thing under way; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Slot<K: Eq + Hash> {
    meter: Arc<Meter<K>>,
    party: K,
}

impl<K: Eq + Hash + Clone> Meter<K> {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, counts: Mutex::default() })
    }

    /// Takes a slot; `None` where the party has its limit.
    pub(crate) fn enter(self: &Arc<Self>, party: &K) -> Option<Slot<K>> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(party).copied().unwrap_or_default();
        if count >= self.limit {
            return None;
        }
        counts.insert(party.clone(), count + 1);
        drop(counts);
        Some(Slot { meter: Arc::clone(self), party: party.clone() })
    }
}

impl<K: Eq + Hash> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut counts = self.meter.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.party) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_party_at_its_limit_waits_for_itself_only() {
        let meter = Meter::new(2);
        let (first, _second) = (meter.enter(&1), meter.enter(&1));
        assert!(first.is_some() && meter.enter(&1).is_none() && meter.enter(&2).is_some());
        drop(first);
        assert!(meter.enter(&1).is_some());
        drop(_second);
        assert!(meter.counts.lock().unwrap().is_empty());
    }
}
