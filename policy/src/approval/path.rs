//! The path that an approval binds, with what lies below it.

use std::fmt;

use crate::path::is_ambiguous;

/// A path and everything below it: `/v1` covers `/v1` and `/v1/a`, not `/v1a`.
///
/// Compared byte for byte with the path as sent. A path that two servers could read differently is below nothing: it is
/// covered by itself alone, as it was shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPrefix(Box<str>);

impl PathPrefix {
    /// The prefix that is a path of a request, without its query.
    #[must_use]
    pub fn of(path: &str) -> Self {
        Self(path.into())
    }

    /// Whether it covers a path, as sent and without its query.
    #[must_use]
    pub fn covers(&self, path: &str) -> bool {
        if *self.0 == *path {
            return true;
        }
        if !self.0.starts_with('/') || is_ambiguous(&self.0) || is_ambiguous(path) {
            return false;
        }
        path.strip_prefix(&*self.0).is_some_and(|rest| self.0.ends_with('/') || rest.starts_with('/'))
    }

    /// This prefix where it covers another one.
    pub(crate) fn above(self, other: &Self) -> Option<Self> {
        self.covers(&other.0).then_some(self)
    }

    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_covers_whole_segments() {
        for (prefix, covered, other) in [
            ("/v1", &["/v1", "/v1/", "/v1/a/b"][..], &["/v1a", "/v", "/", "/V1", "v1"][..]),
            ("/v1/", &["/v1/", "/v1/a"], &["/v1", "/v2/"]),
            ("/", &["/", "/a", "/a/b"], &["", "*", "a"]),
            ("*", &["*"], &["*/a", "/", "/a"]),
            ("", &[""], &["/", "/a"]),
        ] {
            for path in covered {
                assert!(PathPrefix::of(prefix).covers(path), "{prefix} {path}");
            }
            for path in other {
                assert!(!PathPrefix::of(prefix).covers(path), "{prefix} {path}");
            }
        }
    }

    #[test]
    fn a_path_that_two_servers_read_differently_is_covered_by_itself_alone() {
        for path in ["/v1/../admin", "/v1//a", "/v1/%2e%2e/admin", "/v1/..;/a", "/v1/a%2fb", "/v1/\\a"] {
            assert!(!PathPrefix::of("/v1").covers(path), "{path}");
            assert!(!PathPrefix::of("/").covers(path), "{path}");
            assert!(PathPrefix::of(path).covers(path), "{path}");
            assert!(!PathPrefix::of(path).covers(&format!("{path}/b")), "{path}");
        }
    }
}
