//! One netlink socket: requests that the kernel acknowledges, dumps, and notices.

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::netlink::{self as protocol, SocketAddrNetlink};
use rustix::net::{
    self as net, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// Notices of links that come, change and go (`RTMGRP_LINK`, rtnetlink.h).
pub(crate) const LINKS: u32 = 1;

/// The table that the kernel consults first, for what a host takes itself (`RT_TABLE_LOCAL`).
const TABLE_LOCAL: u8 = 255;

/// The kernel's largest datagram: a page of a dump, or a refusal with the request that it refuses (netlink(7)).
const DATAGRAM: usize = 64 * 1024;

/// A socket in the network namespace of the thread that opened it, for life.
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// A socket for links, addresses and routes.
    pub(crate) fn route() -> io::Result<Self> {
        Self::open(None, 0)
    }

    /// A socket for nf_tables.
    pub(crate) fn netfilter() -> io::Result<Self> {
        Self::open(Some(protocol::NETFILTER), 0)
    }

    /// A socket that is told of every change of a link. It never blocks.
    pub(crate) fn link_notices() -> io::Result<OwnedFd> {
        let socket = Self::open(None, LINKS)?.socket;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(socket)
    }

    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let socket =
            socket_with(net::AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Asks for one change and waits until the kernel has made it.
    pub(crate) fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let bytes = encoded(message, NLM_F_REQUEST | NLM_F_ACK | flags, self.sequence);
        self.exchange(&bytes, self.sequence)
    }

    /// Sends messages that were encoded elsewhere, and waits until the kernel acknowledges the one numbered `last` or
    /// refuses any of them.
    pub(crate) fn exchange(&mut self, messages: &[u8], last: u32) -> io::Result<()> {
        send(&self.socket, messages, SendFlags::empty())?;
        loop {
            for reply in errors(&receive(&self.socket)?) {
                match reply? {
                    (_, Some(refused)) => return Err(refused),
                    (sequence, None) if sequence == last => return Ok(()),
                    (_, None) => {}
                }
            }
        }
    }

    /// Every link of the namespace.
    pub(crate) fn links(&mut self) -> io::Result<Vec<Link>> {
        self.sequence += 1;
        links(&self.socket, self.sequence)
    }

    /// Switches a link on or off.
    pub(crate) fn switch(&mut self, link: u32, on: bool) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = link;
        message.header.flags = if on { LinkFlags::Up } else { LinkFlags::empty() };
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Routes every address of a family to this host.
    pub(crate) fn own_every_address(&mut self, family: AddressFamily) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family,
            table: TABLE_LOCAL,
            scope: RouteScope::Host,
            kind: RouteType::Local,
            protocol: RouteProtocol::Static,
            ..RouteHeader::default()
        };
        message.attributes = vec![RouteAttribute::Oif(Link::LOOPBACK)];
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    fallback: bool,
}

/// The names of the kernel's own tunnels.
const FALLBACK_NAMES: [&str; 9] =
    ["tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"];

const fn is_fallback_kind(kind: &InfoKind) -> bool {
    use InfoKind::{ErSpan, GreTap, GreTun, GreTun6, Ip6Tnl, IpIp, SitTun, Vti, Vti6};
    matches!(kind, IpIp | GreTun | GreTap | ErSpan | Vti | Vti6 | SitTun | Ip6Tnl | GreTun6)
}

#[cfg(test)]
impl Link {
    pub(crate) fn named(index: u32, name: &str) -> Self {
        Self { index, name: name.to_owned(), fallback: false }
    }

    pub(crate) fn fallback(index: u32, name: &str) -> Self {
        Self { fallback: true, ..Self::named(index, name) }
    }
}

impl Link {
    /// The kernel makes `lo` first in every namespace, and nothing can take its index (`LOOPBACK_IFINDEX`).
    pub(crate) const LOOPBACK: u32 = 1;

    fn of(message: RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewLink(message) = message else { return None };
        let mut link = Self { index: message.header.index, name: String::new(), fallback: false };
        let (mut is_tunnel, mut crosses) = (false, false);
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::LinkNetNsId(_) => crosses = true,
                LinkAttribute::LinkInfo(infos) => {
                    is_tunnel = infos
                        .iter()
                        .any(|info| matches!(info, LinkInfo::Kind(kind) if is_fallback_kind(kind)));
                }
                _ => {}
            }
        }
        link.fallback = is_tunnel && !crosses && FALLBACK_NAMES.contains(&link.name.as_str());
        Some(link)
    }

    /// Whether nothing can leave over it: `lo`, and the tunnels that the kernel makes by itself in every namespace where
    /// their modules are loaded (`net.core.fb_tunnels_only_for_init_net`, sysctl). Those wrap packets for routes of this
    /// very namespace, and cannot be moved.
    pub(crate) fn leads_nowhere(&self) -> bool {
        self.index == Self::LOOPBACK || self.fallback
    }
}

