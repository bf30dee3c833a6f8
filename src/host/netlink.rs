//! The rtnetlink dumps behind [`super::local_addresses`], and what makes a notice worth another dump.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::netlink::messages;

/// `RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_IFADDR | RTMGRP_IPV6_ROUTE` (rtnetlink.h).
pub(super) const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;

/// The table that the kernel consults first, for what the host takes itself (`RT_TABLE_LOCAL`). Local routes in other
/// tables hold only for marked packets, as transparent proxies use them, and would make every address the host's.
const TABLE_LOCAL: u8 = 255;

/// Set where a dump ran while the table changed, so that entries may be missing (`NLM_F_DUMP_INTR`, netlink.h).
const DUMP_INTERRUPTED: u16 = 0x10;

/// How often an interrupted dump is taken anew. Each change also sends a notice, which asks for another one.
const ATTEMPTS: usize = 8;

/// A socket that asks the kernel for whole tables. The kernel answers from memory, so it blocks for microseconds.
pub(super) struct Reader {
    socket: Socket,
    sequence: u32,
}

impl Reader {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Lets the kernel leave out other tables (Linux 4.20). Without it all are sent and left out here.
        let _ = socket.set_netlink_get_strict_chk(true);
        Ok(Self { socket, sequence: 0 })
    }

    /// Every interface address, and every range of the local table.
    pub(super) fn read(&mut self) -> io::Result<Vec<IpNet>> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut address = AddressMessage::default();
            address.header.family = family;
            self.dump(&RouteNetlinkMessage::GetAddress(address), &mut found)?;
            let mut route = RouteMessage::default();
            route.header.address_family = family;
            route.header.table = TABLE_LOCAL;
            self.dump(&RouteNetlinkMessage::GetRoute(route), &mut found)?;
        }
        Ok(found)
    }

    fn dump(&mut self, request: &RouteNetlinkMessage, found: &mut Vec<IpNet>) -> io::Result<()> {
        for _ in 0..ATTEMPTS {
            let before = found.len();
            self.send(request)?;
            if self.receive(found)? {
                return Ok(());
            }
            found.truncate(before);
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the table changes faster than it can be read"))
    }

    fn send(&mut self, request: &RouteNetlinkMessage) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request.clone()));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(|_| ())
    }

    /// Takes one dump in; `false` where it was interrupted.
    fn receive(&mut self, found: &mut Vec<IpNet>) -> io::Result<bool> {
        let mut whole = true;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for message in messages(&datagram) {
                let message = message?;
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                whole &= message.header.flags & DUMP_INTERRUPTED == 0;
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(whole),
                    NetlinkPayload::Error(error) => match error.to_io() {
                        // No local table of this family: IPv6 is off.
                        error if error.kind() == io::ErrorKind::NotFound => return Ok(whole),
                        error => return Err(error),
                    },
                    NetlinkPayload::InnerMessage(inner) => found.extend(owned(&inner)),
                    _ => {}
                }
            }
        }
    }
}

/// Whether a notice tells of a change of what [`Reader::read`] reads.
pub(super) fn concerns_local_addresses(datagram: &[u8]) -> bool {
    messages(datagram).any(|message| match message {
        Ok(NetlinkMessage { payload: NetlinkPayload::InnerMessage(inner), .. }) => owned(&inner).is_some(),
        Ok(_) => false,
        // What cannot be read may be anything.
        Err(_) => true,
    })
}

/// The range that a message gives to the host or takes from it, if it is of that kind.
fn owned(message: &RouteNetlinkMessage) -> Option<IpNet> {
    match message {
        RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
            interface_address(address).map(IpNet::from)
        }
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => local_route(route),
        _ => None,
    }
}

/// `IFA_LOCAL` is the host's own end of a point-to-point link, where `IFA_ADDRESS` is the far one (rtnetlink(7)).
fn interface_address(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

/// Local and anycast routes: packets to either are the host's own (ip-route(8)).
fn local_route(message: &RouteMessage) -> Option<IpNet> {
    let header = &message.header;
    let is_own = matches!(header.kind, RouteType::Local | RouteType::Anycast);
    let table = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    if !is_own || table.unwrap_or_else(|| header.table.into()) != u32::from(TABLE_LOCAL) {
        return None;
    }
    let to = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    });
    // A route to everything carries no destination.
    let to = to.or(match header.address_family {
        AddressFamily::Inet => Some(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)),
        AddressFamily::Inet6 => Some(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)),
        _ => None,
    })?;
    IpNet::new(to, header.destination_prefix_length).ok()
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteHeader;

    use super::*;

    fn route(kind: RouteType, table: u8, to: Option<[u8; 4]>, length: u8) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: AddressFamily::Inet,
            destination_prefix_length: length,
            table,
            kind,
            ..RouteHeader::default()
        };
        message.attributes.extend(to.map(|to| RouteAttribute::Destination(RouteAddress::Inet(to.into()))));
        message
    }

    #[test]
    fn local_routes_of_the_local_table_are_the_hosts() {
        let own =
            |kind, table, to, length| local_route(&route(kind, table, to, length)).map(|net| net.to_string());
        assert_eq!(
            own(RouteType::Local, 255, Some([198, 51, 100, 0]), 24).as_deref(),
            Some("198.51.100.0/24")
        );
        assert_eq!(own(RouteType::Anycast, 255, Some([192, 0, 2, 0]), 32).as_deref(), Some("192.0.2.0/32"));
        assert_eq!(own(RouteType::Local, 255, None, 0).as_deref(), Some("0.0.0.0/0"));
        assert_eq!(own(RouteType::Unicast, 255, Some([198, 51, 100, 0]), 24), None);
    }

    #[test]
    fn local_routes_of_other_tables_are_not() {
        // As a transparent proxy writes it: `ip route add local 0.0.0.0/0 dev lo table 100`.
        assert_eq!(local_route(&route(RouteType::Local, 100, None, 0)), None);
    }

    #[test]
    fn the_near_end_of_a_point_to_point_link_is_the_hosts() {
        let mut message = AddressMessage::default();
        let (near, far) = ("192.0.2.1".parse().expect("address"), "192.0.2.2".parse().expect("address"));
        message.attributes = vec![AddressAttribute::Address(far), AddressAttribute::Local(near)];
        assert_eq!(interface_address(&message), Some(near));
    }

    #[test]
    fn a_cut_notice_asks_for_a_new_look() {
        assert!(concerns_local_addresses(&[1, 2, 3]));
        assert!(!concerns_local_addresses(&[]));
    }
}
