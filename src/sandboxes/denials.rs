//! The last things that each sandbox was denied, for whoever looks why something does not work.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use policy::{
    Answer, AttemptId, Event, Host, Inbound, Observer, Port, Reason, Receipt, SandboxId, Timestamp,
};

/// How many are kept of one sandbox.
const EACH: usize = 32;

/// Of how many sandboxes. About 160 bytes a denial: 20 MiB where all of them are full.
const SANDBOXES: usize = 4096;

/// One denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The id of its event.
    pub id: AttemptId,
    /// When it was answered.
    pub at: Timestamp,
    /// The way it came in.
    pub inbound: Inbound,
    /// What was asked for; none where it could not be read.
    pub host: Option<Host>,
    /// The port, where there is one.
    pub port: Option<Port>,
    /// Why.
    pub reason: Reason,
    /// The rule that denied it, or the nearest miss. As text: a rule would keep a policy in memory that is long gone.
    pub rule: Option<Box<str>>,
}

/// The last denials of each sandbox.
#[derive(Debug, Default)]
pub struct Denials(Mutex<HashMap<SandboxId, VecDeque<Denied>>>);

impl Denials {
    /// Those of a sandbox, the newest first.
    #[must_use]
    pub fn of(&self, id: &SandboxId) -> Vec<Denied> {
        self.held().get(id).into_iter().flatten().rev().cloned().collect()
    }

    /// Forgets a sandbox.
    pub(super) fn forget(&self, id: &SandboxId) {
        self.held().remove(id);
    }

    fn keep(&self, id: &SandboxId, denied: Denied) {
        let mut held = self.held();
        if !held.contains_key(id) && held.len() >= SANDBOXES {
            // Any of them: what is denied now is what somebody looks for.
            let other = held.keys().next().cloned();
            other.and_then(|other| held.remove(&other));
        }
        let ring = held.entry(id.clone()).or_default();
        if ring.len() >= EACH {
            ring.pop_front();
        }
        ring.push_back(denied);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<SandboxId, VecDeque<Denied>>> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Denials {
    fn record(&self, event: &Event<'_>) -> Receipt {
        if let Event::Decision(decision) = event
            && let (Answer::Deny, Some(reason), Some(id)) =
                (decision.answer, decision.reason, decision.attempt.sandbox())
        {
            let attempt = decision.attempt;
            self.keep(
                id,
                Denied {
                    id: attempt.id,
                    at: decision.at,
                    inbound: attempt.inbound,
                    host: attempt.ask.host(),
                    port: attempt.ask.port(),
                    reason,
                    rule: decision.rule.map(|rule| rule.to_string().into()),
                },
            );
        }
        Receipt::written()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use policy::{Ask, Gate, Peer};

    use super::*;

    #[test]
    fn only_the_last_are_kept_and_only_of_so_many_sandboxes() {
        let denials = Denials::default();
        let gate = Gate::new(Arc::default(), Arc::default(), Arc::new(Denials::default()), 0);
        let peer = Peer::new("x".into(), None);
        let attempt = gate.attempt(Timestamp::from_secs(0), &peer, Inbound::Connect, Ask::unreadable(b""));
        let denied = |second| Denied {
            id: attempt.id,
            at: Timestamp::from_secs(second),
            inbound: Inbound::Connect,
            host: None,
            port: None,
            reason: Reason::NotListed,
            rule: None,
        };
        let id = |number: usize| SandboxId::parse(&format!("s{number}")).expect("a name");
        for second in 0..100 {
            denials.keep(&id(0), denied(second));
        }
        let seconds: Vec<u64> = denials.of(&id(0)).iter().map(|denied| denied.at.millis() / 1000).collect();
        assert_eq!(seconds, (68..100).rev().collect::<Vec<_>>());
        for number in 0..SANDBOXES + 10 {
            denials.keep(&id(number), denied(1));
        }
        assert_eq!(denials.held().len(), SANDBOXES);
        denials.forget(&id(SANDBOXES + 9));
        assert!(denials.of(&id(SANDBOXES + 9)).is_empty());
    }
}
