//! Hands the sockets of a namespace to the gateway over a unix socket, and checks what arrives.
//!
//! ```text
//! who set it up                                         the gateway
//!   "tidegate namespace 1\n" with the descriptors ──▶     receive, check, serve
//!                                                 ◀──     "ok\n" or "refused: …\n"
//! ```
//!
//! A descriptor is not a claim: whatever was handed over is asked what it is.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use policy::SandboxId;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{
    Timeout, set_socket_timeout, socket_acceptconn, socket_domain, socket_reuseaddr, socket_reuseport,
    socket_type,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, getsockname, recvmsg, sendmsg,
};

use super::plan::{Family, Place, Role, places};
use super::{NamespaceId, Sockets};
use crate::netlink;

/// What comes with the descriptors.
const MESSAGE: &[u8] = b"tidegate namespace 1\n";

/// The most descriptors of one hand-over; a kernel passes up to 253 (`SCM_MAX_FD`).
const MOST: usize = 16;

/// The other side has nothing else to do.
const CLOCK: Duration = Duration::from_secs(10);

/// The kernel answers from memory.
const MOMENT: Duration = Duration::from_secs(1);

/// The longest answer.
const ANSWER: u64 = 1024;

/// A hand-over that did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The gateway did not take them.
    #[error("the gateway refuses the namespace: {0}")]
    Refused(Box<str>),
    /// The gateway is gone, or does not answer.
    #[error("cannot hand the namespace over to the gateway")]
    Broken(#[from] io::Error),
}

/// Why a gateway does not serve what was handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverRefused {
    /// Something else was sent.
    #[error("this is no hand-over of a namespace")]
    NotAHandover,
    /// A socket is missing.
    #[error("there is no socket for {0}")]
    Missing(Place),
    /// A socket is none of those that a namespace needs.
    #[error("a descriptor is none of the sockets of a sandbox's namespace: {0}")]
    Unexpected(Box<str>),
    /// Not all of them stand in one namespace.
    #[error("the sockets stand in more than one network namespace")]
    SeveralNamespaces,
    /// Served there, the workload would be the gateway's host.
    #[error("the sockets stand in the gateway's own network namespace")]
    OwnNamespace,
    /// Something else than `lo` is there, which could lead past the gateway.
    #[error("the namespace has other links, which could lead past the gateway: {0}")]
    OtherLinks(Box<str>),
    /// Another sandbox is served there.
    #[error("the namespace is the one of sandbox {0}")]
    TakenBy(SandboxId),
    /// The kernel did not tell, or nothing came.
    #[error("cannot examine what was handed over")]
    Unreadable(#[from] io::Error),
}

/// Hands the sockets over, and waits until the gateway has taken them. The copies here are closed then.
///
/// # Errors
/// Where the gateway refuses them or does not answer.
pub fn send(gateway: &UnixStream, sockets: Sockets) -> Result<(), HandoverError> {
    offer(gateway, sockets)?;
    answer(gateway)
}

/// The first half of [`send`]: hands the sockets over.
///
/// # Errors
/// Where the gateway is gone.
pub fn offer(gateway: &UnixStream, sockets: Sockets) -> Result<(), HandoverError> {
    let all: Vec<BorrowedFd<'_>> =
        sockets.listeners.iter().chain([&sockets.links]).map(|socket| socket.as_fd()).collect();
    give(gateway, &all)
}

