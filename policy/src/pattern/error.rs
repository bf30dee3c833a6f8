//! What is wrong with an entry, why, and what to write instead.

use std::borrow::Cow;
use std::fmt;

use super::HostPattern;
use crate::hostname::{BadHost, Hostname};

/// Why a text is no entry of a rule list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryError {
    /// What kind of mistake it is.
    pub kind: EntryErrorKind,
    what: Cow<'static, str>,
    hint: Cow<'static, str>,
}

/// The kinds of mistakes in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryErrorKind {
    /// Nothing but spaces.
    Empty,
    /// A URL, a path, userinfo, a list in one string, a pattern language that is not spoken here.
    NotAHost,
    /// `${ENV}` and other placeholders: nothing expands them.
    Placeholder,
    /// More than one star, or a star that is not a whole label.
    Star,
    /// The name does not parse.
    Host,
    /// An address or range in another spelling than the canonical one.
    Address,
    /// The port list does not parse.
    Ports,
    /// A Unicode name whose label mixes scripts that look alike.
    MixedScript,
}

impl EntryError {
    /// What to write instead.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    fn new(
        kind: EntryErrorKind,
        what: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> EntryError {
        EntryError { kind, what: what.into(), hint: hint.into() }
    }

    pub(super) fn brackets(text: &str) -> EntryError {
        let (what, hint) = if text.contains("]/") {
            ("the prefix length stands outside the brackets", "write it inside, as in `[2001:db8::/64]:443`")
        } else if text.contains(']') {
            ("after the closing bracket only `:` and ports can follow", "write IPv6 as `[2001:db8::1]:443`")
        } else {
            ("the closing bracket is missing", "write IPv6 as `[2001:db8::1]:443` or `[2001:db8::/64]:443`")
        };
        Self::new(EntryErrorKind::Address, what, hint)
    }

    pub(super) fn unbracketed(text: &str) -> EntryError {
        let what = "an IPv6 address without brackets: where the port begins is anyone's guess";
        Self::new(EntryErrorKind::Address, what, format!("write `[{text}]`"))
    }

    pub(super) fn port_in_host() -> EntryError {
        Self::new(
            EntryErrorKind::NotAHost,
            "a host alone is expected here",
            "write ports in `ports = [443]`, or as one `host:443` in a list",
        )
    }

    pub(super) fn colons() -> EntryError {
        let hint = "write `host:443,8443`, or IPv6 in brackets: `[2001:db8::1]:443`";
        Self::new(EntryErrorKind::NotAHost, "more than one colon", hint)
    }

    pub(super) fn stars() -> EntryError {
        Self::new(
            EntryErrorKind::Star,
            "more than one star",
            "one star is enough: `*.example.com` covers any depth, `ec2.*.example.com` one label",
        )
    }

    pub(super) fn part_star() -> EntryError {
        Self::new(
            EntryErrorKind::Star,
            "a star must be a whole label with a name behind it",
            "write `*.example.com`, `.example.com` or `ec2.*.example.com`",
        )
    }

    pub(super) fn host(bad: BadHost) -> EntryError {
        let (kind, hint) = match bad {
            BadHost::AddressSpelling => (
                EntryErrorKind::Address,
                "write IPv4 as four decimal numbers without leading zeros: `10.0.0.7`",
            ),
            BadHost::Ipv6 => {
                (EntryErrorKind::Address, "write IPv6 as `[2001:db8::1]` or `[2001:db8::/64]`, no zone")
            }
            BadHost::Empty | BadHost::EmptyLabel => (
                EntryErrorKind::Host,
                "write a whole name: `api.example.com`, `*.example.com` or `.example.com`",
            ),
            BadHost::Character => (
                EntryErrorKind::Host,
                "names have letters, digits, `-`, `_` and dots; regular expressions, braces and \
                                        alternatives are not spoken: write one entry a host",
            ),
            BadHost::Idna => (
                EntryErrorKind::Host,
                "write the name in Unicode, or its A-label exactly as its registry shows it",
            ),
            BadHost::TooLong | BadHost::LabelTooLong => (EntryErrorKind::Host, "no DNS name is that long"),
        };
        Self::new(kind, bad.to_string(), hint)
    }

