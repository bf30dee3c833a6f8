//! Looking through the rules that cover a host: the one that decides, and the nearest miss.

use std::sync::Arc;

use crate::approval::Approval;
use crate::destination::{Host, Port};
use crate::pattern::HostView;
use crate::policy::{Finding, Grant, Need};
use crate::reason::Reason;
use crate::rule::{Action, RuleRef};
use crate::ruleset::{RuleSet, RuleView};
use crate::time::Timestamp;

/// A rule that covers the host of an attempt.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) set: &'a Arc<RuleSet>,
    pub(super) place: usize,
    pub(super) index: u32,
    pub(super) rule: RuleView<'a>,
}

impl<'a> Candidate<'a> {
    pub(super) fn to_ref(self) -> RuleRef {
        RuleRef::new(Arc::clone(self.set), self.index)
    }

    /// What the ask rule lets through with an approval, and does not without one.
    pub(super) fn to_grant(self, approval: Option<Arc<Approval>>) -> Grant {
        let approval = approval.map_or(Need::Wanted, Need::Given);
        Grant { rule: Some(self.to_ref()), would_deny: None, narrowed: false, approval }
    }

    /// Of two rules that match, the one whose attributes hold.
    pub(super) fn better(held: Option<Self>, new: Self) -> Option<Self> {
        match held {
            Some(held) if held.rank() <= new.rank() => Some(held),
            Some(_) | None => Some(new),
        }
    }

    /// Internal tables, then exact names, one-label stars, suffixes (the longer first) and `*`; then fewer ports;
    /// then policy and file order.
    fn rank(&self) -> (bool, u8, usize, usize, usize, u32) {
        let (kind, length) = match self.rule.host() {
            HostView::Exact(_) => (0, 0),
            HostView::InnerStar(_) => (1, 0),
            HostView::Below(suffix) | HostView::ApexAndBelow(suffix) => (2, suffix.len()),
            HostView::Net(net) => (2, usize::from(net.prefix_len())),
            HostView::Any => (3, 0),
        };
        let external = self.rule.internal().is_none();
        (external, kind, usize::MAX - length, self.rule.ports().len(), self.place, self.index)
    }
}

/// Looks through the rules that cover a host for the one that matches in full, and for the nearest miss.
pub(super) struct Search<'a> {
    now: Timestamp,
    port: Port,
    request: Option<(&'a str, &'a str)>,
    plain: Option<Candidate<'a>>,
    narrow: Option<Candidate<'a>>,
    asking: Option<Candidate<'a>>,
    /// Whether some allow or ask rule for this host and port has methods or paths.
    narrowed: bool,
    near_path: Option<Candidate<'a>>,
    near_method: Option<Candidate<'a>>,
    near_port: Option<Candidate<'a>>,
}

impl<'a> Search<'a> {
    pub(super) const fn new(now: Timestamp, port: Port, request: Option<(&'a str, &'a str)>) -> Self {
        Self {
            now,
            port,
            request,
            plain: None,
            narrow: None,
            asking: None,
            narrowed: false,
            near_path: None,
            near_method: None,
            near_port: None,
        }
    }

    pub(super) fn consider(&mut self, candidate: Candidate<'a>) {
        let rule = candidate.rule;
        if !rule.holds_at(self.now) {
            // The end of a rule that narrowed its host must not open what a wider entry would allow.
            self.narrowed |= rule.narrows() && rule.ports().contains(self.port);
            return;
        }
        if !rule.ports().contains(self.port) {
            self.near_port = Candidate::better(self.near_port, candidate);
            return;
        }
        let asks = rule.action() == Action::Ask;
        if !rule.narrows() {
            let best = if asks { &mut self.asking } else { &mut self.plain };
            *best = Candidate::better(*best, candidate);
            return;
        }
        self.narrowed = true;
        match self.request {
            Some((method, _)) if !rule.allows_method(method) => {
                self.near_method = Candidate::better(self.near_method, candidate);
            }
            Some((_, path)) if !rule.allows_path(path) => {
                self.near_path = Candidate::better(self.near_path, candidate);
            }
            // A stream to a narrowed host is let through to have each of its requests judged.
            Some(_) | None => {
                let best = if asks { &mut self.asking } else { &mut self.narrow };
                *best = Candidate::better(*best, candidate);
            }
        }
    }

    pub(super) const fn narrowed(&self) -> bool {
        self.narrowed
    }

    pub(super) fn best(&self) -> Option<Candidate<'a>> {
        if self.narrowed { self.narrow } else { self.plain }
    }

    /// The ask rule that matches in full and speaks for them all: also beside rules that narrow the host, which it does
    /// not widen by itself.
    pub(super) const fn asking(&self) -> Option<Candidate<'a>> {
        self.asking
    }

    /// The nearest miss names the reason.
    pub(super) fn miss(&self, host: &Host) -> Finding {
        let literal = matches!(host, Host::Address(_));
        let (reason, near) = match (self.near_path, self.near_method, self.near_port) {
            (Some(near), _, _) => (Reason::PathNotAllowed, Some(near)),
            (None, Some(near), _) => (Reason::MethodNotAllowed, Some(near)),
            (None, None, Some(near)) => (Reason::PortNotAllowed, Some(near)),
            (None, None, None) if literal => (Reason::AddressLiteralNotListed, None),
            (None, None, None) => (Reason::NotListed, None),
        };
        Finding { reason, rule: near.map(Candidate::to_ref), name_exists: false }
    }
}
