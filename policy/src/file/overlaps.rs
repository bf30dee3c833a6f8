//! Finds entries of different sandboxes that know the same client, without comparing each with each: ten thousand
//! sandboxes load in a blink.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use super::identify::Known;
use crate::identity::{Evidence, Keys, Presented};
use crate::sandbox::ListenerName;

/// The entries by what they have in common with others.
///
/// Two entries that overlap share something that is presented; or one of them asks for nothing of the kind, and they share a
/// listener or one's network lies in the other's. Entries with different tokens or certificates never overlap, however many
/// share a listener or a network.
pub(super) struct Overlaps<'k, 'a> {
    known: &'k [Known<'a>],
    presented: HashMap<Presented, Vec<usize>>,
    defaults: Vec<usize>,
    bare: Places,
    asking: Places,
}

/// Entries by listener and by network.
#[derive(Default)]
struct Places {
    listeners: HashMap<ListenerName, Vec<usize>>,
    nets: HashMap<IpNet, Vec<usize>>,
}

impl Places {
    fn insert(&mut self, keys: &Keys, at: usize) {
        if let Some(name) = &keys.listener {
            self.listeners.entry(name.clone()).or_default().push(at);
        }
        if let Some(net) = keys.source {
            self.nets.entry(net).or_default().push(at);
        }
    }

    fn at_listener(&self, keys: &Keys) -> impl Iterator<Item = usize> {
        keys.listener.as_ref().and_then(|name| self.listeners.get(name)).into_iter().flatten().copied()
    }

    /// The entries whose network is that of `keys` or holds it.
    fn around(&self, keys: &Keys) -> impl Iterator<Item = usize> {
        let longer = keys.source.filter(|_| !self.nets.is_empty());
        let nets = std::iter::successors(longer, IpNet::supernet);
        nets.filter_map(|net| self.nets.get(&net)).flatten().copied()
    }
}

impl<'k, 'a> Overlaps<'k, 'a> {
    pub(super) fn of(known: &'k [Known<'a>]) -> Self {
        let (bare, asking) = (Places::default(), Places::default());
        let mut all = Self { known, presented: HashMap::new(), defaults: Vec::new(), bare, asking };
        for (at, entry) in known.iter().enumerate() {
            match &entry.evidence {
                Evidence::Default => all.defaults.push(at),
                Evidence::All(keys) => {
                    for presented in keys.presented() {
                        all.presented.entry(presented).or_default().push(at);
                    }
                    if keys.asks() { &mut all.asking } else { &mut all.bare }.insert(keys, at);
                }
            }
        }
        all
    }

    /// Pairs of entries of different sandboxes that know the same client, the later one first: each entry that
    /// overlaps another is in at least one of them.
    pub(super) fn pairs(&self) -> BTreeMap<usize, usize> {
        let found = (0..self.known.len()).filter_map(|at| Some((at, self.beside(at)?)));
        found.map(|(one, other)| (one.max(other), one.min(other))).collect()
    }

    fn beside(&self, at: usize) -> Option<usize> {
        let this = self.known.get(at)?;
        let meets = |other: &usize| {
            let other = self.known.get(*other).filter(|other| other.sandbox != this.sandbox);
            other.is_some_and(|other| match (&this.evidence, &other.evidence) {
                (Evidence::All(a), Evidence::All(b)) => a.overlap(b),
                (Evidence::Default, Evidence::Default) => true,
                (Evidence::All(_), Evidence::Default) | (Evidence::Default, Evidence::All(_)) => false,
            })
        };
        match &this.evidence {
            Evidence::Default => self.defaults.iter().copied().find(meets),
            Evidence::All(keys) => {
                let sharing = keys.presented().filter_map(|presented| self.presented.get(&presented));
                let places = self.bare.at_listener(keys).chain(self.bare.around(keys));
                let asking =
                    (!keys.asks()).then(|| self.asking.at_listener(keys).chain(self.asking.around(keys)));
                sharing.flatten().copied().chain(places).chain(asking.into_iter().flatten()).find(meets)
            }
        }
    }
}
