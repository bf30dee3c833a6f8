//! Upstream connections that wait for another request.
//!
//! Nothing is shared: a connection serves the sandbox, the rule, the policy generation and the destination that it was
//! opened for, and the gate judges its address anew before every request.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use policy::{Destination, Generation, Hostname, Permit, RuleRef, SandboxId};
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
    sandbox: SandboxId,
    generation: Generation,
    destination: Destination,
}

impl Key {
    /// What connections under a permit may be used for; `None` where it has no destination.
    pub(crate) fn of(permit: &Permit) -> Option<Self> {
        Some(Self {
            sandbox: permit.sandbox().id.clone(),
            generation: permit.generation(),
            destination: permit.destination()?.clone(),
        })
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
    by_sandbox: HashMap<SandboxId, Shelf>,
    total: usize,
    swept: bool,
    /// Connections of an older policy are no longer kept.
    oldest: Option<Generation>,
}

#[derive(Debug, Default)]
struct Shelf {
    by_key: HashMap<Key, Vec<(Instant, Idle)>>,
    total: usize,
}

impl Pool {
    /// Takes the connection that has waited least, if one is there that waited no longer than `most` and has not been
    /// closed from the far side.
    pub(crate) fn take(&self, key: &Key, rule: Option<&RuleRef>, most: Duration) -> Option<Idle> {
        let mut shelves = self.shelves();
        let shelves = &mut *shelves;
        let shelf = shelves.by_sandbox.get_mut(&key.sandbox)?;
        let waiting = shelf.by_key.get_mut(key)?;
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

    /// Keeps a connection that has nothing more to say; drops it where there are too many.
    pub(crate) fn put(self: &Arc<Self>, key: Key, idle: Idle) {
        let mut shelves = self.shelves();
        let shelves = &mut *shelves;
        if shelves.total >= MOST || shelves.oldest > Some(key.generation) {
            return;
        }
        let shelf = shelves.by_sandbox.entry(key.sandbox.clone()).or_default();
        if shelf.total >= MOST_PER_SANDBOX {
            return;
        }
        shelf.by_key.entry(key).or_default().push((Instant::now(), idle));
        shelf.total += 1;
        shelves.total += 1;
        if !std::mem::replace(&mut shelves.swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes them all, and keeps none that is given back under a policy before `generation`.
    pub(crate) fn clear(&self, generation: Generation) {
        let mut shelves = self.shelves();
        shelves.oldest = shelves.oldest.max(Some(generation));
        shelves.by_sandbox.clear();
        shelves.total = 0;
    }

    /// Closes those that have waited too long or were closed from the far side. Returns whether any is left.
    fn sweep(&self) -> bool {
        let mut shelves = self.shelves();
        let mut left = 0;
        shelves.by_sandbox.retain(|_, shelf| {
            shelf.by_key.retain(|_, waiting| {
                waiting.retain(|(since, idle)| since.elapsed() <= IDLE && is_quiet(&idle.stream));
                !waiting.is_empty()
            });
            shelf.total = shelf.by_key.values().map(Vec::len).sum();
            left += shelf.total;
            shelf.total > 0
        });
        shelves.total = left;
        shelves.swept = left > 0;
        left > 0
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        // A panic under the lock could only leave a count too high.
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
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
    use policy::{Event, Gate, LocalAddresses, Observer, Policy, Receipt};
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    struct Deaf;

    impl Observer for Deaf {
        fn record(&self, _: &Event<'_>) -> Receipt {
            Receipt::written()
        }
    }

    fn generations() -> (Generation, Generation) {
        let gate =
            Gate::new(Arc::new(Policy::default()), Arc::new(LocalAddresses::default()), Arc::new(Deaf), 1);
        (gate.generation(), gate.install(Arc::new(Policy::default())))
    }

    fn key(sandbox: &str, destination: &str, generation: Generation) -> Key {
        Key {
            sandbox: SandboxId::parse(sandbox).unwrap(),
            generation,
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

    fn total(pool: &Pool) -> usize {
        let shelves = pool.shelves();
        assert_eq!(shelves.total, shelves.by_sandbox.values().map(|shelf| shelf.total).sum::<usize>());
        shelves.total
    }

    #[tokio::test]
    async fn a_connection_serves_what_it_was_opened_for_and_nothing_else() {
        let (pool, (old, new)) = (Arc::<Pool>::default(), generations());
        let right = key("s1", "a.test:80", old);
        let (idle, _far) = idle().await;
        let address = idle.address;
        pool.put(right.clone(), idle);
        for other in [key("s2", "a.test:80", old), key("s1", "a.test:81", old), key("s1", "a.test:80", new)] {
            assert!(pool.take(&other, None, Duration::MAX).is_none(), "{other:?}");
        }
        assert_eq!(pool.take(&right, None, Duration::MAX).map(|idle| idle.address), Some(address));
        assert!(pool.take(&right, None, Duration::MAX).is_none(), "it is taken");
        assert_eq!(total(&pool), 0);
    }

    #[tokio::test]
    async fn a_connection_that_closed_or_spoke_is_not_handed_out() {
        let (pool, (generation, _)) = (Arc::<Pool>::default(), generations());
        let key = key("s1", "a.test:80", generation);
        let (closed, far) = idle().await;
        drop(far);
        let (spoke, mut far) = idle().await;
        far.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        for idle in [closed, spoke] {
            // The stream learns of it from the reactor.
            let Stream::Tcp(tcp) = &idle.stream else { panic!("{idle:?}") };
            tcp.readable().await.unwrap();
            pool.put(key.clone(), idle);
            assert!(pool.take(&key, None, Duration::MAX).is_none());
        }
        assert_eq!(total(&pool), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_rested_too_long_is_closed() {
        let (pool, (generation, _)) = (Arc::<Pool>::default(), generations());
        let key = key("s1", "a.test:80", generation);
        let (first, _far) = idle().await;
        pool.put(key.clone(), first);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(pool.take(&key, None, Duration::from_secs(1)).is_none(), "too long for this request");
        let (second, mut far) = idle().await;
        pool.put(key.clone(), second);
        // Nobody asks; the sweep closes it.
        let read = tokio::time::timeout(2 * IDLE, tokio::io::AsyncReadExt::read(&mut far, &mut [0])).await;
        assert!(matches!(read, Ok(Ok(0))), "{read:?}");
        assert_eq!(total(&pool), 0);
        let (third, mut far) = idle().await;
        pool.put(key, third);
        let read = tokio::time::timeout(2 * IDLE, tokio::io::AsyncReadExt::read(&mut far, &mut [0])).await;
        assert!(matches!(read, Ok(Ok(0))), "another sweep begins");
    }

    #[tokio::test]
    async fn one_sandbox_cannot_fill_the_pool() {
        let (pool, (generation, _)) = (Arc::<Pool>::default(), generations());
        let mut far = Vec::new();
        for _ in 0..=MOST_PER_SANDBOX {
            let (idle, end) = idle().await;
            far.push(end);
            pool.put(key("s1", "a.test:80", generation), idle);
        }
        assert_eq!(total(&pool), MOST_PER_SANDBOX);
        let (idle, _end) = idle().await;
        pool.put(key("s2", "a.test:80", generation), idle);
        assert_eq!(total(&pool), MOST_PER_SANDBOX + 1);
    }

    #[tokio::test]
    async fn a_reload_closes_all_and_keeps_nothing_from_before_it() {
        let (pool, (old, new)) = (Arc::<Pool>::default(), generations());
        let (first, _far) = idle().await;
        pool.put(key("s1", "a.test:80", old), first);
        pool.clear(new);
        assert_eq!(total(&pool), 0);
        let (late, _far) = idle().await;
        pool.put(key("s1", "a.test:80", old), late);
        assert_eq!(total(&pool), 0, "it was opened under the old policy");
        let (current, _far) = idle().await;
        pool.put(key("s1", "a.test:80", new), current);
        assert_eq!(total(&pool), 1);
    }
}
