//! Sockets of families and protocols that a network namespace does not hold, or that few filters know.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{VsockAddr, connect};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

use socket2::Socket;

use super::ground::Ground;
use super::{Line, socket};

/// The host, as a guest knows it (`VMADDR_CID_HOST`, vsock(7)).
const HOST: u32 = 2;

pub(super) fn lines(ground: &Ground<'_>) -> Vec<Line> {
    vec![vsock(), packet(ground), other_families(), other_protocols(ground)]
}

fn open(family: AddressFamily, kind: SocketType, protocol: u32) -> io::Result<OwnedFd> {
    let protocol = std::num::NonZeroU32::new(protocol).map(Protocol::from_raw);
    // A connection to somewhere must not hold the probe up.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, kind, flags, protocol)?)
}

/// AF_VSOCK leads to the hypervisor's host, past every network namespace.
fn vsock() -> Line {
    const WAY: &str = "AF_VSOCK to the host";
    let socket = match open(AddressFamily::VSOCK, SocketType::STREAM, 0) {
        Ok(socket) => Socket::from(socket),
        Err(error) => {
            return Line::contained(
                WAY,
                format!("no socket of the family can be made: {}", socket::told(&error)),
            );
        }
    };
    #[expect(clippy::disallowed_methods, reason = "the probe tries whether this way is open")]
    let asked = connect(socket.as_raw_fd(), &VsockAddr::new(HOST, 1));
    let begun = match asked {
        Err(nix::Error::EINPROGRESS) => socket::connected(&socket),
        begun => begun.map_err(Into::into),
    };
    match begun {
        Ok(()) => Line::escaped(WAY, "the host of this machine answers"),
        Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => {
            Line::contained(WAY, "this machine has no transport to a host")
        }
        // Nothing listens at that port, and somebody said so.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            Line::escaped(WAY, "the host of this machine answers that it does not listen")
        }
        Err(error) => {
            Line::unproven(WAY, format!("a socket can be made; connecting: {}", socket::told(&error)))
        }
    }
}

/// Frames past every rule of the layers above.
fn packet(ground: &Ground<'_>) -> Line {
    const WAY: &str = "packet socket";
    // The protocol is in network order; 0 receives nothing and can send.
    match open(AddressFamily::PACKET, SocketType::RAW, 0) {
        Err(error) => Line::contained(WAY, format!("none can be made: {}", socket::told(&error))),
        Ok(_) if ground.is_sealed() => Line::contained(WAY, format!("one can be made; {}", ground.why())),
        Ok(_) => Line::escaped(WAY, format!("one can be made; {}", ground.why())),
    }
}

/// Families whose sockets are bound to no network namespace.
fn other_families() -> Line {
    const WAY: &str = "other address families";
    // Not every target of rustix has a name for each (AF_ALG, AF_NFC of linux/socket.h).
    const FAMILIES: [(&str, AddressFamily, SocketType); 5] = [
        ("AF_BLUETOOTH", AddressFamily::BLUETOOTH, SocketType::RAW),
        ("AF_TIPC", AddressFamily::TIPC, SocketType::SEQPACKET),
        ("AF_ALG", AddressFamily::from_raw(38), SocketType::SEQPACKET),
        ("AF_CAN", AddressFamily::CAN, SocketType::RAW),
        ("AF_NFC", AddressFamily::from_raw(39), SocketType::SEQPACKET),
    ];
    let made: Vec<_> = FAMILIES
        .into_iter()
        .filter(|(_, family, kind)| open(*family, *kind, 0).is_ok())
        .map(|(name, ..)| name)
        .collect();
    match made.as_slice() {
        [] => Line::contained(WAY, "no socket of them can be made"),
        // The kernel's ciphers: no network.
        ["AF_ALG"] => Line::contained(WAY, "only AF_ALG can be made, which is no network"),
        made => Line::unproven(WAY, format!("can be made: {}", made.join(", "))),
    }
}

/// Streams and datagrams that rules for TCP and UDP do not see.
fn other_protocols(ground: &Ground<'_>) -> Line {
    const WAY: &str = "SCTP, DCCP, UDP-Lite, MPTCP";
    const PROTOCOLS: [(&str, SocketType, u32); 4] = [
        ("SCTP", SocketType::STREAM, 132),
        // SOCK_DCCP
        ("DCCP", SocketType::from_raw(6), 33),
        ("UDP-Lite", SocketType::DGRAM, 136),
        ("MPTCP", SocketType::STREAM, 262),
    ];
    let made: Vec<_> = PROTOCOLS
        .into_iter()
        .filter(|(_, kind, protocol)| open(AddressFamily::INET, *kind, *protocol).is_ok())
        .map(|(name, ..)| name)
        .collect();
    let made = if made.is_empty() {
        "none can be made".to_owned()
    } else {
        format!("can be made: {}", made.join(", "))
    };
    if ground.is_sealed() {
        Line::contained(WAY, format!("{made}; {}", ground.why()))
    } else if made.starts_with("none") {
        Line::contained(WAY, made)
    } else {
        Line::unproven(WAY, format!("{made}; {}", ground.why()))
    }
}
