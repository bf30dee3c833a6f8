//! The addresses of the gateway's own host, as the kernel knows them, followed as they change.
//!
//! The floor of every policy refuses them (`gateway_address`), so a gateway that cannot read them does not start.

mod netlink;

use std::io;

use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE};
use policy::LocalAddresses;

/// Why the host's addresses are not known.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The kernel gives no netlink socket, for example where `RestrictAddressFamilies` leaves AF_NETLINK out.
    #[error("cannot open a netlink socket to read the addresses of this host")]
    Open(#[source] io::Error),
    /// The kernel did not answer a request for its addresses or local routes.
    #[error("cannot read the addresses of this host by netlink")]
    Read(#[source] io::Error),
    /// Changes can no longer be followed.
    #[error("cannot follow the addresses of this host by netlink")]
    Follow(#[source] io::Error),
}

/// Reads every interface address and every range that the kernel routes as local.
///
/// # Errors
/// Where the kernel gives no netlink socket or does not answer.
pub fn local_addresses() -> Result<LocalAddresses, HostError> {
    netlink::Reader::open().map_err(HostError::Open)?.read().map(LocalAddresses::new).map_err(HostError::Read)
}

/// Follows the addresses of the host.
pub struct Watch {
    notices: TokioSocket,
    held: LocalAddresses,
}

impl Watch {
    /// Subscribes first and reads then, so that no change falls between. Needs a tokio runtime.
    ///
    /// # Errors
    /// Where the kernel gives no netlink socket or does not answer.
    pub fn start() -> Result<Self, HostError> {
        let mut notices = TokioSocket::new(NETLINK_ROUTE).map_err(HostError::Open)?;
        notices.socket_mut().bind(&SocketAddr::new(0, netlink::GROUPS)).map_err(HostError::Open)?;
        Ok(Self { notices, held: local_addresses()? })
    }

    /// The addresses as they were last read.
    #[must_use]
    pub const fn addresses(&self) -> &LocalAddresses {
        &self.held
    }

    /// Waits until the addresses differ from those last read, and gives the new ones.
    ///
    /// # Errors
    /// Where the socket fails for good. What was last read then stays in force.
    pub async fn changed(&mut self) -> Result<&LocalAddresses, HostError> {
        loop {
            let touches_us = match self.notices.recv_from_full().await {
                Ok((datagram, _)) => netlink::concerns_local_addresses(&datagram),
                // Notices were lost because they came faster than they were read (netlink(7)): read everything anew.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => true,
                Err(error) => return Err(HostError::Follow(error)),
            };
            if !touches_us {
                continue;
            }
            let now = local_addresses()?;
            if now != self.held {
                self.held = now;
                return Ok(&self.held);
            }
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("held", &self.held).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_owns_what_its_sockets_are_bound_to_and_no_stranger() {
        let local = local_addresses().expect("netlink answers");
        assert!(local.contains("127.0.0.1".parse().expect("address")));
        assert!(!local.contains("192.0.2.77".parse().expect("address")));
    }

    #[tokio::test]
    async fn a_watch_knows_the_addresses_before_any_change() {
        let watch = Watch::start().expect("netlink answers");
        assert_eq!(*watch.addresses(), local_addresses().expect("netlink answers"));
    }
}
