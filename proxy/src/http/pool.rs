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
