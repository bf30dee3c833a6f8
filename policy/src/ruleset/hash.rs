//! A fast hash for the names of rules.

use std::hash::{BuildHasherDefault, Hasher};

pub(super) type BuildNameHasher = BuildHasherDefault<NameHasher>;

/// Hashes eight bytes at a time with a folded multiplication (as wyhash does).
///
/// It is no defence against chosen keys and needs to be none: the keys of the table are the author's, and what clients
/// look up puts nothing in. SipHash took half the time of a decision.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameHasher(u64);

/// An odd number without a pattern: the golden ratio's fraction.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl NameHasher {
    fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word ^ MULTIPLIER.rotate_left(32)) * u128::from(MULTIPLIER);
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            self.mix(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn names_spread_over_every_part_of_the_hash() {
        let hash = |name: &str| BuildNameHasher::default().hash_one(name);
        let names =
            (0..4096).map(|n| format!("h{n}.example.com")).chain(["", "a", "b", "aa"].map(str::to_owned));
        let hashes: Vec<u64> = names.map(|name| hash(&name)).collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 4100);
        // hashbrown takes its bucket from the low bits and its tag from the high ones. Thrown at random, 4100 balls
        // leave about 37 % of 4096 boxes empty.
        for part in [|hash: &u64| hash & 0xfff, |hash: &u64| hash >> 52] {
            let filled = hashes.iter().map(part).collect::<HashSet<_>>().len();
            assert!((2400..2800).contains(&filled), "{filled}");
        }
    }
}
