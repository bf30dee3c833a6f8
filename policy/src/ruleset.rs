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

mod hash;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use self::hash::BuildNameHasher;
use crate::hostname::Hostname;
use crate::pattern::HostPattern;
use crate::rule::{Action, Rule, RuleName};
use crate::time::Timestamp;

/// A named set of rules: a `[policy.X]`, an `[internal.X]` or a `[registry.X]` table.
#[derive(Debug)]
pub struct RuleSet {
    name: Arc<str>,
    file: Arc<str>,
    rules: Vec<Rule>,
    index: Index,
    /// When its rules end, in order.
    ends: Vec<Timestamp>,
}

impl RuleSet {
    /// Indexes the rules of one table.
    #[must_use]
    pub fn new(name: Arc<str>, file: Arc<str>, rules: Vec<Rule>) -> Self {
        let index = Index::new(&rules);
        let mut ends: Vec<_> = rules.iter().filter_map(Rule::until).collect();
        ends.sort_unstable();
        Self { name, file, rules, index, ends }
    }

    /// The policy's name, or `internal.X`, or `registry.X`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that holds it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Its rules, in file order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether it is an `[internal.X]` table.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.rules.first().is_some_and(|rule| rule.name == RuleName::Internal)
    }

    /// Whether it is a `[registry.X]` table to which packages can be published: host and port alone are known of what
    /// is sent, or a method is open that changes something.
    #[must_use]
    pub fn lets_publish(&self) -> bool {
        let reads = |method: &str| matches!(method, "GET" | "HEAD" | "OPTIONS");
        self.rules.iter().filter(|rule| matches!(rule.name, RuleName::Host(_))).any(|rule| {
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

    /// Calls `visit` with every rule whose host pattern covers the name.
    pub(crate) fn for_name<'a>(&'a self, name: &Hostname, mut visit: impl FnMut(u32, &'a Rule)) {
        let index = &self.index;
        self.visit(index.any, |_| true, &mut visit);
        if let Some(slot) = index.names.get(name.as_str()) {
            let at_apex =
                |host: &HostPattern| matches!(host, HostPattern::Exact(_) | HostPattern::ApexAndBelow(_));
            self.visit(slot.rules, at_apex, &mut visit);
        }
        for parent in name.suffixes().skip(1) {
            let Some(slot) = index.names.get(parent) else { continue };
            let below = |host: &HostPattern| match host {
                HostPattern::Below(_) | HostPattern::ApexAndBelow(_) => true,
                HostPattern::InnerStar(_) => host.matches_name(name),
                HostPattern::Exact(_) | HostPattern::Any | HostPattern::Net(_) => false,
            };
            self.visit(slot.rules, below, &mut visit);
        }
    }

    /// Calls `visit` with every rule whose host pattern covers the address.
    pub(crate) fn for_address<'a>(&'a self, address: IpAddr, mut visit: impl FnMut(u32, &'a Rule)) {
        for (len, nets) in &self.index.nets {
            let Ok(net) = IpNet::new(address, *len) else { continue };
            if let Some(chain) = nets.get(&net.trunc()) {
                self.visit(*chain, |_| true, &mut visit);
            }
        }
    }

    /// Whether a name lies above one that an allow rule lists.
    pub(crate) fn is_above_listed(&self, name: &Hostname) -> bool {
        let slot = |name: &str| self.index.names.get(name);
        if slot(name.as_str()).is_some_and(|slot| slot.is_above_listed) {
            return true;
        }
        // `ec2.*.example.com` also makes every `X.example.com` an ancestor of a listed name.
        name.suffixes().skip(1).filter_map(slot).any(|slot| {
            let mut found = false;
            let is_below =
                |host: &HostPattern| matches!(host, HostPattern::InnerStar(star) if star.lies_below(name));
            self.visit(slot.rules, is_below, &mut |_, rule| found |= rule.action == Action::Allow);
            found
        })
    }

    /// Visits the rules of a chain whose host is one of the wanted ones.
    fn visit<'a>(
        &'a self,
        chain: Chain,
        wanted: impl Fn(&HostPattern) -> bool,
        visit: &mut impl FnMut(u32, &'a Rule),
    ) {
        let mut at = chain.first;
        while let Some(rule) = self.rules.get(at as usize) {
            if wanted(&rule.host) {
                visit(at, rule);
            }
            at = if chain.is_one { NONE } else { self.index.next.get(at as usize).copied().unwrap_or(NONE) };
        }
    }
}

/// The end of a chain: no rule has this number.
const NONE: u32 = u32::MAX;

/// Where rules are found by host.
#[derive(Debug, Default)]
struct Index {
    names: HashMap<Hostname, Slot, BuildNameHasher>,
    nets: Vec<(u8, HashMap<IpNet, Chain>)>,
    any: Chain,
    /// For each rule the next one of its chain.
    next: Vec<u32>,
}

/// What is anchored at a name.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    rules: Chain,
    /// Whether a name that an allow rule lists lies below.
    is_above_listed: bool,
}

/// Rules that are anchored at one place: the first, and from it by [`Index::next`].
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    /// Whether there is nothing behind the first, which saves a look at the other list.
    is_one: bool,
}

impl Default for Chain {
    fn default() -> Self {
        Self { first: NONE, is_one: true }
    }
}

impl Chain {
    /// Puts a rule in front; returns the one behind it.
    fn push(&mut self, rule: u32) -> u32 {
        let behind = std::mem::replace(&mut self.first, rule);
        self.is_one = behind == NONE;
        behind
    }
}

impl Index {
    fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        index.names.reserve(rules.len());
        index.next.reserve_exact(rules.len());
        for (rule, at) in rules.iter().zip(0..) {
            let behind = index.insert(rule, at);
            index.next.push(behind);
        }
        index
    }

    fn insert(&mut self, rule: &Rule, at: u32) -> u32 {
        let (anchor, covers_below) = match &rule.host {
            HostPattern::Any => return self.any.push(at),
            HostPattern::Net(net) => return self.nets_of(net.prefix_len()).entry(*net).or_default().push(at),
            HostPattern::Exact(name) => (name, false),
            HostPattern::Below(name) | HostPattern::ApexAndBelow(name) => (name, true),
            HostPattern::InnerStar(star) => (&star.after, true),
        };
        let slot = self.names.entry(anchor.clone()).or_default();
        let behind = slot.rules.push(at);
        if rule.action == Action::Allow {
            slot.is_above_listed |= covers_below;
            self.mark_parents(anchor);
        }
        behind
    }

    fn mark_parents(&mut self, name: &Hostname) {
        for parent in name.suffixes().skip(1) {
            match self.names.get_mut(parent) {
                // Whoever marked it has marked those above it.
                Some(slot) if slot.is_above_listed => break,
                Some(slot) => slot.is_above_listed = true,
                None => {
                    // A parent of a name is a name.
                    let Ok(parent) = Hostname::parse(parent) else { break };
                    self.names.insert(parent, Slot { is_above_listed: true, ..Slot::default() });
                }
            }
        }
    }

    fn nets_of(&mut self, len: u8) -> &mut HashMap<IpNet, Chain> {
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

#[cfg(test)]
mod tests;
