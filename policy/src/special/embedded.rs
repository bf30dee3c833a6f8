//! The ways in which an IPv6 address carries the IPv4 address that a translator or tunnel will reach.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;

use super::BadAddressRange;

/// A prefix under which a NAT64 translator of this network answers (RFC 6052 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat64Prefix(Ipv6Net);

impl Nat64Prefix {
    /// Takes the six lengths of RFC 6052; bits 64 to 71 of a /96 must be zero.
    pub fn new(prefix: Ipv6Net) -> Result<Nat64Prefix, BadAddressRange> {
        let fits = prefix == prefix.trunc() && octets(prefix.addr(), prefix.prefix_len()).is_some();
        if fits { Ok(Nat64Prefix(prefix)) } else { Err(BadAddressRange::Nat64(prefix)) }
    }

    pub(super) fn len(self) -> u8 {
        self.0.prefix_len()
    }
}

/// What an address carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Embedded {
    Nothing,
    /// Under a NAT64 prefix that is in use here: the address is the IPv4 address.
    Translated(Ipv4Addr),
    /// Under a form that ought not to be in use: at least as bad as the IPv4 address.
    Carried(Ipv4Addr),
    /// Under RFC 8215's local-use prefix, whose length only its network knows: /48, /56, /64 and /96.
    LocalUse([Ipv4Addr; 4]),
    /// Under a configured prefix, but not an address that RFC 6052 can make.
    Malformed,
}

const WELL_KNOWN: [u8; 12] = [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
const LOCAL_USE: [u8; 6] = [0, 0x64, 0xff, 0x9b, 0, 1];
const COMPATIBLE: [u8; 12] = [0; 12];
const TRANSLATED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0];

/// Unwraps an address that is not IPv4-mapped (those never reach here as IPv6).
pub(super) fn unwrap(address: Ipv6Addr, nat64: &[Nat64Prefix]) -> Embedded {
    if let Some(prefix) = nat64.iter().find(|prefix| prefix.0.contains(&address)) {
        return octets(address, prefix.len()).map_or(Embedded::Malformed, Embedded::Translated);
    }
    let [b0, b1, b2, b3, b4, b5, .., c0, c1, c2, c3, d0, d1, d2, d3] = address.octets();
    let low = Ipv4Addr::new(d0, d1, d2, d3);
    let [high @ .., _, _, _, _] = address.octets();
    if high == WELL_KNOWN {
        return Embedded::Translated(low);
    }
    if [b0, b1, b2, b3, b4, b5] == LOCAL_USE {
        return Embedded::LocalUse([48, 56, 64, 96].map(|len| at(address, len)));
    }
    // ::/128 and ::1/128 have rows of their own.
    if (high == COMPATIBLE && address.to_bits() > 1) || high == TRANSLATED {
        return Embedded::Carried(low);
    }
    // 6to4: the 32 bits after 2002::/16 (RFC 3056 §2).
    if [b0, b1] == [0x20, 0x02] {
        return Embedded::Carried(Ipv4Addr::new(b2, b3, b4, b5));
    }
    // ISATAP: interface identifier 0:5efe or, with the universal bit, 200:5efe (RFC 5214 §6.1).
    if c0 & !0x03 == 0 && [c1, c2, c3] == [0, 0x5e, 0xfe] {
        return Embedded::Carried(low);
    }
    Embedded::Nothing
}

/// The IPv4 address at RFC 6052's place for a prefix length; `None` for other lengths or a set bit 64 to 71.
fn octets(address: Ipv6Addr, len: u8) -> Option<Ipv4Addr> {
    let reserved = address.octets()[8];
    (matches!(len, 32 | 40 | 48 | 56 | 64 | 96) && reserved == 0).then(|| at(address, len))
}

/// RFC 6052 §2.2: the IPv4 address follows the prefix and steps over bits 64 to 71.
fn at(address: Ipv6Addr, len: u8) -> Ipv4Addr {
    let [_, _, _, _, b4, b5, b6, b7, _, b9, b10, b11, b12, b13, b14, b15] = address.octets();
    let [a, b, c, d] = match len {
        32 => [b4, b5, b6, b7],
        40 => [b5, b6, b7, b9],
        48 => [b6, b7, b9, b10],
        56 => [b7, b9, b10, b11],
        64 => [b9, b10, b11, b12],
        _ => [b12, b13, b14, b15],
    };
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_6052_examples_read_back() {
        // RFC 6052 §2.4, table 2: 192.0.2.33 under each prefix length.
        for (prefix, address) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ] {
            let prefix = Nat64Prefix::new(prefix.parse().unwrap()).unwrap();
            let expected = Embedded::Translated(Ipv4Addr::new(192, 0, 2, 33));
            assert_eq!(unwrap(address.parse().unwrap(), &[prefix]), expected, "{address}");
        }
    }

    #[test]
    fn other_prefixes_are_refused() {
        for prefix in ["2001:db8::/33", "2001:db8::/128", "::/0", "2001:db8:0:0:100::/96", "2001:db8::1/32"] {
            assert!(Nat64Prefix::new(prefix.parse().unwrap()).is_err(), "{prefix}");
        }
    }
}