    pub(super) fn mask(max: u8) -> EntryError {
        Self::new(
            EntryErrorKind::Address,
            "the prefix length is not a plain number in range",
            format!(
                "write a length from 0 to {max}, as in `10.0.0.0/24` or `[2001:db8::/64]`; masks are not read"
            ),
        )
    }

    pub(super) fn host_bits(address: &HostPattern, range: &HostPattern) -> EntryError {
        Self::new(
            EntryErrorKind::Address,
            "the range has host bits set",
            format!("write `{address}` for the address, `{range}` for the range"),
        )
    }

    pub(super) fn mapped(range: &HostPattern) -> EntryError {
        Self::new(
            EntryErrorKind::Address,
            "an IPv4-mapped address is reached and compared as IPv4",
            format!("write `{range}`"),
        )
    }

    pub(super) fn not_canonical(range: &HostPattern) -> EntryError {
        Self::new(
            EntryErrorKind::Address,
            "not the canonical spelling (RFC 5952)",
            format!("write `{range}`"),
        )
    }

    pub(super) fn ports(
        what: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> EntryError {
        Self::new(EntryErrorKind::Ports, what, hint)
    }

    pub(super) fn mixed_script(name: &Hostname, one: &str, other: &str) -> EntryError {
        Self::new(
            EntryErrorKind::MixedScript,
            format!("one label mixes {one} and {other} letters, which look alike"),
            format!("retype the name; if it is meant as it is, write `{name}`"),
        )
    }
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for EntryError {}

/// Refuses what is not host-shaped at all, so that the message can say what it was taken for.
pub(super) fn not_a_host(text: &str) -> Result<(), EntryError> {
    let not_a_host =
        |what: &'static str, hint: &'static str| Err(EntryError::new(EntryErrorKind::NotAHost, what, hint));
    if text.trim().is_empty() {
        return Err(EntryError::new(
            EntryErrorKind::Empty,
            "the entry is empty",
            "remove it; an empty list allows nothing",
        ));
    }
    if text.contains(['$', '{']) && (text.contains("${") || text.contains("{{") || text.starts_with('$')) {
        return Err(EntryError::new(
            EntryErrorKind::Placeholder,
            "a placeholder: nothing is expanded in this file",
            "write the host itself; generate the file if it must differ between machines",
        ));
    }
    if let Some((_, rest)) = text.split_once("://") {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let host = rest.get(..end).unwrap_or_default();
        let plain = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@');
        let hint = if plain {
            format!("write `{host}`; paths go into `paths` of a rule")
        } else {
            "write the host and the port only".to_owned()
        };
        return Err(EntryError::new(EntryErrorKind::NotAHost, "a URL, where a host is expected", hint));
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return not_a_host(
            "a space or control character in the entry",
            "write one host an entry, without comments",
        );
    }
    let host = text.split_once(':').map_or(text, |(host, _)| host);
    if host.contains(',') && !host.contains(['{', '(', '[']) {
        return not_a_host("several hosts in one entry", "write each as an entry of its own");
    }
    if text.contains('@') {
        return not_a_host("a user name in front of the host", "write the host alone; policy has no users");
    }
    if text.contains(['?', '#', '\\']) {
        return not_a_host("a part of a URL", "write the host and the port only");
    }
    // A slash belongs to a range, and a range has nothing but digits and dots, or brackets.
    let slash_at_range = text.starts_with('[')
        || text.split_once('/').is_none_or(|(address, _)| {
            address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':'))
                && address.bytes().any(|byte| byte.is_ascii_digit())
        });
    if !slash_at_range {
        return not_a_host(
            "a path behind the host",
            "paths go into `paths = [\"/v1/**\"]` of a `[[policy.X.rule]]`",
        );
    }
    Ok(())
}
