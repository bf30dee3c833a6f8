//! Counts every decision and every end of a stream: the metrics' [`Observer`].

use std::sync::OnceLock;

use policy::{CloseEvent, DecisionEvent, Event, Inbound, Observer, Reason, Receipt};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use super::register;
use super::sandboxes::SandboxCounts;

/// One place for each reason, and one for none.
const REASONS: usize = Reason::ALL.len() + 1;
const ANSWERS: usize = 3;
const INBOUNDS: usize = Inbound::ALL.len();

/// The label of a decision or an end without a reason.
const NO_REASON: &str = "none";

/// Counts decisions by inbound, decision and reason, ends by inbound and reason, and decisions by sandbox.
///
/// A series appears when it first counts, so that the page holds what happens and not every combination; finding it
/// again is an index, since this runs before every reply.
pub struct DecisionCounts {
    decisions: IntCounterVec,
    decided: [[Series; ANSWERS]; INBOUNDS],
    closes: IntCounterVec,
    closed: [Series; INBOUNDS],
    would_deny: IntCounterVec,
    limits: IntCounterVec,
    sandboxes: SandboxCounts,
}

impl DecisionCounts {
    /// Registers the counters.
    ///
    /// # Errors
    /// Where a name is registered twice: a fault of the program.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name, help, labels: &[&str]| {
            register(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        Ok(Self {
            decisions: counter(
                "tidegate_decisions_total",
                "Attempts by the way they came in, the decision, and the reason of a denial or of a failure upstream.",
                &["inbound", "decision", "reason"],
            )?,
            decided: Default::default(),
            closes: counter(
                "tidegate_closes_total",
                "Streams that ended, by the way they came in and the reason for which they were cut.",
                &["inbound", "reason"],
            )?,
            closed: Default::default(),
            would_deny: counter(
                "tidegate_would_deny_total",
                "Attempts that learn mode let through, by the way they came in and the reason that would have denied them.",
                &["inbound", "reason"],
            )?,
            limits: counter(
                "tidegate_limits_hit_total",
                "Attempts that were refused and streams that were cut by a limit of their sandbox or of their rule.",
                &["limit"],
            )?,
            sandboxes: SandboxCounts::new(registry)?,
        })
    }

    fn decision(&self, event: &DecisionEvent<'_>) {
        let inbound = event.attempt.inbound;
        let labels = || [inbound.as_str(), event.answer.as_str(), code(event.reason)];
        let series = || self.decisions.with_label_values(&labels());
        match self.decided.get(inbound as usize).and_then(|answers| answers.get(event.answer as usize)) {
            Some(kept) => kept.count(event.reason, series),
            None => series().inc(),
        }
        if let Some(reason) = event.would_deny {
            self.would_deny.with_label_values(&[inbound.as_str(), reason.code()]).inc();
        }
        self.limit(event.reason);
        self.sandboxes.count(event.sandbox.map(|sandbox| &sandbox.id), event.answer);
    }

    fn close(&self, event: &CloseEvent<'_>) {
        let inbound = event.attempt.inbound;
        self.limit(event.reason);
        let series = || self.closes.with_label_values(&[inbound.as_str(), code(event.reason)]);
        match self.closed.get(inbound as usize) {
            Some(kept) => kept.count(event.reason, series),
            None => series().inc(),
        }
    }
}

impl DecisionCounts {
    fn limit(&self, reason: Option<Reason>) {
        if let Some(limit) = reason.filter(|reason| reason.is_limit()) {
            self.limits.with_label_values(&[limit.code()]).inc();
        }
    }
}

impl Observer for DecisionCounts {
    fn record(&self, event: &Event<'_>) -> Receipt {
        match event {
            Event::Decision(decision) => self.decision(decision),
            Event::Close(close) => self.close(close),
        }
        Receipt::written()
    }
}

impl std::fmt::Debug for DecisionCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecisionCounts").finish_non_exhaustive()
    }
}

/// The series of one inbound and answer, by reason.
struct Series([OnceLock<IntCounter>; REASONS]);

impl Default for Series {
    fn default() -> Self {
        Self([const { OnceLock::new() }; REASONS])
    }
}

impl Series {
    fn count(&self, reason: Option<Reason>, series: impl FnOnce() -> IntCounter) {
        let place = reason.map_or(0, |reason| reason as usize + 1);
        match self.0.get(place) {
            Some(slot) => slot.get_or_init(series).inc(),
            None => series().inc(),
        }
    }
}

fn code(reason: Option<Reason>) -> &'static str {
    reason.map_or(NO_REASON, Reason::code)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use policy::{Ask, Gate, LocalAddresses, Peer, Policy, Timestamp};

    use super::*;

    #[test]
    fn every_denial_counts_once_under_its_reason() {
        let registry = Registry::new();
        let counts = Arc::new(DecisionCounts::new(&registry).expect("a fresh registry"));
        let gate =
            Gate::new(Arc::new(Policy::default()), Arc::new(LocalAddresses::default()), counts.clone(), 0);
        let stranger = Peer::new("192.0.2.1:3128".into(), None);
        for inbound in [Inbound::Connect, Inbound::Connect, Inbound::Dns] {
            let attempt = gate.attempt(Timestamp::from_secs(1), &stranger, inbound, Ask::unreadable(b"?"));
            drop(gate.refuse(attempt, Reason::BadRequest));
        }
        let count = |inbound| counts.decisions.with_label_values(&[inbound, "deny", "bad_request"]).get();
        assert_eq!((count("connect"), count("dns")), (2, 1));
        let series: usize = registry.gather().iter().map(|family| family.get_metric().len()).sum();
        assert_eq!(series, 2 + 6, "two decisions, and allow, deny and ask of `other` and `unknown`");
    }
}
