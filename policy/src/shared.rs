//! A map that is copied in no time: copies share what neither of them has changed.
//!
//! A policy in force is never changed; another one is put in its place. With ten thousand sandboxes in plain maps a copy
//! for one more costs 8 ms; in 256 shared parts it copies those parts alone that differ.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::Arc;

/// With ten thousand entries a part has about forty.
const PARTS: usize = 256;

/// A hash map in shared parts.
#[derive(Clone)]
pub struct SharedMap<K, V> {
    parts: Box<[Arc<HashMap<K, V>>]>,
    hasher: RandomState,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        let empty = Arc::new(HashMap::new());
        Self { parts: (0..PARTS).map(|_| Arc::clone(&empty)).collect(), hasher: RandomState::new() }
    }
}

impl<K, V> SharedMap<K, V> {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.is_empty())
    }

    /// Every entry, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// Every key, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Every value, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Hash + Eq, V> SharedMap<K, V> {
    /// The value of a key.
    #[must_use]
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.part(key).get(key)
    }

    /// The key as it is held, and its value.
    #[must_use]
    pub fn get_key_value<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.part(key).get_key_value(key)
    }

    /// Whether there is an entry of this key.
    #[must_use]
    pub fn contains_key<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.part(key).contains_key(key)
    }

    #[expect(clippy::indexing_slicing, reason = "the place of a key is below the number of parts")]
    fn part<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> &HashMap<K, V> {
        &self.parts[self.place(key)]
    }

    fn place(&self, key: &(impl Hash + ?Sized)) -> usize {
        // The remainder of a number below 256 is as exact in either type.
        (self.hasher.hash_one(key) % PARTS as u64) as usize
    }
}

impl<K: Hash + Eq + Clone, V: Clone> SharedMap<K, V> {
    /// Puts a value at a key; gives the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.own_part(&key).insert(key, value)
    }

    /// Takes a key out; gives its value.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // What is not there need not be copied to be left out.
        if self.contains_key(key) { self.own_part(key).remove(key) } else { None }
    }

    /// The value of a key, to be changed.
    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.own_part(key).get_mut(key)
    }

    /// The value of a key, to be changed; a default one where there is none.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.own_part(&key).entry(key).or_default()
    }

    #[expect(clippy::indexing_slicing, reason = "the place of a key is below the number of parts")]
    fn own_part(&mut self, key: &(impl Hash + ?Sized)) -> &mut HashMap<K, V> {
        let place = self.place(key);
        Arc::make_mut(&mut self.parts[place])
    }
}

impl<K: Hash + Eq + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_map_from_entries_finds_its_keys_in_many_parts() {
        let map: SharedMap<u16, u8> = (0..2000).map(|key| (key, 7)).collect();
        assert_eq!((map.get_key_value(&5), map.get_key_value(&2000)), (Some((&5, &7)), None));
        assert!(
            map.parts.iter().filter(|part| !part.is_empty()).count() > PARTS / 2,
            "a change copies a part alone"
        );
    }

    proptest! {
        #[test]
        fn a_map_and_its_copy_each_hold_what_a_plain_map_would(
            first in prop::collection::vec((0_u16..600, any::<Option<u8>>()), 0..800),
            then in prop::collection::vec((0_u16..600, any::<Option<u8>>()), 0..40),
        ) {
            let (mut shared, mut plain) = (SharedMap::default(), HashMap::new());
            let change = |shared: &mut SharedMap<u16, u8>, plain: &mut HashMap<u16, u8>, changes: Vec<_>| {
                for (key, value) in changes {
                    let (was, is) = match value {
                        Some(value) => (plain.insert(key, value), shared.insert(key, value)),
                        None => (plain.remove(&key), shared.remove(&key)),
                    };
                    assert_eq!(was, is);
                }
            };
            change(&mut shared, &mut plain, first);
            let (mut copy, mut plain_copy) = (shared.clone(), plain.clone());
            change(&mut copy, &mut plain_copy, then);
            for (shared, plain) in [(&shared, &plain), (&copy, &plain_copy)] {
                let held: HashMap<u16, u8> = shared.iter().map(|(key, value)| (*key, *value)).collect();
                prop_assert_eq!(&held, plain);
                prop_assert_eq!((shared.len(), shared.is_empty()), (plain.len(), plain.is_empty()));
                for key in 0..600 {
                    prop_assert_eq!(shared.get(&key), plain.get(&key));
                    prop_assert_eq!(shared.contains_key(&key), plain.contains_key(&key));
                }
            }
        }
    }
}
