//! A gate over a policy text, for benchmarks that decide, and how long each of them is measured.

use std::sync::Arc;
use std::time::Duration;

use criterion::Criterion;
use policy::file::{self, Document};
use policy::{Event, Gate, LocalAddresses, Observer, Policy, Receipt, Timestamp};

/// Takes every event and keeps none: what the audit costs is measured by the side-by-side script.
struct Nowhere;

impl Observer for Nowhere {
    fn record(&self, event: &Event<'_>) -> Receipt {
        std::hint::black_box(event);
        Receipt::written()
    }
}

/// A moment at which nothing has ended.
pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// Reads and compiles a config that has the tables of policy only.
pub(crate) fn policy(text: &str) -> Policy {
    let document = Document::new("bench.toml", text.as_bytes()).expect("the config is text");
    file::load(&[document], NOW, &LocalAddresses::default()).expect("the config is right")
}

/// A gate with the policy of a config in force.
pub(crate) fn gate(text: &str) -> Gate {
    Gate::new(Arc::new(policy(text)), Arc::new(LocalAddresses::default()), Arc::new(Nowhere), 1)
}

/// Criterion with the times that all of them use, and what the command line says.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args()
}
