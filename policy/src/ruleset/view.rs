//! One rule of a set, as decisions look at it.

use super::RuleSet;
use super::record::{Kind, Record};
use crate::attempt::QType;
use crate::limits::Limits;
use crate::names::NameId;
use crate::pattern::{HostView, PortSet};
use crate::rule::{Action, Ech, Internal, Rule, RuleName, Terms};
use crate::time::Timestamp;

/// One compiled rule: [`Rule`] as its set holds it.
#[derive(Clone, Copy, Debug)]
pub struct RuleView<'a> {
    pub(super) set: &'a RuleSet,
    pub(super) record: &'a Record,
    /// The rule in full, where a record does not hold all of it.
    pub(super) full: Option<&'a Rule>,
}

impl<'a> RuleView<'a> {
    /// The hosts that it covers.
    #[must_use]
    pub fn host(self) -> HostView<'a> {
        let name = || self.set.names.name(NameId(self.record.what));
        match (self.full, self.record.kind) {
            (Some(rule), _) => rule.host.view(),
            (None, Kind::Exact | Kind::Full) => HostView::Exact(name()),
            (None, Kind::Below) => HostView::Below(name()),
            (None, Kind::ApexAndBelow) => HostView::ApexAndBelow(name()),
        }
    }

    /// Whether it is too broad to open a special-use name: [`HostView::is_broad`].
    #[must_use]
    pub fn is_broad(self) -> bool {
        self.record.kind != Kind::Exact && self.host().is_broad()
    }

    /// The ports that it covers.
    #[must_use]
    pub fn ports(self) -> &'a PortSet {
        match self.full {
            Some(rule) => &rule.ports,
            None => self.set.ports.get(self.record.ports),
        }
    }

    /// What it does.
    #[must_use]
    pub const fn action(self) -> Action {
        self.record.action
    }

    /// How the author finds it.
    #[must_use]
    pub fn name(self) -> RuleName {
        match self.full {
            Some(rule) => rule.name.clone(),
            None => RuleName::Listed(self.record.action, self.record.place),
        }
    }

    /// The line of the file where it stands, counted from 1.
    #[must_use]
    pub const fn line(self) -> u32 {
        self.record.line
    }

    /// The column, in characters, counted from 1.
    #[must_use]
    pub const fn column(self) -> u32 {
        self.record.column
    }

    /// What else it asks for; `None` for a plain entry.
    #[must_use]
    pub fn terms(self) -> Option<&'a Terms> {
        self.full.and_then(|rule| rule.terms.as_deref())
    }

    /// Whether the rule still holds at `now`.
    #[must_use]
    pub fn holds_at(self, now: Timestamp) -> bool {
        self.until().is_none_or(|until| now < until)
    }

    /// When the rule ends, if it does.
    #[must_use]
    pub fn until(self) -> Option<Timestamp> {
        self.terms().and_then(|terms| terms.until)
    }

    /// Whether the rule allows only some methods or paths: it then narrows its host and ports.
    #[must_use]
    pub fn narrows(self) -> bool {
        self.terms().is_some_and(|terms| terms.methods.is_some() || terms.paths.is_some())
    }

    /// Whether the rule allows a method.
    #[must_use]
    pub fn allows_method(self, method: &str) -> bool {
        let wanted = self.terms().and_then(|terms| terms.methods.as_ref());
        wanted.is_none_or(|methods| methods.iter().any(|allowed| **allowed == *method))
    }

    /// Whether the rule allows a path, given without its query.
    #[must_use]
    pub fn allows_path(self, path: &str) -> bool {
        let wanted = self.terms().and_then(|terms| terms.paths.as_ref());
        wanted.is_none_or(|paths| paths.iter().any(|pattern| pattern.matches(path)))
    }

    /// Whether the rule limits paths: URL-override headers are then stripped.
    #[must_use]
    pub fn limits_paths(self) -> bool {
        self.terms().is_some_and(|terms| terms.paths.is_some())
    }

    /// Whether the rule limits methods: method-override headers are then stripped.
    #[must_use]
    pub fn limits_methods(self) -> bool {
        self.terms().is_some_and(|terms| terms.methods.is_some())
    }

    /// Whether the rule opens a DNS type; ANY is open with every rule.
    #[must_use]
    pub fn opens_qtype(self, qtype: QType) -> bool {
        let opened = self.terms().and_then(|terms| terms.qtypes.as_ref());
        opened.map_or_else(|| qtype.is_open_by_default(), |all| qtype == QType::ANY || all.contains(&qtype))
    }

    /// The addresses that the rule opens, for the rule of an `[internal.X]` table.
    #[must_use]
    pub fn internal(self) -> Option<&'a Internal> {
        self.terms().and_then(|terms| terms.internal.as_ref())
    }

    /// How much each sandbox may do under the rule.
    #[must_use]
    pub fn limits(self) -> Option<&'a Limits> {
        self.terms().and_then(|terms| terms.limits.as_ref())
    }

    /// Whether tunnels under this rule pass unchecked.
    #[must_use]
    pub fn is_raw(self) -> bool {
        self.terms().is_some_and(|terms| terms.raw)
    }

    /// What the rule does with encrypted ClientHellos.
    #[must_use]
    pub fn ech(self) -> Ech {
        self.terms().map_or(Ech::Permit, |terms| terms.ech)
    }
}
