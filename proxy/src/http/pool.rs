//! Upstream connections that wait for another request.
//!
//! Nothing is shared: a connection serves the sandbox, the rule, the policies of the sandbox as they were, and the
//! destination that it was opened for, and the gate judges its address anew before every request.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use policy::{Destination, Hostname, Permit, Policy, RuleRef, Timestamp, Version};
use tokio::time::{Instant, sleep};

use crate::stream::Stream;

/// A connection that waits longer is closed. Origins commonly give up after 5 to 75 s.
const IDLE: Duration = Duration::from_secs(15);

/// One sandbox keeps no more; each costs a descriptor.
const MOST_PER_SANDBOX: usize = 128;

/// All sandboxes together keep no more.
const MOST: usize = 1024;

/// What a connection may be used for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    sandbox: Version,
    destination: Destination,
}

impl Key {
    /// What connections under a permit may be used for; `None` where it has no destination.
    pub(crate) fn of(permit: &Permit) -> Option<Self> {
        Some(Self { sandbox: Version::of(permit.sandbox()), destination: permit.destination()?.clone() })
    }
}

/// A connection that waits.
#[derive(Debug)]
pub(crate) struct Idle {
    pub(crate) stream: Stream,
    /// Where it leads.
    pub(crate) address: SocketAddr,
    /// The aliases that led there, to be judged with it.
    pub(crate) chain: Arc<[Hostname]>,
    /// The rule that allowed it; `None` in learn mode.
    pub(crate) rule: Option<RuleRef>,
}

/// The connections that wait.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    shelves: Mutex<Shelves>,
}

#[derive(Debug, Default)]
struct Shelves {
    by_sandbox: HashMap<Version, Shelf>,
    total: usize,
    swept: bool,
}

#[derive(Debug, Default)]
struct Shelf {
    by_destination: HashMap<Destination, Vec<(Instant, Idle)>>,
    total: usize,
}

impl Pool {
    /// Takes the connection that has waited least, if one is there that waited no longer than `most` and has not been
    /// closed from the far side.
    pub(crate) fn take(&self, key: &Key, rule: Option<&RuleRef>, most: Duration) -> Option<Idle> {
        let mut shelves = self.shelves();
        let shelves = &mut *shelves;
        let shelf = shelves.by_sandbox.get_mut(&key.sandbox)?;
        let waiting = shelf.by_destination.get_mut(&key.destination)?;
        let before = waiting.len();
        let mut found = None;
        while let Some(at) = waiting.iter().rposition(|(_, idle)| idle.rule.as_ref() == rule) {
            let (since, idle) = waiting.remove(at);
            // What is behind it has waited longer still.
            if since.elapsed() > most.min(IDLE) {
                break;
            }
            if is_quiet(&idle.stream) {
                found = Some(idle);
                break;
            }
        }
        let taken = before - waiting.len();
        shelf.total -= taken;
        shelves.total -= taken;
        found
    }

