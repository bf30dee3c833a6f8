//! Sees every packet that the gateway's host sends into the world, whether or not anybody answers there.

use std::{
    collections::BTreeSet,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};

use super::{Lab, Namespace};

/// `ETH_P_ALL` in network order, as packet(7) wants it.
const EVERY_PROTOCOL: i32 = 0x0003_u16.to_be() as i32;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A packet socket in the world.
#[derive(Debug)]
pub struct Tap {
    socket: Socket,
}

/// Something that the gateway's host sent out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sent {
    /// The first packet of a TCP connection from this local port; retries count once.
    Dial {
        /// Where to.
        to: SocketAddr,
        /// From which local port.
        from_port: u16,
    },
    /// A datagram.
    Datagram {
        /// Where to.
        to: SocketAddr,
    },
    /// Neither TCP nor UDP nor neighbour discovery: the IP protocol number.
    Other {
        /// Where to.
        to: IpAddr,
        /// The protocol number.
        protocol: u8,
    },
}

impl Tap {
    /// Starts to listen. Packets are queued in the kernel until [`Tap::sent`] takes them, so it suits small exchanges.
    pub fn open(world: &Namespace) -> io::Result<Tap> {
        let socket =
            world.run(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(EVERY_PROTOCOL))))?;
        socket.set_nonblocking(true)?;
        socket.set_recv_buffer_size(8 << 20)?;
        Ok(Tap { socket })
    }

    /// How many frames passed the namespace's links since the last call, whoever sent them and whatever they hold.
    pub fn frames(&self) -> io::Result<usize> {
        let mut frame = [0; 1];
        let mut count = 0;
        loop {
            match (&self.socket).read(&mut frame) {
                Ok(_) => count += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(error),
            }
        }
    }

    /// What was sent since the last call.
    pub fn sent(&self) -> io::Result<BTreeSet<Sent>> {
        let mut sent = BTreeSet::new();
        let mut packet = [0; 128];
        loop {
            match (&self.socket).read(&mut packet) {
                Ok(length) => sent.extend(packet.get(..length).and_then(read_packet)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(sent),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reads an IP packet that the gateway's host sent; `None` for others, for later packets of a connection, and for
/// neighbour discovery.
fn read_packet(packet: &[u8]) -> Option<Sent> {
    let (from, to, protocol, payload): (IpAddr, IpAddr, u8, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet.first()? & 0x0f) * 4;
            let [from, to] = [12, 16]
                .map(|at| packet.get(at..at + 4)?.try_into().ok().map(|o: [u8; 4]| Ipv4Addr::from(o)));
            (from?.into(), to?.into(), *packet.get(9)?, packet.get(header..)?)
        }
        6 => {
            let [from, to] = [8, 24]
                .map(|at| packet.get(at..at + 16)?.try_into().ok().map(|o: [u8; 16]| Ipv6Addr::from(o)));
            (from?.into(), to?.into(), *packet.get(6)?, packet.get(40..)?)
        }
        _ => return None,
    };
    if !Lab::is_gateway_address(from) || from.is_loopback() {
        return None;
    }
    let port = |at: usize| Some(u16::from_be_bytes(payload.get(at..at + 2)?.try_into().ok()?));
    match protocol {
        // SYN without ACK (RFC 9293 §3.1).
        TCP => (payload.get(13)? & 0x12 == 0x02)
            .then_some(Sent::Dial { to: SocketAddr::new(to, port(2)?), from_port: port(0)? }),
        UDP => Some(Sent::Datagram { to: SocketAddr::new(to, port(2)?) }),
        // Router and neighbour discovery, multicast listener reports (RFC 4861 §13, RFC 3810 §5).
        58 if matches!(payload.first()?, 133..=137 | 143) => None,
        _ => Some(Sent::Other { to, protocol }),
    }
}
