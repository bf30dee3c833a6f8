//! Who is at the other end of the admin socket: its uid, and whether it stands in the gateway's own namespaces.
//!
//! A uid alone says too little. Root of a container that was made without a user namespace has uid 0 here as well, and a
//! socket is a file that may be mounted into one by mistake. So peers from any other network or user namespace are
//! refused whatever their uid.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::socket::{getsockopt, sockopt::PeerPidfd};
use rustix::net::sockopt::socket_peercred;

/// A network and a user namespace, by device and inode of what stands for them in /proc (namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces {
    net: (u64, u64),
    user: (u64, u64),
}

/// A peer in the gateway's own namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user that it ran as when it connected, as the gateway's user namespace shows it.
    pub uid: u32,
}

/// Why a peer is refused.
#[derive(Debug, thiserror::Error)]
pub enum Stranger {
    /// It stands in another network or user namespace.
    #[error("the client stands in another network or user namespace than the gateway")]
    Elsewhere,
    /// It cannot be told where it stands.
    #[error("it cannot be told in which namespaces the client stands")]
    Unknown(#[source] io::Error),
}

impl Namespaces {
    /// Those of the gateway itself.
    ///
    /// # Errors
    /// Where /proc does not tell.
    pub fn own() -> io::Result<Self> {
        Self::at(Path::new("/proc/self"))
    }

    fn at(process: &Path) -> io::Result<Self> {
        let named = |name: &str| {
            let found = fs::metadata(process.join("ns").join(name))?;
            Ok::<_, io::Error>((found.dev(), found.ino()))
        };
        Ok(Self { net: named("net")?, user: named("user")? })
    }

    /// Tells who is at the other end of a unix socket.
    ///
    /// # Errors
    /// Where that is nobody whom the gateway listens to.
    pub fn judge(self, socket: &impl AsFd) -> Result<Peer, Stranger> {
        let socket = socket.as_fd();
        let uid = socket_peercred(socket).map_err(|error| Stranger::Unknown(error.into()))?.uid.as_raw();
        match of_peer(socket) {
            Ok(theirs) if theirs == self => Ok(Peer { uid }),
            Ok(_) => Err(Stranger::Elsewhere),
            Err(error) => Err(Stranger::Unknown(error)),
        }
    }
}

/// The namespaces of whoever connected. The descriptor stands for that process and for no later one with its number, so
/// that what was read of the number in between is its own where it still lives afterwards.
fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Namespaces> {
    // SO_PEERPIDFD came with Linux 6.5.
    let process = getsockopt(&socket, PeerPidfd)?;
    let pid = pid(process.as_fd())?;
    let found = Namespaces::at(&Path::new("/proc").join(pid.to_string()))?;
    if self::pid(process.as_fd())? == pid { Ok(found) } else { Err(gone()) }
}

/// The process that a descriptor stands for, in the gateway's own pid namespace: 0 where it has no number there, -1 once
/// it is gone (pidfd_open(2), proc_pid_fdinfo(5)).
fn pid(process: BorrowedFd<'_>) -> io::Result<u32> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    line.and_then(|number| number.trim().parse().ok()).filter(|pid| *pid > 0).ok_or_else(gone)
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the client has gone, or stands in another pid namespace")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_in_the_same_process_is_at_home() {
        let (here, _there) = UnixStream::pair().expect("a pair");
        let own = Namespaces::own().expect("/proc");
        let peer = own.judge(&here).expect("it is ourselves");
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        let elsewhere = Namespaces { net: (own.net.0, own.net.1 + 1), ..own };
        assert!(matches!(elsewhere.judge(&here), Err(Stranger::Elsewhere)));
        let other_user = Namespaces { user: (own.user.0, own.user.1 + 1), ..own };
        assert!(matches!(other_user.judge(&here), Err(Stranger::Elsewhere)));
    }
}
