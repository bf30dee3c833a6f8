//! What counts against the limits of sandboxes: shared by the DNS server and by whoever opens streams, since a name is
//! as new to the one as to the other.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use policy::{Host, Limits, Permit, Policy, RuleId, SandboxId};

/// A limit is reached; it will let something through again after this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait(pub Duration);

/// One account for each sandbox that has done something, and for each rule with limits under which it has; one without
/// costs nothing.
#[derive(Debug)]
pub struct Accounts<A> {
    sandboxes: Book<SandboxId, A>,
    rules: Book<(SandboxId, RuleId), A>,
}

impl<A> Default for Accounts<A> {
    fn default() -> Self {
        Self { sandboxes: Book::default(), rules: Book::default() }
    }
}

impl<A: Default> Accounts<A> {
    /// The account of a sandbox.
    pub fn of(&self, sandbox: &SandboxId) -> Arc<A> {
        self.sandboxes.of(sandbox)
    }

    /// The account of a sandbox under the rule of a permit, with the rule's limits; `None` where it has none.
    pub fn of_rule<'p>(&self, permit: &'p Permit) -> Option<(Arc<A>, &'p Limits)> {
        let (limits, rule) = (permit.rule_limits()?, permit.rule()?);
        Some((self.rules.of(&(permit.sandbox().id.clone(), rule.id())), limits))
    }

    /// Shows each account the limits that a policy sets it, none where it sets none, and forgets the accounts of
    /// sandboxes and of rules that are gone or have no limits any more.
    pub fn renew(&self, policy: &Policy, show: impl Fn(&A, Option<&Limits>)) {
        self.sandboxes.retain(|sandbox, account| {
            let limits = policy.sandbox(sandbox).map(|sandbox| &sandbox.limits);
            show(account, limits);
            limits.is_some()
        });
        self.rules.retain(|(sandbox, rule), account| {
            let limits = policy.sandbox(sandbox).and_then(|sandbox| sandbox.limits_of(rule));
            show(account, limits);
            limits.is_some()
        });
    }
}

/// Accounts by what they are of.
#[derive(Debug)]
struct Book<K, A>(RwLock<HashMap<K, Arc<A>>>);

impl<K, A> Default for Book<K, A> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Hash + Eq + Clone, A: Default> Book<K, A> {
    fn of(&self, key: &K) -> Arc<A> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        held.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(key.clone()).or_default())
        })
    }

    fn retain(&self, keep: impl Fn(&K, &A) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|key, account| keep(key, account));
    }
}

/// Where a client comes from, as far as it cannot choose: a host has a whole /64 of IPv6 addresses (RFC 4291 section
/// 2.5.4).
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// Nanoseconds since the program began to count, by a clock that nobody can set.
#[must_use]
pub fn monotonic() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Good for 584 years.
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// So many in so much time, all of them at once where nothing came before (the generic cell rate algorithm, ITU-T I.371).
#[derive(Debug, Default)]
pub struct Bucket {
    /// When everything that was let through is paid for.
    paid_at: AtomicU64,
}

impl Bucket {
    /// Takes one of `count` within `per`.
    ///
    /// # Errors
    /// Where none is left: how long to wait for the next one.
    pub fn take(&self, count: u32, per: Duration) -> Result<(), Wait> {
        self.take_at(monotonic(), count, per)
    }

    fn take_at(&self, now: u64, count: u32, per: Duration) -> Result<(), Wait> {
        let per = u64::try_from(per.as_nanos()).unwrap_or(u64::MAX);
        let each = per / u64::from(count.max(1));
        let paid = |held: u64| {
            let paid_at = held.max(now).saturating_add(each);
            (paid_at - now <= per).then_some(paid_at)
        };
        let taken = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid);
        taken.map(drop).map_err(|held| Wait(Duration::from_nanos((held + each).saturating_sub(now + per))))
    }
}

/// So many names of a sandbox are remembered, and as many before those.
const REMEMBERED: usize = 2048;

/// The names that a sandbox asked for lately.
#[derive(Debug, Default)]
struct Recent {
    now: HashSet<u64>,
    before: HashSet<u64>,
}

impl Recent {
    fn knows(&mut self, name: u64) -> bool {
        self.now.contains(&name) || (self.before.contains(&name) && self.remember(name))
    }

