//! The policy as its authors wrote it: parsed and checked value by value, not yet compiled.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::identity::Evidence;
use crate::life::Life;
use crate::limits::Limits;
use crate::list::List;
use crate::policy::Mode;
use crate::rule::{Rule, RuleRef};
use crate::sandbox::SandboxId;
use crate::socket::Socket;
use crate::special::AddressBook;

/// Where something stands in the config, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file.
    pub file: Arc<str>,
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

/// A `[policy.X]` table.
#[derive(Clone, Debug)]
pub struct PolicySource {
    /// Its name.
    pub name: Arc<str>,
    /// Where it stands.
    pub place: Place,
    /// Its entries and long-form rules, in file order.
    pub rules: Vec<Rule>,
    /// Its deny lists, each with its place.
    pub lists: Vec<(Arc<List>, Place)>,
    /// The registries that it names.
    pub registries: Vec<Arc<str>>,
}

/// A `[registry.X]` table: what a package client on this machine reaches, as a person pinned it.
#[derive(Clone, Debug)]
pub struct RegistrySource {
    /// Its name.
    pub name: Arc<str>,
    /// Where it stands.
    pub place: Place,
    /// One allow rule for each of its hosts, in file order.
    pub rules: Vec<Rule>,
}

/// An `[internal.X]` table.
#[derive(Clone, Debug)]
pub struct InternalSource {
    /// Its name.
    pub name: Arc<str>,
    /// Where it stands.
    pub place: Place,
    /// The allow rule that it compiles to: [`crate::rule::Terms::internal`] holds its addresses.
    pub rule: Rule,
}

/// A `[sandbox.X]` table.
#[derive(Clone, Debug)]
pub struct SandboxSource {
    /// Its name.
    pub id: SandboxId,
    /// Where it stands.
    pub place: Place,
    /// The policies that it names.
    pub policies: Vec<Arc<str>>,
    /// The internal tables that it names.
    pub internal: Vec<Arc<str>>,
    /// How it is known.
    pub identify: Vec<Evidence>,
    /// The unix sockets that `identify` names, where they are opened with the sandbox: those of the config are opened with
    /// the config.
    pub sockets: Vec<Socket>,
    /// Its labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Names for NO_PROXY and the summary.
    pub local_peers: Vec<Arc<str>>,
    /// Enforced or learning.
    pub mode: Mode,
    /// Whether replies tell what to add where.
    pub hints: bool,
    /// How far it is in its life.
    pub life: Life,
    /// How much it may do.
    pub limits: Limits,
    /// The users who may hand a namespace over for it.
    pub owners: Vec<u32>,
}

impl SandboxSource {
    /// A sandbox that nothing is known of: it may do nothing.
    pub fn empty(id: SandboxId, place: Place) -> Self {
        Self {
            id,
            place,
            policies: Vec::new(),
            internal: Vec::new(),
            identify: Vec::new(),
            sockets: Vec::new(),
            labels: BTreeMap::new(),
            local_peers: Vec::new(),
            mode: Mode::Enforce,
            hints: false,
            life: Life::default(),
            limits: Limits::default(),
            owners: Vec::new(),
        }
    }
}

/// Everything that compiles to a [`crate::Policy`].
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The policies.
    pub policies: Vec<PolicySource>,
    /// The internal tables.
    pub internals: Vec<InternalSource>,
    /// The registries.
    pub registries: Vec<RegistrySource>,
    /// The sandboxes.
    pub sandboxes: Vec<SandboxSource>,
    /// What the gateway knows of addresses.
    pub addresses: AddressBook,
}

/// A plain entry beside a rule with methods or paths that covers the same host and port, in one sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleConflict {
    /// The entry that looks as if it allowed everything there, and allows nothing.
    pub plain: RuleRef,
    /// The rule beside it.
    pub narrowing: RuleRef,
}
