//! What a client presents to be known by: read, hashed and forgotten. The token itself goes no further than this file.

use std::sync::Arc;

use policy::{Credentials, Peer, TokenHash};
use ring::digest::{SHA256, digest};

use crate::http::head::RequestHead;

/// The client as it presents itself with one request: by `Proxy-Authorization`, if there is one.
pub(crate) fn presented(bare: &Peer, head: &RequestHead) -> Peer {
    let mut values = head
        .fields()
        .filter(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization"))
        .map(|(_, value)| value);
    match (values.next(), values.next()) {
        (None, _) => bare.clone(),
        (Some(value), None) => bare.clone().presenting(of_header(value).unwrap_or(Credentials::Unreadable)),
        (Some(_), Some(_)) => bare.clone().presenting(Credentials::Unreadable),
    }
}

/// What a user name and a password of SOCKS5 present (RFC 1929). Clients that were given neither send both empty.
pub(crate) fn of_password(user: &[u8], password: &[u8]) -> Option<Arc<Credentials>> {
    let is_nothing = user.is_empty() && password.is_empty();
    (!is_nothing).then(|| Arc::new(of_pair(user, password).unwrap_or(Credentials::Unreadable)))
}

/// `Basic` (RFC 7617: name and token in base64) or `Bearer` (RFC 6750: the token alone).
fn of_header(value: &[u8]) -> Option<Credentials> {
    let (scheme, rest) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"basic") {
        let pair = base64(rest)?;
        let (name, token) = pair.split_at(pair.iter().position(|byte| *byte == b':')?);
        of_pair(name, token.get(1..)?)
    } else if scheme.eq_ignore_ascii_case(b"bearer") && !rest.is_empty() {
        Some(Credentials::Token { name: None, hash: hash(rest) })
    } else {
        None
    }
}

fn of_pair(name: &[u8], token: &[u8]) -> Option<Credentials> {
    let name = std::str::from_utf8(name).ok()?;
    (!token.is_empty()).then(|| Credentials::Token { name: Some(name.into()), hash: hash(token) })
}

fn hash(token: &[u8]) -> TokenHash {
    let mut bytes = [0; 32];
    // SHA-256 has as many bytes.
    bytes.copy_from_slice(digest(&SHA256, token).as_ref());
    TokenHash::new(bytes)
}

/// RFC 4648 section 4; the padding may be left out, as some clients do.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = text.get(..text.len() - padding)?;
    if padding > 2 || digits.len() % 4 == 1 || (padding > 0 && !text.len().is_multiple_of(4)) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut joined = 0_u32;
        for place in 0..4 {
            joined = joined << 6 | group.get(place).map_or(Some(0), |digit| value(*digit))?;
        }
        let [_, whole @ ..] = joined.to_be_bytes();
        bytes.extend_from_slice(whole.get(..group.len() - 1)?);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: Option<&str>, token: &str) -> Option<Credentials> {
        Some(Credentials::Token { name: name.map(Into::into), hash: hash(token.as_bytes()) })
    }

    #[test]
    fn both_schemes_are_read_whatever_the_case_of_their_names() {
        // "agent-7:t0ken", "agent-7:a:b", "s1:"
        for (value, expected) in [
            ("Basic YWdlbnQtNzp0MGtlbg==", token(Some("agent-7"), "t0ken")),
            ("bAsIc  YWdlbnQtNzp0MGtlbg", token(Some("agent-7"), "t0ken")),
            ("Basic YWdlbnQtNzphOmI=", token(Some("agent-7"), "a:b")),
            ("Bearer t0ken", token(None, "t0ken")),
            ("BEARER t0ken ", token(None, "t0ken")),
        ] {
            assert_eq!(of_header(value.as_bytes()), expected, "{value}");
        }
        for value in [
            "",
            "Basic",
            "Basic ",
            "Bearer",
            "Bearer ",
            "Basic czE6",
            "Basic czE=",
            "Basic YWdlbnQtNzp0MGtlbg=",
            "Basic :",
            "Basic YWdl!nQtNzp0",
            "Digest username=\"a\"",
            "YWdlbnQtNzp0MGtlbg==",
            "Basic YWdlbnQ",
            "Basic /zp0",
        ] {
            assert_eq!(of_header(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text}");
            assert_eq!(base64(text.trim_end_matches('=').as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        for text in ["Z", "Zg=", "Z===", "Zg==Zg==", "Zm9vY", "Zm9v====", "Zm 9v", "Zm9_", "="] {
            assert_eq!(base64(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_password_is_a_token_behind_its_name_and_nothing_is_nothing() {
        assert_eq!(of_password(b"", b""), None);
        let read = |user: &[u8], password: &[u8]| of_password(user, password).as_deref().cloned();
        assert_eq!(read(b"s1", b"t"), token(Some("s1"), "t"));
        assert_eq!(read(b"", b"t"), token(Some(""), "t"));
        assert_eq!(read(b"s1", b""), Some(Credentials::Unreadable));
        assert_eq!(read(b"\xff", b"t"), Some(Credentials::Unreadable));
    }

    #[test]
    fn the_hash_is_sha_256() {
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Some(hash(b"abc")), TokenHash::parse(abc));
    }
}
