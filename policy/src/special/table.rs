//! The IANA special-purpose address registries for IPv4 and IPv6, and the platforms' own endpoints, as one table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::AddressClass::{self, Forbidden, Gateway, Metadata, NotPublic, Public};
use super::canonical;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialRange {
    /// The range.
    pub range: IpNet,
    /// What its addresses are, before `[addresses]` and the host's own addresses are looked at.
    pub class: AddressClass,
    /// Where that is written: an RFC, or the platform that uses the address.
    pub source: &'static str,
}

struct Row<Bits> {
    base: Bits,
    mask: Bits,
    len: u8,
    class: AddressClass,
    source: &'static str,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, len: u8, class: AddressClass, source: &'static str) -> Row<u32> {
    let mask = if len == 0 { 0 } else { u32::MAX << (32 - len) };
    Row { base: u32::from_be_bytes([a, b, c, d]), mask, len, class, source }
}

const fn v6(segments: [u16; 8], len: u8, class: AddressClass, source: &'static str) -> Row<u128> {
    let [a, b, c, d, e, f, g, h] = segments;
    let mask = if len == 0 { 0 } else { u128::MAX << (128 - len) };
    Row { base: Ipv6Addr::new(a, b, c, d, e, f, g, h).to_bits(), mask, len, class, source }
}

/// A prefix written without its zero tail.
const fn p6(a: u16, b: u16, c: u16, len: u8, class: AddressClass, source: &'static str) -> Row<u128> {
    v6([a, b, c, 0, 0, 0, 0, 0], len, class, source)
}

// Longest prefix first: the first row that contains an address decides.
static V4: [Row<u32>; 25] = [
    v4(255, 255, 255, 255, 32, Forbidden, "limited broadcast, RFC 919 §7"),
    v4(168, 63, 129, 16, 32, Metadata, "Azure WireServer"),
    v4(100, 100, 100, 200, 32, Metadata, "Alibaba Cloud metadata"),
    v4(192, 0, 0, 192, 32, Metadata, "Oracle Cloud metadata, older address"),
    v4(192, 0, 0, 9, 32, Public, "Port Control Protocol anycast, RFC 7723 §4"),
    v4(192, 0, 0, 10, 32, Public, "TURN anycast, RFC 8155 §8"),
    v4(192, 0, 0, 0, 24, NotPublic, "IETF protocol assignments, RFC 6890 §2.1"),
    v4(192, 0, 2, 0, 24, NotPublic, "documentation, RFC 5737"),
    v4(192, 31, 196, 0, 24, Public, "AS112, RFC 7535"),
    v4(192, 52, 193, 0, 24, Public, "AMT, RFC 7450"),
    v4(192, 88, 99, 0, 24, NotPublic, "6to4 relay anycast, deprecated by RFC 7526"),
    v4(192, 175, 48, 0, 24, Public, "direct delegation AS112, RFC 7534"),
    v4(198, 51, 100, 0, 24, NotPublic, "documentation, RFC 5737"),
    v4(203, 0, 113, 0, 24, NotPublic, "documentation, RFC 5737"),
    v4(169, 254, 0, 0, 16, Metadata, "link-local, RFC 3927; home of metadata endpoints"),
    v4(192, 168, 0, 0, 16, NotPublic, "private use, RFC 1918"),
    v4(198, 18, 0, 0, 15, Forbidden, "benchmarking, RFC 2544; addresses that stand for names"),
    v4(172, 16, 0, 0, 12, NotPublic, "private use, RFC 1918"),
    v4(100, 64, 0, 0, 10, NotPublic, "shared address space, RFC 6598"),
    // Linux connects 0.0.0.0 to the local host.
    v4(0, 0, 0, 0, 8, Forbidden, "this network, RFC 1122 §3.2.1.3"),
    v4(10, 0, 0, 0, 8, NotPublic, "private use, RFC 1918"),
    v4(127, 0, 0, 0, 8, Gateway, "loopback, RFC 1122 §3.2.1.3"),
    v4(224, 0, 0, 0, 4, Forbidden, "multicast, RFC 5771"),
    v4(240, 0, 0, 0, 4, NotPublic, "reserved, RFC 1112 §4"),
    v4(0, 0, 0, 0, 0, Public, "unicast"),
];

