//! Answers: what an upstream's message says about one question, and nothing else that it carries.
//!
//! Only records on the chain of aliases from the question count, in any order; authority gives the SOA of a negative
//! answer, additional data gives nothing. One malformed record makes the whole message malformed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use policy::{Hostname, QType};

use crate::error::LookupError;
use crate::service::Service;
use crate::wire::{CLASS_IN, HEADER, Name, RCODE, Reader, Record, rcode, rrtype};

/// The longest chain of aliases that is followed.
const MAX_ALIASES: usize = 8;

/// More records than any honest answer has; a 64 KiB message of the smallest ones holds five thousand.
const MAX_RECORDS: usize = 1024;

/// The longest time for which an answer is kept or told, in seconds.
const MAX_TTL: u32 = 300;

/// The same for an answer without records.
const MAX_NEGATIVE_TTL: u32 = 60;

/// For an answer without records and without the SOA that would tell (RFC 2308 section 5: not to be kept).
const UNTOLD_TTL: u32 = 5;

/// What the upstreams say about one name and type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Whether the name at the end of the chain exists.
    pub(crate) exists: bool,
    /// The names that aliases led through, without the first.
    pub(crate) chain: Vec<Hostname>,
    /// The addresses at the end of the chain, where addresses were asked for.
    pub(crate) addresses: Vec<IpAddr>,
    /// The records at the end of the chain, where another type was asked for.
    pub(crate) data: Vec<Data>,
    /// Where there are no records: the zone that says so.
    pub(crate) soa: Option<Soa>,
    /// For how many seconds it holds from `taken` on: the least of the chain, within limits.
    pub(crate) ttl: u32,
    /// Whether it may be kept at all.
    pub(crate) keep: bool,
    /// When it came.
    pub(crate) taken: Instant,
}

/// The data of a record that is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Points to another name (SRV, MX, NAPTR): fixed fields, then the name; `None` is the root, "nothing here".
    Pointer {
        /// The fields in front of the name.
        fields: Box<[u8]>,
        /// Where it points.
        target: Option<Hostname>,
        /// A NAPTR with a rewriting expression may point anywhere.
        rewrites: bool,
    },
    /// Says a name, which is not a place to connect to by itself (CNAME, NS, PTR).
    Name(Hostname),
    /// SVCB or HTTPS.
    Service(Service),
    /// Anything without names that could be compressed, byte for byte (RFC 3597).
    Opaque(Box<[u8]>),
}

/// The SOA record of a negative answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Soa {
    /// The zone, in wire form.
    pub(crate) owner: Box<[u8]>,
    /// The record's data, uncompressed.
    pub(crate) data: Box<[u8]>,
    /// For how many seconds the negative answer holds (RFC 2308 section 5).
    ttl: u32,
}

impl Answer {
    /// Reads the answer to a question from an upstream's message. Its id and question were compared before.
    pub(crate) fn read(
        message: &[u8],
        name: &Hostname,
        qtype: QType,
        taken: Instant,
    ) -> Result<Self, LookupError> {
        let code = message.get(3).map_or(rcode::SERVFAIL, |low| u16::from(*low) & RCODE);
        if code != rcode::NOERROR && code != rcode::NXDOMAIN {
            return Err(LookupError::Failed(u8::try_from(code).unwrap_or(u8::MAX)));
        }
        let sections = Sections::read(message, qtype).ok_or(LookupError::Malformed)?;
        let (chain, end, alias_ttl) = sections.follow(name)?;
        let mut answer = Self {
            exists: code == rcode::NOERROR,
            chain,
            addresses: Vec::new(),
            data: Vec::new(),
            soa: None,
            ttl: MAX_TTL,
            keep: true,
            taken,
        };
        let mut least = alias_ttl;
        for record in sections.of_type.iter().filter(|record| owner_is(record, &end, name)) {
            if answer.len() == MAX_RECORDS {
                return Err(LookupError::Malformed);
            }
            least = least.min(seconds(record.ttl));
            answer.take(record, qtype).ok_or(LookupError::Malformed)?;
        }
        if answer.is_negative() {
            answer.soa = sections.soa(&end).ok_or(LookupError::Malformed)?;
            if answer.dangling().is_none() {
                let told = answer.soa.as_ref().map(|soa| soa.ttl);
                least = least.min(told.unwrap_or(UNTOLD_TTL)).min(MAX_NEGATIVE_TTL);
                answer.keep = told.is_some();
            }
        }
        // TTL 0 must still work once, but is not kept (RFC 1035 section 3.2.1).
        answer.keep &= least > 0;
        answer.ttl = least.clamp(1, MAX_TTL);
        Ok(answer)
    }

