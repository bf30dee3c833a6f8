//! Reads a TLS ClientHello without taking part in the handshake.
//!
//! Bytes are only looked at; they are kept as they came, for whoever passes them on.

use std::fmt;

use policy::hostname::Hostname;

use super::records::{BadRecord, Fragments, HANDSHAKE};

/// The longest hello that is read, records included. Post-quantum key shares and padding make 2 KiB common;
/// nothing honest comes near this.
pub const LIMIT: usize = 64 * 1024;

/// `msg_type` of a ClientHello (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;

const SERVER_NAME: u16 = 0; // RFC 6066 §3
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d; // RFC 9849
const ENCRYPTED_SERVER_NAME: u16 = 0xffce; // the drafts before it

/// What the hello says that a policy can judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The name of the server that the client wants. Where the hello is encrypted, the outer name.
    pub server_name: Option<Hostname>,
    /// Whether an encrypted hello is offered, or its look-alike (GREASE), which cannot be told apart.
    pub ech: bool,
}

/// What a client's first bytes are so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The beginning of a hello.
    NeedMore,
    /// Not TLS: the first byte is not that of a handshake record.
    NotTls,
    /// A whole hello.
    Hello(ClientHello),
    /// It begins as TLS and is no hello that could be judged.
    Invalid(InvalidHello),
}

/// Why a hello cannot be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidHello {
    /// A record is malformed, or another kind of record stands where the hello must be.
    Record,
    /// It is longer than [`LIMIT`].
    TooLong,
    /// The message is another one, or malformed.
    Message,
    /// The server name is not one DNS name: two names, an address, a byte that no host name has.
    ServerName,
}

/// Reads one hello from a stream that may stop anywhere.
#[derive(Debug, Default)]
pub struct HelloReader {
    raw: Vec<u8>,
    fragments: Fragments,
}

impl HelloReader {
    /// Takes the next bytes of the stream and says what the whole is now.
    pub fn feed(&mut self, bytes: &[u8]) -> Progress {
        self.raw.extend_from_slice(bytes);
        match self.raw.first() {
            None => return Progress::NeedMore,
            Some(&first) if first != HANDSHAKE => return Progress::NotTls,
            Some(_) => {}
        }
        match self.fragments.advance(&self.raw, CLIENT_HELLO, LIMIT) {
            Ok(Some(body)) => match parse(body) {
                Ok(hello) => Progress::Hello(hello),
                Err(invalid) => Progress::Invalid(invalid),
            },
            Ok(None) if self.raw.len() >= LIMIT => Progress::Invalid(InvalidHello::TooLong),
            Ok(None) => Progress::NeedMore,
            Err(bad) => Progress::Invalid(bad.into()),
        }
    }

    /// Everything that was fed, byte for byte: the records of the hello, and what came behind them.
    pub fn into_parts(mut self) -> (Vec<u8>, Vec<u8>) {
        let behind = self.raw.split_off(self.fragments.consumed().min(self.raw.len()));
        (self.raw, behind)
    }
}

/// Reads the body of a ClientHello (RFC 8446 §4.1.2, and the same layout since SSL 3).
fn parse(body: &[u8]) -> Result<ClientHello, InvalidHello> {
    let mut hello = ClientHello { server_name: None, ech: false };
    let mut rest = Reader(body);
    let extensions = (|| {
        rest.take(2 + 32)?; // legacy_version, random
        rest.vector8().filter(|session| session.len() <= 32)?;
        rest.vector16().filter(|suites| suites.len() >= 2 && suites.len() % 2 == 0)?;
        rest.vector8().filter(|compressions| !compressions.is_empty())?;
        // A hello without extensions ends here (RFC 5246 §7.4.1.2).
        if rest.0.is_empty() { Some(&[][..]) } else { rest.vector16().filter(|_| rest.0.is_empty()) }
    })()
    .ok_or(InvalidHello::Message)?;
    let mut extensions = Reader(extensions);
    let mut named = false;
    while !extensions.0.is_empty() {
        let kind = extensions.u16().ok_or(InvalidHello::Message)?;
        let value = extensions.vector16().ok_or(InvalidHello::Message)?;
        match kind {
            // No type may come twice (RFC 8446 §4.2); which of two names a server takes is its own affair.
            SERVER_NAME if std::mem::replace(&mut named, true) => return Err(InvalidHello::ServerName),
            SERVER_NAME => hello.server_name = Some(server_name(value).ok_or(InvalidHello::ServerName)?),
            ENCRYPTED_CLIENT_HELLO | ENCRYPTED_SERVER_NAME => hello.ech = true,
            _ => {}
        }
    }
    Ok(hello)
}

