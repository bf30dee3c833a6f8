//! Who asked for a change: a user of this host, or whoever holds a certificate.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who asked. As JSON a number or a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum By {
    /// A user, by the uid that the kernel tells.
    Uid(u32),
    /// A client of the admin listener, by the name in its certificate.
    Certificate(Box<str>),
}

impl By {
    /// The user, if it is one.
    #[must_use]
    pub const fn uid(&self) -> Option<u32> {
        match self {
            Self::Uid(uid) => Some(*uid),
            Self::Certificate(_) => None,
        }
    }

    /// The name in the certificate, if it was by one.
    #[must_use]
    pub fn certificate(&self) -> Option<&str> {
        match self {
            Self::Uid(_) => None,
            Self::Certificate(name) => Some(name),
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "uid {uid}"),
            Self::Certificate(name) => write!(f, "the certificate of {name:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_number_and_a_certificate_a_text() {
        for (by, text) in [(By::Uid(7), "7"), (By::Certificate("spiffe://a/b".into()), "\"spiffe://a/b\"")] {
            assert_eq!(serde_json::to_string(&by).expect("JSON"), text);
            assert_eq!(serde_json::from_str::<By>(text).expect("as it was"), by);
        }
    }
}