    /// The answer of a name that has nothing, where all that is known is for how long.
    pub(crate) fn negative(exists: bool, ttl: Option<u32>, taken: Instant) -> Self {
        Self {
            exists,
            chain: Vec::new(),
            addresses: Vec::new(),
            data: Vec::new(),
            soa: None,
            ttl: ttl.unwrap_or(UNTOLD_TTL).clamp(1, MAX_NEGATIVE_TTL),
            keep: ttl.is_some_and(|ttl| ttl > 0),
            taken,
        }
    }

    /// The answer of a name whose addresses the policy itself gives.
    pub(crate) fn known(addresses: Vec<IpAddr>, qtype: QType, taken: Instant) -> Self {
        let of_type = |address: &IpAddr| match qtype {
            QType::A => address.is_ipv4(),
            QType::AAAA => address.is_ipv6(),
            _ => false,
        };
        let addresses = addresses.into_iter().filter(of_type).collect();
        Self { addresses, ..Self::negative(true, None, taken) }
    }

    /// The name that must be asked for next: the chain ends in an alias that the message does not resolve.
    pub(crate) fn dangling(&self) -> Option<&Hostname> {
        let open = self.exists && self.is_negative() && self.soa.is_none();
        self.chain.last().filter(|_| open)
    }

    /// Appends what was found for the name at the end of the chain.
    pub(crate) fn extend(mut self, further: Self, name: &Hostname) -> Result<Self, LookupError> {
        let loops = |alias: &Hostname| alias == name || self.chain.contains(alias);
        if further.chain.iter().any(loops) || self.chain.len() + further.chain.len() > MAX_ALIASES {
            return Err(LookupError::Endless);
        }
        self.chain.extend(further.chain);
        Ok(Self {
            chain: self.chain,
            ttl: self.ttl.min(further.ttl),
            keep: self.keep && further.keep,
            taken: self.taken,
            ..further
        })
    }

    fn len(&self) -> usize {
        self.addresses.len() + self.data.len()
    }

    /// Whether there are no records of the type that was asked for.
    pub(crate) fn is_negative(&self) -> bool {
        self.len() == 0
    }

    /// The seconds for which it still holds; `None` when it is over.
    pub(crate) fn remaining(&self, now: Instant) -> Option<u32> {
        let age = now.saturating_duration_since(self.taken);
        let left = Duration::from_secs(self.ttl.into()).checked_sub(age)?;
        // Rounded up: an answer that holds for half a second is told as one second.
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        u32::try_from(seconds).ok().filter(|seconds| *seconds > 0)
    }

    fn take(&mut self, record: &Record<'_>, qtype: QType) -> Option<()> {
        let mut data = record.data;
        match qtype.0 {
            _ if qtype == QType::A => {
                let octets: [u8; 4] = data.rest().try_into().ok()?;
                self.addresses.push(IpAddr::V4(Ipv4Addr::from(octets)));
            }
            _ if qtype == QType::AAAA => {
                let octets: [u8; 16] = data.rest().try_into().ok()?;
                self.addresses.push(IpAddr::V6(Ipv6Addr::from(octets)));
            }
            _ => self.data.push(read_data(&mut data, qtype)?),
        }
        Some(())
    }
}

