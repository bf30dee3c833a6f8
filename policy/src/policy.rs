//! The compiled policy of a gateway: every sandbox with its rules, and what holds for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use crate::approval::Approval;
use crate::attempt::Ask;
use crate::decision::FirstBytes;
use crate::destination::{Host, Port};
use crate::identity::{Evidence, Identities};
use crate::life::Life;
use crate::limits::Limits;
use crate::reason::Reason;
use crate::rule::{Ech, RuleId, RuleRef};
use crate::ruleset::RuleSet;
use crate::sandbox::SandboxId;
use crate::shared::SharedMap;
use crate::special::AddressBook;
use crate::tables::Tables;
use crate::time::Timestamp;

/// Whether a sandbox is held to its policies or watched to learn them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// What no rule allows is denied.
    #[default]
    Enforce,
    /// What no rule mentions is allowed and logged as `would_deny`, until then. Names are resolved.
    Learn {
        /// When the sandbox is held to its policies again; at most 24 hours ahead when it is loaded.
        until: Timestamp,
    },
}

/// One sandbox with its policies.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Its name.
    pub id: SandboxId,
    /// Its policies in the order in which it names them, the registries that these name, and its internal tables.
    pub sets: Vec<Arc<RuleSet>>,
    /// How it is known.
    pub identify: Vec<Evidence>,
    /// Labels for the audit.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Enforced or learning.
    pub mode: Mode,
    /// Whether replies tell what to add where.
    pub hints: bool,
    /// How much it may do.
    pub limits: Limits,
    /// The users who may hand a namespace over for it.
    pub owners: Vec<u32>,
    /// How far it is in its life.
    pub life: Life,
    /// Names that a client inside reaches without the gateway; they grant nothing.
    pub local_peers: Vec<Arc<str>>,
}

impl Sandbox {
    /// Whether the sandbox is in learn mode at `now`.
    #[must_use]
    pub fn learns_at(&self, now: Timestamp) -> bool {
        matches!(self.mode, Mode::Learn { until } if now < until)
    }

    /// The limits of a rule of its policies, if there is such a rule and it has some.
    #[must_use]
    pub fn limits_of(&self, rule: &RuleId) -> Option<&Limits> {
        self.sets.iter().find(|set| set.name() == &*rule.set)?.limits(&rule.name)
    }
}

/// A sandbox as one policy has it. It stays equal for as long as nothing touches the sandbox: a change of another one
/// does not, a reload does. What was learnt under it, such as a connection that waits, is of no use to a later one.
#[derive(Clone, Debug)]
pub struct Version {
    id: SandboxId,
    /// It holds no rules, and keeps its place in memory from standing for another sandbox.
    held: Weak<Sandbox>,
}

impl Version {
    /// That of a sandbox.
    #[must_use]
    pub fn of(sandbox: &Arc<Sandbox>) -> Self {
        Self { id: sandbox.id.clone(), held: Arc::downgrade(sandbox) }
    }

    /// The sandbox, where a policy has it still.
    #[must_use]
    pub fn is_in<'p>(&self, policy: &'p Policy) -> Option<&'p Arc<Sandbox>> {
        policy.sandbox(&self.id).filter(|sandbox| std::ptr::eq(Arc::as_ptr(sandbox), self.held.as_ptr()))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.held, &other.held)
    }
}

impl Eq for Version {}

impl Hash for Version {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.held.as_ptr().hash(state);
    }
}

/// The compiled policy of a gateway.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Every sandbox by its name.
    pub sandboxes: SharedMap<SandboxId, Arc<Sandbox>>,
    /// How clients are told apart.
    pub identities: Identities,
    /// What the gateway knows of addresses.
    pub addresses: AddressBook,
    /// What sandboxes name.
    pub(crate) tables: Arc<Tables>,
}

impl Policy {
    /// The tables that sandboxes name.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The sandbox of a name.
    #[must_use]
    pub fn sandbox(&self, id: &SandboxId) -> Option<&Arc<Sandbox>> {
        self.sandboxes.get(id)
    }

