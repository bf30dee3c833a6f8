//! Whether anything can leave a network namespace, as its kernel tells: what every line about packets rests on.
//!
//! The probe asks inside, by a socket of its own. The gateway asks from outside by the socket that it was handed, when the
//! namespace is opened and again and again: a netlink socket answers for the namespace that it was made in.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use super::socket::{NOBODY_V4, NOBODY_V6};
use crate::netlink::{self, Link};

/// Addresses of every kind that a workload may want to reach.
pub(super) const KINDS: [IpAddr; 12] = [
    IpAddr::V4(NOBODY_V4),
    IpAddr::V6(NOBODY_V6),
    // Public.
    IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888)),
    // Private (RFC 1918, RFC 4193), and where the host of a container usually is.
    IpAddr::V4(Ipv4Addr::new(10, 255, 255, 254)),
    IpAddr::V4(Ipv4Addr::new(172, 17, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7)),
    // Carriers' (RFC 6598).
    IpAddr::V4(Ipv4Addr::new(100, 64, 0, 1)),
    // Metadata endpoints.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // IPv4 within IPv6 (RFC 6052).
    IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0x0808, 0x0808)),
];

/// The links by which something could leave the namespace that a socket stands in: those that lead somewhere, and any
/// other than `lo` over which a packet to one of [`KINDS`] would go. Whoever is told of links by that socket too is told
/// here of those that came meanwhile.
pub(crate) fn ways_out(socket: impl AsFd) -> io::Result<Vec<String>> {
    let (mut noticed, mut taken) = (Vec::new(), Vec::new());
    for to in KINDS {
        taken.extend(netlink::route_to(&socket, to, &mut noticed)?.filter(|link| *link != Link::LOOPBACK));
    }
    noticed.extend(netlink::links(&socket, 1)?);
    Ok(leading_out(noticed, &taken))
}

/// The names of the links that lead somewhere, or that are taken for somewhere.
fn leading_out(mut links: Vec<Link>, taken: &[u32]) -> Vec<String> {
    links.retain(|link| !link.leads_nowhere() || taken.contains(&link.index));
    let mut names: Vec<String> = links.into_iter().map(|link| link.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Namespace;
    use crate::netlink::Netlink;
    use crate::netns::{Plan, open_here};

    /// Asks in a namespace that was set up, after a change of it.
    fn after(change: impl FnOnce() -> io::Result<()> + Send) -> Option<Vec<String>> {
        let namespace = Namespace::new()
            .inspect_err(|error| eprintln!("skipped: no network namespaces here: {error}"))
            .ok()?;
        let found = namespace.run(|| {
            let _sockets = open_here(&Plan::for_this_kernel()).map_err(io::Error::other)?;
            change()?;
            ways_out(Netlink::link_notices()?)
        });
        Some(found.expect("the kernel answers"))
    }

    #[test]
    fn a_link_that_leads_nowhere_leads_out_where_a_route_takes_it() {
        let links = || vec![Link::named(1, "lo"), Link::fallback(2, "tunl0"), Link::named(7, "eth0")];
        assert_eq!(leading_out(links(), &[]), ["eth0"]);
        assert_eq!(leading_out(links(), &[2, 2]), ["eth0", "tunl0"]);
    }

    #[test]
    fn a_namespace_with_lo_alone_has_no_way_out() {
        if let Some(found) = after(|| Ok(())) {
            assert!(found.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn a_namespace_without_routes_has_less_and_no_way_out_either() {
        let off = || Netlink::route()?.switch(Link::LOOPBACK, false);
        if let Some(found) = after(off) {
            assert!(found.is_empty(), "{found:?}");
        }
    }
}
