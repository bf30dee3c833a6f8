//! What the gateway counts for Prometheus besides what `proxy`, `dns` and the audit register themselves.
//!
//! Labels come from closed sets only: never a host, never anything that a client chose. docs/metrics.md lists every
//! metric; the house test keeps page and registry in step.

mod decisions;
mod sandboxes;

use std::collections::HashMap;

use policy::{Generation, Policy, Timestamp};
use prometheus::{Encoder, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

pub use self::decisions::DecisionCounts;
use crate::weakening::Weakening;

/// The metrics of the program itself: what runs, which policy, how its reloads went.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    generation: IntGauge,
    reloads: IntCounterVec,
    reload_ok: IntGauge,
    reloaded_at: IntGauge,
    weakenings: IntGaugeVec,
    enforcement_ok: IntGauge,
}

/// How a reload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadResult {
    /// The new config is in force.
    Success,
    /// The old config stays in force.
    Failure,
}

impl ReloadResult {
    const fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

impl Metrics {
    /// Registers everything that this module counts.
    ///
    /// # Errors
    /// Where a name is registered twice: a fault of the program.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| register(registry, IntGauge::new(name, help));
        let build = IntGaugeVec::new(
            Opts::new("tidegate_build_info", "Always 1; the version of the running program is its label."),
            &["version"],
        );
        register(registry, build)?.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let reloads = IntCounterVec::new(
            Opts::new(
                "tidegate_policy_reloads_total",
                "Attempts to put a changed config in force, by result.",
            ),
            &["result"],
        );
        let weakenings = IntGaugeVec::new(
            Opts::new(
                "tidegate_weakenings",
                "Places in the config in force that waive a protection, by kind.",
            ),
            &["kind"],
        );
        let all = Self {
            registry: registry.clone(),
            generation: gauge(
                "tidegate_policy_generation",
                "Counts the policies that have been in force, from 1.",
            )?,
            reloads: register(registry, reloads)?,
            reload_ok: gauge(
                "tidegate_policy_last_reload_successful",
                "1 where the config in force is the one on disk as last read, 0 where that one was refused.",
            )?,
            reloaded_at: gauge(
                "tidegate_policy_last_reload_success_timestamp_seconds",
                "When the config in force was read, in seconds since 1970.",
            )?,
            weakenings: register(registry, weakenings)?,
            enforcement_ok: gauge(
                "tidegate_enforcement_ok",
                "1 while the gateway is the only way out of its sandboxes as far as it knows, else 0.",
            )?,
        };
        for result in [ReloadResult::Success, ReloadResult::Failure] {
            all.reloads.with_label_values(&[result.label()]);
        }
        Ok(all)
    }

    /// Notes the policy that the gateway starts with.
    pub fn started(&self, generation: Generation, policy: &Policy, at: Timestamp) {
        self.in_force(generation, policy, at);
    }

    /// Notes that a reload put another policy in force.
    pub fn reloaded(&self, generation: Generation, policy: &Policy, at: Timestamp) {
        self.reloads.with_label_values(&[ReloadResult::Success.label()]).inc();
        self.in_force(generation, policy, at);
    }

    /// Notes that a reload was refused and the old policy stays.
    pub fn reload_failed(&self) {
        self.reloads.with_label_values(&[ReloadResult::Failure.label()]).inc();
        self.reload_ok.set(0);
    }

    /// Notes the generation after the host's addresses changed.
    pub fn generation(&self, generation: Generation) {
        self.generation.set(i64::try_from(generation.get()).unwrap_or(i64::MAX));
    }

    /// Notes whether the gateway is the only way out, as far as it knows.
    pub fn enforced(&self, holds: bool) {
        self.enforcement_ok.set(i64::from(holds));
    }

    fn in_force(&self, generation: Generation, policy: &Policy, at: Timestamp) {
        self.generation(generation);
        self.reload_ok.set(1);
        self.reloaded_at.set(i64::try_from(at.millis() / 1000).unwrap_or(i64::MAX));
        let mut counts: HashMap<Weakening, i64> = HashMap::new();
        for weakening in Weakening::of(policy) {
            *counts.entry(weakening).or_default() += 1;
        }
        for kind in Weakening::ALL {
            self.weakenings.with_label_values(&[kind.label()]).set(counts.get(&kind).copied().unwrap_or(0));
        }
    }

    /// Notes that a command runs without a sandbox, for the rest of this run.
    pub fn uncontained(&self) {
        self.weakenings.with_label_values(&[Weakening::Uncontained.label()]).set(1);
    }

    /// Everything registered, in the text format that Prometheus scrapes.
    #[must_use]
    pub fn exposition(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(16 * 1024);
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "cannot encode the metrics");
        }
        text
    }
}

/// Registers a collector and hands it back.
pub(crate) fn register<C>(registry: &Registry, collector: prometheus::Result<C>) -> prometheus::Result<C>
where
    C: prometheus::core::Collector + Clone + 'static,
{
    let collector = collector?;
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
