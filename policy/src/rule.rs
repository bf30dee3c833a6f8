//! Rules: one line that an author wrote, with the terms on which it holds.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::attempt::QType;
use crate::limits::Limits;
use crate::path::PathPattern;
use crate::pattern::{HostPattern, PortSet};
use crate::ruleset::{RuleSet, RuleView};
use crate::source::Place;
use crate::time::Timestamp;

/// What a rule does with the attempts that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Lets them through.
    Allow,
    /// Refuses them, whatever allows them.
    Deny,
    /// Lets them wait for a person, where nothing allows them.
    Ask,
}

/// What a rule does with a ClientHello that carries an encrypted one (ECH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ech {
    /// The outer name is judged and the bytes pass.
    #[default]
    Permit,
    /// `ech_present`. GREASE looks the same and is refused too.
    Deny,
}

/// How an author can find a rule again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RuleName {
    /// The `id` that the author gave it.
    Id(Arc<str>),
    /// The place in the policy's `allow`, `deny` or `ask` list, counted from 0.
    Listed(Action, u32),
    /// The place among the policy's long-form rules, counted from 0.
    Unnamed(u32),
    /// The allow rule of an `[internal.X]` table.
    Internal,
    /// The place in the `hosts` of a `[registry.X]` table, counted from 0.
    Host(u32),
    /// A file of names in the policy's `lists`.
    List(Arc<str>),
}

/// One rule as its author wrote it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The hosts that it covers.
    pub host: HostPattern,
    /// The ports that it covers.
    pub ports: PortSet,
    /// What it does.
    pub action: Action,
    /// How the author finds it.
    pub name: RuleName,
    /// The line of the file where it stands, counted from 1.
    pub line: u32,
    /// The column, in characters, counted from 1.
    pub column: u32,
    /// What else it asks for; `None` for a plain entry.
    pub terms: Option<Box<Terms>>,
}

/// What a rule asks for beyond host and port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The only methods allowed; `None` is any.
    pub methods: Option<Vec<Box<str>>>,
    /// The only paths allowed; `None` is any.
    pub paths: Option<Vec<PathPattern>>,
    /// The rule ends then, open tunnels too.
    pub until: Option<Timestamp>,
    /// Waives every check of the first bytes of a tunnel.
    pub raw: bool,
    /// What happens to encrypted ClientHellos.
    pub ech: Ech,
    /// The DNS types that the rule opens; `None` is [`QType::DEFAULT_OPEN`].
    pub qtypes: Option<Vec<QType>>,
    /// How much each sandbox may do under the rule; `None` is as much as the sandbox's own limits let it.
    pub limits: Option<Limits>,
    /// For the rule of an `[internal.X]` table, or of a `[registry.X]` with addresses: the addresses that it opens.
    pub internal: Option<Internal>,
}

/// The addresses that an `[internal.X]` or `[registry.X]` table opens for its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Internal {
    /// The name must resolve inside these.
    pub addresses: Vec<IpNet>,
    /// A loopback address and port of the gateway's host that stand for the name (`host_port`).
    pub host_port: Option<SocketAddr>,
    /// Whether several names share the addresses. Each is then looked up, so that none is dialled at another's.
    pub shared: bool,
}

impl Internal {
    /// The addresses to dial without a look-up: all of them where each is a single one, or the host port's.
    #[must_use]
    pub fn pinned(&self) -> Option<Vec<IpAddr>> {
        if let Some(local) = self.host_port {
            return Some(vec![local.ip()]);
        }
        if self.shared {
            return None;
        }
        let single = |net: &IpNet| (net.prefix_len() == net.max_prefix_len()).then(|| net.addr());
        self.addresses.iter().map(single).collect()
    }

    /// Whether an address is one that this table opens.
    #[must_use]
    pub fn opens(&self, address: IpAddr) -> bool {
        self.host_port.is_some_and(|local| local.ip() == address)
            || self.addresses.iter().any(|net| net.contains(&address))
    }
}

/// What a rule is known by in every policy that has it: its table, and its `id` or its place there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleId {
    pub(crate) set: Arc<str>,
    pub(crate) name: RuleName,
}

/// Points at one rule of a compiled policy and keeps it alive.
#[derive(Clone)]
pub struct RuleRef {
    set: Arc<RuleSet>,
    index: u32,
}

impl RuleRef {
    pub(crate) const fn new(set: Arc<RuleSet>, index: u32) -> Self {
        Self { set, index }
    }

    /// The rule.
    ///
    /// # Panics
    /// Never: only the rule set hands these out, with the index of a rule of its own.
    #[must_use]
    #[expect(clippy::expect_used, reason = "made only by the set that holds the rule")]
    pub fn rule(&self) -> RuleView<'_> {
        self.set.rule(self.index).expect("a rule of the set")
    }

    /// What the rule is known by across reloads.
    #[must_use]
    pub fn id(&self) -> RuleId {
        RuleId { set: Arc::clone(self.set.shared_name()), name: self.rule().name() }
    }

    /// The file where the rule stands.
    #[must_use]
    pub fn file(&self) -> &str {
        self.set.file()
    }

    /// The file, line and column where the rule stands.
    #[must_use]
    pub fn place(&self) -> Place {
        let rule = self.rule();
        Place { file: self.set.file().into(), line: rule.line(), column: rule.column() }
    }
}

/// `base.allow[2]`, `base.ask[0]`, `issues.read-issues`, `internal.billing`, `registry.pip.hosts[0]`, `base.lists[/etc/ads.txt]`.
impl fmt::Display for RuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.set.name())?;
        match self.rule().name() {
            RuleName::Id(id) => write!(f, ".{id}"),
            RuleName::Listed(Action::Allow, place) => write!(f, ".allow[{place}]"),
            RuleName::Listed(Action::Deny, place) => write!(f, ".deny[{place}]"),
            RuleName::Listed(Action::Ask, place) => write!(f, ".ask[{place}]"),
            RuleName::Unnamed(place) => write!(f, ".rule[{place}]"),
            RuleName::Host(place) => write!(f, ".hosts[{place}]"),
            RuleName::List(file) => write!(f, ".lists[{file}]"),
            RuleName::Internal => Ok(()),
        }
    }
}

impl fmt::Debug for RuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({}:{})", self.file(), self.rule().line())
    }
}

impl PartialEq for RuleRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.set, &other.set) && self.index == other.index
    }
}