    /// Keeps a connection that has nothing more to say; drops it where there are too many, or the policy `in_force` has
    /// another version of its sandbox.
    pub(crate) fn put(self: &Arc<Self>, key: Key, idle: Idle, in_force: impl FnOnce() -> Arc<Policy>) {
        let mut shelves = self.shelves();
        let shelves = &mut *shelves;
        // Asked for under the lock: a policy that is put in force later is followed by a `retain`, which finds it.
        if shelves.total >= MOST || key.sandbox.is_in(&in_force()).is_none() {
            return;
        }
        let shelf = shelves.by_sandbox.entry(key.sandbox).or_default();
        if shelf.total >= MOST_PER_SANDBOX {
            return;
        }
        shelf.by_destination.entry(key.destination).or_default().push((Instant::now(), idle));
        shelf.total += 1;
        shelves.total += 1;
        if !std::mem::replace(&mut shelves.swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes them all.
    pub(crate) fn clear(&self) {
        let mut shelves = self.shelves();
        shelves.by_sandbox.clear();
        shelves.total = 0;
    }

    /// Closes those of sandboxes that are gone or have changed, and those whose rule or learning has ended.
    pub(crate) fn retain(&self, policy: &Policy, now: Timestamp) {
        self.shelves().retain(|version, _, idle| {
            version.is_in(policy).is_some_and(|sandbox| match &idle.rule {
                Some(rule) => rule.rule().holds_at(now),
                None => sandbox.learns_at(now),
            })
        });
    }

    /// Closes those that have waited too long or were closed from the far side. Returns whether any is left.
    fn sweep(&self) -> bool {
        let mut shelves = self.shelves();
        shelves.retain(|_, since, idle| since.elapsed() <= IDLE && is_quiet(&idle.stream));
        shelves.swept = shelves.total > 0;
        shelves.swept
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        // A panic under the lock could only leave a count too high.
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelves {
    fn retain(&mut self, mut keep: impl FnMut(&Version, Instant, &Idle) -> bool) {
        self.by_sandbox.retain(|version, shelf| {
            shelf.by_destination.retain(|_, waiting| {
                waiting.retain(|(since, idle)| keep(version, *since, idle));
                !waiting.is_empty()
            });
            shelf.total = shelf.by_destination.values().map(Vec::len).sum();
            shelf.total > 0
        });
        self.total = self.by_sandbox.values().map(|shelf| shelf.total).sum();
    }
}

/// Closes what nobody takes, until nothing is left.
async fn sweep(pool: Weak<Pool>) {
    loop {
        sleep(IDLE / 4).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.sweep() {
            return;
        }
    }
}

/// Whether the far side has neither closed nor spoken: bytes that nobody asked for are no answer to the next request.
fn is_quiet(stream: &Stream) -> bool {
    matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use policy::LocalAddresses;
    use policy::SandboxId;
    use policy::file::{Document, load};
    use policy::life::{Life, Meanwhile};
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn id(sandbox: &str) -> SandboxId {
        SandboxId::parse(sandbox).unwrap()
    }

    /// Two sandboxes that learn, for an hour.
    fn policy() -> Arc<Policy> {
        let learns = "mode = \"learn\"\nuntil = 2027-01-15T09:00:00Z\n";
        let text = format!("[sandbox.s1]\n{learns}[sandbox.s2]\n{learns}");
        let document = Document::new("t.toml", text.as_bytes()).unwrap();
        Arc::new(load(&[document], NOW, &LocalAddresses::default()).unwrap())
    }

    fn key(policy: &Policy, sandbox: &str, destination: &str) -> Key {
        Key {
            sandbox: Version::of(policy.sandbox(&id(sandbox)).unwrap()),
            destination: Destination::from_authority(destination.as_bytes()).unwrap(),
        }
    }

    /// A connection to keep, and its far end.
    #[expect(clippy::disallowed_methods, reason = "the test is both ends of its own loopback connection")]
    async fn idle() -> (Idle, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let idle = Idle { stream: stream.into(), address, chain: Arc::default(), rule: None };
        (idle, listener.accept().await.unwrap().0)
    }

    /// Keeps a connection for a sandbox under a policy, with `in_force` in force; gives its far end.
    async fn keep(pool: &Arc<Pool>, policy: &Policy, sandbox: &str, in_force: &Arc<Policy>) -> TcpStream {
        let (idle, far) = idle().await;
        pool.put(key(policy, sandbox, "a.test:80"), idle, || Arc::clone(in_force));
        far
    }

    fn total(pool: &Pool) -> usize {
        let shelves = pool.shelves();
        assert_eq!(shelves.total, shelves.by_sandbox.values().map(|shelf| shelf.total).sum::<usize>());
        shelves.total
    }

    #[tokio::test]
    async fn a_connection_serves_what_it_was_opened_for_and_nothing_else() {
        let (pool, policy, reloaded) = (Arc::<Pool>::default(), policy(), policy());
        let right = key(&policy, "s1", "a.test:80");
        let (idle, _far) = idle().await;
        let address = idle.address;
        pool.put(right.clone(), idle, || Arc::clone(&policy));
        for other in [
            key(&policy, "s2", "a.test:80"),
            key(&policy, "s1", "a.test:81"),
            key(&reloaded, "s1", "a.test:80"),
        ] {
            assert!(pool.take(&other, None, Duration::MAX).is_none(), "{other:?}");
        }
        assert_eq!(pool.take(&right, None, Duration::MAX).map(|idle| idle.address), Some(address));
        assert!(pool.take(&right, None, Duration::MAX).is_none(), "it is taken");
        assert_eq!(total(&pool), 0);
    }

    #[tokio::test]
    async fn a_connection_that_closed_or_spoke_is_not_handed_out() {
        let (pool, policy) = (Arc::<Pool>::default(), policy());
        let key = key(&policy, "s1", "a.test:80");
        let (closed, far) = idle().await;
        drop(far);
        let (spoke, mut far) = idle().await;
        far.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        for idle in [closed, spoke] {
            // The stream learns of it from the reactor.
            let Stream::Tcp(tcp) = &idle.stream else { panic!("{idle:?}") };
            tcp.readable().await.unwrap();
            pool.put(key.clone(), idle, || Arc::clone(&policy));
            assert!(pool.take(&key, None, Duration::MAX).is_none());
        }
        assert_eq!(total(&pool), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_rested_too_long_is_closed() {
        let (pool, policy) = (Arc::<Pool>::default(), policy());
        let _far = keep(&pool, &policy, "s1", &policy).await;
        tokio::time::advance(Duration::from_secs(2)).await;
        let key = key(&policy, "s1", "a.test:80");
        assert!(pool.take(&key, None, Duration::from_secs(1)).is_none(), "too long for this request");
        let mut far = keep(&pool, &policy, "s1", &policy).await;
        // Nobody asks; the sweep closes it.
        let read = tokio::time::timeout(2 * IDLE, tokio::io::AsyncReadExt::read(&mut far, &mut [0])).await;
        assert!(matches!(read, Ok(Ok(0))), "{read:?}");
        assert_eq!(total(&pool), 0);
        let mut far = keep(&pool, &policy, "s1", &policy).await;
        let read = tokio::time::timeout(2 * IDLE, tokio::io::AsyncReadExt::read(&mut far, &mut [0])).await;
        assert!(matches!(read, Ok(Ok(0))), "another sweep begins");
    }

    #[tokio::test]
    async fn one_sandbox_cannot_fill_the_pool() {
        let (pool, policy) = (Arc::<Pool>::default(), policy());
        let mut far = Vec::new();
        for _ in 0..=MOST_PER_SANDBOX {
            far.push(keep(&pool, &policy, "s1", &policy).await);
        }
        assert_eq!(total(&pool), MOST_PER_SANDBOX);
        far.push(keep(&pool, &policy, "s2", &policy).await);
        assert_eq!(total(&pool), MOST_PER_SANDBOX + 1);
    }

    #[tokio::test]
    async fn a_change_of_one_sandbox_closes_its_connections_and_nobody_elses() {
        let (pool, before) = (Arc::<Pool>::default(), policy());
        let _far = [keep(&pool, &before, "s1", &before).await, keep(&pool, &before, "s2", &before).await];
        let mut after = Policy::clone(&before);
        after.set_life(&id("s1"), Life { paused: Some(Meanwhile::Hold), ..Life::default() });
        let after = Arc::new(after);
        pool.retain(&after, NOW);
        assert!(pool.take(&key(&before, "s2", "a.test:80"), None, Duration::MAX).is_some());
        assert_eq!(total(&pool), 0);
        let _late = keep(&pool, &before, "s1", &after).await;
        assert_eq!(total(&pool), 0, "it was opened under the policies before");
        let _current = keep(&pool, &after, "s1", &after).await;
        assert_eq!(total(&pool), 1);
        pool.retain(&policy(), NOW);
        assert_eq!(total(&pool), 0, "a reload closes all");
    }

    #[tokio::test]
    async fn what_ends_by_itself_ends_what_waits_for_it() {
        let (pool, policy) = (Arc::<Pool>::default(), policy());
        let _far = keep(&pool, &policy, "s1", &policy).await;
        pool.retain(&policy, NOW);
        assert_eq!(total(&pool), 1);
        pool.retain(&policy, Timestamp::from_secs(1_800_003_600));
        assert_eq!(total(&pool), 0, "learning is over");
    }
}
