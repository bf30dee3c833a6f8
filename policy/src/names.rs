//! Names in little memory: one text, four bytes a name for its place there, and a table of numbers that finds it.
//!
//! ```text
//! text:     api.example.com\nwww.example.org\n
//!           ^0  ^4      ^12  ^16                    "example.com" is stored inside "api.example.com"
//! entries:  {0, value} {16, value} {4, value} …     by number, in the order of insertion
//! slots:    … tag|0 … tag|2 … empty …               open addressing; the tag spares most looks at the text
//! ```
//!
//! A name of 24 bytes costs 35 bytes and its value. The same as a map of strings costs more than 100.

mod hash;

use self::hash::NameHash;

/// Names with a value each, found by name. Names are what [`crate::Hostname`] holds: canonical, without a line break.
#[derive(Clone, Debug)]
pub struct NameTable<T> {
    text: String,
    entries: Vec<Entry<T>>,
    slots: Slots,
    hash: NameHash,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    start: u32,
    value: T,
}

/// The number of a name in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameId(pub(crate) u32);

/// Ends each name in the text.
const END: char = '\n';

impl<T: Default> NameTable<T> {
    /// An empty table with room for so many names, of so many bytes together.
    #[must_use]
    pub fn with_room(names: usize, bytes: usize) -> Self {
        Self {
            // Each name has its end behind it.
            text: String::with_capacity(names + bytes),
            entries: Vec::with_capacity(names),
            slots: Slots::for_names(names),
            hash: NameHash::new(),
        }
    }

    /// Finds a name or adds it with a value of nothing. `None` where the table is full, at 4 GiB of names.
    pub fn insert(&mut self, name: &str) -> Option<NameId> {
        let hash = self.hash.of(name);
        if let Some(found) = self.found(name, hash) {
            return Some(found);
        }
        let start = u32::try_from(self.text.len()).ok()?;
        self.text.push_str(name);
        self.text.push(END);
        self.add(hash, start)
    }

    /// Finds the name above another, or adds it; it shares the other's text. `None` above a single label, or where the
    /// table is full.
    pub fn insert_parent(&mut self, of: NameId) -> Option<NameId> {
        let name = self.name(of);
        let dot = name.bytes().position(|byte| byte == b'.')?;
        let parent = name.get(dot + 1..)?;
        let hash = self.hash.of(parent);
        if let Some(found) = self.found(parent, hash) {
            return Some(found);
        }
        let start = self.entry(of)?.start.checked_add(u32::try_from(dot + 1).ok()?)?;
        self.add(hash, start)
    }

    /// Gives back the room for names that did not come.
    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.entries.shrink_to_fit();
        if self.entries.len() < self.slots.room() / 4 * 3 {
            self.slots = self.placed(self.entries.len());
        }
    }

    /// Adds what stands in the text.
    fn add(&mut self, hash: u64, start: u32) -> Option<NameId> {
        let number = u32::try_from(self.entries.len()).ok()?;
        self.entries.push(Entry { start, value: T::default() });
        if self.entries.len() > self.slots.room() {
            self.slots = self.placed(self.entries.len() * 2);
        } else {
            self.slots.put(hash, number);
        }
        Some(NameId(number))
    }

    /// Slots for so many names, with those that are there in place.
    fn placed(&self, names: usize) -> Slots {
        let mut slots = Slots::for_names(names);
        for (entry, number) in self.entries.iter().zip(0..) {
            slots.put(self.hash.of(name_at(&self.text, entry.start)), number);
        }
        slots
    }
}

impl<T: Default> Default for NameTable<T> {
    fn default() -> Self {
        Self::with_room(0, 0)
    }
}

impl<T> NameTable<T> {
    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&T> {
        self.find(name).and_then(|found| self.value(found))
    }

    /// The number of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NameId> {
        self.found(name, self.hash.of(name))
    }

    fn found(&self, name: &str, hash: u64) -> Option<NameId> {
        let is_it = |number: u32| {
            let place = self.entries.get(number as usize).map(|entry| entry.start as usize);
            let rest = place.and_then(|start| self.text.as_bytes().get(start..));
            rest.and_then(|rest| rest.strip_prefix(name.as_bytes()))
                .is_some_and(|rest| rest.first() == Some(&b'\n'))
        };
        self.slots.find(hash, is_it).map(NameId)
    }

    /// The value behind a number.
    #[must_use]
    pub fn value(&self, id: NameId) -> Option<&T> {
        self.entry(id).map(|entry| &entry.value)
    }

    /// The value behind a number, to be changed.
    pub fn value_mut(&mut self, id: NameId) -> Option<&mut T> {
        self.entries.get_mut(id.0 as usize).map(|entry| &mut entry.value)
    }

    /// The name behind a number; empty for a number of another table.
    #[must_use]
    pub fn name(&self, id: NameId) -> &str {
        self.entry(id).map_or("", |entry| name_at(&self.text, entry.start))
    }

    /// How many names it holds, parents included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entry(&self, id: NameId) -> Option<&Entry<T>> {
        self.entries.get(id.0 as usize)
    }
}

fn name_at(text: &str, start: u32) -> &str {
    let rest = text.get(start as usize..).unwrap_or_default();
    // Names are short: a plain loop is faster than `split_once`, which sets up a vectorised search for each.
    let end = rest.bytes().position(|byte| byte == b'\n').unwrap_or(rest.len());
    rest.get(..end).unwrap_or_default()
}

