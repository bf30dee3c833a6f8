//! The decision: steps 2 to 7 of docs/policy.md for an attempt, and the judgement of each resolved address.
//!
//! Everything here is a pure function of the policy, the gateway's addresses, the attempt and the time. [`crate::Gate`]
//! and `explain` are the only callers, so what is explained is what is served.

mod captured;
mod lookup;
mod resolved;
mod search;

use std::net::IpAddr;
use std::sync::Arc;

pub(crate) use self::resolved::port_to_dial;
use self::search::{Candidate, Search};
use crate::approval::Approved;
use crate::attempt::Ask;
use crate::destination::{Destination, Host, Port};
use crate::identity::{Evidence, Stranger};
use crate::policy::{Finding, Grant, Need, Policy, Sandbox, Verdict};
use crate::reason::Reason;
use crate::rule::{Action, RuleRef};
use crate::ruleset::RuleView;
use crate::sandbox::SandboxId;
use crate::special::{AddressClass, LocalAddresses, canonical, name_floor, special_use_name};
use crate::time::Timestamp;

/// Follows a decision step by step. Serving uses [`Silent`], which compiles to nothing; `explain` writes lines.
pub trait Trace {
    /// Notes one step.
    fn step(&mut self, line: impl FnOnce() -> String);
}

/// A trace that notes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Trace for Silent {
    fn step(&mut self, _line: impl FnOnce() -> String) {}
}

impl Trace for Vec<String> {
    fn step(&mut self, line: impl FnOnce() -> String) {
        self.push(line());
    }
}

/// Everything that a judgement looks at besides the attempt.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The compiled policy.
    pub policy: &'a Policy,
    /// The addresses of the gateway's host.
    pub local: &'a LocalAddresses,
    /// The time.
    pub now: Timestamp,
    /// What people have approved of what rules ask for.
    pub approved: Approved<'a>,
}