    /// The `[registry.X]` tables in use to which packages can be published, by name.
    #[must_use]
    pub fn open_to_publishing(&self) -> BTreeSet<&str> {
        let sets = self.sandboxes.values().flat_map(|sandbox| &sandbox.sets);
        sets.filter(|set| set.lets_publish()).map(|set| set.name()).collect()
    }

    /// The first moment after `now` at which something that the policy allows ends by itself. A table that no sandbox
    /// names may be looked at for nothing, so that ten thousand sandboxes with the same tables cost each table once.
    #[must_use]
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let of_sandbox = |sandbox: &Sandbox| {
            let learning = match sandbox.mode {
                Mode::Learn { until } => Some(until),
                Mode::Enforce => None,
            };
            [learning, sandbox.life.ends].into_iter().flatten().filter(|end| *end > now).min()
        };
        let of_tables = self.tables.sets().filter_map(|set| set.next_expiry(now));
        self.sandboxes.values().filter_map(|sandbox| of_sandbox(sandbox)).chain(of_tables).min()
    }
}

/// What the policy says of an attempt, before anything is recorded.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It may go on.
    Allow(Arc<Sandbox>, Grant),
    /// A rule asks a person, and nobody has approved it: what it may do once somebody has.
    Ask(Arc<Sandbox>, Grant),
    /// It may not; `None` is a client that is no known sandbox.
    Deny(Option<Arc<Sandbox>>, Finding),
}

/// Why an attempt may go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The rule that allows it or asks for it; `None` in learn mode where no rule does.
    pub rule: Option<RuleRef>,
    /// In learn mode: what would have denied it.
    pub would_deny: Option<Reason>,
    /// Whether only rules with methods or paths can allow there: every request must be read.
    pub narrowed: bool,
    /// What a person has to do with it.
    pub approval: Need,
}

/// Whether a person must approve an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Need {
    /// No: an allow rule speaks, or learn mode.
    Free,
    /// Yes, and somebody has.
    Given(Arc<Approval>),
    /// Yes, and nobody has.
    Wanted,
}

impl Grant {
    /// Whether it lets through what a person has approved.
    pub(crate) const fn is_approved(&self) -> bool {
        matches!(self.approval, Need::Given(_))
    }

    /// What the first bytes of a stream must be.
    pub(crate) fn first_bytes(&self, ask: &Ask) -> FirstBytes {
        match ask.port().map(Port::get) {
            _ if self.narrowed => FirstBytes::Http,
            _ if self.rule.as_ref().is_some_and(|rule| rule.rule().is_raw()) => FirstBytes::Raw,
            // A literal shows no name that could be compared, so that its port decides nothing.
            Some(443) if matches!(ask.host(), Some(Host::Name(_))) => FirstBytes::Tls,
            Some(80) => FirstBytes::Http,
            _ => FirstBytes::Any,
        }
    }

    /// Whether an encrypted ClientHello is refused.
    pub(crate) fn refuses_ech(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.rule().ech() == Ech::Deny)
    }

    /// Whether a stream that was opened under `before` has met every check that this grant asks for. Its first bytes
    /// have gone by and cannot be read again; a request was read in full.
    pub(crate) fn asks_no_more_than(&self, before: &Self, ask: &Ask) -> bool {
        if !matches!(ask, Ask::Stream(_)) {
            return true;
        }
        let checked = match (before.first_bytes(ask), self.first_bytes(ask)) {
            (_, FirstBytes::Raw) => true,
            (FirstBytes::Raw, _) => false,
            (_, FirstBytes::Any) => true,
            (before, now) => before == now,
        };
        checked && (before.narrowed || !self.narrowed) && (before.refuses_ech() || !self.refuses_ech())
    }
}

/// Why an attempt may not go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The reason.
    pub reason: Reason,
    /// The rule that denies it, or the nearest miss.
    pub rule: Option<RuleRef>,
    /// For look-ups: whether the name exists as far as the policy tells, so that the answer is NODATA and not
    /// NXDOMAIN (RFC 8020: nothing lies below a name that does not exist).
    pub name_exists: bool,
}

impl Finding {
    pub(crate) const fn bare(reason: Reason) -> Self {
        Self { reason, rule: None, name_exists: false }
    }
}
