//! Credentials: a token that a client presents, known to the gateway by its SHA-256 alone.

use std::fmt;
use std::hash::{Hash, Hasher};

/// The SHA-256 of a token.
///
/// Looking one up leaks nothing that helps to guess a token. What is compared are hashes of what clients present, which
/// they cannot steer towards a stored one; the map's own hash is keyed at random for each process; and two hashes are
/// compared in a time that does not depend on where they differ.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; 32]);

/// The SHA-256 of nothing: who pipes an unset variable into a hash gets it.
const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

impl TokenHash {
    /// A digest.
    #[must_use]
    pub const fn new(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// Reads 64 hexadecimal digits, as `sha256sum` prints them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != digest.len() || !rest.is_empty() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let digit = |place: u8| char::from(place).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
        }
        Some(Self(digest))
    }

    /// Whether it is the hash of an empty token.
    #[must_use]
    pub fn is_of_nothing(&self) -> bool {
        Self::parse(OF_NOTHING).as_ref() == Some(self)
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        // `black_box` keeps the loop from being left at the first difference.
        let differing = self.0.iter().zip(&other.0).fold(0, |seen, (a, b)| seen | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl Eq for TokenHash {}

impl Hash for TokenHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A token that was chosen badly could be guessed from it.
        f.write_str("TokenHash")
    }
}

/// What a client presents to be known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A token, with the name of the sandbox where one stands before it (Basic, SOCKS5).
    Token {
        /// The name, as presented.
        name: Option<Box<str>>,
        /// The token's hash.
        hash: TokenHash,
    },
    /// Something that is no token: it is wrong wherever tokens are known.
    Unreadable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_read_as_sha256sum_prints_them() {
        let hash = TokenHash::parse(OF_NOTHING).expect("a hash");
        assert!(hash.is_of_nothing());
        assert_eq!(TokenHash::parse(&OF_NOTHING.to_uppercase()), Some(hash));
        assert_eq!(TokenHash::new([0xff; 32]), TokenHash::parse(&"f".repeat(64)).expect("a hash"));
        let one_off = format!("{}4", &OF_NOTHING[..63]);
        assert!(TokenHash::parse(&one_off).is_some_and(|other| other != hash && !other.is_of_nothing()));
        for text in ["", &OF_NOTHING[1..], &"0".repeat(65), &"0".repeat(66), &"g".repeat(64), &"é".repeat(32)]
        {
            assert_eq!(TokenHash::parse(text), None, "{text}");
        }
    }
}