/// Dumps the links of the namespace that a socket stands in, wherever the caller is.
pub(crate) fn links(socket: impl AsFd, sequence: u32) -> io::Result<Vec<Link>> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    send(&socket, &encoded(request, NLM_F_REQUEST | NLM_F_DUMP, sequence), SendFlags::empty())?;
    let mut found = Vec::new();
    for _ in 0..PAGES {
        for message in messages(&receive(&socket)?) {
            let message = message?;
            match message.payload {
                // A notice in between tells of a link as well.
                NetlinkPayload::InnerMessage(inner) => found.extend(Link::of(inner)),
                NetlinkPayload::Done(_) if message.header.sequence_number == sequence => {
                    found.sort();
                    found.dedup();
                    return Ok(found);
                }
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                _ => {}
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the list of links has no end"))
}

/// The links that the waiting notices tell of; empty where none waits. The socket must not block.
pub(crate) fn noticed(socket: impl AsFd) -> io::Result<Vec<Link>> {
    let mut found = Vec::new();
    loop {
        let datagram = match receive(&socket) {
            Ok(datagram) => datagram,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(found),
            Err(error) => return Err(error),
        };
        for message in messages(&datagram) {
            if let NetlinkPayload::InnerMessage(inner) = message?.payload {
                found.extend(Link::of(inner));
            }
        }
    }
}

/// The link by which a packet to an address would leave the namespace that a socket stands in, by the kernel's own
/// lookup; `None` where there is no route. Notices that come in between are added to `noticed`.
pub(crate) fn route_to(socket: impl AsFd, to: IpAddr, noticed: &mut Vec<Link>) -> io::Result<Option<u32>> {
    const SEQUENCE: u32 = 2;
    let mut message = RouteMessage::default();
    let (family, length, address) = match to {
        IpAddr::V4(address) => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(address)),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = length;
    message.attributes = vec![RouteAttribute::Destination(address)];
    let request = RouteNetlinkMessage::GetRoute(message);
    send(&socket, &encoded(request, NLM_F_REQUEST, SEQUENCE), SendFlags::empty())?;
    for _ in 0..PAGES {
        for message in messages(&receive(&socket)?) {
            let message = message?;
            let is_answer = message.header.sequence_number == SEQUENCE;
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) if is_answer => {
                    return Ok(route.attributes.into_iter().find_map(|attribute| match attribute {
                        RouteAttribute::Oif(link) => Some(link),
                        _ => None,
                    }));
                }
                NetlinkPayload::InnerMessage(inner) => noticed.extend(Link::of(inner)),
                // Whatever it is called (ENETUNREACH, EACCES of a `prohibit` route, …), nothing is sent there.
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    let _ = error;
                    return Ok(None);
                }
                _ => {}
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "a question for a route has no answer"))
}

/// The most datagrams of a dump that are read: a namespace with thousands of links has some hundred.
const PAGES: usize = 4096;

fn receive(socket: impl AsFd) -> io::Result<Vec<u8>> {
    let mut buffer = vec![MaybeUninit::uninit(); DATAGRAM];
    let ((datagram, _), _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
    Ok(datagram.to_vec())
}

fn encoded(message: RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    bytes
}

/// Splits a datagram into its messages (netlink(7): each is padded to four bytes).
pub(crate) fn messages(
    datagram: &[u8],
) -> impl Iterator<Item = io::Result<NetlinkMessage<RouteNetlinkMessage>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
        let length = message.as_ref().map_or(usize::MAX, |message| message.header.length as usize);
        let padded = length.checked_next_multiple_of(4).filter(|padded| *padded > 0);
        rest = padded.and_then(|padded| rest.get(padded..)).unwrap_or_default();
        Some(message)
    })
}

/// `NLMSG_ERROR` (netlink.h): an acknowledgement where its code is 0.
const ERROR: u16 = 2;

/// The acknowledgements and refusals in a datagram, by the number of what they answer, whatever the protocol: a header
/// (length, type, flags, sequence, port), the negated errno, and the header of what is answered (netlink(7)).
fn errors(datagram: &[u8]) -> impl Iterator<Item = io::Result<(u32, Option<io::Error>)>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        loop {
            let (header, _) = rest.split_first_chunk::<16>()?;
            let [l0, l1, l2, l3, t0, t1, _, _, s0, s1, s2, s3, ..] = *header;
            let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
            let Some(message) = rest.get(..length).filter(|_| length >= header.len()) else {
                rest = &[];
                return Some(Err(io::ErrorKind::InvalidData.into()));
            };
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if u16::from_ne_bytes([t0, t1]) != ERROR {
                continue;
            }
            let code = message.get(16..20).and_then(|code| code.first_chunk::<4>()).copied();
            let code = i32::from_ne_bytes(code.unwrap_or_default());
            let refused = (code != 0).then(|| io::Error::from_raw_os_error(-code));
            return Some(Ok((u32::from_ne_bytes([s0, s1, s2, s3]), refused)));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(sequence: u32, code: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(36u32.to_ne_bytes());
        bytes.extend(ERROR.to_ne_bytes());
        bytes.extend(0u16.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(code.to_ne_bytes());
        bytes.extend([0; 16]);
        bytes
    }

    #[test]
    fn a_refusal_among_acknowledgements_is_found_with_its_errno() {
        let datagram = [error(3, 0), error(4, -17)].concat();
        let found: Vec<_> = errors(&datagram)
            .map(|reply| reply.map(|(sequence, refused)| (sequence, refused.map(|error| error.kind()))))
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(found, [(3, None), (4, Some(io::ErrorKind::AlreadyExists))]);
    }

    #[test]
    fn a_cut_datagram_ends_without_a_panic() {
        let whole = error(1, 0);
        for length in 0..whole.len() {
            let _ = errors(&whole[..length]).count();
            let _ = messages(&whole[..length]).count();
        }
    }

    #[test]
    fn the_first_link_is_lo() {
        let links = Netlink::route().unwrap().links().unwrap();
        assert_eq!(links.first(), Some(&Link { index: Link::LOOPBACK, name: "lo".into(), fallback: false }));
    }
}
