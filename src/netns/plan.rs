//! What is to be done to a network namespace, as a value: shown and tested without privileges.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use super::ruleset::Ruleset;

/// The port of the explicit proxy inside a sandbox's namespace: HTTP CONNECT, plain HTTP, SOCKS5.
pub const PROXY_PORT: u16 = 3128;
/// The port that takes captured streams.
pub const CAPTURED_PORT: u16 = 15001;
/// The port that takes questions, over UDP and TCP.
pub const DNS_PORT: u16 = 15053;

/// Everything to be done, in this order. Doing it again changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(super) steps: Vec<Step>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Any other link than `lo` could lead out.
    OnlyLoopback,
    /// A switch below /proc/sys/net.
    Setting { name: &'static str, value: &'static str },
    /// Nothing passes another link than `lo`, whatever makes it, where the kernel takes rules for links that are still to
    /// come.
    LinkRules,
    /// `lo` is up.
    LoopbackUp,
    /// Every address of a family is the namespace's own (AnyIP), so that a connection to anywhere arrives here.
    OwnEveryAddress(Family),
    /// The packet rules are these.
    Rules(Ruleset),
    /// The gateway listens there.
    Listen(Place),
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Clients that know of the proxy.
    Proxy,
    /// Streams that the namespace's rules send here.
    Captured,
    /// Questions as datagrams.
    DnsDatagrams,
    /// Questions over TCP.
    DnsStreams,
}

/// A socket of the gateway inside a sandbox's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// What it is for.
    pub role: Role,
    /// On which of the two loopback addresses.
    pub family: Family,
}

impl Plan {
    /// The plan for a kernel that speaks these families.
    #[must_use]
    pub fn new(families: &[Family]) -> Self {
        let mut steps = vec![Step::OnlyLoopback];
        if families.contains(&Family::V6) {
            // Container engines switch IPv6 off in namespaces without a network. The first line sets all of them.
            steps.push(Step::Setting { name: "ipv6/conf/all/disable_ipv6", value: "0" });
            steps.push(Step::Setting { name: "ipv6/conf/lo/disable_ipv6", value: "0" });
            // A link that comes later speaks no IPv6: no router advertisement, no neighbour or listener discovery.
            steps.push(Step::Setting { name: "ipv6/conf/default/disable_ipv6", value: "1" });
        }
        // Before the link is up, so that at no moment a packet meets no rule.
        steps.push(Step::Rules(Ruleset::capturing(CAPTURED_PORT, DNS_PORT)));
        steps.push(Step::LinkRules);
        steps.push(Step::LoopbackUp);
        steps.extend(families.iter().copied().map(Step::OwnEveryAddress));
        steps.extend(places(families).map(Step::Listen));
        Self { steps }
    }

    /// The plan for the running kernel, which may be without IPv6 (`ipv6.disable=1`): then there is no way out by it.
    #[must_use]
    pub fn for_this_kernel() -> Self {
        Self::new(Family::of_this_kernel())
    }
}

impl Family {
    /// What the running kernel speaks.
    #[must_use]
    pub fn of_this_kernel() -> &'static [Self] {
        match Path::new("/proc/sys/net/ipv6").exists() {
            true => &[Self::V4, Self::V6],
            false => &[Self::V4],
        }
    }

    const fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Self::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }
}

/// Every place at which a gateway listens inside a namespace.
pub(super) fn places(families: &[Family]) -> impl Iterator<Item = Place> + '_ {
    let roles = [Role::Proxy, Role::Captured, Role::DnsDatagrams, Role::DnsStreams];
    families.iter().flat_map(move |family| roles.map(|role| Place { role, family: *family }))
}

impl Place {
    /// Its address.
    #[must_use]
    pub const fn address(self) -> SocketAddr {
        let port = match self.role {
            Role::Proxy => PROXY_PORT,
            Role::Captured => CAPTURED_PORT,
            Role::DnsDatagrams | Role::DnsStreams => DNS_PORT,
        };
        SocketAddr::new(self.family.loopback(), port)
    }

    /// Whether it takes datagrams.
    #[must_use]
    pub const fn is_datagram(self) -> bool {
        matches!(self.role, Role::DnsDatagrams)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyLoopback => f.write_str("make sure that there is no link but lo"),
            Self::Setting { name, value } => write!(f, "set net.{}={value}", name.replace('/', ".")),
            Self::LinkRules => {
                f.write_str("let nothing pass any other link, where the kernel can do that ahead")
            }
            Self::LoopbackUp => f.write_str("switch lo on"),
            Self::OwnEveryAddress(Family::V4) => f.write_str("route local 0.0.0.0/0 to lo"),
            Self::OwnEveryAddress(Family::V6) => f.write_str("route local ::/0 to lo"),
            Self::Rules(rules) => write!(f, "put nf_tables rules in force\n{rules}"),
            Self::Listen(place) => write!(f, "listen on {place}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_datagram() { "udp" } else { "tcp" };
        write!(f, "{kind} {}", self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_is_what_was_agreed() {
        let plan = Plan::new(&[Family::V4, Family::V6]).to_string();
        assert_eq!(plan, include_str!("plan.golden"), "{plan}");
    }

    #[test]
    fn a_kernel_without_ipv6_is_not_asked_for_any() {
        let plan = Plan::new(&[Family::V4]);
        assert!(!plan.steps.iter().any(|step| matches!(step, Step::Setting { .. })));
        assert_eq!(places(&[Family::V4]).count(), 4);
        assert!(!plan.to_string().contains("[::1]"));
    }
}
