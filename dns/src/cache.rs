//! The cache of upstream answers, below policy: what it holds is judged anew at every delivery.
//!
//! Two generations of bounded maps: a full young one becomes the old one and the old one is dropped. A hit in the old
//! one moves the answer back to the young one, so that what is used stays, and nothing ever has to be searched for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use policy::{Hostname, Permit, QType, Version};

use crate::answer::Answer;

/// Answers held at most, both generations together.
const CAPACITY: usize = 10_000;

/// What an answer is kept under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Whose answer it is, where it is not everybody's. A name under a wildcard may be one that only this sandbox knows
    /// of: nobody else may find out by the time an answer takes that it was asked for.
    scope: Option<Version>,
    pub(crate) name: Hostname,
    pub(crate) qtype: QType,
}

impl Key {
    /// The key of a name that a permit lets through.
    pub(crate) fn new(permit: &Permit, name: Hostname, qtype: QType) -> Self {
        Self { scope: (!permit.is_exact()).then(|| Version::of(permit.sandbox())), name, qtype }
    }

    /// The key of a name that is everybody's.
    #[cfg(test)]
    pub(crate) const fn shared(name: Hostname, qtype: QType) -> Self {
        Self { scope: None, name, qtype }
    }
}

/// Answers by name and type.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Arc<Answer>>,
    old: HashMap<Key, Arc<Answer>>,
}

impl Cache {
    /// An answer that still holds.
    pub(crate) fn get(&self, key: &Key, now: Instant) -> Option<Arc<Answer>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match held.young.get(key) {
            Some(answer) => Arc::clone(answer),
            None => {
                let (key, answer) = held.old.remove_entry(key)?;
                held.insert(key, Arc::clone(&answer));
                answer
            }
        };
        found.remaining(now).map(|_| found)
    }

    /// Keeps an answer, if it may be kept.
    pub(crate) fn insert(&self, key: Key, answer: &Arc<Answer>) {
        if answer.keep {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(answer));
        }
    }
}

impl Generations {
    fn insert(&mut self, key: Key, answer: Arc<Answer>) {
        if self.young.len() >= CAPACITY / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, answer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(text: &str) -> Key {
        Key::shared(Hostname::parse(text).unwrap(), QType::A)
    }

    fn answer(ttl: u32, taken: Instant) -> Arc<Answer> {
        Arc::new(Answer::negative(true, Some(ttl), taken))
    }

    #[test]
    fn an_answer_is_over_when_its_time_is() {
        let (cache, start) = (Cache::default(), Instant::now());
        cache.insert(key("a.example"), &answer(2, start));
        assert!(cache.get(&key("a.example"), start + Duration::from_millis(1999)).is_some());
        assert!(cache.get(&key("a.example"), start + Duration::from_secs(2)).is_none());
    }

    #[test]
    fn what_may_not_be_kept_is_not() {
        let (cache, start) = (Cache::default(), Instant::now());
        cache.insert(key("a.example"), &Arc::new(Answer::negative(true, None, start)));
        assert!(cache.get(&key("a.example"), start).is_none());
    }

    #[test]
    fn the_cache_is_bounded_and_what_is_used_stays() {
        let (cache, start) = (Cache::default(), Instant::now());
        cache.insert(key("used.example"), &answer(60, start));
        for place in 0..3 * CAPACITY {
            cache.insert(key(&format!("n{place}.example")), &answer(60, start));
            assert!(cache.get(&key("used.example"), start).is_some(), "after {place}");
        }
        let held = cache.0.lock().unwrap();
        assert!(held.young.len() + held.old.len() <= CAPACITY);
        drop(held);
        assert!(cache.get(&key("n0.example"), start).is_none());
    }
}
