//! Encodes a [`Ruleset`] as one nf_tables batch (linux/netfilter/nf_tables.h): all of it is in force, or nothing.
//!
//! The messages are those that nft(8) sends for the same text; a test compares what the kernel then lists.

use super::ruleset::{Action, Chain, Hook, Kind, Match, Policy, Protocol, Rule, Ruleset};
use crate::netlink::Link;

/// Messages for the kernel, and the number of the one that it acknowledges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) last: u32,
}

const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const ONLY_NEW: u16 = 0x200;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = NEW_TABLE | 2;
const NEW_CHAIN: u16 = NEW_TABLE | 3;
const NEW_RULE: u16 = NEW_TABLE | 6;

/// `NFPROTO_INET`: both families.
const INET: u8 = 1;
/// `NFPROTO_NETDEV`: a link's own.
const NETDEV: u8 = 5;
const IPV4: u8 = 2;
const IPV6: u8 = 10;

/// The first 16-byte register.
const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;

/// Set on the type of an attribute that holds attributes.
const NESTED: u16 = 0x8000;

/// What a batch finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    /// No table of the name: else the batch is refused as [`std::io::ErrorKind::AlreadyExists`].
    Absent,
    /// Perhaps one, which is replaced. Closing the socket then waits until the old one is gone: 15 ms.
    Replaced,
}

/// Makes the table what the ruleset says.
pub(super) fn make(ruleset: &Ruleset, found: Table) -> Batch {
    let mut batch = Messages { family: INET, ..Messages::default() };
    batch.table(ruleset.table, found);
    for chain in &ruleset.chains {
        batch.message(NEW_CHAIN, CREATE, |out| self::chain(out, ruleset.table, chain));
    }
    for chain in &ruleset.chains {
        for rule in &chain.rules {
            batch.message(NEW_RULE, CREATE | APPEND, |out| {
                out.text(1, ruleset.table);
                out.text(2, chain.name);
                out.nest(4, |list| self::rule(list, rule));
            });
        }
    }
    batch.finish()
}

/// The links that a chain of a link's own is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links<'a> {
    /// One that is there.
    Named(&'a str),
    /// All but `lo`, those that are still to come too (`NFTA_DEVICE_PREFIX`, tried on Linux 6.18).
    AllButLoopback,
}

/// Lets nothing pass links, whatever sends or takes it (`NF_NETDEV_INGRESS`, Linux 4.2; `NF_NETDEV_EGRESS`, 5.16).
pub(super) fn shut(links: Links<'_>, found: Table) -> Batch {
    let mut batch = Messages { family: NETDEV, ..Messages::default() };
    let table = match links {
        Links::Named(name) => format!("tidegate {name}"),
        Links::AllButLoopback => "tidegate".to_owned(),
    };
    let chains = [("arriving", 0, meta::IN_LINK), ("leaving", 1, meta::OUT_LINK)];
    batch.table(&table, found);
    for (name, hook, _) in chains {
        batch.message(NEW_CHAIN, CREATE, |out| {
            out.text(1, &table);
            out.text(3, name);
            out.nest(4, |place| {
                place.number(1, hook);
                place.number(2, 0);
                match links {
                    Links::Named(link) => place.text(3, link),
                    Links::AllButLoopback => place.nest(4, |devices| devices.text(2, "")),
                }
            });
            out.number(5, DROP);
            out.text(7, Kind::word(Kind::Filter));
        });
    }
    for (name, _, link) in chains.into_iter().filter(|_| links == Links::AllButLoopback) {
        batch.message(NEW_RULE, CREATE | APPEND, |out| {
            out.text(1, &table);
            out.text(2, name);
            out.nest(4, |list| {
                let mut expressions = Expressions(list);
                expressions.meta(link, EQUAL, &Link::LOOPBACK.to_ne_bytes());
                expressions.action(Action::Accept);
            });
        });
    }
    batch.finish()
}

fn chain(out: &mut Attributes, table: &str, chain: &Chain) {
    let hook = match chain.hook {
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
    };
    let policy = match chain.policy {
        Policy::Drop => DROP,
        Policy::Accept => ACCEPT,
    };
    out.text(1, table);
    out.text(3, chain.name);
    out.nest(4, |place| {
        place.number(1, hook);
        place.number(2, chain.priority.cast_unsigned());
    });
    out.number(5, policy);
    out.text(7, Kind::word(chain.kind));
}