/// Rows inside 2000::/3, where nearly every address lies.
static V6_GLOBAL: [Row<u128>; 17] = [
    v6([0x2001, 1, 0, 0, 0, 0, 0, 1], 128, Public, "Port Control Protocol anycast, RFC 7723 §4"),
    v6([0x2001, 1, 0, 0, 0, 0, 0, 2], 128, Public, "TURN anycast, RFC 8155 §8"),
    v6([0x2001, 1, 0, 0, 0, 0, 0, 3], 128, Public, "DNS-SD SRP anycast, RFC 9665"),
    p6(0x2001, 2, 0, 64, Forbidden, "benchmarking, RFC 5180; addresses that stand for names"),
    p6(0x2001, 2, 0, 48, NotPublic, "benchmarking, RFC 5180"),
    p6(0x2001, 4, 0x112, 48, Public, "AS112, RFC 7535"),
    p6(0x2620, 0x4f, 0x8000, 48, Public, "direct delegation AS112, RFC 7534"),
    p6(0x2001, 0, 0, 32, Forbidden, "Teredo, RFC 4380"),
    p6(0x2001, 3, 0, 32, Public, "AMT, RFC 7450"),
    p6(0x2001, 0xdb8, 0, 32, NotPublic, "documentation, RFC 3849"),
    p6(0x2001, 0x10, 0, 28, NotPublic, "ORCHID, RFC 4843, deprecated"),
    // Registered as reachable, but an ORCHID names a key, not a place on the network.
    p6(0x2001, 0x20, 0, 28, NotPublic, "ORCHIDv2, RFC 7343"),
    p6(0x2001, 0x30, 0, 28, Public, "drone remote id, RFC 9374"),
    p6(0x2001, 0, 0, 23, NotPublic, "IETF protocol assignments, RFC 2928"),
    p6(0x3fff, 0, 0, 20, NotPublic, "documentation, RFC 9637"),
    p6(0x2002, 0, 0, 16, NotPublic, "6to4, RFC 3056; relays withdrawn by RFC 7526"),
    p6(0x2000, 0, 0, 3, Public, "global unicast, RFC 4291 §2.4"),
];

/// Rows outside it.
static V6_OTHER: [Row<u128>; 20] = [
    v6([0, 0, 0, 0, 0, 0, 0, 0], 128, Forbidden, "unspecified, RFC 4291 §2.5.2"),
    v6([0, 0, 0, 0, 0, 0, 0, 1], 128, Gateway, "loopback, RFC 4291 §2.5.3"),
    v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128, Metadata, "Scaleway metadata"),
    v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128, Metadata, "Oracle Cloud metadata"),
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, Metadata, "Google Cloud metadata"),
    v6([0, 0, 0, 0, 0, 0, 0, 0], 96, NotPublic, "IPv4-compatible, RFC 4291 §2.5.5.1"),
    v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96, NotPublic, "IPv4-translated, RFC 2765 §2.1"),
    v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, Public, "NAT64 well-known prefix, RFC 6052"),
    v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64, NotPublic, "discard-only, RFC 6666"),
    v6([0x100, 0, 0, 1, 0, 0, 0, 0], 64, NotPublic, "dummy prefix, RFC 9780"),
    p6(0x64, 0xff9b, 1, 48, NotPublic, "NAT64 local-use prefix, RFC 8215"),
    p6(0xfd00, 0xa9fe, 0xa9fe, 48, Metadata, "Linode metadata"),
    p6(0xfd00, 0xec2, 0, 32, Metadata, "AWS metadata, DNS, time and credentials"),
    p6(0x5f00, 0, 0, 16, NotPublic, "SRv6 segment identifiers, RFC 9602"),
    p6(0xfe80, 0, 0, 10, Metadata, "link-local, RFC 4291 §2.5.6; home of metadata endpoints"),
    p6(0xfec0, 0, 0, 10, NotPublic, "site-local, deprecated by RFC 3879"),
    p6(0xff00, 0, 0, 8, Forbidden, "multicast, RFC 4291 §2.7"),
    p6(0xfc00, 0, 0, 7, NotPublic, "unique local, RFC 4193"),
    // IANA has delegated nothing else for unicast.
    p6(0, 0, 0, 1, NotPublic, "reserved by IETF, RFC 4291 §4"),
    p6(0x8000, 0, 0, 1, NotPublic, "reserved by IETF, RFC 4291 §4"),
];

