//! A named set of rules, indexed so that a look-up costs the same with ten rules and with a million.
//!
//! ```text
//! names:  "api.example.com" -> chain of rules whose pattern is anchored there (exact, *.X, .X, inner star)
//!         "example.com"     -> no rule, but an ancestor of a listed name
//! nets:   prefix length 24  -> "10.0.3.0" -> chain of rules
//! any:    rules with the pattern `*`
//! ```
//!
//! A name is looked up once for itself and once for each of its parents; an address once for each prefix length in use.

mod record;
mod view;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use self::record::{Kind, PortsId, Record, SharedPorts};
pub use self::view::RuleView;
use crate::destination::Port;
use crate::hostname::Hostname;
use crate::limits::Limits;
use crate::list::List;
use crate::names::{NameId, NameTable};
use crate::pattern::{HostPattern, PortSet};
use crate::rule::{Action, Rule, RuleName};
use crate::source::Place;
use crate::time::Timestamp;

/// A named set of rules: a `[policy.X]`, an `[internal.X]` or a `[registry.X]` table.
#[derive(Debug)]
pub struct RuleSet {
    name: Arc<str>,
    file: Arc<str>,
    records: Vec<Record>,
    /// The rules that have more to say than a record holds.
    full: Vec<Rule>,
    ports: SharedPorts,
    names: NameTable<Anchor>,
    nets: Vec<(u8, HashMap<IpNet, Anchor>)>,
    any: Anchor,
    /// Deny lists, and the numbers of the rules that stand for them.
    lists: Vec<(Arc<List>, u32)>,
    /// The ports that allow and ask rules open for some name.
    name_ports: Option<PortSet>,
    /// When its rules end, in order.
    ends: Vec<Timestamp>,
}

impl RuleSet {
    /// Indexes the rules of one table.
    #[must_use]
    pub fn new(name: Arc<str>, file: Arc<str>, rules: Vec<Rule>) -> Self {
        let bytes = rules.iter().filter_map(anchor).map(|name| name.as_str().len()).sum();
        let mut set = Self {
            name,
            file,
            records: Vec::with_capacity(rules.len()),
            full: Vec::new(),
            ports: SharedPorts::default(),
            // Names above those that are listed are stored too: there are few of them.
            names: NameTable::with_room(rules.len() + rules.len() / 64, bytes),
            nets: Vec::new(),
            any: Anchor::default(),
            lists: Vec::new(),
            name_ports: None,
            ends: Vec::new(),
        };
        for (rule, at) in rules.into_iter().zip(0..) {
            set.add(rule, at);
        }
        set.names.shrink();
        set.ends.sort_unstable();
        set
    }

    /// The same with deny lists, each as a rule behind the others.
    #[must_use]
    pub fn with_lists(mut self, lists: Vec<(Arc<List>, Place)>) -> Self {
        for (list, place) in lists {
            let Ok(at) = u32::try_from(self.records.len()) else { break };
            let rule = Rule {
                host: HostPattern::Any,
                ports: PortSet::any(),
                action: Action::Deny,
                name: RuleName::List(Arc::clone(list.file())),
                line: place.line,
                column: place.column,
                terms: None,
            };
            self.add(rule, at);
            self.lists.push((list, at));
        }
        self
    }

    /// The rule that stands for a deny list with this name on it, if one has it.
    pub(crate) fn listed(&self, name: &Hostname) -> Option<u32> {
        self.lists.iter().find(|(list, _)| list.blocks(name)).map(|(_, at)| *at)
    }

    /// The policy's name, or `internal.X`, or `registry.X`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// The limits of a rule of this name, if it has some.
    pub(crate) fn limits(&self, name: &RuleName) -> Option<&Limits> {
        // Whatever has limits is stored in full.
        self.full.iter().find(|rule| rule.name == *name)?.terms.as_ref()?.limits.as_ref()
    }

