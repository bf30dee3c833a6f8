//! Which addresses are public, which are not, and which are under the floor that no rule lifts.
//!
//! `table` holds the special-purpose registries, `embedded` the ways in which an IPv6 address carries an IPv4
//! one, `names` the names that stand for such addresses. [`AddressBook`] adds what the operator wrote in
//! `[addresses]`, and [`LocalAddresses`] what the gateway's host owns.

mod embedded;
mod names;
mod table;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub use self::embedded::Nat64Prefix;
use self::embedded::{Embedded, unwrap};
pub(crate) use self::names::name_floor;
pub use self::names::{SpecialUse, exists_by_definition, metadata_name, special_use_name};
pub(crate) use self::table::touches_private;
pub use self::table::{SpecialRange, special_range};

/// What an address is, from harmless to worst. The order is that of the reasons: where an address is two things,
/// or several addresses are judged, the greater one names the denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressClass {
    /// Globally reachable.
    Public,
    /// Special-purpose or unassigned; opened only by a literal rule or an `[internal.*]` table.
    NotPublic,
    /// Unspecified, multicast, broadcast, Teredo, or an embedding that breaks its own RFC. Never opened.
    Forbidden,
    /// The gateway's own host: loopback, its interfaces, `[addresses] own`. Never opened.
    Gateway,
    /// A cloud's metadata or platform endpoint. Never opened.
    Metadata,
}

/// The `[addresses]` table: what the operator knows about addresses that no registry does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressBook {
    own: Vec<IpNet>,
    nat64: Vec<Nat64Prefix>,
    treat_as_private: Vec<IpNet>,
    treat_as_public: Vec<IpNet>,
}

/// Why a range cannot stand where it was written in `[addresses]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddressRange {
    /// RFC 6052 §2.2 knows six lengths, and bits 64 to 71 are zero.
    #[error("a NAT64 prefix is /32, /40, /48, /56, /64 or /96, and its bits 64 to 71 are zero (RFC 6052)")]
    Nat64(Ipv6Net),
    /// Private, loopback, link-local, shared and unique-local space, and the floor, stay what they are.
    #[error("{0} overlaps a range that is never public")]
    NeverPublic(IpNet),
}

impl AddressBook {
    /// Compiles the four lists. The first range that cannot stand is the error; [`Nat64Prefix::new`] and
    /// [`check_public`] judge them one by one.
    pub fn new(
        own: Vec<IpNet>,
        nat64: Vec<Ipv6Net>,
        treat_as_private: Vec<IpNet>,
        treat_as_public: Vec<IpNet>,
    ) -> Result<AddressBook, BadAddressRange> {
        let mut nat64 = nat64.into_iter().map(Nat64Prefix::new).collect::<Result<Vec<_>, _>>()?;
        // The longest prefix decides where two overlap, as in routing.
        nat64.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
        for &range in &treat_as_public {
            check_public(range)?;
        }
        let canonical = |ranges: Vec<IpNet>| ranges.into_iter().map(canonical_net).collect();
        Ok(AddressBook {
            own: canonical(own),
            nat64,
            treat_as_private: canonical(treat_as_private),
            treat_as_public: canonical(treat_as_public),
        })
    }

    /// The special-purpose ranges that count as public.
    pub fn treated_as_public(&self) -> &[IpNet] {
        &self.treat_as_public
    }

    /// What `address` is to the gateway. The worse of the address itself and of the IPv4 address that it carries,
    /// except that a NAT64 address is exactly what its IPv4 address is: DNS64 answers must keep working.
    pub fn classify(&self, address: IpAddr, local: &LocalAddresses) -> AddressClass {
        match canonical(address) {
            IpAddr::V4(address) => self.classify_v4(address, local),
            IpAddr::V6(address) => self.classify_v6(address, local),
        }
    }