/// Reads the one host name of a server_name extension.
fn server_name(value: &[u8]) -> Option<Hostname> {
    let mut value = Reader(value);
    let mut list = Reader(value.vector16().filter(|_| value.0.is_empty())?);
    // host_name is the only type there is, and it may stand once (RFC 6066 §3).
    let name = list.u8().filter(|&kind| kind == 0).and_then(|_| list.vector16())?;
    let name = std::str::from_utf8(name).ok().filter(|_| list.0.is_empty())?;
    // "A byte string using ASCII encoding without a trailing dot", and never an address (RFC 6066 §3).
    if name.is_ascii() && !name.ends_with('.') { Hostname::parse(name).ok() } else { None }
}

/// Takes a message apart from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

impl From<BadRecord> for InvalidHello {
    fn from(bad: BadRecord) -> Self {
        match bad {
            BadRecord::Header => Self::Record,
            BadRecord::TooLong => Self::TooLong,
            BadRecord::Type | BadRecord::Trailing => Self::Message,
        }
    }
}

impl fmt::Display for InvalidHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Record => "a TLS record is malformed",
            Self::TooLong => "the client hello is too long",
            Self::Message => "the client hello is malformed",
            Self::ServerName => "the server name in the client hello is not one host name",
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A hello as a client would send it, in one record.
    pub(in crate::tcp) fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        record(22, &message(1, &body(extensions)))
    }

    pub(in crate::tcp) fn named(name: &[u8]) -> Vec<u8> {
        hello(&[(SERVER_NAME, &sni(&[(0, name)])), (43, &[2, 3, 4])])
    }

    pub(in crate::tcp) fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind, 3, 1][..], &(payload.len() as u16).to_be_bytes(), payload].concat()
    }

    pub(in crate::tcp) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let [_, length @ ..] = (body.len() as u32).to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    fn body(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let extensions: Vec<u8> = extensions
            .iter()
            .flat_map(|(kind, value)| [&kind.to_be_bytes()[..], &vector(value)].concat())
            .collect();
        [&[3, 3][..], &[0x5a; 32], &[0], &vector(&[0x13, 1, 0x13, 2]), &[1, 0], &vector(&extensions)].concat()
    }

    fn vector(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }

    fn sni(names: &[(u8, &[u8])]) -> Vec<u8> {
        vector(
            &names.iter().flat_map(|(kind, name)| [&[*kind][..], &vector(name)].concat()).collect::<Vec<_>>(),
        )
    }

    fn read(bytes: &[u8]) -> Progress {
        HelloReader::default().feed(bytes)
    }

    fn name_of(bytes: &[u8]) -> Option<String> {
        match read(bytes) {
            Progress::Hello(hello) => hello.server_name.map(|name| name.as_str().to_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hello_shows_its_server_name() {
        assert_eq!(name_of(&named(b"api.example.com")).as_deref(), Some("api.example.com"));
        assert_eq!(name_of(&named(b"API.Example.com")).as_deref(), Some("api.example.com"));
        assert_eq!(name_of(&hello(&[(43, &[2, 3, 4])])), None);
        assert_eq!(name_of(&hello(&[])), None);
    }

    #[test]
    fn every_prefix_of_a_hello_needs_more() {
        let whole = named(b"api.example.com");
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Progress::NeedMore, "{end}");
        }
    }

    #[test]
    fn a_hello_reads_the_same_one_byte_at_a_time() {
        let whole = named(b"api.example.com");
        let mut reader = HelloReader::default();
        let (last, first) = whole.split_last().unwrap();
        for byte in first {
            assert_eq!(reader.feed(&[*byte]), Progress::NeedMore);
        }
        assert_eq!(reader.feed(&[*last]), read(&whole));
        assert_eq!(reader.into_parts(), (whole, Vec::new()));
    }

    #[test]
    fn a_hello_may_span_records_of_any_length() {
        let message = message(1, &body(&[(SERVER_NAME, &sni(&[(0, b"api.example.com")]))]));
        for length in [1, 2, 3, 4, 5, 7, 40, message.len() - 1, message.len()] {
            let split: Vec<u8> = message.chunks(length).flat_map(|fragment| record(22, fragment)).collect();
            assert_eq!(name_of(&split).as_deref(), Some("api.example.com"), "{length}");
            for end in 0..split.len() {
                assert_eq!(read(&split[..end]), Progress::NeedMore, "{length} {end}");
            }
        }
    }

    #[test]
    fn what_follows_the_hello_is_told_apart() {
        let (whole, early) = (named(b"api.example.com"), record(23, b"early data"));
        let mut reader = HelloReader::default();
        assert!(matches!(reader.feed(&[whole.clone(), early.clone()].concat()), Progress::Hello(_)));
        assert_eq!(reader.into_parts(), (whole, early));
    }

    #[test]
    fn what_is_not_tls_is_seen_at_its_first_byte() {
        for first in (0..=255).filter(|first| *first != HANDSHAKE) {
            assert_eq!(read(&[first]), Progress::NotTls);
        }
    }

    #[test]
    fn malformed_records_are_invalid() {
        let whole = message(1, &body(&[]));
        let cases: [&[u8]; 6] = [
            &[22, 2],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0x40, 1],
            &[22, 0x16],
            &[record(22, &whole[..9]), record(21, &[1, 0])].concat(),
            &[record(22, &whole[..9]), vec![23]].concat(),
        ];
        for case in cases {
            assert_eq!(read(case), Progress::Invalid(InvalidHello::Record), "{case:x?}");
        }
    }

    #[test]
    fn malformed_messages_are_invalid() {
        let good = body(&[(SERVER_NAME, &sni(&[(0, b"api.example.com")]))]);
        let other_type = record(22, &message(2, &good));
        let trailing = record(22, &[message(1, &good), vec![0]].concat());
        let second = record(22, &[message(1, &good), message(1, &good)].concat());
        for case in [&other_type[..6], &other_type, &trailing, &second] {
            assert_eq!(read(case), Progress::Invalid(InvalidHello::Message));
        }
        // Every truncation that is declared as whole, but the one that ends before the extensions.
        let without_extensions = 2 + 32 + 1 + 6 + 2;
        for end in (0..good.len()).filter(|end| *end != without_extensions) {
            let case = record(22, &message(1, &good[..end]));
            assert_eq!(read(&case), Progress::Invalid(InvalidHello::Message), "{end}");
        }
    }

    #[test]
    fn a_server_name_that_is_not_one_name_is_invalid() {
        let one = sni(&[(0, b"api.example.com")]);
        let cases = [
            named(b""),
            named(b"api.example.com."),
            named(b"attacker.test\0.example.com"),
            named(b"api example.com"),
            named(b"x\n\"},{\"verdict\":\"allow"),
            named(b"203.0.113.10"),
            named(b"2130706433"),
            named(b"2001:db8:cafe::10"),
            named(&b"a.".repeat(128)[..255]),
            named("b\u{fc}cher.example".as_bytes()),
            named(b"caf\xe9.example.com"),
            hello(&[(SERVER_NAME, &[])]),
            hello(&[(SERVER_NAME, &sni(&[]))]),
            hello(&[(SERVER_NAME, &sni(&[(1, b"api.example.com")]))]),
            hello(&[(SERVER_NAME, &sni(&[(0, b"api.example.com"), (0, b"other.test")]))]),
            hello(&[(SERVER_NAME, &sni(&[(0, b"api.example.com"), (1, b"other.test")]))]),
            hello(&[(SERVER_NAME, &[&one[..], b"x"].concat())]),
            hello(&[(SERVER_NAME, &one), (SERVER_NAME, &sni(&[(0, b"other.test")]))]),
            hello(&[(SERVER_NAME, &one), (SERVER_NAME, &one)]),
        ];
        for case in cases {
            assert_eq!(read(&case), Progress::Invalid(InvalidHello::ServerName), "{case:x?}");
        }
    }

    #[test]
    fn an_encrypted_hello_is_seen() {
        for kind in [ENCRYPTED_CLIENT_HELLO, ENCRYPTED_SERVER_NAME] {
            let outer = hello(&[(SERVER_NAME, &sni(&[(0, b"public.example")])), (kind, &[0; 170])]);
            let expected = ClientHello { server_name: Hostname::parse("public.example").ok(), ech: true };
            assert_eq!(read(&outer), Progress::Hello(expected));
        }
    }

    #[test]
    fn a_hello_is_read_up_to_its_limit_and_no_further() {
        let long = |padding: usize| -> Vec<u8> {
            let padding = vec![0; padding];
            let (first, second) = padding.split_at(padding.len() / 2);
            let message = message(1, &body(&[(21, first), (21, second)]));
            message.chunks(1 << 14).flat_map(|fragment| record(22, fragment)).collect()
        };
        assert!(matches!(read(&long(60_000)), Progress::Hello(_)));
        // Declared longer than the limit: known from its fourth byte on.
        assert_eq!(read(&[22, 3, 1, 0, 4, 1, 1, 0, 1]), Progress::Invalid(InvalidHello::TooLong));
        let slow: Vec<u8> =
            message(1, &vec![0; LIMIT - 10]).chunks(1).flat_map(|byte| record(22, byte)).collect();
        assert_eq!(read(&slow[..LIMIT - 1]), Progress::NeedMore);
        assert_eq!(read(&slow[..LIMIT]), Progress::Invalid(InvalidHello::TooLong));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let whole = named(b"api.example.com");
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bent = whole.clone();
                bent[at] = byte;
                read(&bent);
            }
        }
    }
}
