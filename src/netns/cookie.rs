//! Which network namespace a socket stands in, told without privileges.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use nix::libc;
use nix::sys::socket::getsockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A network namespace. The kernel never gives the number to another one (`SO_NETNS_COOKIE`, Linux 5.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceId(u64);

#[derive(Clone, Copy, Debug)]
struct NetnsCookie;

const SO_NETNS_COOKIE: libc::c_int = libc::SO_NETNS_COOKIE;

nix::getsockopt_impl!(
    NetnsCookie,
    libc::SOL_SOCKET,
    SO_NETNS_COOKIE,
    u64,
    nix::sys::socket::sockopt::GetStruct<u64>
);

impl NamespaceId {
    /// The namespace that a socket was made in. For a unix socket that was accepted: in which its client was made.
    ///
    /// # Errors
    /// Where it is no socket, or the kernel is too old.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self(getsockopt(&socket, NetnsCookie)?))
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// Where there are no descriptors left.
    pub fn own() -> io::Result<Self> {
        Self::of(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
    }
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
