//! DNS names as policy compares them, and the only way to make one.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

/// A DNS name as policy compares it: ASCII, lower case, 1–253 bytes, labels of 1–63 bytes of letters, digits,
/// hyphen and underscore, no final dot. Never an IP literal, nor anything a C library reads as one.
///
/// Cloning is one reference count.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hostname(Arc<str>);

/// Why a text is not a host that a rule or a request may name. Never repeats the text itself: it may have come
/// from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadHost {
    /// There is nothing to compare; several stacks dial localhost for it.
    #[error("the host is empty")]
    Empty,
    /// RFC 1035 §2.3.4: 255 octets on the wire, which is 253 as text.
    #[error("the host name is longer than 253 bytes")]
    TooLong,
    /// Two dots in a row, or one in front.
    #[error("the host name has an empty label")]
    EmptyLabel,
    /// RFC 1035 §2.3.4.
    #[error("the host name has a label longer than 63 bytes")]
    LabelTooLong,
    /// A byte that no DNS host name holds: NUL, space, `%`, `@`, `*`, a dot inside a wire label.
    #[error("the host name has a character that host names do not have")]
    Character,
    /// UTS #46 refuses it: a code point that is not allowed, or an `xn--` label that does not decode to the
    /// Unicode it stands for (RUSTSEC-2024-0421).
    #[error("the host name is not a valid internationalised name")]
    Idna,
    /// `127.1`, `0x7f000001`, `2130706433`, `010.0.0.1`: a name to one parser, an address to another.
    #[error("the host is an address in a spelling that programs read differently")]
    AddressSpelling,
    /// What stands between brackets is no IPv6 address (RFC 3986 §3.2.2), or an IPv6 address has no brackets.
    #[error("an IPv6 address must be whole, without a zone, and in brackets")]
    Ipv6,
}

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

impl Hostname {
    /// Reads a name as a person or a client writes it: any case, Unicode or A-labels, at most one final dot.
    ///
    /// UTS #46 non-transitional processing (`ß` is not `ss`) with CheckHyphens off, because CDN names such as
    /// `r3---sn-abc` exist, and underscores allowed. Names that need none of it skip it.
    pub fn parse(text: &str) -> Result<Hostname, BadHost> {
        // Longer texts cannot map to a legal name of useful length; the bound keeps UTS #46 away from megabytes.
        if text.len() > 4 * MAX_NAME {
            return Err(BadHost::TooLong);
        }
        if text.is_ascii() {
            let text = text.strip_suffix('.').unwrap_or(text);
            let shape = check(text)?;
            if !shape.has_upper_case && !shape.has_a_label {
                return Ok(Hostname(text.into()));
            }
            return canonical_ascii(text.to_ascii_lowercase(), shape);
        }
        // U+3002, U+FF0E and U+FF61 map to a dot, so the final dot can only be looked for afterwards.
        let mapped = map(text)?;
        let name = mapped.strip_suffix('.').unwrap_or(&mapped);
        check(name)?;
        Ok(Hostname(name.into()))
    }

    /// Reads the labels of a DNS message. They are checked one by one, as they were on the wire: a dot, a NUL or
    /// a byte above 127 inside a label is refused, so `evil.test\0.example.com` cannot pass for a subdomain.
    pub fn from_dns_labels<'a>(labels: impl IntoIterator<Item = &'a [u8]>) -> Result<Hostname, BadHost> {
        let mut name = String::with_capacity(MAX_LABEL);
        for label in labels {
            if label.is_empty() {
                return Err(BadHost::EmptyLabel);
            }
            if label.len() > MAX_LABEL {
                return Err(BadHost::LabelTooLong);
            }
            if name.len() + label.len() > MAX_NAME {
                return Err(BadHost::TooLong);
            }
            if !name.is_empty() {
                name.push('.');
            }
            for &byte in label {
                if !is_host_byte(byte) {
                    return Err(BadHost::Character);
                }
                name.push(char::from(byte.to_ascii_lowercase()));
            }
        }
        let shape = check(&name)?;
        canonical_ascii(name, shape)
    }

    /// The name as text, without a final dot.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The labels from the left.
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }

    /// The name itself, then each name above it: `a.b.c`, `b.c`, `c`.
    pub fn suffixes(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(Some(&*self.0), |name| parent(name))
    }

    /// The name without its first label; `None` for a single label.
    pub fn parent(&self) -> Option<&str> {
        parent(&self.0)
    }

    /// Whether the name has one label only. Such names mean whatever a search list makes of them.
    pub fn is_single_label(&self) -> bool {
        is_single_label(&self.0)
    }

    /// Whether the name is `domain` or lies below it, compared label by label.
    pub fn is_at_or_below(&self, domain: &str) -> bool {
        is_at_or_below(&self.0, domain)
    }

    /// Whether the name lies strictly below `domain`: `evilcorp.example` is not below `corp.example`.
    pub fn is_below(&self, domain: &str) -> bool {
        is_below(&self.0, domain)
    }
}

