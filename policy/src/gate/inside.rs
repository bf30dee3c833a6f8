//! What only clients in a namespace of their own ask of the gate: captured connections, names that are to be bound, and
//! the names behind bound addresses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Gate;
use crate::attempt::{Ask, Attempt, QType};
use crate::bound::Names;
use crate::decide::Silent;
use crate::decision::{Decision, Denial, Permit, Unsettled};
use crate::hostname::Hostname;
use crate::namespace::Namespace;
use crate::policy::Finding;
use crate::reason::Reason;
use crate::sandbox::SandboxId;
use crate::time::Timestamp;

/// Servers that cannot answer now (RFC 1035 section 4.1.1): the client may ask again, and what it knows stays.
const SERVFAIL: u16 = 2;

/// What the name changes that a captured connection may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByName {
    /// Nothing: it is decided by its address, or that stands for a name.
    No,
    /// What is told of it: no name is open on its port.
    InVain,
    /// Everything.
    Yes,
}

impl Gate {
    /// A namespace of a sandbox, for as long as it lives. Nothing is bound in it yet.
    #[must_use]
    pub fn namespace(&self, sandbox: SandboxId) -> Arc<Namespace> {
        // Ids differ between runs and within one.
        let seed = u64::from(self.run) << 32 | self.attempts.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff;
        Arc::new(Namespace::new(sandbox, Names::new(scattered(seed))))
    }

    /// Whether a captured connection is to be judged by the name that it shows in its first bytes, as far as is known
    /// now: it is to an address, and neither the floor nor a rule for that address and port decides.
    #[must_use]
    pub fn by_name(&self, attempt: &Attempt) -> ByName {
        let held = self.in_force.load();
        let view = held.view_for(attempt, self.advance(attempt.at));
        if view.decide_captured(attempt.identity(), &attempt.ask, &mut Silent).is_some() {
            return ByName::No;
        }
        match attempt.ask.port() {
            Some(port) if view.opens_some_name(attempt.identity(), port) => ByName::Yes,
            Some(_) | None => ByName::InVain,
        }
    }

    /// Refuses what a permit lets through, for a reason that the policy does not know.
    pub fn refuse_permit(&self, permit: Permit, reason: Reason, now: Timestamp) -> Unsettled<Denial> {
        let now = self.advance(now);
        self.deny_permit(permit, reason, now)
    }

    /// Refuses a look-up for whose name there is no address left.
    pub fn refuse_binding(&self, permit: Permit, now: Timestamp) -> Unsettled<Denial> {
        let now = self.advance(now);
        let denial = permit.into_denial(Finding::bare(Reason::LimitNames)).with_rcode(SERVFAIL);
        self.deny(denial, now)
    }

    /// Decides the look-up of the name behind a bound address: it may be told exactly when `name` may be looked up.
    pub fn check_reverse(&self, attempt: Attempt, name: &Hostname) -> Decision {
        let forward = Ask::Lookup { name: name.clone(), qtype: QType::A };
        let now = attempt.at;
        self.check_as(attempt, Some(&forward), now)
    }
}

/// Spreads seeds that follow one another over all numbers (the finalizer of MurmurHash3: a bijection).
const fn scattered(seed: u64) -> u64 {
    let mut hash = seed;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}
