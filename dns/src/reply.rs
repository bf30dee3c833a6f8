//! Replies: written from judged values, never copied from an upstream's message.

use std::net::IpAddr;

use policy::{Generation, Hostname, QType};

use crate::answer::Soa;
use crate::question::Head;
use crate::wire::{CD, CLASS_IN, HEADER, QR, RA, RCODE, RD, TC, UDP_PAYLOAD, rrtype, write_name};

/// The seconds for which a denial may be kept: a policy may allow the name a moment later.
pub(crate) const DENIAL_TTL: u32 = 5;

/// The largest reply over TCP.
const TCP_LIMIT: usize = 65_535;

/// The largest reply over UDP to a client that says nothing (RFC 1035 section 4.2.1).
const PLAIN_LIMIT: u16 = 512;

/// An EDNS option code (RFC 8914 section 2).
const EXTENDED_ERROR: u16 = 15;

/// A pointer to the name of the question, which always stands behind the header.
const QUESTION_NAME: [u8; 2] = [0xc0, HEADER as u8];

/// How a reply travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// An extended error: its code (RFC 8914 section 4) and a short text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extended<'t> {
    pub(crate) code: u16,
    pub(crate) text: &'t str,
}

/// A reply while it is written.
#[derive(Debug)]
pub(crate) struct Writer<'w> {
    out: &'w mut Vec<u8>,
    head: Head<'w>,
    /// Where the reply begins in `out`.
    start: usize,
    /// How long it may become, the OPT record not counted.
    limit: usize,
    answers: u16,
    authorities: u16,
    truncated: bool,
    extended: Option<Extended<'w>>,
    /// Where the owner of the next record stands as a pointer.
    owner: [u8; 2],
}

impl<'w> Writer<'w> {
    /// Begins a reply behind whatever `out` holds.
    pub(crate) fn new(
        out: &'w mut Vec<u8>,
        head: Head<'w>,
        transport: Transport,
        extended: Option<Extended<'w>>,
    ) -> Self {
        let extended = extended.filter(|_| head.edns.is_some());
        let whole = match (transport, head.edns) {
            (Transport::Tcp, _) => TCP_LIMIT,
            (Transport::Udp, Some(edns)) => usize::from(edns.payload.clamp(PLAIN_LIMIT, UDP_PAYLOAD)),
            (Transport::Udp, None) => usize::from(PLAIN_LIMIT),
        };
        let opt = head.edns.map_or(0, |_| 11 + extended.map_or(0, |extended| 6 + extended.text.len()));
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(head.question);
        Self {
            out,
            head,
            start,
            limit: whole.saturating_sub(opt),
            answers: 0,
            authorities: 0,
            truncated: false,
            extended,
            owner: QUESTION_NAME,
        }
    }

    /// Writes the aliases from the question to the end of the chain; what follows belongs to that end.
    pub(crate) fn chain(&mut self, chain: &[Hostname], ttl: u32) {
        for alias in chain {
            let mut data = Vec::with_capacity(alias.as_str().len() + 2);
            write_name(&mut data, alias);
            if !self.record(QType::CNAME.0, ttl, &data) {
                return self.cut();
            }
            let place = self.out.len() - self.start - data.len();
            // Pointers reach 16 KiB; eight names of 255 bytes end well before.
            let pointer = u16::try_from(place).unwrap_or_default() | 0xc000;
            self.owner = pointer.to_be_bytes();
        }
    }

    /// Writes addresses, as many as fit: older resolvers have no TCP and use what they get.
    pub(crate) fn addresses(&mut self, addresses: &[IpAddr], qtype: QType, ttl: u32) {
        if self.truncated {
            return;
        }
        for address in addresses {
            let fits = match address {
                IpAddr::V4(v4) if qtype == QType::A => self.record(qtype.0, ttl, &v4.octets()),
                IpAddr::V6(v6) if qtype == QType::AAAA => self.record(qtype.0, ttl, &v6.octets()),
                // An IPv4-mapped AAAA was judged, and would be dialled, as IPv4.
                IpAddr::V4(_) | IpAddr::V6(_) => true,
            };
            if !fits {
                self.truncated = true;
                return;
            }
        }
    }

    /// Writes a record of any other type. A set of them is sent whole or not at all.
    pub(crate) fn data(&mut self, rrtype: u16, ttl: u32, data: &[u8]) {
        if !self.truncated && !self.record(rrtype, ttl, data) {
            self.cut();
        }
    }

    /// How many records the answer section has.
    pub(crate) const fn answers(&self) -> u16 {
        self.answers
    }

    /// Whether something did not fit.
    pub(crate) const fn is_truncated(&self) -> bool {
        self.truncated
    }

