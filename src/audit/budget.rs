//! The audit budget: a sandbox that floods the log with its own denials gets them counted instead.

use std::collections::HashMap;
use std::sync::Arc;

use policy::{Answer, DecisionEvent, Host, Inbound, Port, Reason, Sandbox, SandboxId, Timestamp};

/// A sandbox may fill this many lines at once with denials …
const BURST: u64 = 1000;

/// … and then one each 50 ms.
const EACH: u64 = 50_000_000;

/// So many different denials of a sandbox are told apart in a second; the rest is counted by inbound and reason.
const KEYS: usize = 64;

/// What repeats: two denials with the same key differ in nothing that a reader would miss, but their time and id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) inbound: Inbound,
    /// `None` where there is none, or where too many differ.
    pub(super) host: Option<Host>,
    pub(super) port: Option<Port>,
    pub(super) reason: Reason,
}

/// Denials that were counted.
#[derive(Debug)]
pub(super) struct Repeated {
    pub(super) id: Option<SandboxId>,
    pub(super) sandbox: Option<Arc<Sandbox>>,
    pub(super) key: Key,
    pub(super) count: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// What is to be done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    /// It gets its line.
    Line,
    /// It was counted; `first` where nothing was, so that somebody must come for it.
    Counted {
        /// Nothing was counted before.
        first: bool,
    },
}

/// The budgets of all sandboxes. Strangers share one.
#[derive(Debug, Default)]
pub(super) struct Budget {
    accounts: HashMap<Option<SandboxId>, Account>,
    counted: bool,
}

#[derive(Debug, Default)]
struct Account {
    /// When the budget is whole again, in nanoseconds (the generic cell rate algorithm, ITU-T I.371).
    whole_at: u64,
    sandbox: Option<Arc<Sandbox>>,
    tallies: HashMap<Key, Tally>,
}

#[derive(Debug)]
struct Tally {
    count: u64,
    first: Timestamp,
    last: Timestamp,
}

impl Budget {
    /// Spends on an event. What was let through is never counted away, whoever floods.
    pub(super) fn spend(&mut self, event: &DecisionEvent<'_>) -> Spent {
        let (Answer::Deny, Some(reason)) = (event.answer, event.reason) else { return Spent::Line };
        let account = self.accounts.entry(event.attempt.sandbox().cloned()).or_default();
        let now = event.at.nanos();
        let whole_at = account.whole_at.max(now);
        if whole_at - now <= (BURST - 1) * EACH {
            account.whole_at = whole_at + EACH;
            return Spent::Line;
        }
        let (host, port) = (event.attempt.ask.host(), event.attempt.ask.port());
        account.count(Key { inbound: event.attempt.inbound, host, port, reason }, event);
        let first = !std::mem::replace(&mut self.counted, true);
        Spent::Counted { first }
    }

    /// Hands out what was counted, and forgets accounts that are whole again.
    pub(super) fn take(&mut self, now: Timestamp) -> Vec<Repeated> {
        self.counted = false;
        let mut all = Vec::new();
        self.accounts.retain(|id, account| {
            let sandbox = &account.sandbox;
            all.extend(account.tallies.drain().map(|(key, tally)| Repeated {
                id: id.clone(),
                sandbox: sandbox.clone(),
                key,
                count: tally.count,
                first: tally.first,
                last: tally.last,
            }));
            account.whole_at > now.nanos()
        });
        all.sort_by_key(|repeated| repeated.first);
        all
    }
}

impl Account {
    fn count(&mut self, key: Key, event: &DecisionEvent<'_>) {
        if let Some(sandbox) = event.sandbox
            && self.sandbox.as_ref().is_none_or(|held| !Arc::ptr_eq(held, sandbox))
        {
            self.sandbox = Some(Arc::clone(sandbox));
        }
        let full = self.tallies.len() >= KEYS && !self.tallies.contains_key(&key);
        let key = if full { Key { host: None, port: None, ..key } } else { key };
        let tally = self.tallies.entry(key).or_insert(Tally { count: 0, first: event.at, last: event.at });
        tally.count += 1;
        tally.last = event.at;
    }
}