impl Borrow<str> for Hostname {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

pub(crate) fn is_single_label(name: &str) -> bool {
    !name.contains('.')
}

pub(crate) fn is_at_or_below(name: &str, domain: &str) -> bool {
    name == domain || is_below(name, domain)
}

pub(crate) fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

fn parent(name: &str) -> Option<&str> {
    // Labels are short: a plain loop is faster than `split_once`, which sets up a vectorised search for each.
    let dot = name.bytes().position(|byte| byte == b'.')?;
    name.get(dot + 1..)
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// What a look at every byte of a name found on the way.
#[derive(Clone, Copy)]
struct Shape {
    has_upper_case: bool,
    /// Whether some label starts with `xn--`, in any case.
    has_a_label: bool,
}

/// Length, labels and characters of a name without its final dot, in any case.
fn check(name: &str) -> Result<Shape, BadHost> {
    if name.is_empty() {
        return Err(BadHost::Empty);
    }
    let (mut seen, mut has_a_label) = (0, false);
    let mut rest = name.as_bytes();
    let last = loop {
        let end = rest.iter().position(|&byte| {
            let class = class(byte);
            seen |= class;
            class & (DOT | OTHER) != 0
        });
        if seen & OTHER != 0 {
            return Err(BadHost::Character);
        }
        let (label, behind) = rest.split_at(end.unwrap_or(rest.len()));
        match label.len() {
            0 => return Err(BadHost::EmptyLabel),
            1..=MAX_LABEL => {}
            _ => return Err(BadHost::LabelTooLong),
        }
        has_a_label |= label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(b"xn--"));
        match behind.split_first() {
            Some((_, behind)) => rest = behind,
            None => break label,
        }
    };
    if name.len() > MAX_NAME {
        return Err(BadHost::TooLong);
    }
    if is_number(last) {
        return Err(BadHost::AddressSpelling);
    }
    Ok(Shape { has_upper_case: seen & UPPER != 0, has_a_label })
}

/// What a byte is in a host name. Each name from the network and from a list is read byte by byte.
const fn class(byte: u8) -> u8 {
    #[expect(clippy::indexing_slicing, reason = "a byte has 256 values")]
    CLASSES[byte as usize]
}

const DOT: u8 = 1;
const UPPER: u8 = 2;
const OTHER: u8 = 4;

static CLASSES: [u8; 256] = {
    let mut classes = [OTHER; 256];
    let mut byte = 0;
    while byte < 128 {
        let at = byte as usize;
        #[expect(clippy::indexing_slicing, reason = "a byte has 256 values")]
        let class = &mut classes[at];
        *class = match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => 0,
            b'A'..=b'Z' => UPPER,
            b'.' => DOT,
            _ => OTHER,
        };
        byte += 1;
    }
    classes
};

/// A lower-case name whose A-labels, if it has any, stand for what they seem to.
fn canonical_ascii(name: String, shape: Shape) -> Result<Hostname, BadHost> {
    if shape.has_a_label && map(&name)? != name {
        return Err(BadHost::Idna);
    }
    Ok(Hostname(name.into()))
}

/// The "ends in a number" test of the WHATWG URL standard, on the last label: `inet_aton` reads such hosts as
/// IPv4 in decimal, octal and hexadecimal, with one to four parts. C23's `strtoul` adds `0b`.
fn is_number(label: &[u8]) -> bool {
    match label {
        [b'0', b'x' | b'X', digits @ ..] => digits.iter().all(u8::is_ascii_hexdigit),
        [b'0', b'b' | b'B', digits @ ..] => digits.iter().all(|digit| matches!(digit, b'0' | b'1')),
        digits => digits.iter().all(u8::is_ascii_digit),
    }
}