impl View<'_> {
    /// Decides an attempt of a sandbox, or of a client that is no known one.
    pub fn decide(&self, who: Result<&SandboxId, Stranger>, ask: &Ask, trace: &mut impl Trace) -> Verdict {
        let found = who.and_then(|id| self.policy.sandbox(id).ok_or(Stranger::Unknown));
        let sandbox = match found {
            Ok(sandbox) => sandbox,
            Err(stranger) => {
                let reason = stranger.reason();
                trace.step(|| format!("who: no sandbox is known for this client ({reason})"));
                return Verdict::Deny(None, Finding::bare(reason));
            }
        };
        trace.step(|| format!("who: sandbox {}, known by {}", sandbox.id, known_by(&sandbox.identify)));
        if let Some(reason) = sandbox.life.at(self.now).reason() {
            trace.step(|| format!("who: {reason}"));
            return Verdict::Deny(Some(Arc::clone(sandbox)), Finding::bare(reason));
        }
        self.decide_for(sandbox, ask, trace)
    }

    /// Decides an attempt of a sandbox, wherever it is in its life.
    pub(crate) fn decide_for(&self, sandbox: &Arc<Sandbox>, ask: &Ask, trace: &mut impl Trace) -> Verdict {
        let found = match ask {
            Ask::Unreadable { .. } => Err(Finding::bare(Reason::BadRequest)),
            Ask::Lookup { name, qtype } => self.decide_lookup(sandbox, name, *qtype, trace),
            Ask::Stream(destination) => self.decide_destination(sandbox, destination, None, trace),
            Ask::Request { destination, method, path } => {
                self.decide_destination(sandbox, destination, Some((method, path)), trace)
            }
        };
        match found {
            Ok(grant) if grant.approval == Need::Wanted => Verdict::Ask(Arc::clone(sandbox), grant),
            Ok(grant) => Verdict::Allow(Arc::clone(sandbox), grant),
            Err(finding) => Verdict::Deny(Some(Arc::clone(sandbox)), finding),
        }
    }

    fn decide_destination(
        &self,
        sandbox: &Sandbox,
        destination: &Destination,
        request: Option<(&str, &str)>,
        trace: &mut impl Trace,
    ) -> Result<Grant, Finding> {
        let host = &destination.host;
        if let Some(reason) = self.floor(host) {
            trace.step(|| format!("floor: {host} is refused always ({reason})"));
            return Err(Finding::bare(reason));
        }
        trace.step(|| format!("floor: {host} passes"));
        let mut denying: Option<Candidate<'_>> = None;
        let mut search = Search::new(self.now, destination.port, request);
        self.rules(sandbox, host, |candidate| match candidate.rule.action() {
            Action::Allow | Action::Ask => search.consider(candidate),
            Action::Deny if denying.is_none() && self.is_denied_by(candidate, destination.port) => {
                denying = Some(candidate);
            }
            Action::Deny => {}
        });
        if let Some(rule) = denying.map(Candidate::to_ref) {
            trace.step(|| format!("deny: {rule:?} matches"));
            return Err(Finding { reason: Reason::DeniedByRule, rule: Some(rule), name_exists: false });
        }
        if let Some(rule) = self.listed(sandbox, host) {
            trace.step(|| format!("deny: {rule:?} holds the name"));
            return Err(Finding { reason: Reason::DeniedByRule, rule: Some(rule), name_exists: false });
        }
        trace.step(|| "deny: no deny rule matches".to_owned());
        let grant = match (search.best(), search.asking()) {
            (Some(best), _) => self.allow(host, best.to_ref(), search.narrowed(), trace),
            (None, Some(asking)) => {
                let given = self.approved.find(&sandbox.id, destination, request, self.now).cloned();
                let narrowed = search.narrowed();
                self.ask(host, Grant { narrowed, ..asking.to_grant(given) }, trace)
            }
            (None, None) => self.nothing_matched(sandbox, host, search.miss(host), trace),
        }?;
        // What step 9 finds in a tunnel's first bytes is known of a plain request from its head.
        let raw = grant.rule.as_ref().is_some_and(|rule| rule.rule().is_raw());
        if request.is_some() && destination.port == Port::HTTPS && host.name().is_some() && !raw {
            trace.step(|| "first bytes: a plain request on port 443 is no TLS".to_owned());
            return Err(Finding { reason: Reason::TlsRequired, rule: grant.rule, name_exists: false });
        }
        Ok(grant)
    }

    /// Step 5, once the best rule is known.
    fn allow(
        &self,
        host: &Host,
        rule: RuleRef,
        narrowed: bool,
        trace: &mut impl Trace,
    ) -> Result<Grant, Finding> {
        if rule.rule().is_broad() && is_special(host) {
            trace.step(|| format!("allow: {rule:?} is too broad for a special-use name"));
            return Err(Finding { reason: Reason::SpecialUseName, rule: Some(rule), name_exists: false });
        }
        trace.step(|| format!("allow: {rule:?} matches"));
        Ok(Grant { rule: Some(rule), would_deny: None, narrowed, approval: Need::Free })
    }

    /// Step 6, once the ask rule that speaks is known, and whether somebody has approved what it asks for.
    fn ask(&self, host: &Host, grant: Grant, trace: &mut impl Trace) -> Result<Grant, Finding> {
        let rule = grant.rule.clone();
        // A person sees a name. What it means where nobody has said so in a rule, nobody would see.
        if is_special(host) {
            trace.step(|| "ask: never for a special-use name".to_owned());
            return Err(Finding { reason: Reason::SpecialUseName, rule, name_exists: false });
        }
        if matches!(host, Host::Address(address) if !self.is_public(*address)) {
            trace.step(|| "ask: never for an address that is not public".to_owned());
            return Err(Finding { reason: Reason::AddressLiteralNotListed, rule, name_exists: false });
        }
        trace.step(|| match (&grant.approval, rule) {
            (Need::Given(approval), Some(rule)) => {
                format!("ask: {rule:?} matches, and {} has approved it ({})", approval.by, approval.id)
            }
            (_, Some(rule)) => format!("ask: {rule:?} matches, a person must approve it"),
            (_, None) => "ask: a person must approve it".to_owned(),
        });
        Ok(grant)
    }

    /// Step 7, and learn mode, which turns it into an allow.
    fn nothing_matched(
        &self,
        sandbox: &Sandbox,
        host: &Host,
        miss: Finding,
        trace: &mut impl Trace,
    ) -> Result<Grant, Finding> {
        if sandbox.learns_at(self.now) {
            if is_special(host) {
                trace.step(|| "learn: never for a special-use name".to_owned());
                return Err(Finding { reason: Reason::SpecialUseName, ..miss });
            }
            if matches!(host, Host::Address(address) if !self.is_public(*address)) {
                trace.step(|| "learn: never for an address that is not public".to_owned());
                return Err(miss);
            }
            trace.step(|| format!("learn: no rule allows it ({}), let through and logged", miss.reason));
            return Ok(Grant {
                rule: None,
                would_deny: Some(miss.reason),
                narrowed: false,
                approval: Need::Free,
            });
        }
        trace.step(|| match &miss.rule {
            Some(rule) => format!("allow: no rule matches; the nearest is {rule:?} ({})", miss.reason),
            None => format!("allow: no rule matches ({})", miss.reason),
        });
        Err(miss)
    }

    /// Step 3 for a host: what no rule can lift.
    pub fn floor(&self, host: &Host) -> Option<Reason> {
        match host {
            Host::Name(name) => name_floor(name),
            Host::Address(address) => self.address_floor(*address),
        }
    }

    /// Step 3 for an address.
    fn address_floor(&self, address: IpAddr) -> Option<Reason> {
        match self.policy.addresses.classify(address, self.local) {
            AddressClass::Metadata => Some(Reason::MetadataEndpoint),
            AddressClass::Gateway => Some(Reason::GatewayAddress),
            AddressClass::Forbidden => Some(Reason::AddressForbidden),
            AddressClass::NotPublic | AddressClass::Public => None,
        }
    }

    fn is_public(&self, address: IpAddr) -> bool {
        self.policy.addresses.classify(address, self.local) == AddressClass::Public
    }

    /// Step 4: a deny rule of the sandbox for a host and port.
    pub fn deny_rule(&self, sandbox: &Sandbox, host: &Host, port: Port) -> Option<RuleRef> {
        let mut found: Option<Candidate<'_>> = None;
        self.rules(sandbox, host, |candidate| {
            if found.is_none() && self.is_denied_by(candidate, port) {
                found = Some(candidate);
            }
        });
        found.map(Candidate::to_ref)
    }

    /// Step 4 for deny lists: they judge the name that was asked for, and no alias of it.
    pub(crate) fn listed(&self, sandbox: &Sandbox, host: &Host) -> Option<RuleRef> {
        let name = host.name()?;
        sandbox.sets.iter().find_map(|set| Some(RuleRef::new(Arc::clone(set), set.listed(name)?)))
    }

    fn is_denied_by(&self, candidate: Candidate<'_>, port: Port) -> bool {
        candidate.rule.action() == Action::Deny
            && candidate.rule.holds_at(self.now)
            && candidate.rule.ports().contains(port)
    }

    /// Visits every rule that covers the host, whatever it does and whether it still holds or has ended.
    fn rules<'a>(&self, sandbox: &'a Sandbox, host: &Host, mut visit: impl FnMut(Candidate<'a>)) {
        for (set, place) in sandbox.sets.iter().zip(0..) {
            let mut each = |index: u32, rule: RuleView<'a>| visit(Candidate { set, place, index, rule });
            match host {
                Host::Name(name) => set.for_name(name, each),
                Host::Address(address) => {
                    set.for_address(canonical(*address), &mut each);
                    // A rule that denies an IPv4 address denies every IPv6 spelling that reaches it; allow rules
                    // are held to the spelling that they list.
                    for inner in self.policy.addresses.embedded_v4(*address) {
                        set.for_address(IpAddr::V4(inner), |index, rule| {
                            if rule.action() == Action::Deny {
                                each(index, rule);
                            }
                        });
                    }
                }
            }
        }
    }
}

fn is_special(host: &Host) -> bool {
    matches!(host, Host::Name(name) if special_use_name(name).is_some())
}

/// How the clients of a sandbox are known, for people.
fn known_by(identify: &[Evidence]) -> String {
    match identify {
        [] => "a namespace of its own alone".to_owned(),
        entries => entries.iter().map(ToString::to_string).collect::<Vec<_>>().join(", or "),
    }
}
