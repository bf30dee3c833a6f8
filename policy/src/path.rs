//! Path patterns of rules, and which request paths may be compared with them at all.

use std::fmt;

/// A path pattern: segments that are literal, `*` (exactly one segment) or, as the last one, `**` (any rest).
///
/// Compared byte for byte and case-sensitively with the path as sent. `/v1/**` is everything inside: `/v1/` and what is
/// below, not `/v1` itself (as gitignore(5) reads a trailing `/**`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern {
    text: Box<str>,
}

/// Why a path pattern is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPathPattern {
    /// It does not start with a slash.
    #[error("a path pattern starts with `/`")]
    NoSlash,
    /// A star stands beside other characters of a segment.
    #[error("`*` stands for a whole segment")]
    PartialStar,
    /// `**` is not the last segment.
    #[error("`**` can only be the last segment")]
    InnerRest,
    /// It holds a query, a fragment, a control or non-ASCII character, or a segment that two servers could read
    /// differently.
    #[error("a path pattern holds no query, fragment, control character, `.` or `..` segment, or `//`")]
    Ambiguous,
}

impl PathPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Where it is not a path, or a star does not stand for a whole segment.
    pub fn parse(text: &str) -> Result<Self, BadPathPattern> {
        let Some(rest) = text.strip_prefix('/') else { return Err(BadPathPattern::NoSlash) };
        if is_ambiguous(text) || text.contains(['?', '#']) {
            return Err(BadPathPattern::Ambiguous);
        }
        let mut segments = rest.split('/').peekable();
        while let Some(segment) = segments.next() {
            match segment {
                "**" if segments.peek().is_some() => return Err(BadPathPattern::InnerRest),
                "*" | "**" => {}
                other if other.contains('*') => return Err(BadPathPattern::PartialStar),
                _ => {}
            }
        }
        Ok(Self { text: text.into() })
    }

    /// Whether a path, as sent and without its query, matches. A path that two servers could read differently
    /// matches nothing.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        if is_ambiguous(path) {
            return false;
        }
        let mut segments = path.split('/');
        for wanted in self.text.split('/') {
            match (wanted, segments.next()) {
                ("**", Some(_)) => return true,
                ("*", Some(segment)) if !segment.is_empty() => {}
                (literal, Some(segment)) if literal == segment => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether two servers could read a path differently: dot segments, empty segments, backslashes, encoded separators
/// or dots, double encoding, path parameters beside dots, or bytes that are no URI characters (RFC 3986 section 3.3).
pub(crate) fn is_ambiguous(path: &str) -> bool {
    if path.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'\\') || path.contains("//") {
        return true;
    }
    path.split('/').any(|segment| {
        // `..;x` is `..` for servers that cut path parameters.
        let name = segment.split(';').next().unwrap_or_default();
        name == "." || name == ".." || has_dangerous_escape(segment.as_bytes())
    })
}

/// Whether a segment holds an escape that decodes to a dot, a separator, a percent sign or a control byte, or that is
/// no escape at all.
fn has_dangerous_escape(segment: &[u8]) -> bool {
    let mut rest = segment;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        let digit = |place: usize| rest.get(at + place).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(1), digit(2)) else { return true };
        let decoded = high * 16 + low;
        // `.` `/` `\` `;` `%`, and everything below space
        if matches!(decoded, 0x2e | 0x2f | 0x5c | 0x3b | 0x25 | 0x7f) || decoded < 0x20 {
            return true;
        }
        rest = rest.get(at + 3..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> PathPattern {
        PathPattern::parse(text).expect("a pattern")
    }

    #[test]
    fn stars_stand_for_whole_segments() {
        let issues = pattern("/repos/*/*/issues/**");
        for path in ["/repos/a/b/issues/", "/repos/a/b/issues/1", "/repos/a/b/issues/1/comments"] {
            assert!(issues.matches(path), "{path}");
        }
        for path in [
            "/repos/a/issues",
            "/repos/a/b/issues",
            "/repos/a/b/issuesx",
            "/repos//b/issues",
            "/Repos/a/b/issues",
            "/repos/a/b",
            "/Repos/a/b/issues/1",
            "/repos/a/b/issuesx/1",
            "/repos/a/b/pulls/1",
        ] {
            assert!(!issues.matches(path), "{path}");
        }
        assert!(pattern("/a").matches("/a") && !pattern("/a").matches("/a/") && !pattern("/a").matches("/b"));
        assert!(pattern("/x/*").matches("/x/y") && !pattern("/x/*").matches("/x/"));
        assert_eq!(issues.to_string(), "/repos/*/*/issues/**");
        assert!(pattern("/**").matches("/") && pattern("/**").matches("/x/y"));
    }

    #[test]
    fn paths_that_two_servers_read_differently_match_nothing() {
        let public = pattern("/public/**");
        for path in [
            "/public/../admin",
            "/public/./a",
            "/public/%2e%2e/admin",
            "/public/.%2E/admin",
            "/public/..%2fadmin",
            "/public/..\\admin",
            "/public/%5cadmin",
            "/public/%252e%252e/admin",
            "/public/..;/admin",
            "/public/..;x=1/admin",
            "/public//admin",
            "/public/%00",
            "/public/%zz",
            "/public/%",
            "/public/a b",
            "/public/\u{e9}",
        ] {
            assert!(!public.matches(path), "{path}");
        }
    }

    #[test]
    fn ordinary_escapes_match() {
        let public = pattern("/public/**");
        for path in ["/public/a%20b", "/public/%E4%BD%A0", "/public/a;v=1", "/public/a.b..c"] {
            assert!(public.matches(path), "{path}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for text in ["", "public", "/a*", "/**/x", "/a?b", "/a#b", "/../a", "//a", "/a\\b", "/%2e"] {
            assert!(PathPattern::parse(text).is_err(), "{text}");
        }
    }
}