    /// The IPv4 addresses that a connection to `address` could reach through a translator or tunnel: deny rules on IPv4
    /// ranges must see them. More than one where only the network knows the length of its prefix.
    pub fn embedded_v4(&self, address: IpAddr) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let embedded = match canonical(address) {
            IpAddr::V4(_) => Embedded::Nothing,
            IpAddr::V6(address) => unwrap(address, &self.nat64),
        };
        let (one, several) = match embedded {
            Embedded::Translated(inner) | Embedded::Carried(inner) => (Some(inner), None),
            Embedded::LocalUse(inners) => (None, Some(inners)),
            Embedded::Nothing | Embedded::Malformed => (None, None),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// The floor class under which the whole of `range` lies: such a range can never be opened, so listing it is
    /// a mistake.
    pub fn floor_of(&self, range: IpNet, local: &LocalAddresses) -> Option<AddressClass> {
        let range = canonical_net(range);
        let class = if range.prefix_len() == range.max_prefix_len() {
            self.classify(range.addr(), local)
        } else if self.own.iter().chain(&local.ranges).any(|own| own.contains(&range)) {
            AddressClass::Gateway
        } else {
            table::class_of_range(range)
        };
        (class >= AddressClass::Forbidden).then_some(class)
    }

    fn classify_v4(&self, address: Ipv4Addr, local: &LocalAddresses) -> AddressClass {
        self.adjust(table::class_v4(address), IpAddr::V4(address), local)
    }

    fn classify_v6(&self, address: Ipv6Addr, local: &LocalAddresses) -> AddressClass {
        let outer = self.adjust(table::class_v6(address), IpAddr::V6(address), local);
        match unwrap(address, &self.nat64) {
            Embedded::Nothing => outer,
            Embedded::Translated(inner) => {
                let inner = self.classify_v4(inner, local);
                // What the registries say of the prefix is overruled by its being in use; what the operator says is not.
                let private = self.treat_as_private.iter().any(|range| range.contains(&IpAddr::V6(address)));
                if outer == AddressClass::NotPublic && !private { inner } else { outer.max(inner) }
            }
            Embedded::Carried(inner) => outer.max(self.classify_v4(inner, local)),
            Embedded::LocalUse(inners) => inners
                .into_iter()
                .map(|inner| self.classify_v4(inner, local))
                // Read with the wrong length, padding looks like 0.0.0.0; only what is worse than that counts.
                .filter(|&class| class > AddressClass::Forbidden)
                .fold(outer, AddressClass::max),
            Embedded::Malformed => outer.max(AddressClass::Forbidden),
        }
    }

    /// What the operator and the host know beyond the registries.
    fn adjust(&self, registry: AddressClass, address: IpAddr, local: &LocalAddresses) -> AddressClass {
        let within = |ranges: &[IpNet]| ranges.iter().any(|range| range.contains(&address));
        if within(&self.own) || local.contains(address) {
            return registry.max(AddressClass::Gateway);
        }
        match registry {
            AddressClass::Public if within(&self.treat_as_private) => AddressClass::NotPublic,
            AddressClass::NotPublic if within(&self.treat_as_public) && !within(&self.treat_as_private) => {
                AddressClass::Public
            }
            other => other,
        }
    }
}

/// Whether `range` may stand in `[addresses] treat_as_public`.
pub fn check_public(range: IpNet) -> Result<(), BadAddressRange> {
    if table::never_public(canonical_net(range)) { Err(BadAddressRange::NeverPublic(range)) } else { Ok(()) }
}

/// The addresses of the gateway's host as a value: every interface address and whatever the kernel routes as
/// local. Loopback always belongs to it, listed or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddresses {
    hosts: Vec<IpAddr>,
    ranges: Vec<IpNet>,
}

impl LocalAddresses {
    /// Takes addresses (as /32 and /128) and ranges.
    pub fn new(nets: impl IntoIterator<Item = IpNet>) -> LocalAddresses {
        let (hosts, ranges): (Vec<_>, Vec<_>) =
            nets.into_iter().map(canonical_net).partition(|net| net.prefix_len() == net.max_prefix_len());
        let mut hosts: Vec<IpAddr> = hosts.into_iter().map(|net| net.addr()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        LocalAddresses { hosts, ranges }
    }

    /// Whether the host would take a connection to `address` itself.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = canonical(address);
        address.is_loopback()
            || self.hosts.binary_search(&address).is_ok()
            || self.ranges.iter().any(|range| range.contains(&address))
    }
}

/// The address that a socket to `address` would reach: `::ffff:10.0.0.1` leaves as IPv4 to 10.0.0.1 (RFC 4291
/// §2.5.5.2). This is what is dialled, and what address rules are compared with.
pub fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        // Not `to_ipv4`, which also turns ::1 into 0.0.0.1.
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
    }
}

/// A range of IPv4-mapped addresses as the IPv4 range it is; without host bits.
pub(crate) fn canonical_net(net: IpNet) -> IpNet {
    if let IpNet::V6(v6) = net
        && let (Some(v4), Some(len)) = (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96))
        && let Ok(v4) = Ipv4Net::new(v4, len)
    {
        return IpNet::V4(v4.trunc());
    }
    net.trunc()
}

#[cfg(test)]
mod tests;
