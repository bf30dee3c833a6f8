//! What counts against the limits of sandboxes: shared by the DNS server and by whoever opens streams, since a name is
//! as new to the one as to the other.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use policy::{Host, Permit, SandboxId};

/// A limit is reached; it will let something through again after this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait(pub Duration);

/// One account for each sandbox that has done something; a sandbox without one costs nothing.
#[derive(Debug)]
pub struct Accounts<A>(RwLock<HashMap<SandboxId, Arc<A>>>);

impl<A> Default for Accounts<A> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<A: Default> Accounts<A> {
    /// The account of a sandbox.
    pub fn of(&self, sandbox: &SandboxId) -> Arc<A> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner).get(sandbox).cloned();
        held.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(sandbox.clone()).or_default())
        })
    }

    /// Forgets the accounts of sandboxes that are gone.
    pub fn retain(&self, exists: impl Fn(&SandboxId) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|sandbox, _| exists(sandbox));
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

/// What one sandbox has asked for.
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
    /// Where the sandbox has asked for too many such names.
    pub fn name(&self, permit: &Permit) -> Result<(), Wait> {
        let Some(limit) = permit.sandbox().limits.new_names_per_minute else { return Ok(()) };
        match permit.host() {
            Some(Host::Name(name)) if !permit.is_exact() => {
                self.of(&permit.sandbox().id).name(self.hasher.hash_one(&name), limit)
            }
            Some(Host::Name(_) | Host::Address(_)) | None => Ok(()),
        }
    }

    /// Forgets the sandboxes that are gone.
    pub fn retain(&self, exists: impl Fn(&SandboxId) -> bool) {
        self.accounts.retain(exists);
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
        let all = Accounts::<Bucket>::default();
        let (a, b) = (SandboxId::parse("a").unwrap(), SandboxId::parse("b").unwrap());
        let first = all.of(&a);
        assert!(Arc::ptr_eq(&first, &all.of(&a)) && !Arc::ptr_eq(&first, &all.of(&b)));
        all.retain(|id| *id == b);
        assert_eq!(all.0.read().unwrap().keys().collect::<Vec<_>>(), [&b]);
    }
}
