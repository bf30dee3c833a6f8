//! Namespaces: the network of one sandbox alone, and the addresses that stand for names in it.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bound::{Bound, Names};
use crate::hostname::Hostname;
use crate::sandbox::{ListenerName, SandboxId};

/// A live network namespace of a sandbox: nobody else is in it, and the gateway is its only exit.
///
/// Made by [`crate::Gate::namespace`], one for each life of a namespace.
pub struct Namespace {
    sandbox: SandboxId,
    listener: ListenerName,
    names: Mutex<Names>,
    closed: AtomicBool,
}

impl Namespace {
    pub(crate) fn new(sandbox: SandboxId, names: Names) -> Self {
        let listener = format!("netns:{sandbox}").into();
        Self { sandbox, listener, names: Mutex::new(names), closed: AtomicBool::new(false) }
    }

    /// The sandbox whose network it is.
    #[must_use]
    pub const fn sandbox(&self) -> &SandboxId {
        &self.sandbox
    }

    /// The name that its listeners share.
    #[must_use]
    pub const fn listener(&self) -> &ListenerName {
        &self.listener
    }

    /// The address that stands for a name here, from now on and for the life of the namespace. `listed` says that a rule
    /// names it itself; the others have a room of their own, and cannot take that of the listed ones. `None` where the
    /// room is spent.
    #[must_use]
    pub fn bind(&self, name: &Hostname, listed: bool) -> Option<Bound> {
        self.names().bind(name, listed)
    }

    /// The name for which an address stands here.
    #[must_use]
    pub fn name_of(&self, address: IpAddr) -> Option<Hostname> {
        self.names().name_of(address).cloned()
    }

    /// Closes it: from now on nobody is known by it.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        // Nothing that can panic runs under the lock.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}

/// One namespace is not another, whatever they hold.
impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Namespace {}
