//! Room for clients: a gateway has only so many descriptors, and nobody may hold all of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use policy::{ListenerName, Peer, SandboxId};

/// One place may hold so many times the room that is left.
const SHARE: usize = 4;

/// The clients that are connected, known or not, by where they come from.
#[derive(Debug)]
pub(crate) struct Crowd {
    most: usize,
    seats: Mutex<Seats>,
}

#[derive(Debug, Default)]
struct Seats {
    taken: usize,
    by_origin: HashMap<Origin, usize>,
}

/// Where clients come from, as far as they cannot choose it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Origin {
    Namespace(SandboxId),
    Listener(ListenerName, Option<IpAddr>),
}

/// A client's room; dropping it makes room for another. A pointer, since it moves with the client.
#[derive(Debug)]
pub(crate) struct Seat(#[expect(dead_code, reason = "it is held to be dropped")] Box<Taken>);

#[derive(Debug)]
struct Taken {
    crowd: Arc<Crowd>,
    origin: Origin,
}

impl Crowd {
    /// Room for `most` clients.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, seats: Mutex::default() })
    }

    /// Takes in a client, unless four times as many have come from the same place as there is room left: one place alone
    /// gets four fifths of all, and the next ones find room when they come (dynamic thresholds, Choudhury and Hahne
    /// 1998).
    pub(crate) fn enter(self: &Arc<Self>, peer: &Peer) -> Option<Seat> {
        let origin = Origin::of(peer);
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.most.saturating_sub(seats.taken);
        let held = seats.by_origin.get(&origin).copied().unwrap_or_default();
        if held >= left.saturating_mul(SHARE) {
            return None;
        }
        seats.taken += 1;
        seats.by_origin.insert(origin.clone(), held + 1);
        Some(Seat(Box::new(Taken { crowd: Arc::clone(self), origin })))
    }
}

impl Origin {
    fn of(peer: &Peer) -> Self {
        match &peer.namespace {
            Some(namespace) => Self::Namespace(namespace.sandbox().clone()),
            None => Self::Listener(Arc::clone(&peer.listener), peer.address.map(|from| network(from.ip()))),
        }
    }
}

/// A host has a whole /64 of IPv6 addresses to come from (RFC 4291 section 2.5.4).
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut seats = self.crowd.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.taken -= 1;
        if let Some(held) = seats.by_origin.get_mut(&self.origin) {
            *held -= 1;
            if *held == 0 {
                seats.by_origin.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::new("127.0.0.1:3128".into(), address.parse().ok())
    }

    #[test]
    fn nobody_gets_all_the_room() {
        let crowd = Crowd::new(160);
        let come =
            |address: &str| -> Vec<Seat> { std::iter::from_fn(|| crowd.enter(&peer(address))).collect() };
        let first = come("192.0.2.1:9");
        assert_eq!(first.len(), 128);
        let second = come("192.0.2.2:9");
        assert_eq!((second.len(), come("192.0.2.3:9").len()), (26, 5));
        drop(first);
        assert_eq!(crowd.seats.lock().unwrap().taken, 26);
        drop(second);
        assert!(crowd.seats.lock().unwrap().by_origin.is_empty());
    }

    #[test]
    fn a_host_is_one_place_whatever_its_address() {
        let of = |address| Origin::of(&peer(address));
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:2"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_ne!(of("192.0.2.1:1"), of("192.0.2.2:1"));
    }
}