/// What can never be declared public, besides the floor's own rows.
static NEVER_PUBLIC: [IpNet; 6] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7)),
    // IPv4-mapped space is judged as IPv4; a range of it that reaches here is wider than that.
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96)),
];

impl Row<u32> {
    fn contains(&self, address: u32) -> bool {
        address & self.mask == self.base
    }

    fn range(&self) -> IpNet {
        IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from_bits(self.base), self.len))
    }
}

impl Row<u128> {
    fn contains(&self, address: u128) -> bool {
        address & self.mask == self.base
    }

    fn range(&self) -> IpNet {
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::from_bits(self.base), self.len))
    }
}

pub(super) fn class_v4(address: Ipv4Addr) -> AddressClass {
    let bits = address.to_bits();
    V4.iter().find(|row| row.contains(bits)).map_or(NotPublic, |row| row.class)
}

pub(super) fn class_v6(address: Ipv6Addr) -> AddressClass {
    let bits = address.to_bits();
    let rows: &[Row<u128>] = if bits >> 125 == 1 { &V6_GLOBAL } else { &V6_OTHER };
    rows.iter().find(|row| row.contains(bits)).map_or(NotPublic, |row| row.class)
}

/// The class of a range whose addresses all lie in one row; the worst one otherwise is unknown, so [`Public`].
pub(super) fn class_of_range(range: IpNet) -> AddressClass {
    rows().find(|row| row.range.contains(&range)).map_or(Public, |row| row.class)
}

/// Whether a range overlaps space that is private, shared or under the floor.
pub(super) fn never_public(range: IpNet) -> bool {
    let overlaps = |other: &IpNet| other.contains(&range) || range.contains(other);
    NEVER_PUBLIC.iter().any(overlaps) || rows().any(|row| row.class >= Forbidden && overlaps(&row.range))
}

/// Whether some address of a range is not public by the registries.
pub(crate) fn touches_private(range: IpNet) -> bool {
    rows().find(|row| row.range.contains(&range)).is_none_or(|row| row.class != Public)
        || rows().any(|row| row.class != Public && range.contains(&row.range))
}

fn rows() -> impl Iterator<Item = SpecialRange> {
    let v4 = V4.iter().map(|row| SpecialRange { range: row.range(), class: row.class, source: row.source });
    let v6 = V6_GLOBAL.iter().chain(&V6_OTHER).map(|row| SpecialRange {
        range: row.range(),
        class: row.class,
        source: row.source,
    });
    v4.chain(v6)
}

