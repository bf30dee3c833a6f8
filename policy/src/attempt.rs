//! Attempts: one thing a sandbox tries to do, in the words that every inbound shares.

use std::fmt;

use crate::destination::{Destination, Host, Port};
use crate::gate::Generation;
use crate::hostname::Hostname;
use crate::identity::{Means, Stranger};
use crate::sandbox::{Peer, SandboxId};
use crate::time::Timestamp;

/// The way an attempt came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inbound {
    /// HTTP CONNECT.
    Connect,
    /// Plain HTTP: an absolute-form request, or a request read inside a tunnel to port 80.
    Http,
    /// SOCKS5.
    Socks5,
    /// A captured TCP connection.
    Tcp,
    /// A request inside inspected TLS.
    Tls,
    /// A DNS question.
    Dns,
}

impl Inbound {
    /// Every inbound.
    pub const ALL: [Self; 6] = [Self::Connect, Self::Http, Self::Socks5, Self::Tcp, Self::Tls, Self::Dns];

    /// The public word for it, as audit lines and metrics carry it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Http => "http",
            Self::Socks5 => "socks5",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Dns => "dns",
        }
    }
}

/// A DNS record type by its number (IANA DNS parameters).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QType(pub u16);

/// Types with a mnemonic that policy files and logs use; any other is written `TYPE123` (RFC 3597 section 5).
const QTYPE_NAMES: [(u16, &str); 23] = [
    (1, "A"),
    (2, "NS"),
    (5, "CNAME"),
    (6, "SOA"),
    (10, "NULL"),
    (12, "PTR"),
    (13, "HINFO"),
    (15, "MX"),
    (16, "TXT"),
    (28, "AAAA"),
    (33, "SRV"),
    (35, "NAPTR"),
    (43, "DS"),
    (44, "SSHFP"),
    (48, "DNSKEY"),
    (52, "TLSA"),
    (64, "SVCB"),
    (65, "HTTPS"),
    (251, "IXFR"),
    (252, "AXFR"),
    (255, "ANY"),
    (256, "URI"),
    (257, "CAA"),
];

impl QType {
    /// IPv4 address.
    pub const A: Self = Self(1);
    /// Canonical name.
    pub const CNAME: Self = Self(5);
    /// Reverse name.
    pub const PTR: Self = Self(12);
    /// Text.
    pub const TXT: Self = Self(16);
    /// IPv6 address.
    pub const AAAA: Self = Self(28);
    /// Service binding (RFC 9460).
    pub const SVCB: Self = Self(64);
    /// Service binding for HTTPS (RFC 9460).
    pub const HTTPS: Self = Self(65);
    /// Any type (RFC 8482).
    pub const ANY: Self = Self(255);

    /// The types that a rule opens when it does not say: addresses, the bindings that lead to them, and aliases.
    pub const DEFAULT_OPEN: [Self; 5] = [Self::A, Self::AAAA, Self::HTTPS, Self::SVCB, Self::CNAME];

    /// Whether a rule that names no types opens this one.
    ///
    /// ANY always is: its answer says nothing (RFC 8482) and nobody is asked.
    #[must_use]
    pub fn is_open_by_default(self) -> bool {
        self == Self::ANY || Self::DEFAULT_OPEN.contains(&self)
    }

    /// The mnemonic, if the type has one here.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        QTYPE_NAMES.iter().find(|(number, _)| *number == self.0).map(|(_, name)| *name)
    }

    /// Parses an upper-case mnemonic or `TYPE123`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let named = QTYPE_NAMES.iter().find(|(_, name)| *name == text).map(|(number, _)| Self(*number));
        let digits =
            || text.strip_prefix("TYPE").filter(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        named.or_else(|| digits()?.parse().ok().map(Self))
    }
}

impl fmt::Display for QType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "TYPE{}", self.0),
        }
    }
}

impl fmt::Debug for QType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A stream of bytes to a destination.
    Stream(Destination),
    /// One HTTP request whose method and path the gateway sees.
    Request {
        /// Where the request goes.
        destination: Destination,
        /// The method as sent; methods are case-sensitive (RFC 9110 section 9.1).
        method: Box<str>,
        /// The path as sent, byte for byte, without the query.
        path: Box<str>,
    },
    /// A DNS look-up.
    Lookup {
        /// The name asked for.
        name: Hostname,
        /// The record type asked for.
        qtype: QType,
    },
    /// Something that could not be read as any of these; it is refused and recorded.
    Unreadable {
        /// What was sent where a destination was expected, as [`Ask::unreadable`] shows it. Observers escape it.
        shown: Box<str>,
    },
}

impl Ask {
    /// The destination's host, where there is one.
    #[must_use]
    pub fn host(&self) -> Option<Host> {
        match self {
            Self::Stream(destination) | Self::Request { destination, .. } => Some(destination.host.clone()),
            Self::Lookup { name, .. } => Some(Host::Name(name.clone())),
            Self::Unreadable { .. } => None,
        }
    }