fn read_data(data: &mut Reader<'_>, qtype: QType) -> Option<Data> {
    let read = match qtype.0 {
        _ if matches!(qtype, QType::SVCB | QType::HTTPS) => Data::Service(Service::read(data)?),
        _ if matches!(qtype, QType::CNAME | QType::PTR) => Data::Name(data.name()?.hostname().ok()?),
        rrtype::NS => Data::Name(data.name()?.hostname().ok()?),
        rrtype::MX => pointer(data, 2)?,
        rrtype::SRV => pointer(data, 6)?,
        rrtype::NAPTR => naptr(data)?,
        rrtype::SOA => Data::Opaque(soa_data(data)?),
        _ => {
            let whole = *data;
            has_form(data, qtype)?;
            Data::Opaque({ whole }.rest().into())
        }
    };
    data.is_empty().then_some(read)
}

/// Reads past data that is delivered as it came, where its form is known. What has not its form stops a client's parser,
/// or is read in another way than was judged here.
fn has_form(data: &mut Reader<'_>, qtype: QType) -> Option<()> {
    match qtype.0 {
        // One or more character strings (RFC 1035 section 3.3.14).
        rrtype::TXT => {
            data.string()?;
            while !data.is_empty() {
                data.string()?;
            }
        }
        // Flags, a tag that is not empty, a value (RFC 8659 section 4.1).
        rrtype::CAA => {
            data.u8()?;
            let tag = data.string()?;
            if tag.is_empty() || !tag.iter().all(u8::is_ascii_alphanumeric) {
                return None;
            }
        }
        // Key tag or flags, algorithm, and digest type or protocol (RFC 4034 sections 2.1 and 5.1).
        rrtype::DS | rrtype::DNSKEY => _ = data.bytes(4)?,
        // Algorithm and type of the fingerprint (RFC 4255 section 3.1).
        rrtype::SSHFP => _ = data.bytes(2)?,
        // Usage, selector and matching type (RFC 6698 section 2.1).
        rrtype::TLSA => _ = data.bytes(3)?,
        _ => {}
    }
    data.rest();
    Some(())
}

fn pointer(data: &mut Reader<'_>, fields: usize) -> Option<Data> {
    let fields = data.bytes(fields)?.into();
    Some(Data::Pointer { fields, target: target(&data.name()?)?, rewrites: false })
}

/// Order, preference, flags, services, expression, replacement (RFC 3403 section 4.1).
fn naptr(data: &mut Reader<'_>) -> Option<Data> {
    let mut fields = data.bytes(4)?.to_vec();
    let mut rewrites = false;
    for place in 0..3 {
        let text = data.string()?;
        rewrites |= place == 2 && !text.is_empty();
        fields.push(u8::try_from(text.len()).ok()?);
        fields.extend_from_slice(text);
    }
    Some(Data::Pointer { fields: fields.into(), target: target(&data.name()?)?, rewrites })
}

/// The name that a record points to: `Some(None)` is the root, `None` a name that no host has.
pub(crate) fn target(name: &Name<'_>) -> Option<Option<Hostname>> {
    if name.is_root() { Some(None) } else { name.hostname().ok().map(Some) }
}

fn soa_data(data: &mut Reader<'_>) -> Option<Box<[u8]>> {
    let mut out = Vec::with_capacity(64);
    data.name()?.write(&mut out);
    data.name()?.write(&mut out);
    out.extend_from_slice(data.bytes(20)?);
    data.is_empty().then(|| out.into())
}

/// A TTL as RFC 2181 section 8 reads it: the topmost bit set means zero.
const fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
}

/// A pointer to the question's name, as nearly every record's owner is written.
const TO_QUESTION: [u8; 2] = [0xc0, 0x0c];