    /// The file that holds it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Its rules, in file order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = RuleView<'_>> {
        self.records.iter().map(|record| self.view(record))
    }

    /// The rule with a number, counted from 0 in file order.
    #[must_use]
    pub fn rule(&self, at: u32) -> Option<RuleView<'_>> {
        self.records.get(at as usize).map(|record| self.view(record))
    }

    fn view<'a>(&'a self, record: &'a Record) -> RuleView<'a> {
        let full = (record.kind == Kind::Full).then(|| self.full.get(record.what as usize)).flatten();
        RuleView { set: self, record, full }
    }

    /// Whether it is an `[internal.X]` table.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.rules().next().is_some_and(|rule| rule.name() == RuleName::Internal)
    }

    /// Whether it is a `[registry.X]` table to which packages can be published: host and port alone are known of what
    /// is sent, or a method is open that changes something.
    #[must_use]
    pub fn lets_publish(&self) -> bool {
        let reads = |method: &str| matches!(method, "GET" | "HEAD" | "OPTIONS");
        self.full.iter().filter(|rule| matches!(rule.name, RuleName::Host(_))).any(|rule| {
            let methods = rule.terms.as_ref().and_then(|terms| terms.methods.as_ref());
            methods.is_none_or(|methods| !methods.iter().all(|method| reads(method)))
        })
    }

    /// The first moment after `now` at which one of its rules ends.
    #[must_use]
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let later = self.ends.partition_point(|end| *end <= now);
        self.ends.get(later).copied()
    }

    /// Whether a rule allows or asks for some name on this port, or did before it ended.
    pub(crate) fn opens_some_name(&self, port: Port) -> bool {
        self.name_ports.as_ref().is_some_and(|ports| ports.contains(port))
    }

    /// Calls `visit` with every rule whose host pattern covers the name.
    pub(crate) fn for_name<'a>(&'a self, name: &Hostname, mut visit: impl FnMut(u32, RuleView<'a>)) {
        self.visit(self.any, |_| true, &mut visit);
        if let Some(anchor) = self.names.get(name.as_str()) {
            let at_apex = |rule: RuleView<'_>| match (rule.record.kind, rule.full) {
                (Kind::Exact | Kind::ApexAndBelow, _) => true,
                (Kind::Below, _) => false,
                (Kind::Full, rule) => rule.is_some_and(|rule| {
                    matches!(rule.host, HostPattern::Exact(_) | HostPattern::ApexAndBelow(_))
                }),
            };
            self.visit(*anchor, at_apex, &mut visit);
        }
        for parent in name.suffixes().skip(1) {
            let Some(anchor) = self.names.get(parent) else { continue };
            let below = |rule: RuleView<'_>| match (rule.record.kind, rule.full) {
                (Kind::Below | Kind::ApexAndBelow, _) => true,
                (Kind::Exact, _) => false,
                (Kind::Full, rule) => rule.is_some_and(|rule| match &rule.host {
                    HostPattern::Below(_) | HostPattern::ApexAndBelow(_) => true,
                    star @ HostPattern::InnerStar(_) => star.matches_name(name),
                    HostPattern::Exact(_) | HostPattern::Any | HostPattern::Net(_) => false,
                }),
            };
            self.visit(*anchor, below, &mut visit);
        }
    }

    /// Calls `visit` with every rule whose host pattern covers the address.
    pub(crate) fn for_address<'a>(&'a self, address: IpAddr, mut visit: impl FnMut(u32, RuleView<'a>)) {
        for (len, nets) in &self.nets {
            let Ok(net) = IpNet::new(address, *len) else { continue };
            if let Some(anchor) = nets.get(&net.trunc()) {
                self.visit(*anchor, |_| true, &mut visit);
            }
        }
    }

    /// Whether a name lies above one that an allow or an ask rule lists.
    pub(crate) fn is_above_listed(&self, name: &Hostname) -> bool {
        if self.names.get(name.as_str()).is_some_and(|anchor| anchor.is_above_listed()) {
            return true;
        }
        // `ec2.*.example.com` also makes every `X.example.com` an ancestor of a listed name.
        name.suffixes().skip(1).filter_map(|parent| self.names.get(parent)).any(|anchor| {
            let mut found = false;
            let is_below = |rule: RuleView<'_>| match rule.full.map(|rule| &rule.host) {
                Some(HostPattern::InnerStar(star)) => star.lies_below(name),
                Some(_) | None => false,
            };
            self.visit(*anchor, is_below, &mut |_, rule| found |= rule.action() != Action::Deny);
            found
        })
    }

    /// Visits the wanted rules that are anchored at a place.
    fn visit<'a>(
        &'a self,
        anchor: Anchor,
        wanted: impl Fn(RuleView<'a>) -> bool,
        visit: &mut impl FnMut(u32, RuleView<'a>),
    ) {
        let mut at = anchor.first();
        while let Some(rule) = self.rule(at) {
            if wanted(rule) {
                visit(at, rule);
            }
            at = rule.record.next;
        }
    }

    /// Stores a rule, and puts it in front of those that are anchored at the same place.
    fn add(&mut self, rule: Rule, at: u32) {
        self.ends.extend(rule.terms.as_ref().and_then(|terms| terms.until));
        if rule.action != Action::Deny && !matches!(rule.host, HostPattern::Net(_)) {
            match &mut self.name_ports {
                Some(ports) if ports.covers(&rule.ports) => {}
                Some(ports) => *ports = ports.union(&rule.ports),
                None => self.name_ports = Some(rule.ports.clone()),
            }
        }
        let name = anchor(&rule).and_then(|name| self.names.insert(name.as_str()));
        let next = match (&rule.host, name) {
            (HostPattern::Net(net), _) => self.nets_of(net.prefix_len()).entry(*net).or_default().push(at),
            // It speaks for the names of its file only, which are not looked up here.
            (HostPattern::Any, _) if matches!(rule.name, RuleName::List(_)) => NONE,
            (HostPattern::Any, _) => self.any.push(at),
            (host, Some(name)) => {
                let covers_below = !matches!(host, HostPattern::Exact(_));
                self.mark(name, at, rule.action != Action::Deny, covers_below)
            }
            // The names of a config of 256 MiB fit into the table's 4 GiB; where they did not, nothing would be allowed.
            (_, None) => NONE,
        };
        let (line, column, action) = (rule.line, rule.column, rule.action);
        let place = if let RuleName::Listed(_, place) = rule.name { place } else { 0 };
        let (kind, what, ports) = match (Kind::of(&rule), name, self.ports.share(&rule.ports)) {
            (kind, Some(NameId(name)), Some(ports)) if kind != Kind::Full => (kind, name, ports),
            _ => {
                let what = u32::try_from(self.full.len()).unwrap_or(NONE);
                self.full.push(rule);
                (Kind::Full, what, PortsId::default())
            }
        };
        self.records.push(Record { what, next, place, line, column, ports, kind, action });
    }

    /// Anchors a rule at a name; returns the rule behind it.
    fn mark(&mut self, name: NameId, rule: u32, opens: bool, covers_below: bool) -> u32 {
        let Some(anchor) = self.names.value_mut(name) else { return NONE };
        let next = anchor.push(rule);
        if opens {
            if covers_below {
                anchor.mark();
            }
            self.mark_parents(name);
        }
        next
    }

    fn mark_parents(&mut self, name: NameId) {
        let mut at = name;
        while let Some(parent) = self.names.insert_parent(at) {
            // Whoever marked it has marked those above it.
            if self.names.value_mut(parent).is_none_or(Anchor::mark) {
                break;
            }
            at = parent;
        }
    }

    fn nets_of(&mut self, len: u8) -> &mut HashMap<IpNet, Anchor> {
        let place = match self.nets.binary_search_by_key(&len, |(len, _)| *len) {
            Ok(place) => place,
            Err(place) => {
                self.nets.insert(place, (len, HashMap::new()));
                place
            }
        };
        #[expect(clippy::indexing_slicing, reason = "it was found or inserted at this place")]
        &mut self.nets[place].1
    }
}

