//! Room for clients: a gateway has only so many descriptors, and nobody may hold all of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use dns::limits::network;
use policy::{ListenerName, Peer, Sandbox, SandboxId};

/// One place may hold so many times the room that is left.
const SHARE: usize = 4;

/// So many clients of a known sandbox may be there beyond twice what its `connections` says. That many are told of the
/// limit when they ask for something; those that say nothing are not to fill the gateway's memory.
const SPARE: usize = 64;

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
    Sandbox(SandboxId),
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
    /// 1998). `sandbox` is whose it is by where it comes from, whatever it will present.
    pub(crate) fn enter(self: &Arc<Self>, peer: &Peer, sandbox: Option<&Sandbox>) -> Option<Seat> {
        let origin = Origin::of(peer, sandbox);
        let limit = sandbox.and_then(|sandbox| sandbox.limits.connections);
        let most = limit.map_or(usize::MAX, |limit| (limit as usize).saturating_mul(2).saturating_add(SPARE));
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.most.saturating_sub(seats.taken);
        let held = seats.by_origin.get(&origin).copied().unwrap_or_default();
        if held >= left.saturating_mul(SHARE).min(most) {
            return None;
        }
        seats.taken += 1;
        seats.by_origin.insert(origin.clone(), held + 1);
        Some(Seat(Box::new(Taken { crowd: Arc::clone(self), origin })))
    }
}

impl Origin {
    fn of(peer: &Peer, sandbox: Option<&Sandbox>) -> Self {
        match sandbox {
            Some(sandbox) => Self::Sandbox(sandbox.id.clone()),
            None => Self::Listener(Arc::clone(&peer.listener), peer.address.map(|from| network(from.ip()))),
        }
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
        let come = |address: &str| -> Vec<Seat> {
            std::iter::from_fn(|| crowd.enter(&peer(address), None)).collect()
        };
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
        let of = |address| Origin::of(&peer(address), None);
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:2"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_ne!(of("192.0.2.1:1"), of("192.0.2.2:1"));
    }
}