fn rule(list: &mut Attributes, rule: &Rule) {
    let mut expressions = Expressions(list);
    for found in &rule.matches {
        expressions.matching(*found);
    }
    if rule.counted {
        expressions.add("counter", |_| {});
    }
    expressions.action(rule.action);
}

const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// `NFT_RETURN`.
const RETURN: u32 = (-5i32).cast_unsigned();

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

/// Keys of the `meta` expression.
mod meta {
    pub(super) const IN_LINK: u32 = 4;
    pub(super) const OUT_LINK: u32 = 5;
    pub(super) const FAMILY: u32 = 15;
    pub(super) const PROTOCOL: u32 = 16;
}

/// Where a payload's offset counts from.
mod base {
    pub(super) const NETWORK: u32 = 1;
    pub(super) const TRANSPORT: u32 = 2;
}

/// `IP_CT_ESTABLISHED` and `IP_CT_RELATED` as bits of `ct state`.
const ESTABLISHED_OR_RELATED: u32 = 2 | 4;

struct Expressions<'a>(&'a mut Attributes);

impl Expressions<'_> {
    fn matching(&mut self, what: Match) {
        match what {
            Match::CameOverAnotherLink => self.meta(meta::IN_LINK, NOT_EQUAL, &Link::LOOPBACK.to_ne_bytes()),
            Match::LeavesOverAnotherLink => {
                self.meta(meta::OUT_LINK, NOT_EQUAL, &Link::LOOPBACK.to_ne_bytes())
            }
            Match::Protocol(protocol) => self.meta(meta::PROTOCOL, EQUAL, &[number(protocol)]),
            Match::To(protocol, port) => {
                self.meta(meta::PROTOCOL, EQUAL, &[number(protocol)]);
                // The destination port of TCP (RFC 9293) and UDP (RFC 768).
                self.payload(base::TRANSPORT, 2, &port.to_be_bytes());
            }
            Match::ToLoopbackV4 => {
                self.meta(meta::FAMILY, EQUAL, &[IPV4]);
                // The first byte of the destination (RFC 791).
                self.payload(base::NETWORK, 16, &[127]);
            }
            Match::ToLoopbackV6 => {
                self.meta(meta::FAMILY, EQUAL, &[IPV6]);
                // The destination (RFC 8200).
                self.payload(base::NETWORK, 24, &std::net::Ipv6Addr::LOCALHOST.octets());
            }
            Match::UnreachableV4 => {
                self.meta(meta::PROTOCOL, EQUAL, &[1]);
                self.payload(base::TRANSPORT, 0, &[3]);
            }
            Match::UnreachableV6 => {
                self.meta(meta::PROTOCOL, EQUAL, &[58]);
                self.payload(base::TRANSPORT, 0, &[1]);
            }
            Match::OfKnownFlow => {
                self.add("ct", |data| {
                    data.number(1, REGISTER);
                    data.number(2, 0);
                });
                self.add("bitwise", |data| {
                    data.number(1, REGISTER);
                    data.number(2, REGISTER);
                    data.number(3, 4);
                    data.value(4, &ESTABLISHED_OR_RELATED.to_ne_bytes());
                    data.value(5, &[0; 4]);
                });
                self.compare(NOT_EQUAL, &[0; 4]);
            }
        }
    }

    fn action(&mut self, action: Action) {
        match action {
            Action::Accept => self.verdict(ACCEPT),
            Action::Drop => self.verdict(DROP),
            Action::Return => self.verdict(RETURN),
            Action::Redirect(port) => {
                self.add("immediate", |data| {
                    data.number(1, REGISTER);
                    data.value(2, &port.to_be_bytes());
                });
                self.add("redir", |data| {
                    data.number(1, REGISTER);
                    // NF_NAT_RANGE_PROTO_SPECIFIED: a port is given.
                    data.number(3, 2);
                });
            }
            Action::RefusePort => self.add("reject", |data| {
                // NFT_REJECT_ICMPX_UNREACH and NFT_REJECT_ICMPX_PORT_UNREACH.
                data.number(1, 2);
                data.attribute(2, &[1]);
            }),
        }
    }

    fn meta(&mut self, key: u32, how: u32, value: &[u8]) {
        self.add("meta", |data| {
            data.number(2, key);
            data.number(1, REGISTER);
        });
        self.compare(how, value);
    }

    fn payload(&mut self, base: u32, offset: u32, value: &[u8]) {
        self.add("payload", |data| {
            data.number(1, REGISTER);
            data.number(2, base);
            data.number(3, offset);
            data.number(4, u32::try_from(value.len()).unwrap_or(u32::MAX));
        });
        self.compare(EQUAL, value);
    }

    fn compare(&mut self, how: u32, value: &[u8]) {
        self.add("cmp", |data| {
            data.number(1, REGISTER);
            data.number(2, how);
            data.value(3, value);
        });
    }

    fn verdict(&mut self, code: u32) {
        self.add("immediate", |data| {
            data.number(1, VERDICT_REGISTER);
            data.nest(2, |data| data.nest(2, |verdict| verdict.number(1, code)));
        });
    }

    fn add(&mut self, name: &str, data: impl FnOnce(&mut Attributes)) {
        self.0.nest(1, |element| {
            element.text(1, name);
            element.nest(2, data);
        });
    }
}

const fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

/// Messages one after another.
#[derive(Default)]
struct Messages {
    family: u8,
    bytes: Vec<u8>,
    sequence: u32,
    last: usize,
}

impl Messages {
    /// Opens the batch with its table.
    fn table(&mut self, name: &str, found: Table) {
        self.control(BATCH_BEGIN);
        match found {
            Table::Absent => self.message(NEW_TABLE, CREATE | ONLY_NEW, |out| out.text(1, name)),
            Table::Replaced => {
                // Created first, so that there is one to delete.
                self.message(NEW_TABLE, CREATE, |out| out.text(1, name));
                self.message(DELETE_TABLE, 0, |out| out.text(1, name));
                self.message(NEW_TABLE, CREATE, |out| out.text(1, name));
            }
        }
    }

    /// The frame around a batch, which names the subsystem.
    fn control(&mut self, kind: u16) {
        self.start(kind, REQUEST, 0, SUBSYSTEM, &[]);
    }

    fn message(&mut self, kind: u16, flags: u16, attributes: impl FnOnce(&mut Attributes)) {
        let mut out = Attributes::default();
        attributes(&mut out);
        self.start(kind, REQUEST | flags, self.family, 0, &out.0);
    }

    /// `nlmsghdr` and `nfgenmsg`, and what follows them.
    fn start(&mut self, kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) {
        self.sequence += 1;
        self.last = self.bytes.len();
        let length = u32::try_from(20 + attributes.len()).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.bytes.extend(attributes);
    }

    /// Closes the batch, whose last message is to be acknowledged.
    fn finish(mut self) -> Batch {
        let flags = self.bytes.get_mut(self.last + 6..).and_then(|rest| rest.first_chunk_mut::<2>());
        if let Some(flags) = flags {
            *flags = (u16::from_ne_bytes(*flags) | ACKNOWLEDGE).to_ne_bytes();
        }
        let last = self.sequence;
        self.control(BATCH_END);
        Batch { bytes: self.bytes, last }
    }
}

/// Attributes one after another, each padded to four bytes (netlink(7)).
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), b"\0"].concat());
    }

    fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) {
        let mut nested = Self::default();
        inner(&mut nested);
        self.attribute(kind | NESTED, &nested.0);
    }

    /// `NFTA_DATA_VALUE` within an attribute.
    fn value(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |data| data.attribute(1, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_framed_and_every_message_of_it_is_aligned() {
        let batch = make(&Ruleset::capturing(15001, 15053), Table::Replaced);
        let mut rest = &batch.bytes[..];
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            assert_eq!(length % 4, 0);
            let sequence = u32::from_ne_bytes(rest[8..12].try_into().unwrap());
            let acknowledged = u16::from_ne_bytes(rest[6..8].try_into().unwrap()) & ACKNOWLEDGE != 0;
            assert_eq!(acknowledged, sequence == batch.last);
            kinds.push(u16::from_ne_bytes(rest[4..6].try_into().unwrap()));
            rest = &rest[length..];
        }
        assert_eq!(kinds.first(), Some(&BATCH_BEGIN));
        assert_eq!(kinds.last(), Some(&BATCH_END));
        assert_eq!(kinds[1..4], [NEW_TABLE, DELETE_TABLE, NEW_TABLE]);
    }

    #[test]
    fn an_attribute_is_padded_and_its_length_is_not() {
        let mut out = Attributes::default();
        out.text(1, "nat");
        out.attribute(2, &[7]);
        assert_eq!(out.0, [&[8, 0, 1, 0][..], b"nat\0", &[5, 0, 2, 0, 7, 0, 0, 0]].concat());
    }
}
