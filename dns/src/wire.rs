//! The wire format of RFC 1035 as far as a policy server needs it: names, record headers, counts.
//!
//! Everything here reads bytes that somebody else sent: no index panics, no loop is longer than the message.

use policy::{BadHost, Hostname, QType};

/// The fixed header in front of every message.
pub(crate) const HEADER: usize = 12;

/// Query or response (RFC 1035 section 4.1.1), and its neighbours in the second 16 bits of the header.
pub(crate) const QR: u16 = 0x8000;
pub(crate) const OPCODE: u16 = 0x7800;
pub(crate) const TC: u16 = 0x0200;
pub(crate) const RD: u16 = 0x0100;
pub(crate) const RA: u16 = 0x0080;
pub(crate) const CD: u16 = 0x0010;
pub(crate) const RCODE: u16 = 0x000f;

pub(crate) const CLASS_IN: u16 = 1;

/// The most labels that fit into 255 bytes, the root not counted.
const MAX_LABELS: usize = 127;

/// Record types that policy never sees.
pub(crate) mod rrtype {
    pub(crate) const NS: u16 = 2;
    pub(crate) const SOA: u16 = 6;
    pub(crate) const HINFO: u16 = 13;
    pub(crate) const MX: u16 = 15;
    pub(crate) const TXT: u16 = 16;
    pub(crate) const SRV: u16 = 33;
    pub(crate) const NAPTR: u16 = 35;
    pub(crate) const OPT: u16 = 41;
    pub(crate) const DS: u16 = 43;
    pub(crate) const SSHFP: u16 = 44;
    pub(crate) const DNSKEY: u16 = 48;
    pub(crate) const TLSA: u16 = 52;
    pub(crate) const CAA: u16 = 257;
}

/// Response codes (RFC 6895 section 2.3).
pub(crate) mod rcode {
    pub(crate) const NOERROR: u16 = 0;
    pub(crate) const FORMERR: u16 = 1;
    pub(crate) const SERVFAIL: u16 = 2;
    pub(crate) const NXDOMAIN: u16 = 3;
    pub(crate) const NOTIMP: u16 = 4;
    pub(crate) const REFUSED: u16 = 5;
    pub(crate) const BADVERS: u16 = 16;
}

/// A message and how far it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'m> {
    message: &'m [u8],
    at: usize,
}

impl<'m> Reader<'m> {
    pub(crate) const fn new(message: &'m [u8], at: usize) -> Self {
        Self { message, at }
    }

    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'m [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.message.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes(1)?.first().copied()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// A character string (RFC 1035 section 3.3), without its length.
    pub(crate) fn string(&mut self) -> Option<&'m [u8]> {
        let length = self.u8()?;
        self.bytes(usize::from(length))
    }

    /// Passes over a name, compressed or not, without following it.
    pub(crate) fn skip_name(&mut self) -> Option<()> {
        loop {
            match self.u8()? {
                0 => return Some(()),
                length @ 1..=63 => _ = self.bytes(usize::from(length))?,
                0xc0..=0xff => return self.u8().map(drop),
                _ => return None,
            }
        }
    }

    /// Reads a name, following compression. A pointer must lead to an earlier place than any before it, so that a
    /// name cannot loop; it ends at 255 bytes (RFC 1035 section 2.3.4) and after as many pointers as it can have labels,
    /// so that long chains of pointers buy no work.
    pub(crate) fn name(&mut self) -> Option<Name<'m>> {
        let mut name = Name { message: self.message, labels: [0; MAX_LABELS], count: 0, length: 1 };
        let mut reader = *self;
        let mut earliest = self.at;
        let mut end = None;
        let mut pointers = 0;
        loop {
            let place = reader.at;
            match reader.u8()? {
                0 => break,
                length @ 1..=63 => {
                    reader.bytes(usize::from(length))?;
                    name.push(place, length)?;
                }
                high @ 0xc0..=0xff => {
                    let low = reader.u8()?;
                    end.get_or_insert(reader.at);
                    let target = usize::from(u16::from_be_bytes([high & 0x3f, low]));
                    pointers += 1;
                    if target >= earliest || pointers > MAX_LABELS {
                        return None;
                    }
                    earliest = target;
                    reader.at = target;
                }
                _ => return None,
            }
        }
        self.at = end.unwrap_or(reader.at);
        Some(name)
    }

    /// Reads the header of a record and its data, as a place in the message.
    pub(crate) fn record(&mut self) -> Option<Record<'m>> {
        let owner = self.at;
        self.skip_name()?;
        let rrtype = self.u16()?;
        let class = self.u16()?;
        let ttl = self.u32()?;
        let length = usize::from(self.u16()?);
        let data = Reader { message: self.message.get(..self.at + length)?, at: self.at };
        self.at += length;
        Some(Record { owner: Reader { message: self.message, at: owner }, rrtype, class, ttl, data })
    }

    /// Whether everything was read.
    pub(crate) const fn is_empty(&self) -> bool {
        self.at == self.message.len()
    }

    /// What is left.
    pub(crate) fn rest(&mut self) -> &'m [u8] {
        let rest = self.message.get(self.at..).unwrap_or_default();
        self.at = self.message.len();
        rest
    }
}