    fn record(&mut self, rrtype: u16, ttl: u32, data: &[u8]) -> bool {
        let Ok(length) = u16::try_from(data.len()) else { return false };
        if self.out.len() - self.start + 12 + data.len() > self.limit {
            return false;
        }
        let [owner, pointer] = self.owner;
        self.fixed(&[owner, pointer], rrtype, ttl, length);
        self.out.extend_from_slice(data);
        self.answers += 1;
        true
    }

    fn fixed(&mut self, owner: &[u8], rrtype: u16, ttl: u32, length: u16) {
        self.out.extend_from_slice(owner);
        self.out.extend_from_slice(&rrtype.to_be_bytes());
        self.out.extend_from_slice(&CLASS_IN.to_be_bytes());
        self.out.extend_from_slice(&ttl.to_be_bytes());
        self.out.extend_from_slice(&length.to_be_bytes());
    }

    /// Takes everything back but the question: the client is to ask again over TCP.
    fn cut(&mut self) {
        self.out.truncate(self.start + HEADER + self.head.question.len());
        self.answers = 0;
        self.truncated = true;
    }

    /// Writes the SOA record of a denial, by which the client knows how long to keep it (RFC 2308): without one, some
    /// resolvers keep it for ever and some not at all.
    pub(crate) fn synthetic_soa(&mut self, generation: Generation, ttl: u32) {
        const MNAME: &[u8] = b"\x08tidegate\x07invalid\0";
        const RNAME: &[u8] = b"\x0ahostmaster\x08tidegate\x07invalid\0";
        const REFRESH_RETRY_EXPIRE: [u32; 3] = [3600, 600, 86_400];
        let length = MNAME.len() + RNAME.len() + 20;
        if self.out.len() - self.start + 12 + length > self.limit {
            return;
        }
        let length = u16::try_from(length).unwrap_or_default();
        self.fixed(&QUESTION_NAME, rrtype::SOA, ttl, length);
        self.out.extend_from_slice(MNAME);
        self.out.extend_from_slice(RNAME);
        // A serial number wraps (RFC 1982).
        let serial = u32::try_from(generation.get() & u64::from(u32::MAX)).unwrap_or_default();
        self.out.extend_from_slice(&serial.to_be_bytes());
        for field in REFRESH_RETRY_EXPIRE {
            self.out.extend_from_slice(&field.to_be_bytes());
        }
        self.out.extend_from_slice(&ttl.to_be_bytes());
        self.authorities = 1;
    }

    /// Writes the SOA record of the zone that has no such record.
    pub(crate) fn upstream_soa(&mut self, soa: &Soa, ttl: u32) {
        let length = soa.owner.len() + 10 + soa.data.len();
        if self.out.len() - self.start + length > self.limit {
            return;
        }
        self.fixed(&soa.owner, rrtype::SOA, ttl, u16::try_from(soa.data.len()).unwrap_or_default());
        self.out.extend_from_slice(&soa.data);
        self.authorities = 1;
    }

    /// Ends the reply. RA is always set: Go's resolver takes an empty answer without it for a lame server.
    pub(crate) fn finish(self, code: u16) {
        let mut additionals = 0_u16;
        if let Some(edns) = self.head.edns {
            additionals = 1;
            let [high, _] = (code << 4).to_be_bytes();
            let dnssec_ok = if edns.dnssec_ok { 0x80 } else { 0 };
            self.out.extend_from_slice(&[0, 0, 41]);
            self.out.extend_from_slice(&UDP_PAYLOAD.to_be_bytes());
            self.out.extend_from_slice(&[high, 0, dnssec_ok, 0]);
            let text = self.extended.map_or("", |extended| extended.text);
            let option = self.extended.map_or(0, |_| 6 + text.len());
            self.out.extend_from_slice(&u16::try_from(option).unwrap_or_default().to_be_bytes());
            if let Some(extended) = self.extended {
                self.out.extend_from_slice(&EXTENDED_ERROR.to_be_bytes());
                self.out.extend_from_slice(&u16::try_from(2 + text.len()).unwrap_or_default().to_be_bytes());
                self.out.extend_from_slice(&extended.code.to_be_bytes());
                self.out.extend_from_slice(text.as_bytes());
            }
        }
        let opcode = self.head.flags & crate::wire::OPCODE;
        let mut flags = QR | RA | opcode | (self.head.flags & (RD | CD)) | (code & RCODE);
        if self.truncated {
            flags |= TC;
        }
        let questions = u16::from(!self.head.question.is_empty());
        let fields = [self.head.id, flags, questions, self.answers, self.authorities, additionals];
        if let Some(header) = self.out.get_mut(self.start..self.start + HEADER) {
            for (slot, field) in header.as_chunks_mut::<2>().0.iter_mut().zip(fields) {
                *slot = field.to_be_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests;
