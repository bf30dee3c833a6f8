//! The few rtnetlink requests that a lab needs, each acknowledged by the kernel before the call returns.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, BorrowedFd},
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use crate::netlink;

/// The table that the kernel fills with the host's own addresses (`RT_TABLE_LOCAL`).
pub(super) const TABLE_LOCAL: u8 = 255;
/// The table of ordinary routes (`RT_TABLE_MAIN`).
pub(super) const TABLE_MAIN: u8 = 254;

/// An address with a prefix length, as routes and rules match it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefix(pub(super) IpAddr, pub(super) u8);

impl Prefix {
    pub(super) const ALL_V4: Prefix = Prefix(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    pub(super) const ALL_V6: Prefix = Prefix(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

    pub(super) fn host(address: IpAddr) -> Prefix {
        Prefix(address, if address.is_ipv4() { 32 } else { 128 })
    }
}

/// Where a route sends what it matches.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hop {
    /// The destination is on the link itself.
    Link,
    /// Through this neighbour, with this source address.
    Via { neighbour: IpAddr, source: IpAddr },
    /// The destination is this host: every matching address is its own.
    Own,
}

/// The requests of a lab, in the namespace of the thread that opened it.
pub(super) struct Netlink(netlink::Netlink);

impl Netlink {
    pub(super) fn open() -> io::Result<Netlink> {
        netlink::Netlink::route().map(Netlink)
    }

    /// Makes a veth pair: `name` here, `peer` in the other namespace.
    pub(super) fn add_veth(&mut self, name: &str, peer: &str, other: BorrowedFd<'_>) -> io::Result<()> {
        let mut far = LinkMessage::default();
        far.attributes = vec![LinkAttribute::IfName(peer.into()), LinkAttribute::NetNsFd(other.as_raw_fd())];
        let mut near = LinkMessage::default();
        near.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
            ]),
        ];
        self.0.request(RouteNetlinkMessage::NewLink(near), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(super) fn set_up(&mut self, link: u32) -> io::Result<()> {
        self.0.switch(link, true)
    }

    pub(super) fn add_address(&mut self, link: u32, Prefix(address, length): Prefix) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = length;
        message.header.index = link;
        message.header.scope = AddressScope::Universe;
        if address.is_ipv6() {
            // Without this the address cannot be used for a second, while nobody answers for it (RFC 4862 §5.4).
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        self.0.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(super) fn add_route(&mut self, Prefix(to, length): Prefix, link: u32, hop: Hop) -> io::Result<()> {
        let (table, scope, kind) = match hop {
            Hop::Link => (TABLE_MAIN, RouteScope::Link, RouteType::Unicast),
            Hop::Via { .. } => (TABLE_MAIN, RouteScope::Universe, RouteType::Unicast),
            Hop::Own => (TABLE_LOCAL, RouteScope::Host, RouteType::Local),
        };
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(to),
            destination_prefix_length: length,
            table,
            scope,
            kind,
            protocol: RouteProtocol::Static,
            ..RouteHeader::default()
        };
        message.attributes = vec![RouteAttribute::Oif(link)];
        if length > 0 {
            message.attributes.push(RouteAttribute::Destination(route_address(to)));
        }
        if let Hop::Via { neighbour, source } = hop {
            message.attributes.push(RouteAttribute::Gateway(route_address(neighbour)));
            message.attributes.push(RouteAttribute::PrefSource(route_address(source)));
        }
        self.0.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Consults `table` for destinations in `to`; lower `priority` first.
    pub(super) fn add_rule(&mut self, priority: u32, to: Prefix, table: u8) -> io::Result<()> {
        self.0.request(RouteNetlinkMessage::NewRule(rule(priority, to, table)), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(super) fn delete_rule(&mut self, priority: u32, to: Prefix, table: u8) -> io::Result<()> {
        self.0.request(RouteNetlinkMessage::DelRule(rule(priority, to, table)), 0)
    }
}

fn rule(priority: u32, Prefix(to, length): Prefix, table: u8) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(to);
    message.header.dst_len = length;
    message.header.table = table;
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![RuleAttribute::Priority(priority), RuleAttribute::Table(table.into())];
    if length > 0 {
        message.attributes.push(RuleAttribute::Destination(to));
    }
    message
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}
