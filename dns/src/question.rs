//! Questions: what a client's message asks, as far as it can be decided.

use std::fmt::Write;

use policy::{BadHost, Hostname, QType};

use crate::wire::{CLASS_IN, HEADER, Name, OPCODE, QR, Reader, rcode, rrtype};

/// What a client's message is.
#[derive(Debug)]
pub(crate) enum Message<'m> {
    /// No query at all: too short for a header, or a response. It gets no answer, lest two servers answer each other
    /// for ever.
    Silent,
    /// A question of class IN that policy can decide.
    Question(Head<'m>, Hostname, QType),
    /// A query that is never served.
    Refused(Head<'m>, Refusal),
}

/// Why a query is never served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It breaks the format, or asks not exactly one question (RFC 9619).
    Malformed,
    /// An opcode other than QUERY.
    Opcode,
    /// An EDNS version that does not exist yet (RFC 6891 section 6.1.3).
    Version,
    /// A class other than IN, or a type that is no data: shown as it was asked.
    Meta(String),
    /// A zone transfer of a name.
    Transfer(Hostname, QType),
    /// The root: it exists, and nothing of it is served.
    Root,
    /// A name that no host has: a dot, a NUL or a byte above 127 inside a label. Shown escaped.
    Name(String, BadHost),
}

/// What an answer repeats of its query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'m> {
    pub(crate) id: u16,
    /// The second 16 bits of the header.
    pub(crate) flags: u16,
    /// The question section byte for byte; empty where it could not be read.
    pub(crate) question: &'m [u8],
    pub(crate) edns: Option<Edns>,
}

/// What an OPT record says (RFC 6891), its options left out: none of them is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edns {
    /// The largest datagram that the client takes.
    pub(crate) payload: u16,
    /// DNSSEC OK; copied into the answer (RFC 3225 section 3).
    pub(crate) dnssec_ok: bool,
}

impl<'m> Message<'m> {
    /// Reads a client's message. Bytes after its end are ignored: nothing of them goes anywhere.
    pub(crate) fn read(message: &'m [u8]) -> Self {
        let mut reader = Reader::new(message, 0);
        let fields = (|| {
            Some([reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?])
        })();
        let Some([id, flags, questions, answers, authorities, additionals]) = fields else {
            return Self::Silent;
        };
        if flags & QR != 0 {
            return Self::Silent;
        }
        let mut head = Head { id, flags, question: &[], edns: None };
        let asked =
            (questions == 1).then(|| Asked::read(message, [answers, authorities, additionals])).flatten();
        if let Some(asked) = &asked {
            head.question = asked.question;
            head.edns = asked.opt.map(|(edns, _)| edns);
        }
        if flags & OPCODE != 0 {
            return Self::Refused(head, Refusal::Opcode);
        }
        let Some(Asked { name, qtype, class, opt, .. }) = asked else {
            return Self::Refused(head, Refusal::Malformed);
        };
        if opt.is_some_and(|(_, version)| version > 0) {
            return Self::Refused(head, Refusal::Version);
        }
        match classify(&name, qtype, class) {
            Ok(name) => Self::Question(head, name, qtype),
            Err(refusal) => Self::Refused(head, refusal),
        }
    }
}

fn classify(name: &Name<'_>, qtype: QType, class: u16) -> Result<Hostname, Refusal> {
    const IXFR: u16 = 251;
    const AXFR: u16 = 252;
    if class != CLASS_IN || is_meta(qtype) {
        return Err(Refusal::Meta(shown(name)));
    }
    if name.is_root() {
        return Err(Refusal::Root);
    }
    let host = name.hostname().map_err(|error| Refusal::Name(shown(name), error))?;
    match qtype.0 {
        IXFR | AXFR => Err(Refusal::Transfer(host, qtype)),
        _ => Ok(host),
    }
}

/// Types that ask for no data of a name: OPT, and 128 to 254 (RFC 6895 section 3.1) but zone transfers.
const fn is_meta(qtype: QType) -> bool {
    matches!(qtype.0, 0 | rrtype::OPT | 128..=250 | 253 | 254)
}

/// A message with one question, well formed to its end.
struct Asked<'m> {
    question: &'m [u8],
    name: Name<'m>,
    qtype: QType,
    class: u16,
    opt: Option<(Edns, u8)>,
}

impl<'m> Asked<'m> {
    /// Reads the question and walks the records. Compression has nothing to point to in the question, so that a
    /// pointer there is an error.
    fn read(message: &'m [u8], counts: [u16; 3]) -> Option<Self> {
        let mut reader = Reader::new(message, HEADER);
        let name = reader.name()?;
        if reader.position() - HEADER != name.wire_len() {
            return None;
        }
        let (qtype, class) = (QType(reader.u16()?), reader.u16()?);
        let question = message.get(HEADER..reader.position())?;
        let opt = records(reader, counts)?;
        Some(Self { question, name, qtype, class, opt })
    }
}

/// Walks the records of a query for its OPT record: at most one, at the root, among the additional ones.
#[expect(clippy::option_option, reason = "malformed, absent, present")]
fn records(mut reader: Reader<'_>, counts: [u16; 3]) -> Option<Option<(Edns, u8)>> {
    let mut found = None;
    for (count, additional) in counts.into_iter().zip([false, false, true]) {
        for _ in 0..count {
            let mut record = reader.record()?;
            if record.rrtype != rrtype::OPT {
                continue;
            }
            let at_root = record.owner.u8()? == 0;
            if !additional || !at_root || found.is_some() {
                return None;
            }
            while !record.data.is_empty() {
                let _code = record.data.u16()?;
                let length = record.data.u16()?;
                record.data.bytes(length.into())?;
            }
            // Extended response code, version, DO and zeros stand where the TTL does.
            let [_, version, high, _] = record.ttl.to_be_bytes();
            let edns = Edns { payload: record.class, dnssec_ok: high & 0x80 != 0 };
            found = Some((edns, version));
        }
    }
    Some(found)
}

/// A name as a zone file writes it (RFC 4343 section 2.1): what is not plain becomes `\DDD`.
fn shown(name: &Name<'_>) -> String {
    let mut text = String::new();
    for label in name.labels() {
        if !text.is_empty() {
            text.push('.');
        }
        for byte in label {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
                text.push(char::from(*byte));
            } else {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\{byte:03}");
            }
        }
    }
    if text.is_empty() { ".".to_owned() } else { text }
}

impl Refusal {
    /// The response code, before it is known whether the client is a stranger.
    pub(crate) const fn rcode(&self) -> u16 {
        match self {
            Self::Malformed => rcode::FORMERR,
            Self::Opcode => rcode::NOTIMP,
            Self::Version => rcode::BADVERS,
            Self::Meta(_) | Self::Transfer(..) => rcode::REFUSED,
            Self::Root => rcode::NOERROR,
            Self::Name(..) => rcode::NXDOMAIN,
        }
    }

    /// The extended error (RFC 8914 section 4): 20 Not Authoritative, 21 Not Supported, 15 Blocked.
    pub(crate) const fn extended(&self) -> Option<u16> {
        match self {
            Self::Malformed | Self::Version => None,
            Self::Opcode | Self::Meta(_) => Some(21),
            Self::Transfer(..) => Some(20),
            Self::Root | Self::Name(..) => Some(15),
        }
    }
}

#[cfg(test)]
mod tests;