/// The row that decides what `address` is, to be shown to a person. `None` for ordinary public addresses.
pub fn special_range(address: IpAddr) -> Option<SpecialRange> {
    let address = canonical(address);
    let ordinary = |row: &SpecialRange| matches!((row.class, row.range.prefix_len()), (Public, 0 | 3));
    rows().find(|row| row.range.contains(&address)).filter(|row| !ordinary(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_from_narrow_to_wide_and_have_no_host_bits() {
        assert!(V4.is_sorted_by(|a, b| a.len >= b.len));
        assert!(V6_GLOBAL.is_sorted_by(|a, b| a.len >= b.len));
        assert!(V6_OTHER.is_sorted_by(|a, b| a.len >= b.len));
        assert!(V6_GLOBAL.iter().all(|row| row.base >> 125 == 1 && row.len >= 3));
        assert!(V6_OTHER.iter().all(|row| row.base >> 125 != 1));
        for row in rows() {
            assert_eq!(row.range, row.range.trunc(), "{}", row.range);
            assert!(!row.source.is_empty());
        }
    }

    #[test]
    fn every_address_has_a_row() {
        for address in ["0.0.0.0", "255.255.255.255", "1.2.3.4", "::", "7fff::", "8000::", "ffff::"] {
            let address: IpAddr = address.parse().unwrap();
            assert!(rows().any(|row| row.range.contains(&address)), "{address}");
        }
    }

    #[test]
    fn the_masks_agree_with_ipnet() {
        for row in &V4 {
            for probe in V4.iter().map(|row| row.base).chain([u32::MAX, 1, 0x0a00_0001]) {
                let expected = row.range().contains(&IpAddr::V4(Ipv4Addr::from_bits(probe)));
                assert_eq!(row.contains(probe), expected, "{} {probe:x}", row.range());
            }
        }
        let all = || V6_GLOBAL.iter().chain(&V6_OTHER);
        for row in all() {
            for probe in all().map(|row| row.base).chain([u128::MAX, 2]) {
                let expected = row.range().contains(&IpAddr::V6(Ipv6Addr::from_bits(probe)));
                assert_eq!(row.contains(probe), expected, "{} {probe:x}", row.range());
            }
        }
    }

    /// The longest range that holds an address decides, as in routing.
    #[test]
    fn each_end_of_a_row_and_its_neighbours_have_the_class_of_the_longest_row() {
        let mut longest_first: Vec<_> = rows().collect();
        longest_first.sort_by_key(|row| std::cmp::Reverse(row.range.prefix_len()));
        for row in rows() {
            let probes: Vec<IpAddr> = match (row.range.network(), row.range.broadcast()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => {
                    let (first, last) = (first.to_bits(), last.to_bits());
                    let all = [first, last, first.wrapping_sub(1), last.wrapping_add(1)];
                    all.map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))).to_vec()
                }
                (IpAddr::V6(first), IpAddr::V6(last)) => {
                    let (first, last) = (first.to_bits(), last.to_bits());
                    let all = [first, last, first.wrapping_sub(1), last.wrapping_add(1)];
                    all.map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))).to_vec()
                }
                _ => unreachable!("one family"),
            };
            for probe in probes {
                let expected =
                    longest_first.iter().find(|row| row.range.contains(&probe)).map(|row| row.class);
                let class = match probe {
                    IpAddr::V4(probe) => class_v4(probe),
                    IpAddr::V6(probe) => class_v6(probe),
                };
                assert_eq!(Some(class), expected, "{probe}");
            }
        }
    }

    #[test]
    fn ranges_are_private_where_some_address_is() {
        for (range, private) in [
            ("8.0.0.0/8", false),
            ("0.0.0.0/0", true),
            ("172.0.0.0/8", true),
            ("172.32.0.0/11", false),
            ("10.1.0.0/16", true),
            ("192.0.0.9/32", false),
            ("192.0.0.8/29", true),
            ("203.0.112.0/23", true),
            ("2a00::/16", false),
            ("2000::/3", true),
            ("2001:db8::/33", true),
            ("64:ff9b::/96", false),
            ("fd00::/8", true),
            ("4000::/16", true),
            ("::/0", true),
        ] {
            assert_eq!(touches_private(range.parse().unwrap()), private, "{range}");
        }
    }

    #[test]
    fn a_range_has_the_class_of_the_row_that_holds_it_whole() {
        for (range, class) in [
            ("10.1.0.0/16", NotPublic),
            ("127.0.0.0/9", Gateway),
            ("224.1.0.0/16", Forbidden),
            ("169.254.0.0/16", Metadata),
            ("8.0.0.0/8", Public),
            ("168.63.129.0/24", Public),
            ("fe80::/64", Metadata),
            ("ff02::/16", Forbidden),
            ("fd00:ec2::/64", Metadata),
            ("2a00::/16", Public),
            ("::/0", Public),
        ] {
            assert_eq!(class_of_range(range.parse().unwrap()), class, "{range}");
        }
    }

    #[test]
    fn a_person_is_shown_the_deciding_row() {
        let source = |address: &str| special_range(address.parse().unwrap()).map(|row| row.source);
        assert_eq!(source("10.1.2.3"), Some("private use, RFC 1918"));
        assert_eq!(source("::ffff:10.1.2.3"), Some("private use, RFC 1918"));
        assert_eq!(source("168.63.129.16"), Some("Azure WireServer"));
        assert_eq!(source("2001:db8::1"), Some("documentation, RFC 3849"));
        assert_eq!(source("8.8.8.8"), None);
        assert_eq!(source("2a00::1"), None);
    }
}
