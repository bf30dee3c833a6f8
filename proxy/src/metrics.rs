//! What the inbounds count, at the moment that it is asked for: nothing is touched per byte.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::desk::Desk;
use crate::live::Streams;

/// The upper bounds of the classes of connect times: within a machine, a region, the world, and after lost packets.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 3.0, 10.0];

/// The counters of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// How long connecting took.
    pub(crate) connect_seconds: Histogram,
    streams: Arc<Streams>,
    desk: Arc<Desk>,
    pending: IntGauge,
    answered: IntCounterVec,
    active: IntGauge,
    bytes: IntCounterVec,
    up: IntCounter,
    down: IntCounter,
}

impl Metrics {
    /// Counts how questions end.
    pub(crate) fn answered() -> Result<IntCounterVec, prometheus::Error> {
        let opts =
            Opts::new("tidegate_approvals_total", "Questions to a person that have ended, by how they did.");
        IntCounterVec::new(opts, &["outcome"])
    }

    pub(crate) fn new(
        streams: Arc<Streams>,
        desk: Arc<Desk>,
        answered: IntCounterVec,
    ) -> Result<Self, prometheus::Error> {
        let seconds = HistogramOpts::new(
            "tidegate_upstream_connect_seconds",
            "Seconds that connecting to a destination took, over all its addresses, a failure included.",
        );
        let bytes = IntCounterVec::new(
            Opts::new("tidegate_bytes_total", "Bytes taken from clients (up) and from destinations (down)."),
            &["direction"],
        )?;
        Ok(Self {
            connect_seconds: Histogram::with_opts(seconds.buckets(SECONDS.to_vec()))?,
            streams,
            desk,
            pending: IntGauge::new("tidegate_approvals_pending", "Questions that wait for a person now.")?,
            answered,
            active: IntGauge::new("tidegate_active_tunnels", "Streams that are open now.")?,
            up: bytes.with_label_values(&["up"]),
            down: bytes.with_label_values(&["down"]),
            bytes,
        })
    }

    pub(crate) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.connect_seconds.clone()))?;
        registry.register(Box::new(self.clone()))
    }
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.active.desc(), self.bytes.desc(), self.pending.desc(), self.answered.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (count, up, down) = self.streams.tally();
        self.active.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.up.inc_by(up.saturating_sub(self.up.get()));
        self.down.inc_by(down.saturating_sub(self.down.get()));
        self.pending.set(i64::try_from(self.desk.count_now()).unwrap_or(i64::MAX));
        let asked = [self.pending.collect(), self.answered.collect()].concat();
        [self.active.collect(), self.bytes.collect(), asked].concat()
    }
}