/// One resource record. `data` ends where the record's data ends; names in it may point to earlier places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'m> {
    pub(crate) owner: Reader<'m>,
    pub(crate) rrtype: u16,
    pub(crate) class: u16,
    pub(crate) ttl: u32,
    pub(crate) data: Reader<'m>,
}

/// A name in a message: where each of its labels stands.
#[derive(Clone, Debug)]
pub(crate) struct Name<'m> {
    message: &'m [u8],
    labels: [u16; MAX_LABELS],
    count: usize,
    length: usize,
}

impl<'m> Name<'m> {
    fn push(&mut self, place: usize, length: u8) -> Option<()> {
        self.length += 1 + usize::from(length);
        if self.length > 255 {
            return None;
        }
        *self.labels.get_mut(self.count)? = u16::try_from(place).ok()?;
        self.count += 1;
        Some(())
    }

    pub(crate) fn labels(&self) -> impl Iterator<Item = &'m [u8]> {
        let message = self.message;
        self.labels.iter().take(self.count).map(move |&place| {
            let place = usize::from(place);
            let length = usize::from(message.get(place).copied().unwrap_or_default());
            message.get(place + 1..=place + length).unwrap_or_default()
        })
    }

    /// How long the name is without compression.
    pub(crate) const fn wire_len(&self) -> usize {
        self.length
    }

    pub(crate) const fn is_root(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn hostname(&self) -> Result<Hostname, BadHost> {
        Hostname::from_dns_labels(self.labels())
    }

    /// Whether it is the same name, in whatever case (RFC 4343).
    pub(crate) fn is(&self, other: &Hostname) -> bool {
        let text = other.as_str();
        // The wire form has one length byte a label and the root's: two more than the text.
        self.length == text.len() + 2
            && self.labels().zip(other.labels()).all(|(a, b)| a.eq_ignore_ascii_case(b.as_bytes()))
    }

    /// The name in wire form, without compression.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for label in self.labels() {
            out.push(u8::try_from(label.len()).unwrap_or_default());
            out.extend_from_slice(label);
        }
        out.push(0);
    }
}

/// Appends a name in wire form.
pub(crate) fn write_name(out: &mut Vec<u8>, name: &Hostname) {
    for label in name.labels() {
        // A Hostname's labels are 1 to 63 bytes.
        out.push(u8::try_from(label.len()).unwrap_or_default());
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
}

/// The payload that an upstream may send us over UDP: what passes everywhere unfragmented (DNS flag day 2020).
pub(crate) const UDP_PAYLOAD: u16 = 1232;

/// A question as the gateway asks it: name and type, nothing of the client. Upstreams see lower case only, clean
/// flags, an id of our own and an OPT record without options: anything else would carry bits from a sandbox.
pub(crate) fn write_query(id: u16, name: &Hostname, qtype: QType) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + name.as_str().len() + 2 + 4 + 11);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&[0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 1]);
    write_name(&mut out, name);
    out.extend_from_slice(&qtype.0.to_be_bytes());
    out.extend_from_slice(&CLASS_IN.to_be_bytes());
    out.extend_from_slice(&[0, 0, 41]);
    out.extend_from_slice(&UDP_PAYLOAD.to_be_bytes());
    out.extend_from_slice(&[0; 6]);
    out
}

