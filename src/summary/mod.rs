//! What became of one sandbox: which destinations were contacted, which were denied, and what would let those through.
//!
//! ```text
//! events ──▶ Summaries ──▶ Summary of each sandbox that somebody wants one of ──▶ Told ──▶ stderr, JSON, a run elsewhere
//! ```

mod told;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use policy::{Answer, Ask, Event, Observer, Reason, Receipt, SandboxId};

pub(crate) use self::told::{Row, Told};

/// Destinations that are counted by name; further ones are counted together.
const NAMED: usize = 1000;

/// The summaries that are being kept.
#[derive(Debug, Default)]
pub(crate) struct Summaries {
    /// Whether there is any: most gateways keep none, and pay one load for it.
    some: AtomicBool,
    kept: RwLock<HashMap<SandboxId, Arc<Summary>>>,
}

/// Notes what happens to a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Summary(Mutex<Counts>);

/// A summary that is kept until this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    all: Arc<Summaries>,
    sandbox: SandboxId,
    summary: Arc<Summary>,
}

#[derive(Debug, Default)]
struct Counts {
    contacts: BTreeMap<Destination, Contact>,
    /// Attempts at destinations beyond the named ones.
    others: u64,
}

/// A destination as it is shown; look-ups have no port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Destination {
    host: String,
    port: Option<u16>,
}

#[derive(Debug, Default)]
struct Contact {
    allowed: u64,
    denied: u64,
    would_deny: u64,
    reason: Option<Reason>,
    /// Whether a rule could let it through.
    can_be_listed: bool,
}

impl Summaries {
    /// Notes what happens to a sandbox from now on, for one who asks.
    pub(crate) fn keep(self: &Arc<Self>, sandbox: SandboxId) -> Kept {
        let summary = Arc::<Summary>::default();
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.insert(sandbox.clone(), Arc::clone(&summary));
        self.some.store(true, Ordering::Relaxed);
        drop(kept);
        Kept { all: Arc::clone(self), sandbox, summary }
    }
}

impl Observer for Summaries {
    fn record(&self, event: &Event<'_>) -> Receipt {
        if self.some.load(Ordering::Relaxed)
            && let Event::Decision(decision) = event
            && let Some(id) = decision.attempt.sandbox()
            && let Some(summary) = self.kept.read().unwrap_or_else(PoisonError::into_inner).get(id)
        {
            drop(summary.record(event));
        }
        Receipt::written()
    }
}

impl Kept {
    /// What has happened so far.
    pub(crate) fn told(&self) -> Told {
        self.summary.told()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut kept = self.all.kept.write().unwrap_or_else(PoisonError::into_inner);
        // A later one of the same sandbox stays.
        if kept.get(&self.sandbox).is_some_and(|other| Arc::ptr_eq(other, &self.summary)) {
            kept.remove(&self.sandbox);
        }
        self.all.some.store(!kept.is_empty(), Ordering::Relaxed);
    }
}

impl Observer for Summary {
    fn record(&self, event: &Event<'_>) -> Receipt {
        if let Event::Decision(decision) = event {
            let mut counts = self.counts();
            let mut named = counts.contacts.len();
            let at = Destination::of(&decision.attempt.ask);
            named += usize::from(!counts.contacts.contains_key(&at));
            if named > NAMED {
                counts.others += 1;
                return Receipt::written();
            }
            let contact = counts.contacts.entry(at).or_default();
            let reason = decision.would_deny.or(decision.reason);
            match decision.answer {
                Answer::Allow => {
                    contact.allowed += 1;
                    contact.would_deny += u64::from(decision.would_deny.is_some());
                }
                Answer::Deny => contact.denied += 1,
                // What is sent there is another attempt.
                Answer::Ask => {}
            }
            if let Some(reason) = reason {
                contact.reason = Some(reason);
                let is_destination = !matches!(decision.attempt.ask, Ask::Unreadable { .. });
                contact.can_be_listed |= is_destination && lists(reason);
            }
        }
        Receipt::written()
    }
}

/// Whether an entry on the command line answers the reason.
const fn lists(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NotListed | Reason::PortNotAllowed | Reason::AddressLiteralNotListed | Reason::SpecialUseName
    )
}

impl Summary {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> Told {
        let counts = self.counts();
        let row = |(at, contact): (&Destination, &Contact)| Row {
            host: at.host.clone(),
            port: at.port,
            allowed: contact.allowed,
            denied: contact.denied,
            would_deny: contact.would_deny,
            reason: contact.reason,
            can_be_listed: contact.can_be_listed,
        };
        Told { destinations: counts.contacts.iter().map(row).collect(), others: counts.others }
    }
}

impl Destination {
    fn of(ask: &Ask) -> Self {
        match ask {
            Ask::Stream(destination) | Ask::Request { destination, .. } => {
                Self { host: destination.host.to_string(), port: Some(destination.port.get()) }
            }
            Ask::Lookup { name, .. } => Self { host: name.to_string(), port: None },
            Ask::Unreadable { shown } => Self { host: format!("{shown:?}"), port: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::Gate;

    use super::*;

    #[test]
    fn one_that_is_no_longer_wanted_makes_place_for_a_later_one_and_leaves_it() {
        let all = Arc::<Summaries>::default();
        let id = SandboxId::parse("a").expect("a name");
        let first = all.keep(id.clone());
        let second = all.keep(id.clone());
        drop(first);
        assert!(all.some.load(Ordering::Relaxed) && all.kept.read().expect("no panic").contains_key(&id));
        drop(second);
        assert!(!all.some.load(Ordering::Relaxed) && all.kept.read().expect("no panic").is_empty());
    }

    #[test]
    fn destinations_beyond_so_many_are_counted_together() {
        let summary = Arc::<Summary>::default();
        let gate = Gate::new(Arc::default(), Arc::default(), Arc::clone(&summary) as _, 0);
        for number in 0..NAMED + 7 {
            let destination = format!("n{number}.example.com:443");
            let destination =
                policy::Destination::from_authority(destination.as_bytes()).expect("a destination");
            let peer = policy::Peer::new("x".into(), None);
            let now = policy::Timestamp::from_secs(1);
            let attempt = gate.attempt(now, &peer, policy::Inbound::Connect, Ask::Stream(destination));
            let _ = gate.check(attempt);
        }
        let told = summary.told();
        assert_eq!((told.destinations.len(), told.others), (NAMED, 7));
    }
}
