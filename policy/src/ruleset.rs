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

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::hostname::Hostname;
use crate::pattern::HostPattern;
use crate::rule::{Action, Rule, RuleName};
use crate::time::Timestamp;

/// A named set of rules: a `[policy.X]` or an `[internal.X]` table.
#[derive(Debug)]
pub struct RuleSet {
    name: Arc<str>,
    file: Arc<str>,
    rules: Vec<Rule>,
    allow: Index,
    deny: Index,
    /// When its rules end, in order.
    ends: Vec<Timestamp>,
}

impl RuleSet {
    /// Indexes the rules of one table.
    #[must_use]
    pub fn new(name: Arc<str>, file: Arc<str>, rules: Vec<Rule>) -> Self {
        let (mut allow, mut deny) = (Index::default(), Index::default());
        for (rule, index) in rules.iter().zip(0..) {
            match rule.action {
                Action::Allow => allow.insert(&rule.host, index),
                Action::Deny => deny.insert(&rule.host, index),
            }
        }
        let mut ends: Vec<_> = rules.iter().filter_map(Rule::until).collect();
        ends.sort_unstable();
        Self { name, file, rules, allow, deny, ends }
    }

    /// The policy's name, or `internal.X`.
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

    /// The first moment after `now` at which one of its rules ends.
    #[must_use]
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let later = self.ends.partition_point(|end| *end <= now);
        self.ends.get(later).copied()
    }

    /// Calls `visit` with every rule of `action` whose host pattern covers the name.
    pub(crate) fn for_name<'a>(
        &'a self,
        action: Action,
        name: &Hostname,
        mut visit: impl FnMut(u32, &'a Rule),
    ) {
        self.index(action).for_name(
            name,
            |index| {
                if let Some(rule) = self.rules.get(index as usize) {
                    visit(index, rule);
                }
            },
            &self.rules,
        );
    }

    /// Calls `visit` with every rule of `action` whose host pattern covers the address.
    pub(crate) fn for_address<'a>(
        &'a self,
        action: Action,
        address: IpAddr,
        mut visit: impl FnMut(u32, &'a Rule),
    ) {
        self.index(action).for_address(address, |index| {
            if let Some(rule) = self.rules.get(index as usize) {
                visit(index, rule);
            }
        });
    }

    /// Whether a name lies above one that an allow rule lists.
    pub(crate) fn is_above_listed(&self, name: &Hostname) -> bool {
        self.allow.is_ancestor(name.as_str(), &self.rules)
    }

    const fn index(&self, action: Action) -> &Index {
        match action {
            Action::Allow => &self.allow,
            Action::Deny => &self.deny,
        }
    }
}

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// Where the rules of one action are found by host.
#[derive(Debug, Default)]
struct Index {
    names: HashMap<Hostname, Slot>,
    nets: Vec<(u8, HashMap<IpNet, u32>)>,
    links: Vec<Link>,
    any: Vec<u32>,
}

/// What is anchored at a name.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The first link of the chain of rules, or [`NONE`].
    head: u32,
    /// Whether a listed name lies below.
    ancestor: bool,
}

impl Default for Slot {
    fn default() -> Self {
        Self { head: NONE, ancestor: false }
    }
}

/// One rule in a chain.
#[derive(Clone, Copy, Debug)]
struct Link {
    rule: u32,
    next: u32,
}

impl Index {
    fn insert(&mut self, pattern: &HostPattern, rule: u32) {
        let new = u32::try_from(self.links.len()).unwrap_or(NONE);
        let (anchor, covers_below) = match pattern {
            HostPattern::Any => return self.any.push(rule),
            HostPattern::Net(net) => return self.insert_net(*net, rule, new),
            HostPattern::Exact(name) => (name, false),
            HostPattern::Below(name) | HostPattern::ApexAndBelow(name) => (name, true),
            HostPattern::InnerStar { after, .. } => (after, true),
        };
        let slot = self.names.entry(anchor.clone()).or_default();
        self.links.push(Link { rule, next: slot.head });
        slot.head = new;
        slot.ancestor |= covers_below;
        for parent in parents(anchor.as_str()) {
            match self.names.get_mut(parent) {
                Some(slot) if slot.ancestor => break,
                Some(slot) => slot.ancestor = true,
                None => {
                    let Ok(parent) = Hostname::parse(parent) else { break };
                    self.names.insert(parent, Slot { head: NONE, ancestor: true });
                }
            }
        }
    }

    fn insert_net(&mut self, net: IpNet, rule: u32, new: u32) {
        let place = match self.nets.binary_search_by_key(&net.prefix_len(), |(len, _)| *len) {
            Ok(place) => place,
            Err(place) => {
                self.nets.insert(place, (net.prefix_len(), HashMap::new()));
                place
            }
        };
        let Some((_, by_net)) = self.nets.get_mut(place) else { return };
        let head = by_net.insert(net, new).unwrap_or(NONE);
        self.links.push(Link { rule, next: head });
    }

    fn for_name(&self, name: &Hostname, mut visit: impl FnMut(u32), rules: &[Rule]) {
        self.any.iter().copied().for_each(&mut visit);
        if let Some(slot) = self.names.get(name.as_str()) {
            self.chain(slot.head, |rule| {
                let pattern = rules.get(rule as usize).map(|rule| &rule.host);
                if matches!(pattern, Some(HostPattern::Exact(_) | HostPattern::ApexAndBelow(_))) {
                    visit(rule);
                }
            });
        }
        for parent in parents(name.as_str()) {
            let Some(slot) = self.names.get(parent) else { continue };
            self.chain(slot.head, |rule| match rules.get(rule as usize).map(|rule| &rule.host) {
                Some(HostPattern::Below(_) | HostPattern::ApexAndBelow(_)) => visit(rule),
                Some(pattern @ HostPattern::InnerStar { .. }) if pattern.matches_name(name) => visit(rule),
                _ => {}
            });
        }
    }

    fn for_address(&self, address: IpAddr, mut visit: impl FnMut(u32)) {
        for (len, by_net) in &self.nets {
            let Ok(net) = IpNet::new(address, *len) else { continue };
            if let Some(head) = by_net.get(&net.trunc()) {
                self.chain(*head, &mut visit);
            }
        }
    }

    fn is_ancestor(&self, name: &str, rules: &[Rule]) -> bool {
        if self.names.get(name).is_some_and(|slot| slot.ancestor) {
            return true;
        }
        // `ec2.*.example.com` also makes every `X.example.com` an ancestor of a listed name.
        let above = parents(name).next().and_then(|parent| self.names.get(parent));
        let mut found = false;
        if let Some(slot) = above {
            self.chain(slot.head, |rule| {
                let pattern = rules.get(rule as usize).map(|rule| &rule.host);
                found |= matches!(pattern, Some(HostPattern::InnerStar { .. }));
            });
        }
        found
    }

    fn chain(&self, head: u32, mut visit: impl FnMut(u32)) {
        let mut at = head;
        while let Some(link) = self.links.get(at as usize) {
            visit(link.rule);
            at = link.next;
        }
    }
}

/// The names above a name, nearest first, without the root.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |rest| rest.split_once('.').map(|(_, parent)| parent)).skip(1)
}