/// UTS #46 to A-labels. Lengths and ASCII characters are left to [`check`], which names the fault.
fn map(text: &str) -> Result<String, BadHost> {
    Uts46::new()
        .to_ascii(text.as_bytes(), AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Ignore)
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| BadHost::Idna)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> String {
        Hostname::parse(text).unwrap_or_else(|bad| panic!("{text}: {bad}")).to_string()
    }

    fn refused(text: &str) -> BadHost {
        Hostname::parse(text).expect_err(text)
    }

    #[test]
    fn one_name_has_one_form() {
        assert_eq!(name("API.Example.COM"), "api.example.com");
        assert_eq!(name("aPI.example.com"), "api.example.com");
        assert_eq!(name("api.example.com."), "api.example.com");
        assert_eq!(name("bücher.example"), "xn--bcher-kva.example");
        assert_eq!(name("BÜCHER.example"), "xn--bcher-kva.example");
        assert_eq!(name("XN--BCHER-KVA.example"), "xn--bcher-kva.example");
        assert_eq!(name("straße.example"), "xn--strae-oqa.example");
    }

    #[test]
    fn unicode_that_hides_ascii_is_folded_before_it_is_compared() {
        // Ideographic full stop, full-width letters and stop, soft hyphen, Kelvin sign, long s.
        for hidden in [
            "secret。example。com",
            "ｓｅｃｒｅｔ．example.com",
            "sec\u{ad}ret.example.com",
            "ſecret.example.com",
            "secret.example.com。",
        ] {
            assert_eq!(name(hidden), "secret.example.com");
        }
        assert_eq!(name("o\u{212a}.example.com"), "ok.example.com");
    }

    #[test]
    fn what_mapping_drops_counts_against_the_bound() {
        // A soft hyphen is two bytes and maps to nothing.
        let hidden = |bytes: usize| format!("ab{}", "\u{ad}".repeat((bytes - 2) / 2));
        assert_eq!(name(&hidden(4 * MAX_NAME)), "ab");
        assert_eq!(refused(&hidden(4 * MAX_NAME + 2)), BadHost::TooLong);
    }

    #[test]
    fn homographs_stay_apart() {
        assert_ne!(name("\u{430}pi.example.com"), "api.example.com");
        assert!(name("\u{430}pi.example.com").starts_with("xn--"));
    }

    #[test]
    fn odd_but_real_names_are_names() {
        for text in [
            "_svc.example.com",
            "foo_bar.example.com",
            "r3---sn-abc.example.com",
            "123.example.com",
            "0.example.com",
            "a-.example.com",
            "-a.example.com",
            "api",
            "0x7f.example.com",
            "1.2.3.4.example.com",
            "xn--bcher-kva._tcp.example.com",
        ] {
            assert_eq!(name(text), text);
        }
    }

    #[test]
    fn fake_a_labels_are_refused() {
        // The second decodes to ASCII only, which a lenient decoder takes for `api` (RUSTSEC-2024-0421).
        for text in [
            "xn--.example.com",
            "xn--api-.example.com",
            "xn--secret-.example.com",
            "xn--99999999999.example.com",
            "xn--\u{80}.example.com",
            "XN--API-.example.com",
            // Decodes to upper-case Ü, which never round-trips.
            "xn--bcher-2pa.example.com",
        ] {
            assert_eq!(refused(text), BadHost::Idna, "{text}");
        }
    }

    #[test]
    fn address_spellings_are_neither_names_nor_addresses() {
        for text in [
            "127.1",
            "127.0.1",
            "0177.1",
            "0x7f000001",
            "0x7f.1",
            "0x7f.0x0.0x0.0x1",
            "0X7F.0.0.1",
            "127.000.000.001",
            "010.0.0.1",
            "425.510.425.510",
            "7147006462",
            "2130706433",
            "0",
            "00000000000",
            "127.0.0.1.",
            "169.254.169.254.",
            "0x7f.1.",
            "192.0.2.1.1",
            "08.0.0.1",
            "0x",
            "0xg.1",
            "127.0.0.0b1",
            "api.example.1",
            "１２７.0.0.1",
            "127。0。0。1",
        ] {
            assert_eq!(refused(text), BadHost::AddressSpelling, "{text}");
        }
    }

    #[test]
    fn bytes_that_no_host_name_holds_are_refused() {
        for text in [
            "attacker.test\0.example.com",
            "attacker.test%00.example.com",
            "api%2eexample%2ecom",
            "a@b.example.com",
            "attacker.test#.example.com",
            "attacker.test?.example.com",
            "attacker.test .example.com",
            "attacker.test\r.example.com",
            "a,b.example.com",
            "a;b.example.com",
            "*.example.com",
            "a/b.example.com",
            "a\\b.example.com",
            "[::1]",
            "a:b",
            "\u{7f}.example.com",
            " api.example.com",
            "bücher.example/x",
            "b\u{fc}cher.exa mple",
        ] {
            assert!(matches!(refused(text), BadHost::Character | BadHost::Idna), "{text}");
        }
    }

    #[test]
    fn dots_must_divide_labels() {
        assert_eq!(refused(""), BadHost::Empty);
        assert_eq!(refused("."), BadHost::Empty);
        for text in ["..", ".example.com", "api..example.com", "api.example.com..", "bü..example"] {
            assert_eq!(refused(text), BadHost::EmptyLabel, "{text}");
        }
    }

    #[test]
    fn lengths_end_at_63_and_253() {
        let label = "a".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "d".repeat(61));
        assert_eq!(longest.len(), 253);
        assert_eq!(name(&longest), longest);
        assert_eq!(name(&format!("{longest}.")), longest);
        assert_eq!(refused(&format!("{longest}d")), BadHost::TooLong);
        assert_eq!(refused(&format!("{label}a.example.com")), BadHost::LabelTooLong);
        assert_eq!(refused(&"a.".repeat(4000)), BadHost::TooLong);
    }

    #[test]
    fn a_long_spelling_of_a_short_name_is_read() {
        let hidden = format!("api{}.example.com", "\u{ad}".repeat(400));
        assert_eq!(name(&hidden), "api.example.com");
        assert_eq!(refused(&format!("api{}.example.com", "\u{ad}".repeat(500))), BadHost::TooLong);
    }

    #[test]
    fn a_name_prints_as_it_is() {
        let host = Hostname::parse("API.example.com").unwrap();
        assert_eq!(
            (format!("{host:>17}"), format!("{host:?}")),
            ("  api.example.com".into(), "\"api.example.com\"".into())
        );
        assert_eq!(std::collections::HashMap::from([(host, 1)]).get("api.example.com"), Some(&1));
    }

    #[test]
    fn wire_labels_are_compared_as_labels() {
        let from = |labels: &[&[u8]]| Hostname::from_dns_labels(labels.iter().copied());
        assert_eq!(from(&[b"API", b"example", b"com"]), Hostname::parse("api.example.com"));
        assert_eq!(from(&[b"xn--bcher-kva", b"example"]), Hostname::parse("bücher.example"));
        assert_eq!(from(&[b"a.b", b"com"]), Err(BadHost::Character));
        assert_eq!(from(&[b"evil\0", b"com"]), Err(BadHost::Character));
        assert_eq!(from(&[b"b\xc3\xbccher", b"com"]), Err(BadHost::Character));
        assert_eq!(from(&[b"xn--api-", b"com"]), Err(BadHost::Idna));
        assert_eq!(from(&[b"a", b"", b"com"]), Err(BadHost::EmptyLabel));
        assert_eq!(from(&[b"127", b"0", b"0", b"1"]), Err(BadHost::AddressSpelling));
        assert_eq!(from(&[]), Err(BadHost::Empty));
        assert_eq!(from(&[&[b'a'; 64]]), Err(BadHost::LabelTooLong));
        assert_eq!(from(&[&[b'a'; 63], &[b'a'; 63], &[b'a'; 63], &[b'a'; 62]]), Err(BadHost::TooLong));
    }

    #[test]
    fn suffixes_end_at_labels() {
        let host = Hostname::parse("a.corp.example").unwrap();
        assert_eq!(host.suffixes().collect::<Vec<_>>(), ["a.corp.example", "corp.example", "example"]);
        assert_eq!(host.parent(), Some("corp.example"));
        assert_eq!(host.labels().next_back(), Some("example"));
        assert!(host.is_below("corp.example") && host.is_at_or_below("a.corp.example"));
        assert!(!host.is_below("a.corp.example") && !host.is_below("orp.example"));
        assert!(!Hostname::parse("evilcorp.example").unwrap().is_at_or_below("corp.example"));
    }

    proptest! {
        #[test]
        fn whatever_parses_is_canonical(text in "[\\PC.]{0,40}") {
            if let Ok(host) = Hostname::parse(&text) {
                prop_assert!(host.as_str().len() <= 253);
                prop_assert!(host.as_str().bytes().all(|b| is_host_byte(b) && !b.is_ascii_uppercase() || b == b'.'));
                prop_assert_eq!(Hostname::parse(host.as_str()), Ok(host.clone()));
                prop_assert_eq!(Hostname::from_dns_labels(host.labels().map(str::as_bytes)), Ok(host.clone()));
                prop_assert!(host.as_str().parse::<std::net::IpAddr>().is_err());
            }
        }

        #[test]
        fn ascii_names_take_the_same_form_with_and_without_uts46(text in "[a-zA-Z0-9_-]{1,8}(\\.[a-zA-Z0-9_-]{1,8}){0,3}") {
            if let Ok(host) = Hostname::parse(&text) {
                prop_assert_eq!(map(&text).unwrap(), host.as_str());
            }
        }
    }
}
