//! A stand-in internet in two network namespaces: no real packet leaves the machine, and every address has its host.
//!
//! ```text
//!   gateway's host                                   the world
//!   lo   10.200.0.1 (the sandbox's side)             lo   every other address there is
//!   up0  203.0.113.1, 2001:db8:cafe::1  ──── veth ───  w0   192.0.2.254, fe80::fe
//! ```
//!
//! The gateway runs in the first namespace; the floor's "addresses of the gateway's host" are true there. In the second
//! every address is local, so a stand-in origin listens on its real address, and one listener on `[::]:443` is every host
//! of the internet on that port. `tidegate demo` and the tests stand on it.

pub mod dns;
pub mod http;
mod namespace;
mod netlink;
pub mod origin;
pub mod tap;
mod wiring;
mod zone;

use std::{fmt, io, net::IpAddr, net::Ipv4Addr, net::Ipv6Addr};

pub use namespace::{HostFile, Namespace, Volume, enter_user_namespace, tcp_connect_here};
pub use zone::{BadZone, Zone};

/// The gateway host's IPv4 address on the world's side.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The gateway host's IPv6 address on the world's side.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xcafe, 0, 0, 0, 0, 1);
/// The gateway host's address on the sandbox's side: where a sandbox finds the proxy.
pub const GATEWAY_INSIDE: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);

/// Two joined namespaces: the gateway's host and the rest of the world. Both end with this value, once no process and no
/// socket is left in them.
#[derive(Debug)]
pub struct Lab {
    gateway: Namespace,
    world: Namespace,
}

impl Lab {
    /// Builds both namespaces. Needs `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`: root, or [`enter_user_namespace`] first.
    pub fn new() -> Result<Lab, LabUnavailable> {
        let gateway = Namespace::new().map_err(LabUnavailable::at("make the gateway's network namespace"))?;
        let world = Namespace::new().map_err(LabUnavailable::at("make the world's network namespace"))?;
        wiring::join(&gateway, &world)?;
        Ok(Lab { gateway, world })
    }

    /// Gives the gateway's host another address, as DHCP or a tunnel does while a gateway runs.
    pub fn add_gateway_address(&self, address: IpAddr) -> io::Result<()> {
        wiring::add_gateway_address(&self.gateway, address)
    }

    /// The gateway's host.
    #[must_use]
    pub fn gateway(&self) -> &Namespace {
        &self.gateway
    }

    /// Everything else: stand-in origins and DNS servers live here.
    #[must_use]
    pub fn world(&self) -> &Namespace {
        &self.world
    }

    /// Whether this is an address that the gateway's host has.
    #[must_use]
    pub fn is_gateway_address(address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => v4 == GATEWAY_V4 || v4 == GATEWAY_INSIDE || v4.is_loopback(),
            IpAddr::V6(v6) => v6 == GATEWAY_V6 || v6.is_loopback(),
        }
    }
}

/// Why this machine cannot hold a lab, and at which step that showed.
#[derive(Debug)]
pub struct LabUnavailable {
    /// What was being done, as an infinitive: "make the world's network namespace".
    pub step: &'static str,
    /// The kernel's answer.
    pub why: io::Error,
}

impl LabUnavailable {
    pub(crate) fn at(step: &'static str) -> impl Fn(io::Error) -> LabUnavailable {
        move |why| LabUnavailable { step, why }
    }
}

impl fmt::Display for LabUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.step)
    }
}

impl std::error::Error for LabUnavailable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}
