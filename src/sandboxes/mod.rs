//! The sandboxes of a running gateway: those of the config, and what is added, paused and ended at run time.
//!
//! ```text
//! config ──▶ base Policy ──┐
//! state ───▶ Records ──────┴─ join ──▶ Policy in force
//!
//! a change:  tried on a copy ─▶ on the disk ─▶ in force ─▶ on record ─▶ answered
//! ```
//!
//! A change that fails at a step has changed nothing that a restart or a client would see. Changes come one after the
//! other; whoever asked may leave, and the change is carried out all the same.

mod activity;
mod change;
mod denials;
mod held;
mod lifecycle;
mod record;
mod sockets;
mod span;
mod store;
mod table;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use policy::source::SandboxSource;
use policy::{Gate, Generation, ListenerName, Policy, Sandbox, SandboxId, Socket, Timestamp};
use tokio::sync::Mutex as Turn;

pub use self::activity::Activity;
pub use self::change::{Change, Lent, Refusal};
pub use self::denials::{Denials, Denied};
pub use self::held::{Known, Origin, State};
pub use self::record::{Added, Record, Tunnels};
pub use self::span::Span;
pub use self::store::{StateError, Store};
pub use self::table::Table;

use self::held::Held;
use crate::admin::Status;
use crate::audit::Audit;
use crate::doors::{Doors, Holder};
use crate::metrics::Metrics;
use crate::namespaces::Namespaces;

/// What a gateway starts with: the state on disk, and the policy that comes of it and the config.
#[derive(Debug)]
pub struct Start {
    held: Held,
    store: Option<Arc<Store>>,
    /// The policy to put in force.
    pub policy: Arc<Policy>,
}

/// What changes of sandboxes touch.
#[derive(Debug)]
pub struct Parts {
    /// Where the policy is in force.
    pub gate: Arc<Gate>,
    /// Where streams are open.
    pub gateway: Arc<proxy::Gateway>,
    /// Closes the namespaces of those that are removed.
    pub namespaces: Arc<Namespaces>,
    /// Where changes are written down.
    pub audit: Arc<Audit>,
    /// Counts generations.
    pub metrics: Metrics,
    /// Tells the generation.
    pub status: Arc<Status>,
    /// When sandboxes did something last.
    pub activity: Arc<Activity>,
    /// What they were denied.
    pub denials: Arc<Denials>,
    /// The gateway's listeners, by which sandboxes may be known.
    pub listeners: Vec<ListenerName>,
    /// The unix sockets that are opened for sandboxes.
    pub(crate) doors: Arc<Doors>,
    /// Where the admin socket is.
    pub admin: Option<PathBuf>,
}

/// The sandboxes of a running gateway.
#[derive(Debug)]
pub struct Sandboxes {
    parts: Parts,
    store: Option<Arc<Store>>,
    /// Whoever changes something has it, from the first look to the last step.
    turn: Turn<()>,
    /// Never locked while anything is waited for.
    held: Mutex<Held>,
}

impl Start {
    /// Reads the state at `path`, if there is to be one, and joins it with the policy of the config.
    ///
    /// # Errors
    /// Where the state cannot be used.
    pub fn read(path: Option<&Path>, base: Arc<Policy>, now: Timestamp) -> Result<Self, StateError> {
        let (store, records) = match path {
            Some(path) => {
                let (store, records) = Store::open(path)?;
                (Some(Arc::new(store)), records)
            }
            None => (None, Vec::new()),
        };
        let mut held = Held::new(base, records, now);
        let policy = Arc::new(held.join());
        Ok(Self { held, store, policy })
    }
}

impl Sandboxes {
    /// The sandboxes of a gateway that starts.
    #[must_use]
    pub fn new(start: Start, parts: Parts, now: Timestamp) -> Arc<Self> {
        let Start { held, store, .. } = start;
        for (id, timeout) in held.timeouts() {
            parts.activity.watch(id, Some(timeout), now);
        }
        held.complain();
        Arc::new(Self { parts, store, turn: Turn::default(), held: Mutex::new(held) })
    }

    /// Puts the policy of another config in force and opens its sockets, with what was changed at run time. `first` is done
    /// once nothing else can fail.
    ///
    /// # Errors
    /// Where a socket cannot be opened, or `first` fails: nothing else is changed.
    pub async fn install(
        &self,
        base: Arc<Policy>,
        sockets: &[Socket],
        first: impl Future<Output = Result<(), String>>,
    ) -> Result<(Generation, Arc<Policy>), String> {
        let _turn = self.turn.lock().await;
        let bound = self.parts.doors.bind(&Holder::Config, sockets);
        let bound = bound.map_err(|error| crate::error_chain(&error))?;
        first.await?;
        let policy = self.held(|held| {
            held.base = base;
            let policy = Arc::new(held.join());
            held.complain();
            policy
        });
        let generation = self.put_in_force(&policy);
        self.parts.doors.serve(&Holder::Config, bound, sockets);
        self.settle_doors();
        Ok((generation, policy))
    }

    /// Shows every sandbox that there is, by name.
    pub fn each(&self, mut show: impl FnMut(&Known<'_>)) {
        let policy = self.parts.gate.policy();
        self.held(|held| held.each(&policy, &mut show));
    }

    /// Shows one sandbox, if there is one of this name.
    pub fn one<R>(&self, id: &SandboxId, show: impl FnOnce(&Known<'_>) -> R) -> Option<R> {
        let policy = self.parts.gate.policy();
        self.held(|held| held.one(&policy, id).map(|known| show(&known)))
    }

    /// What a sandbox was denied last.
    #[must_use]
    pub fn denials(&self, id: &SandboxId) -> Vec<Denied> {
        self.parts.denials.of(id)
    }

    fn put_in_force(&self, policy: &Arc<Policy>) -> Generation {
        let generation = self.parts.gate.install(Arc::clone(policy));
        self.parts.gateway.policy_changed();
        self.parts.namespaces.policy_changed();
        self.parts.metrics.generation(generation);
        self.parts.status.generation(generation);
        generation
    }

    fn held<R>(&self, look: impl FnOnce(&mut Held) -> R) -> R {
        // What is held is put together first and assigned then, so that what a panic left behind is whole.
        look(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A sandbox as the policy in force has it.
fn in_force(policy: &Policy, id: &SandboxId) -> Option<Arc<Sandbox>> {
    policy.sandbox(id).cloned()
}

/// The policies and internal tables that a sandbox names and a policy does not have.
fn missing(source: &SandboxSource, policy: &Policy) -> Vec<Arc<str>> {
    let policies = source.policies.iter().filter(|name| !policy.tables().has_policy(name));
    let internals = source.internal.iter().filter(|name| !policy.tables().has_internal(name));
    policies.chain(internals).cloned().collect()
}
