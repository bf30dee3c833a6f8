//! What is shown of something that could not be read: no secret, no more than fits a line.

use std::fmt::{self, Write as _};

/// At most this much of it is shown.
const SHOWN: usize = 200;

/// Says of a value that was cut how long it was, and which cut values are the same: `...[4160 bytes #85944171f73967e8]`.
///
/// The hash is FNV-1a with 64 bits: it tells values apart for a reader and proves nothing.
#[derive(Clone, Copy, Debug)]
pub struct CutMark<'a>(pub &'a [u8]);

impl fmt::Display for CutMark<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "...[{} bytes #{:016x}]", self.0.len(), fnv1a(self.0))
    }
}

/// The parameters are those of draft-eastlake-fnv.
fn fnv1a(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Each byte as the character of its number, without credentials and queries, cut at 200.
pub(crate) fn shown(bytes: &[u8]) -> Box<str> {
    let bare = without_secrets(bytes);
    let mut text: String = bare.iter().take(SHOWN).copied().map(char::from).collect();
    if bare.len() > SHOWN {
        // Writing to a `String` does not fail.
        let _ = write!(text, "{}", CutMark(&bare));
    }
    text.into()
}

/// Takes out what may stand before an `@` (RFC 9110 section 4.2.4) and what follows a `?`. A target that could not be
/// parsed has no certain borders, so that more goes rather than less.
fn without_secrets(bytes: &[u8]) -> Vec<u8> {
    const HIDDEN: &[u8] = b"***";
    let query = bytes.iter().position(|byte| *byte == b'?');
    let Some(userinfo_end) = bytes.iter().rposition(|byte| *byte == b'@') else {
        return bytes.get(..query.unwrap_or(bytes.len())).unwrap_or(bytes).to_vec();
    };
    let before = bytes.get(..userinfo_end).unwrap_or_default();
    let scheme = before.windows(2).position(|pair| pair == b"//").map_or(0, |slashes| slashes + 2);
    let start = before.get(..scheme).unwrap_or_default();
    // A `?` before the `@`: the rest may belong to the query or to the host.
    let end = match query {
        Some(query) if query < userinfo_end => &[],
        Some(query) => bytes.get(userinfo_end..query).unwrap_or_default(),
        None => bytes.get(userinfo_end..).unwrap_or_default(),
    };
    [start, HIDDEN, end].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_queries_are_never_shown() {
        let cases: [(&str, &str); 8] = [
            ("a b:443", "a b:443"),
            ("http://user:SECRET@web.example/", "http://***@web.example/"),
            ("http://web.example/p?token=SECRET", "http://web.example/p"),
            ("http://user:SEC?RET@web.example/?x=SECRET", "http://***"),
            ("http://web.example/?token=SEC@RET", "http://***"),
            ("http://user:SECRET@web.example/?x=SECRET", "http://***@web.example/"),
            ("user:SECRET@web.example:443", "***@web.example:443"),
            ("SECRET@//", "***@//"),
        ];
        for (sent, expected) in cases {
            assert_eq!(*shown(sent.as_bytes()), *expected, "{sent}");
        }
    }

    #[test]
    fn a_secret_is_gone_before_the_cut() {
        let sent = format!("http://user:{}SECRET@{}", "x".repeat(150), "y".repeat(300));
        let text = shown(sent.as_bytes());
        assert!(!text.contains('x') && !text.contains("SECRET"), "{text}");
        assert!(text.contains("yyy...[311 bytes #"), "{text}");
    }

    #[test]
    fn bytes_that_are_not_text_stay_apart() {
        assert_eq!(*shown(b"\xff\xfe\0"), *"\u{ff}\u{fe}\0");
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // Test vectors of draft-eastlake-fnv, appendix C.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