    fn remember(&mut self, name: u64) -> bool {
        if self.now.len() >= REMEMBERED {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(name);
        true
    }
}

/// What one sandbox has asked for, or one sandbox under one rule.
#[derive(Debug, Default)]
pub struct Account {
    pub(crate) questions: Bucket,
    names: Bucket,
    recent: Mutex<Recent>,
}

/// What all sandboxes have asked for.
#[derive(Debug, Default)]
pub struct Asked {
    accounts: Accounts<Account>,
    hasher: RandomState,
}

impl Asked {
    /// The account of a sandbox.
    pub(crate) fn of(&self, sandbox: &SandboxId) -> Arc<Account> {
        self.accounts.of(sandbox)
    }

    /// Counts the name of a permit, where a wildcard allows it and it was not asked for lately.
    ///
    /// # Errors
    /// Where the sandbox has asked for too many such names, or for too many under the rule.
    pub fn name(&self, permit: &Permit) -> Result<(), Wait> {
        // The narrower first: what a rule refuses is not new to its sandbox.
        let of_rule = self.accounts.of_rule(permit);
        let of_rule = of_rule.and_then(|(account, limits)| Some((account, limits.new_names_per_minute?)));
        let of_sandbox = permit.sandbox().limits.new_names_per_minute;
        if permit.is_exact() || (of_rule.is_none() && of_sandbox.is_none()) {
            return Ok(());
        }
        let Some(Host::Name(name)) = permit.host() else { return Ok(()) };
        let name = self.hasher.hash_one(&name);
        if let Some((account, limit)) = of_rule {
            account.name(name, limit)?;
        }
        of_sandbox.map_or(Ok(()), |limit| self.of(&permit.sandbox().id).name(name, limit))
    }

    /// Counts a question against the rate of the rule that allows it; its sandbox's rate comes before the decision.
    ///
    /// # Errors
    /// Where the sandbox asks too fast under the rule.
    pub(crate) fn question(&self, permit: &Permit) -> Result<(), Wait> {
        let of_rule = self.accounts.of_rule(permit);
        match of_rule.and_then(|(account, limits)| Some((account, limits.dns_per_second?))) {
            Some((account, limit)) => account.questions.take(limit, Duration::from_secs(1)),
            None => Ok(()),
        }
    }

    /// Forgets the sandboxes and the rules that are gone.
    pub fn renew(&self, policy: &Policy) {
        self.accounts.renew(policy, |_, _| {});
    }
}

impl Account {
    fn name(&self, name: u64, limit: u32) -> Result<(), Wait> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if !recent.knows(name) {
            self.names.take(limit, Duration::from_secs(60))?;
            recent.remember(name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bucket_gives_its_count_at_once_and_then_its_rate() {
        let bucket = Bucket::default();
        let nanos = |millis: u64| 5_000_000_000 + millis * 1_000_000;
        let taken = |at: u64, tries: u32| {
            (0..tries).filter(|_| bucket.take_at(nanos(at), 10, SECOND).is_ok()).count()
        };
        assert_eq!(taken(0, 20), 10);
        assert_eq!(bucket.take_at(nanos(0), 10, SECOND), Err(Wait(Duration::from_millis(100))));
        assert_eq!(bucket.take_at(nanos(40), 10, SECOND), Err(Wait(Duration::from_millis(60))));
        assert_eq!(taken(100, 5), 1);
        assert_eq!(taken(600, 20), 5);
        assert_eq!(taken(60_000, 20), 10, "what was not used is not saved up");
    }

    #[test]
    fn a_name_counts_once_and_many_are_forgotten() {
        let account = Account::default();
        for round in 0..3 {
            for name in 0..60 {
                assert_eq!(account.name(name, 60), Ok(()), "{round} {name}");
            }
        }
        assert!(matches!(account.name(60, 60), Err(Wait(wait)) if wait <= SECOND));
        for name in 100..100 + 3 * REMEMBERED as u64 {
            assert_eq!(account.name(name, u32::MAX), Ok(()));
        }
        let recent = account.recent.lock().unwrap();
        assert!(recent.now.len() <= REMEMBERED && recent.before.len() <= REMEMBERED);
    }

    #[test]
    fn accounts_of_the_gone_are_forgotten() {
        let all = Book::<&str, Bucket>::default();
        let first = all.of(&"a");
        assert!(Arc::ptr_eq(&first, &all.of(&"a")) && !Arc::ptr_eq(&first, &all.of(&"b")));
        all.retain(|key, _| *key == "b");
        assert_eq!(all.0.read().unwrap().keys().collect::<Vec<_>>(), [&"b"]);
    }
}
