//! Bound addresses: in a sandbox's own namespace each name that may be reached has an address that stands for it alone.
//!
//! The pools are benchmarking ranges (RFC 2544, RFC 5180): no host on any network has such an address, so that nothing
//! real is hidden behind them. Whatever is not bound in them is under the floor. They are not unique local addresses
//! (RFC 4193), since those may be in use in the networks that `[internal.X]` tables open.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::hostname::Hostname;

/// 198.18.0.0/15.
const V4: u32 = Ipv4Addr::new(198, 18, 0, 0).to_bits();
/// 2001:2::/64, the first network of 2001:2::/48.
const V6: u128 = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0).to_bits();

/// The numbers of a pool: all of 198.18.0.0/15 but its first and its last address, which some systems take for a
/// network and a broadcast.
const ROOM: u32 = (1 << 17) - 2;

/// So many names that no rule lists itself can be bound. The rest of the room is that of the listed ones.
const UNLISTED_ROOM: u32 = 1 << 15;

/// The two addresses that stand for one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// In 198.18.0.0/15.
    pub v4: Ipv4Addr,
    /// In 2001:2::/64.
    pub v6: Ipv6Addr,
}

/// The names of one namespace. An address that has stood for a name never stands for another one.
#[derive(Debug)]
pub(crate) struct Names {
    /// Sets the IPv6 addresses of this namespace's life apart from those of any other.
    tag: u32,
    /// Where the numbers begin, for the same end.
    first: u32,
    numbers: HashMap<Hostname, u32>,
    names: Vec<Hostname>,
    unlisted: u32,
}

impl Names {
    /// No names yet. What a client remembers from another life of its namespace, when `seed` was another, most likely
    /// stands for nothing here.
    pub(crate) fn new(seed: u64) -> Self {
        let [high, low] = [(seed >> 32) as u32, seed as u32];
        // With the topmost bit set the interface identifier is never that of an ISATAP address (RFC 5214 §6.1), which
        // would carry an IPv4 one.
        let (tag, first) = (high | 1 << 31, low % ROOM);
        Self { tag, first, numbers: HashMap::new(), names: Vec::new(), unlisted: 0 }
    }

    pub(crate) fn bind(&mut self, name: &Hostname, listed: bool) -> Option<Bound> {
        if let Some(number) = self.numbers.get(name) {
            return Some(self.addresses(*number));
        }
        let number = u32::try_from(self.names.len()).ok()?;
        let full = match listed {
            true => number - self.unlisted >= ROOM - UNLISTED_ROOM,
            false => self.unlisted >= UNLISTED_ROOM,
        };
        if full {
            return None;
        }
        self.unlisted += u32::from(!listed);
        self.names.push(name.clone());
        self.numbers.insert(name.clone(), number);
        Some(self.addresses(number))
    }

    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&Hostname> {
        let place = match address {
            IpAddr::V4(v4) => v4.to_bits().checked_sub(V4)?,
            IpAddr::V6(v6) => {
                let place = v6.to_bits().checked_sub(V6 + (u128::from(self.tag) << 32))?;
                u32::try_from(place).ok()?
            }
        };
        let place = place.checked_sub(1).filter(|place| *place < ROOM)?;
        let number = (place + ROOM - self.first) % ROOM;
        self.names.get(usize::try_from(number).ok()?)
    }

    fn addresses(&self, number: u32) -> Bound {
        let place = 1 + (self.first + number) % ROOM;
        let v6 = V6 + (u128::from(self.tag) << 32) + u128::from(place);
        Bound { v4: Ipv4Addr::from_bits(V4 + place), v6: Ipv6Addr::from_bits(v6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::special::{AddressBook, AddressClass, LocalAddresses};

    fn name(number: u32) -> Hostname {
        Hostname::parse(&format!("n{number}.example.com")).unwrap()
    }

    fn bound(names: &mut Names, number: u32, listed: bool) -> Option<Bound> {
        names.bind(&name(number), listed)
    }

    #[test]
    fn an_address_stands_for_one_name_and_a_name_keeps_its_address() {
        for seed in [0, 7, u64::MAX, u64::from(ROOM) - 1, 0xdead_beef_0001_fffd] {
            let mut names = Names::new(seed);
            let all: Vec<_> =
                (0..300).map(|number| bound(&mut names, number, number % 2 == 0).unwrap()).collect();
            for (number, addresses) in (0..).zip(&all) {
                assert_eq!(bound(&mut names, number, true), Some(*addresses));
                for address in [IpAddr::V4(addresses.v4), IpAddr::V6(addresses.v6)] {
                    assert_eq!(names.name_of(address), Some(&name(number)), "{address}");
                }
                assert_eq!(
                    all.iter().filter(|other| other.v4 == addresses.v4 || other.v6 == addresses.v6).count(),
                    1
                );
            }
        }
    }

    #[test]
    fn what_is_not_bound_stands_for_nothing() {
        let mut names = Names::new(0);
        let only = bound(&mut names, 0, true).unwrap();
        assert_eq!(only.v4, Ipv4Addr::new(198, 18, 0, 1));
        assert_eq!(names.addresses(ROOM - 1).v4, Ipv4Addr::new(198, 19, 255, 254));
        for address in
            ["198.18.0.0", "198.18.0.2", "198.19.255.255", "198.17.255.255", "198.20.0.1", "203.0.113.1"]
        {
            assert_eq!(names.name_of(address.parse().unwrap()), None, "{address}");
        }
        let bits = only.v6.to_bits();
        for other in [bits - 1, bits + 1, bits ^ (1 << 32), bits ^ (1 << 63), bits ^ (1 << 64), 0, u128::MAX]
        {
            assert_eq!(names.name_of(IpAddr::V6(Ipv6Addr::from_bits(other))), None);
        }
    }

    #[test]
    fn another_life_gives_other_addresses() {
        let (mut before, mut after) = (Names::new(0x1111_0000_0000), Names::new(0x2222_0000_0100));
        let remembered = bound(&mut before, 0, true).unwrap();
        bound(&mut after, 1, true).unwrap();
        assert_eq!(after.name_of(remembered.v4.into()), None);
        assert_eq!(after.name_of(remembered.v6.into()), None);
    }

    #[test]
    fn unlisted_names_never_take_the_room_of_listed_ones() {
        let mut names = Names::new(u64::from(ROOM) - 5);
        for number in 0..UNLISTED_ROOM {
            assert!(bound(&mut names, number, false).is_some());
        }
        assert_eq!(bound(&mut names, UNLISTED_ROOM, false), None);
        assert!(bound(&mut names, 0, false).is_some(), "it is bound already");
        for number in UNLISTED_ROOM..ROOM {
            let addresses = bound(&mut names, number, true).unwrap();
            assert_eq!(names.name_of(addresses.v4.into()), Some(&name(number)));
        }
        assert_eq!(bound(&mut names, ROOM, true), None);
        assert_eq!(names.names.len(), ROOM as usize);
    }

    #[test]
    fn the_pools_lie_under_the_floor() {
        let (book, local) = (AddressBook::default(), LocalAddresses::default());
        for seed in [0, 0x5efe_0000_0000, 0x0200_5efe_0000_0000, u64::MAX] {
            let addresses = bound(&mut Names::new(seed), 0, true).unwrap();
            for address in [IpAddr::V4(addresses.v4), IpAddr::V6(addresses.v6)] {
                assert_eq!(book.classify(address, &local), AddressClass::Forbidden, "{address}");
                assert_eq!(book.embedded_v4(address).count(), 0, "{address}");
            }
        }
    }
}