/// The name at which a rule is found.
fn anchor(rule: &Rule) -> Option<&Hostname> {
    match &rule.host {
        HostPattern::Exact(name) | HostPattern::Below(name) | HostPattern::ApexAndBelow(name) => Some(name),
        HostPattern::InnerStar(star) => Some(&star.after),
        HostPattern::Any | HostPattern::Net(_) => None,
    }
}

/// The end of a chain: no rule has this number.
const NONE: u32 = u32::MAX >> 1;

/// Rules that are anchored at one place: the first, and from it by [`Record::next`]; and in the highest bit whether a
/// name that an allow or an ask rule lists lies below.
#[derive(Clone, Copy, Debug)]
struct Anchor(u32);

const ABOVE_LISTED: u32 = !NONE;

impl Default for Anchor {
    fn default() -> Self {
        Self(NONE)
    }
}

impl Anchor {
    const fn first(self) -> u32 {
        self.0 & NONE
    }

    /// Puts a rule in front; returns the one behind it.
    const fn push(&mut self, rule: u32) -> u32 {
        let behind = self.first();
        self.0 = self.0 & ABOVE_LISTED | rule;
        behind
    }

    const fn is_above_listed(self) -> bool {
        self.0 & ABOVE_LISTED != 0
    }

    /// Marks it as above a listed name; returns whether it was marked before.
    const fn mark(&mut self) -> bool {
        let before = self.is_above_listed();
        self.0 |= ABOVE_LISTED;
        before
    }
}

#[cfg(test)]
mod tests;
