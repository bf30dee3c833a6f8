//! Look-ups: a name is looked up exactly when some port of it is open.

use std::sync::Arc;

use super::search::Candidate;
use super::{Trace, View, is_special};
use crate::approval::Approval;
use crate::attempt::QType;
use crate::destination::Host;
use crate::hostname::Hostname;
use crate::pattern::PortSet;
use crate::policy::{Finding, Grant, Sandbox};
use crate::reason::Reason;
use crate::rule::Action;
use crate::special::exists_by_definition;

/// The rules that cover a name, whatever their ports.
pub(super) struct Openings<'a> {
    allowing: Vec<Candidate<'a>>,
    denying: Vec<Candidate<'a>>,
    asking: Vec<Candidate<'a>>,
    /// What was approved of the name, whatever a rule asks for now.
    approved: Vec<Arc<Approval>>,
    /// The ports of rules with methods or paths, ended ones too: plain allow rules open nothing there.
    narrowed: Vec<&'a PortSet>,
    learns: bool,
}

impl<'a> Openings<'a> {
    pub(super) fn of(view: &View<'_>, sandbox: &'a Sandbox, host: &Host) -> Self {
        let learns = sandbox.learns_at(view.now) && !is_special(host);
        let approved = host.name().map(|name| view.approved.of_name(&sandbox.id, name, view.now).cloned());
        let mut found = Self {
            allowing: Vec::new(),
            denying: Vec::new(),
            asking: Vec::new(),
            approved: approved.into_iter().flatten().collect(),
            narrowed: Vec::new(),
            learns,
        };
        view.rules(sandbox, host, |candidate| {
            let rule = candidate.rule;
            if rule.action() != Action::Deny && rule.narrows() {
                found.narrowed.push(rule.ports());
            }
            match rule.action() {
                _ if !rule.holds_at(view.now) => {}
                Action::Allow => found.allowing.push(candidate),
                Action::Deny => found.denying.push(candidate),
                Action::Ask => found.asking.push(candidate),
            }
        });
        found
    }

    /// The ports that deny rules close.
    pub(super) fn denied(&self) -> impl Iterator<Item = &'a PortSet> {
        self.denying.iter().map(|candidate| candidate.rule.ports())
    }

    /// The rules that open a port which is not among the `closed` ones.
    fn opening(&self, closed: &[&'a PortSet]) -> impl Iterator<Item = Candidate<'a>> {
        self.allowing.iter().copied().filter(|candidate| {
            let narrowed = self.narrowed.iter().filter(|_| !candidate.rule.narrows());
            !candidate.rule.ports().is_covered_by(closed.iter().chain(narrowed).copied())
        })
    }

    /// The ask rules for a port which is not among the `closed` ones.
    fn asking(&self, closed: &[&'a PortSet]) -> impl Iterator<Item = Candidate<'a>> {
        self.asking
            .iter()
            .copied()
            .filter(|candidate| !candidate.rule.ports().is_covered_by(closed.iter().copied()))
    }

    /// The approvals of what ask rules ask for, on a port which is not among the `closed` ones.
    fn approved(&self, closed: &[&'a PortSet]) -> impl Iterator<Item = &Arc<Approval>> {
        self.approved.iter().filter(|approval| {
            let port = approval.binding.port;
            self.asking.iter().any(|candidate| candidate.rule.ports().contains(port))
                && !closed.iter().any(|ports| ports.contains(port))
        })
    }

    /// Whether some port is open that is neither denied nor among the `closed` ones.
    pub(super) fn some_port_is_left(&self, closed: &[&'a PortSet]) -> bool {
        let closed: Vec<_> = self.denied().chain(closed.iter().copied()).collect();
        self.opening(&closed).next().is_some()
            || self.approved(&closed).next().is_some()
            || (self.learns && !PortSet::any().is_covered_by(closed.iter().copied()))
    }

    /// Whether it is deny rules that leave no port open.
    fn is_denied(&self) -> bool {
        let opens = || self.opening(&[]).next().is_some() || self.asking(&[]).next().is_some();
        PortSet::any().is_covered_by(self.denied()) || (!self.learns && opens())
    }
}

impl View<'_> {
    /// Steps 3 to 7 for a look-up.
    pub(super) fn decide_lookup(
        &self,
        sandbox: &Sandbox,
        name: &Hostname,
        qtype: QType,
        trace: &mut impl Trace,
    ) -> Result<Grant, Finding> {
        let host = Host::Name(name.clone());
        let name_exists =
            exists_by_definition(name) || sandbox.sets.iter().any(|set| set.is_above_listed(name));
        if let Some(reason) = self.floor(&host) {
            trace.step(|| format!("floor: {name} is refused always ({reason})"));
            return Err(Finding { name_exists, ..Finding::bare(reason) });
        }
        trace.step(|| format!("floor: {name} passes"));
        if let Some(rule) = self.listed(sandbox, &host) {
            trace.step(|| format!("deny: {rule:?} holds the name"));
            return Err(Finding { reason: Reason::DeniedByRule, rule: Some(rule), name_exists });
        }
        let found = Openings::of(self, sandbox, &host);
        let denied: Vec<_> = found.denied().collect();
        let (mut best, mut opens_type) = (None, false);
        for candidate in found.opening(&denied) {
            let counts = !(candidate.rule.is_broad() && is_special(&host));
            opens_type |= counts && candidate.rule.opens_qtype(qtype);
            best = Candidate::better(best, candidate);
        }
        let mut asking = None;
        if best.is_none() {
            for candidate in found.asking(&denied) {
                opens_type |= candidate.rule.opens_qtype(qtype);
                asking = Candidate::better(asking, candidate);
            }
        }
        let granted = match (best, asking) {
            (Some(best), _) => self.allow(&host, best.to_ref(), false, trace),
            (None, Some(asking)) => {
                let given = found.approved(&denied).next().cloned();
                self.ask(&host, asking.to_grant(given), trace)
            }
            (None, None) if found.is_denied() => {
                let rule = found.denying.first().map(|candidate| candidate.to_ref());
                trace.step(|| match &rule {
                    Some(rule) => format!("deny: {rule:?} leaves no port open"),
                    None => "deny: no port is open".to_owned(),
                });
                Err(Finding { reason: Reason::DeniedByRule, rule, name_exists })
            }
            (None, None) => {
                opens_type = qtype.is_open_by_default();
                self.nothing_matched(sandbox, &host, Finding::bare(Reason::NotListed), trace)
            }
        };
        match granted {
            Ok(grant) if !opens_type => {
                trace.step(|| format!("type: nothing opens {qtype} records"));
                Err(Finding { reason: Reason::QtypeNotAllowed, rule: grant.rule, name_exists: true })
            }
            Ok(grant) => Ok(grant),
            Err(finding) => Err(Finding { name_exists, ..finding }),
        }
    }
}