fn owner_is(record: &Record<'_>, wanted: &Hostname, question: &Hostname) -> bool {
    let mut owner = record.owner;
    if owner.bytes(2) == Some(&TO_QUESTION) {
        return wanted == question;
    }
    let mut owner = record.owner;
    owner.name().is_some_and(|name| name.is(wanted))
}

/// The records of a message that may matter.
#[derive(Debug, Default)]
struct Sections<'m> {
    of_type: Vec<Record<'m>>,
    aliases: Vec<Record<'m>>,
    zones: Vec<Record<'m>>,
}

impl<'m> Sections<'m> {
    fn read(message: &'m [u8], qtype: QType) -> Option<Self> {
        let mut reader = Reader::new(message, 6);
        let (answers, authorities) = (reader.u16()?, reader.u16()?);
        let mut reader = Reader::new(message, HEADER);
        reader.skip_name()?;
        reader.bytes(4)?;
        let mut all = Self::default();
        for _ in 0..answers {
            let record = reader.record()?;
            if record.class != CLASS_IN {
                continue;
            }
            if record.rrtype == qtype.0 {
                all.of_type.push(record);
            } else if record.rrtype == QType::CNAME.0 {
                all.aliases.push(record);
            }
        }
        // "No data" leaves the answer section empty, but for aliases (RFC 2308 section 2.2); one full of other records
        // says nothing about the question.
        if answers > 0 && all.of_type.is_empty() && all.aliases.is_empty() {
            return None;
        }
        // What follows is needed for negative answers only.
        if all.of_type.is_empty() {
            for _ in 0..authorities {
                let record = reader.record()?;
                if record.class == CLASS_IN && record.rrtype == rrtype::SOA {
                    all.zones.push(record);
                }
            }
        }
        Some(all)
    }

    /// Follows the aliases of the answer section from the question to their end.
    fn follow(&self, name: &Hostname) -> Result<(Vec<Hostname>, Hostname, u32), LookupError> {
        let mut chain = Vec::new();
        let mut end = name.clone();
        let mut ttl = u32::MAX;
        // Where CNAME was asked for, `aliases` is empty: they are the records.
        while let Some(alias) = self.aliases.iter().find(|record| owner_is(record, &end, name)) {
            let mut data = alias.data;
            let target = data.name().filter(|_| data.is_empty()).ok_or(LookupError::Malformed)?;
            let target = target.hostname().map_err(|_| LookupError::Malformed)?;
            if target == *name || chain.contains(&target) || chain.len() == MAX_ALIASES {
                return Err(LookupError::Endless);
            }
            ttl = ttl.min(seconds(alias.ttl));
            chain.push(target.clone());
            end = target;
        }
        Ok((chain, end, ttl))
    }

    /// The SOA of a zone that holds `name`; `None` where it is malformed.
    #[expect(clippy::option_option, reason = "three outcomes, one caller")]
    fn soa(&self, name: &Hostname) -> Option<Option<Soa>> {
        for zone in &self.zones {
            let mut owner = zone.owner;
            let owner = owner.name()?;
            let holds = owner.is_root() || name.suffixes().any(|suffix| is_text(&owner, suffix));
            if !holds {
                continue;
            }
            let mut data = zone.data;
            let data = soa_data(&mut data)?;
            let minimum = data.last_chunk().copied().map(u32::from_be_bytes)?;
            let mut wire = Vec::with_capacity(32);
            owner.write(&mut wire);
            let ttl = seconds(zone.ttl).min(seconds(minimum));
            return Some(Some(Soa { owner: wire.into(), data, ttl }));
        }
        Some(None)
    }
}

fn is_text(name: &Name<'_>, text: &str) -> bool {
    let mut labels = text.split('.');
    name.labels().all(|label| labels.next().is_some_and(|text| label.eq_ignore_ascii_case(text.as_bytes())))
        && labels.next().is_none()
}

#[cfg(test)]
mod tests;
