//! The few rtnetlink requests that a lab needs, each acknowledged by the kernel before the call returns.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, BorrowedFd},
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

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

/// One rtnetlink socket, in the namespace of the thread that opened it.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink { socket, sequence: 0 })
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
        self.request(RouteNetlinkMessage::NewLink(near), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(super) fn set_up(&mut self, link: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = link;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message), 0)
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
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
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
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Consults `table` for destinations in `to`; lower `priority` first.
    pub(super) fn add_rule(&mut self, priority: u32, to: Prefix, table: u8) -> io::Result<()> {
        self.request(RouteNetlinkMessage::NewRule(rule(priority, to, table)), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(super) fn delete_rule(&mut self, priority: u32, to: Prefix, table: u8) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelRule(rule(priority, to, table)), 0)
    }

    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let (reply, _) = self.socket.recv_from_full()?;
        let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&reply)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        match reply.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            NetlinkPayload::Error(_) => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kernel answered with something else than an acknowledgement",
            )),
        }
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