/// Whether a message is a response to this very question, whatever its id.
pub(crate) fn answers(message: &[u8], name: &Hostname, qtype: QType) -> bool {
    let mut reader = Reader::new(message, 2);
    let header = (|| Some((reader.u16()?, reader.u16()?)))();
    let Some((flags, 1)) = header else { return false };
    if flags & QR == 0 || flags & OPCODE != 0 {
        return false;
    }
    let mut reader = Reader::new(message, HEADER);
    let question = (|| Some((reader.name()?, reader.u16()?, reader.u16()?)))();
    question.is_some_and(|(asked, rrtype, class)| rrtype == qtype.0 && class == CLASS_IN && asked.is(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Hostname {
        Hostname::parse(text).unwrap()
    }

    #[test]
    fn names_follow_pointers_backwards_only() {
        let message = b"\x03com\x00\x07example\xc0\x00\x03api\xc0\x05";
        let name = Reader::new(message, 15).name().expect("a name");
        assert!(name.is(&host("api.example.com")));
        assert_eq!(name.hostname(), Ok(host("api.example.com")));
        for looping in
            [&b"\xc0\x00"[..], b"\x01a\xc0\x00", b"\x01a\xc0\x02\xc0\x00", b"\xc0\x05\0\0\0\xc0\x00"]
        {
            assert!(Reader::new(looping, 0).name().is_none(), "{looping:?}");
        }
    }

    #[test]
    fn a_long_chain_of_pointers_is_no_name() {
        // 8,000 pointers, each to the one before: quadratic work if every name of a message walks them all.
        let mut message = vec![0_u8, 0];
        for place in 0..8000_u16 {
            message.extend_from_slice(&(0xc000 | (place * 2)).to_be_bytes());
        }
        assert!(Reader::new(&message, message.len() - 2).name().is_none());
        assert!(Reader::new(&message, 2 * 127).name().is_some_and(|name| name.is_root()));
    }

    #[test]
    fn names_end_at_255_bytes() {
        let label = [&[63_u8][..], &[b'a'; 63]].concat();
        let longest = [&label[..], &label, &label, &[61], &[b'a'; 61], &[0]].concat();
        assert_eq!(longest.len(), 255);
        assert!(Reader::new(&longest, 0).name().is_some());
        let longer = [&label[..], &label, &label, &[62], &[b'a'; 62], &[0]].concat();
        assert!(Reader::new(&longer, 0).name().is_none());
        assert!(Reader::new(&[64; 80], 0).name().is_none());
    }

    #[test]
    fn a_query_carries_name_and_type_only() {
        let query = write_query(0x1234, &host("api.example.com"), QType::AAAA);
        let expected = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\x01\x03api\x07example\x03com\0\0\x1c\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0";
        assert_eq!(query, expected);
    }

    #[test]
    fn an_answer_must_repeat_the_question() {
        let mut message = write_query(1, &host("api.example.com"), QType::A);
        assert!(!answers(&message, &host("api.example.com"), QType::A), "a query is no response");
        message[2] |= 0x80;
        assert!(answers(&message, &host("api.example.com"), QType::A));
        assert!(!answers(&message, &host("api.example.com"), QType::AAAA));
        assert!(!answers(&message, &host("apx.example.com"), QType::A));
        assert!(!answers(&message, &host("a.pi.example.com"), QType::A));
        for end in 0..message.len() - 11 {
            assert!(!answers(&message[..end], &host("api.example.com"), QType::A), "{end}");
        }
    }
}