fn give(gateway: &UnixStream, all: &[BorrowedFd<'_>]) -> Result<(), HandoverError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(all)) {
        return Err(HandoverError::Broken(io::ErrorKind::InvalidInput.into()));
    }
    // The message is shorter than any socket's buffer: it goes whole.
    sendmsg(gateway, &[IoSlice::new(MESSAGE)], &mut control, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
    Ok(())
}

/// The second half of [`send`]: waits until the gateway has taken them. Whoever holds the stream may do it.
///
/// # Errors
/// Where the gateway refuses them or does not answer.
pub fn answer(gateway: &UnixStream) -> Result<(), HandoverError> {
    gateway.set_read_timeout(Some(CLOCK))?;
    let answer = read_line(gateway)?;
    match answer.strip_prefix("refused: ") {
        Some(why) => Err(HandoverError::Refused(why.into())),
        None if answer == "ok" => Ok(()),
        None => Err(HandoverError::Broken(io::ErrorKind::InvalidData.into())),
    }
}

/// One line of the other side. Nothing is read beyond it.
fn read_line(mut stream: &UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while (line.len() as u64) < ANSWER {
        stream.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into()),
            [other] => line.push(other),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Descriptors that somebody handed over, before anything is known of them.
#[derive(Debug)]
pub struct Offered(Vec<OwnedFd>);

/// Takes one hand-over in. The stream must block; nothing may have been read of it before the hand-over.
///
/// # Errors
/// Where something else comes, or nothing in time.
pub fn receive(stream: &UnixStream) -> Result<Offered, HandoverRefused> {
    stream.set_read_timeout(Some(CLOCK))?;
    let mut message = [0; MESSAGE.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let read = recvmsg(stream, &mut [IoSliceMut::new(&mut message)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(io::Error::from)?;
    let mut found = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            found.extend(descriptors);
        }
    }
    if read.bytes != MESSAGE.len()
        || message != MESSAGE
        || read.flags.contains(rustix::net::ReturnFlags::CTRUNC)
    {
        return Err(HandoverRefused::NotAHandover);
    }
    Ok(Offered(found))
}

/// Tells the other side how it ended.
///
/// # Errors
/// Where it is gone.
pub fn acknowledge(mut stream: &UnixStream, refused: Option<&dyn Error>) -> io::Result<()> {
    let mut answer = String::new();
    match refused {
        None => answer.push_str("ok"),
        Some(why) => {
            // To a string it cannot fail.
            let _ = write!(answer, "refused: {}", crate::error_chain(why));
        }
    }
    let answer: String = answer.chars().filter(|char| *char != '\n').take(ANSWER as usize / 4).collect();
    stream.write_all(format!("{answer}\n").as_bytes())
}

/// The sockets of one namespace, each as it should be.
#[derive(Debug)]
pub struct Checked {
    /// The namespace.
    pub namespace: NamespaceId,
    /// Where clients come that know of the proxy.
    pub proxy: Vec<TcpListener>,
    /// Where captured streams come.
    pub captured: Vec<TcpListener>,
    /// Where questions come.
    pub dns: Vec<(UdpSocket, TcpListener)>,
    /// Told of every link that comes to the namespace; it does not block.
    pub links: OwnedFd,
}

impl Offered {
    /// Hands them on to a gateway elsewhere, which asks what they are. The copies here are closed.
    ///
    /// # Errors
    /// Where the gateway refuses them or does not answer.
    pub fn hand_on(self, gateway: &UnixStream) -> Result<(), HandoverError> {
        let all: Vec<BorrowedFd<'_>> = self.0.iter().map(|socket| socket.as_fd()).collect();
        give(gateway, &all)?;
        drop(self);
        answer(gateway)
    }

    /// Asks the kernel what each of them is.
    ///
    /// # Errors
    /// Where they are anything else than the sockets of one namespace, not the gateway's own, without a way out.
    pub fn check(self) -> Result<Checked, HandoverRefused> {
        let families = Family::of_this_kernel();
        let mut sockets: Vec<(Place, OwnedFd)> = Vec::new();
        let mut links = None;
        let mut namespaces = Vec::new();
        for socket in self.0 {
            namespaces.push(NamespaceId::of(&socket).map_err(|_| unexpected("no socket"))?);
            if socket_domain(&socket).map_err(io::Error::from)? == AddressFamily::NETLINK {
                links = Some(notices(socket)?);
            } else {
                let place = place(&socket, families)?;
                sockets.push((place, socket));
            }
        }
        let mut take = |role, family| {
            let place = Place { role, family };
            let at = sockets.iter().position(|(found, _)| *found == place);
            let (_, socket) = sockets.swap_remove(at.ok_or(HandoverRefused::Missing(place))?);
            // The flags are the socket's, not the descriptor's: whoever handed it over could have set anything.
            rustix::io::ioctl_fionbio(&socket, true).map_err(io::Error::from)?;
            Ok::<_, HandoverRefused>(socket)
        };
        let (mut proxy, mut captured, mut dns) = (Vec::new(), Vec::new(), Vec::new());
        for family in families.iter().copied() {
            proxy.push(take(Role::Proxy, family)?.into());
            captured.push(take(Role::Captured, family)?.into());
            dns.push((take(Role::DnsDatagrams, family)?.into(), take(Role::DnsStreams, family)?.into()));
        }
        if let Some((place, _)) = sockets.first() {
            return Err(unexpected(&format!("{place} twice")));
        }
        let links = links.ok_or_else(|| unexpected("none tells of links"))?;
        let namespace = one_namespace(&namespaces)?;
        if namespace == NamespaceId::own()? {
            return Err(HandoverRefused::OwnNamespace);
        }
        let found = netlink::links(&links, 1)?;
        rustix::io::ioctl_fionbio(&links, true).map_err(io::Error::from)?;
        let others: Vec<String> = found
            .into_iter()
            .filter(|link| !link.leads_nowhere())
            .map(|link| link.name.escape_debug().to_string())
            .collect();
        if !others.is_empty() {
            return Err(HandoverRefused::OtherLinks(others.join(", ").into()));
        }
        Ok(Checked { namespace, proxy, captured, dns, links })
    }
}

fn unexpected(what: &str) -> HandoverRefused {
    HandoverRefused::Unexpected(what.into())
}

fn one_namespace(all: &[NamespaceId]) -> Result<NamespaceId, HandoverRefused> {
    match all {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => Ok(*first),
        _ => Err(HandoverRefused::SeveralNamespaces),
    }
}

/// A netlink socket that is told of links. It is made to block for a moment, to read them: another holder of it could
/// take the answer away.
fn notices(socket: OwnedFd) -> Result<OwnedFd, HandoverRefused> {
    let address = SocketAddrNetlink::try_from(getsockname(&socket).map_err(io::Error::from)?);
    match address {
        Ok(address) if address.groups() & netlink::LINKS != 0 => {
            rustix::io::ioctl_fionbio(&socket, false).map_err(io::Error::from)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(MOMENT)).map_err(io::Error::from)?;
            Ok(socket)
        }
        Ok(_) | Err(_) => Err(unexpected("a netlink socket that is not told of links")),
    }
}

/// Which of the sockets of a namespace this is.
fn place(socket: &OwnedFd, families: &[Family]) -> Result<Place, HandoverRefused> {
    let read = |error: rustix::io::Errno| HandoverRefused::Unreadable(error.into());
    let kind = socket_type(socket).map_err(read)?;
    let listens = socket_acceptconn(socket).map_err(read)?;
    let address = getsockname(socket).map_err(read)?;
    let Ok(address) = SocketAddr::try_from(address) else {
        return Err(unexpected("a socket that is not of IP"));
    };
    let what = format!("{} {address}", if kind == SocketType::DGRAM { "udp" } else { "tcp" });
    let of_kind = |place: &Place| match place.is_datagram() {
        true => kind == SocketType::DGRAM,
        false => kind == SocketType::STREAM && listens,
    };
    // On a stream's listener it shares nothing (netns::kernel).
    let is_shared = kind == SocketType::DGRAM && socket_reuseaddr(socket).map_err(read)?;
    if is_shared || socket_reuseport(socket).map_err(read)? {
        return Err(unexpected(&format!("{what}, whose address others may share")));
    }
    let found = places(families).find(|place| place.address() == address && of_kind(place));
    found.ok_or_else(|| unexpected(&what))
}
