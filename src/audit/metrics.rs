//! What the audit counts of itself.

use prometheus::{IntCounter, Opts, Registry};

/// The audit's counters.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Lines written.
    pub(super) written: IntCounter,
    /// Attempts and other events whose line could not be written.
    pub(super) lost: IntCounter,
    /// Attempts that are counted in a `repeated` event.
    pub(super) repeated: IntCounter,
}

impl Metrics {
    /// # Errors
    /// Where the registry holds one of these names already.
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::with_opts(Opts::new(name, help))?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Self {
            written: counter("tidegate_audit_written_total", "Lines written to the audit log.")?,
            lost: counter("tidegate_audit_lost_total", "Events that could not be written to the audit log.")?,
            repeated: counter(
                "tidegate_audit_repeated_total",
                "Denials that were counted in a `repeated` event instead of a line of their own.",
            )?,
        })
    }
}