/// Where the numbers of names lie by hash: the first free place from the one that the hash points at.
#[derive(Clone, Debug)]
struct Slots {
    slots: Vec<u32>,
    /// How many bits of a slot hold the number; those above hold a tag from the hash.
    bits: u32,
}

const EMPTY: u32 = u32::MAX;

impl Slots {
    /// Two thirds are filled at most: then a name that is not there is known after five places on average (Knuth,
    /// volume 3, section 6.4), most often in one cache line.
    fn for_names(names: usize) -> Self {
        // One number more than there are, so that none with any tag reads as empty.
        let bits = usize::BITS - (names + 1).leading_zeros();
        Self { slots: vec![EMPTY; names + names / 2 + 1], bits: bits.min(31) }
    }

    /// How many names fit in.
    fn room(&self) -> usize {
        self.slots.len() / 3 * 2
    }

    fn tag(&self, hash: u64) -> u32 {
        (hash as u32) << self.bits
    }

    fn first(&self, hash: u64) -> usize {
        // The high half as a fraction of the table (Lemire, 2016): no division, and the length need be no power of two.
        (((hash >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    fn put(&mut self, hash: u64, number: u32) {
        let (tag, first) = (self.tag(hash), self.first(hash));
        let (before, from) = self.slots.split_at_mut(first);
        if let Some(free) = from.iter_mut().chain(before).find(|slot| **slot == EMPTY) {
            *free = tag | number;
        }
    }

    fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let (tag, first) = (self.tag(hash), self.first(hash));
        let mask = (1 << self.bits) - 1;
        let (before, from) = self.slots.split_at(first);
        for slot in from.iter().chain(before) {
            if *slot == EMPTY {
                return None;
            }
            if slot & !mask == tag && is_it(slot & mask) {
                return Some(slot & mask);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_parent_shares_the_text_of_its_child() {
        let mut table = NameTable::<u8>::default();
        let child = table.insert("api.example.com").expect("room");
        let parent = table.insert_parent(child).expect("a parent");
        assert_eq!((table.name(parent), table.text.as_str()), ("example.com", "api.example.com\n"));
        assert_eq!(table.insert("example.com"), Some(parent));
        let top = table.insert_parent(parent).expect("a parent");
        assert_eq!(table.insert_parent(top), None);
        assert_eq!(table.name(top), "com");
        assert_eq!((table.len(), table.is_empty(), NameTable::<u8>::default().is_empty()), (3, false, true));
    }

    #[test]
    fn what_is_part_of_a_name_or_goes_past_its_end_is_not_found() {
        let mut table = NameTable::<u8>::default();
        table.insert("api.example.com");
        table.insert("b.test");
        for absent in ["", "api", "api.example.co", "example.com", "api.example.com.b.test", "b", "test"] {
            assert_eq!(table.find(absent), None, "{absent}");
        }
    }

    #[test]
    fn a_hundred_thousand_names_cost_few_bytes_each() {
        let mut table = NameTable::<()>::default();
        let names = 100_000;
        (0..names).for_each(|n| assert!(table.insert(&format!("h{n:06}.eleven.example.org")).is_some()));
        table.shrink();
        let bytes = table.text.capacity() + table.entries.capacity() * 4 + table.slots.slots.capacity() * 4;
        assert!(bytes / names <= 27 + 11, "{}", bytes / names);
        assert!((0..names).all(|n| table.find(&format!("h{n:06}.eleven.example.org")).is_some()));
        assert_eq!(table.find("h100000.eleven.example.org"), None);
    }

    #[test]
    fn room_for_names_that_did_not_come_is_given_back() {
        let mut table = NameTable::<()>::with_room(3_000, 60_000);
        (0..100).for_each(|n| assert!(table.insert(&format!("h{n}.example.org")).is_some()));
        table.shrink();
        assert!(
            table.slots.slots.len() < 200 && table.text.capacity() < 2_000 && table.entries.capacity() < 200
        );
        // What is nearly full is left as it is.
        let full = table.slots.slots.as_ptr();
        table.shrink();
        assert_eq!(table.slots.slots.as_ptr(), full);
        assert!((0..100).all(|n| table.find(&format!("h{n}.example.org")).is_some()));
    }

    proptest! {
        #[test]
        fn it_finds_what_a_map_finds(
            names in prop::collection::vec("[ab]{1,2}(\\.[xy]){0,3}", 0..200),
            asked in prop::collection::vec("[ab]{1,2}(\\.[xy]){0,3}", 0..50),
            shrinks in any::<bool>(),
        ) {
            let (mut table, mut map) = (NameTable::<u32>::default(), HashMap::<String, u32>::new());
            for name in &names {
                let mut id = table.insert(name);
                let mut at = Some(name.as_str());
                while let (Some(found), Some(name)) = (id, at) {
                    prop_assert_eq!(table.name(found), name);
                    *table.value_mut(found).expect("a value") += 1;
                    *map.entry(name.to_owned()).or_default() += 1;
                    (id, at) = (table.insert_parent(found), name.split_once('.').map(|(_, parent)| parent));
                }
                prop_assert!(id.is_none() && at.is_none());
            }
            if shrinks {
                table.shrink();
            }
            prop_assert_eq!(table.len(), map.len());
            for name in names.iter().chain(&asked) {
                prop_assert_eq!(table.get(name), map.get(name));
            }
        }
    }
}
