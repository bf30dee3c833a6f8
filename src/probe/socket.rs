//! The sockets of the probe: what it sends goes to where an escape would lead, and only where the ground allows it.
#![expect(
    clippy::disallowed_methods,
    reason = "the probe tries ways out on purpose, from inside a sandbox; none of its sockets carries a client's bytes"
)]

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::ground::BURST;

/// What is not there by then is not there: inside a sandbox everything is one hop away.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);

/// How long an answer may take after a refusal.
const SHORT: Duration = Duration::from_millis(20);

/// A documentation address (RFC 5737): nobody's.
pub(super) const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// A documentation address (RFC 3849): nobody's.
pub(super) const NOBODY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
/// A name that nobody has (RFC 6761 section 6.5).
pub(super) const NOBODY: &str = "tidegate-probe.example";

/// RFC 5737, RFC 3849, and RFC 6676 for multicast.
pub(super) fn is_documentation(address: IpAddr) -> bool {
    let nets = [[192, 0, 2, 0], [198, 51, 100, 0], [203, 0, 113, 0], [233, 252, 0, 0]];
    match address {
        IpAddr::V4(address) => {
            nets.into_iter().any(|net| Ipv4Net::new(net.into(), 24).is_ok_and(|net| net.contains(&address)))
        }
        IpAddr::V6(address) => Ipv6Net::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32)
            .is_ok_and(|net| net.contains(&address)),
    }
}

/// How a stream fared.
#[derive(Debug)]
pub(super) enum Stream {
    /// Somebody took it.
    Open(TcpStream),
    /// Nobody did.
    Failed(io::Error),
}

/// Opens a stream.
pub(super) fn stream(to: SocketAddr) -> Stream {
    let open = || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        connect(&socket, &to.into())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    open().map_or_else(Stream::Failed, Stream::Open)
}

/// Connects a socket of any family, for no longer than [`PATIENCE`].
pub(super) fn connect(socket: &Socket, to: &SockAddr) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match socket.connect(to) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {
            connected(socket)?;
        }
        Err(error) => return Err(error),
    }
    socket.set_nonblocking(false)
}

/// Waits for a connection that has begun.
pub(super) fn connected(socket: &Socket) -> io::Result<()> {
    let patience = Timespec { tv_sec: 0, tv_nsec: PATIENCE.subsec_nanos().into() };
    match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&patience))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => socket.take_error()?.map_or(Ok(()), Err),
    }
}

/// Sends a request and reads what comes first.
pub(super) fn exchange(stream: &mut TcpStream, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut answer = [0; 2048];
    let length = stream.read(&mut answer)?;
    Ok(answer.get(..length).unwrap_or_default().to_vec())
}

/// The status of an HTTP answer, and the reason that a gateway of ours gives with it.
pub(super) fn refusal(answer: &[u8]) -> Option<(String, Option<String>)> {
    let text = String::from_utf8_lossy(answer);
    let status = text.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    let reason = text.lines().find_map(|line| line.strip_prefix("Tidegate-Reason: ")).map(str::trim);
    let word = |text: &str| {
        text.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_').take(40).collect()
    };
    Some((word(status), reason.map(word)))
}

/// Sends a burst of datagrams, and gives the first answer to any.
pub(super) fn datagrams(to: SocketAddr, payload: &[u8]) -> io::Result<Vec<u8>> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.connect(&to.into())?;
    let mut refused = None;
    for _ in 0..BURST {
        // A refusal of the one before is told here, and only here.
        refused = socket.send(payload).err().or(refused);
    }
    let mut socket = socket;
    // What was refused is not answered as well, but for what came before the refusal.
    socket.set_read_timeout(Some(if refused.is_some() { SHORT } else { PATIENCE }))?;
    let mut answer = [0; 2048];
    match (socket.read(&mut answer), refused) {
        (Ok(length), _) => Ok(answer.get(..length).unwrap_or_default().to_vec()),
        (Err(_), Some(refused)) => Err(refused),
        (Err(error), None) => Err(error),
    }
}

/// Sends one datagram to an address that need not be anybody's: multicast, broadcast.
pub(super) fn datagram_to_all(to: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_broadcast(true)?;
    socket.send_to(b"tidegate-probe", &to.into()).map(|_| ())
}

/// Sends a burst over a link, whatever the routes say.
pub(super) fn burst_over(link: &str) {
    for (domain, nobody) in [(Domain::IPV4, IpAddr::from(NOBODY_V4)), (Domain::IPV6, IpAddr::from(NOBODY_V6))]
    {
        let Ok(socket) = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)) else { continue };
        // Without CAP_NET_RAW only a socket that is bound to no link yet may be bound (SO_BINDTODEVICE, socket(7)).
        let _ = socket.bind_device(Some(link.as_bytes()));
        for _ in 0..BURST {
            // What counts is what the link has sent.
            let _ = socket.send_to(b"tidegate-probe", &SocketAddr::new(nobody, 9).into());
        }
    }
}

/// Sends an echo request (RFC 792, RFC 4443) by a socket of this type, if one can be made.
pub(super) fn echo_request(to: IpAddr, kind: Type) -> io::Result<()> {
    let (domain, protocol, echo) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128),
    };
    let mut socket = Socket::new(domain, kind, Some(protocol))?;
    let request = [echo, 0, 0, 0, 0, 1, 0, 1];
    socket.send_to(&request, &SocketAddr::new(to, 0).into())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0; 256];
    socket.read(&mut answer).map(|_| ())
}

/// What an answer that did not come is called.
pub(super) fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer".to_owned(),
        _ => Errno::from_io_error(error).map_or_else(|| error.to_string(), |errno| format!("{errno}")),
    }
}