    /// The destination of a stream or a request.
    #[must_use]
    pub const fn destination(&self) -> Option<&Destination> {
        match self {
            Self::Stream(destination) | Self::Request { destination, .. } => Some(destination),
            Self::Lookup { .. } | Self::Unreadable { .. } => None,
        }
    }

    /// The destination's port, where there is one.
    #[must_use]
    pub fn port(&self) -> Option<Port> {
        self.destination().map(|destination| destination.port)
    }

    /// Something that could not be read, given as all that was sent where a destination was expected. It is shown
    /// without credentials and queries, each byte as the character of its number, cut with its length and a hash.
    #[must_use]
    pub fn unreadable(sent: &[u8]) -> Self {
        Self::Unreadable { shown: crate::unreadable::shown(sent) }
    }
}

/// Names one attempt in replies, audit lines and questions to an operator: unique within and across runs.
///
/// Written as 26 characters of Crockford's base 32: 48 bits of milliseconds, 32 bits that differ between runs, 48
/// bits that count, so that ids sort by time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(u128);

impl AttemptId {
    pub(crate) fn new(at: Timestamp, run: u32, count: u64) -> Self {
        let count = u128::from(count & 0xffff_ffff_ffff);
        Self((u128::from(at.millis()) << 80) | (u128::from(run) << 48) | count)
    }

    /// Reads an id as it is written; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // 26 digits of 5 bits hold two bits more than an id has.
        let whole = text.len() == 26 && text.as_bytes().first()? <= &b'7';
        let digit = |byte: u8| ALPHABET.iter().position(|known| *known == byte);
        let id = text.bytes().try_fold(0_u128, |id, byte| Some(id << 5 | digit(byte)? as u128))?;
        whole.then_some(Self(id))
    }
}

/// Crockford's base 32: no I, L, O and U, which are taken for others.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0_u8; 26];
        for (place, slot) in text.iter_mut().rev().enumerate() {
            let digit = (self.0 >> (5 * place)) as usize & 31;
            *slot = *ALPHABET.get(digit).unwrap_or(&b'0');
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One thing that a sandbox tries to do. Made by [`crate::Gate::attempt`], which names the sandbox and the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The attempt's name.
    pub id: AttemptId,
    /// When it came.
    pub at: Timestamp,
    /// Whose it is, or why that is not known.
    pub who: Result<SandboxId, Stranger>,
    /// By what its sandbox is known.
    pub means: Option<Means>,
    /// The way it came in.
    pub inbound: Inbound,
    /// The client, as the gateway saw it: what identifies it anew when the policy changes.
    pub peer: Peer,
    /// What is asked for.
    pub ask: Ask,
    /// The attempt that opened the tunnel in which this one was read, if it was.
    pub(crate) tunnel: Option<AttemptId>,
    /// The policy generation under which the sandbox was named.
    pub(crate) generation: Generation,
}

impl Attempt {
    /// The sandbox whose attempt it is; `None` where the client is no known one.
    #[must_use]
    pub fn sandbox(&self) -> Option<&SandboxId> {
        self.who.as_ref().ok()
    }

    /// The same, as read in the tunnel that another attempt opened: what was approved for that one alone counts here.
    #[must_use]
    pub fn inside(mut self, tunnel: AttemptId) -> Self {
        self.tunnel = Some(tunnel);
        self
    }

    pub(crate) fn identity(&self) -> Result<&SandboxId, Stranger> {
        self.who.as_ref().map_err(|stranger| *stranger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_then_by_count() {
        let id = |secs, count| AttemptId::new(Timestamp::from_secs(secs), 7, count).to_string();
        assert!(id(1, 9) < id(2, 0) && id(2, 0) < id(2, 1));
        assert_eq!(id(1_800_000_000, 1).len(), 26);
    }

    #[test]
    fn an_id_is_time_run_and_count() {
        for (secs, run, count, text) in [
            (0, 0, 0, "00000000000000000000000000"),
            (0, 0, 31, "0000000000000000000000000Z"),
            (0, 1, 0, "00000000000000008000000000"),
            (1, 0, 0, "00000000Z80000000000000000"),
        ] {
            let id = AttemptId::new(Timestamp::from_secs(secs), run, count);
            assert_eq!((id.to_string().as_str(), format!("{id:?}").as_str()), (text, text));
            assert_eq!(AttemptId::parse(text), Some(id));
        }
        for other in [
            "",
            "0",
            "8000000000000000000000000Z",
            "80000000000000000000000000",
            "0000000000000000000000000z",
            "0000000000000000000000000I",
            "000000000000000000000000000",
        ] {
            assert_eq!(AttemptId::parse(other), None, "{other}");
        }
        // A count beyond 48 bits does not touch the run.
        let id = |count| AttemptId::new(Timestamp::from_secs(5), 9, count);
        assert_eq!(id(1 << 48), id(0));
    }

    #[test]
    fn qtypes_are_read_as_they_are_written() {
        for number in [1, 28, 65, 257, 999] {
            assert_eq!(QType::parse(&QType(number).to_string()), Some(QType(number)));
        }
        for text in ["a", "TYPE", "TYPE-1", "TYPE+1", "TYPE99999", ""] {
            assert_eq!(QType::parse(text), None, "{text}");
        }
    }
}
