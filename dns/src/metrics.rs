//! What the DNS side counts. Labels come from closed sets, never from a name.

use std::sync::Arc;
use std::time::Duration;

use policy::QType;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::wire::rcode;

/// Record types with a label of their own; the last one stands for all others.
const QTYPES: [(u16, &str); 17] = [
    (1, "A"),
    (28, "AAAA"),
    (65, "HTTPS"),
    (64, "SVCB"),
    (5, "CNAME"),
    (16, "TXT"),
    (15, "MX"),
    (33, "SRV"),
    (35, "NAPTR"),
    (2, "NS"),
    (6, "SOA"),
    (12, "PTR"),
    (257, "CAA"),
    (43, "DS"),
    (48, "DNSKEY"),
    (255, "ANY"),
    (0, "other"),
];

/// Response codes with a label of their own; the last one stands for all others.
const RCODES: [(u16, &str); 8] = [
    (rcode::NOERROR, "NOERROR"),
    (rcode::NXDOMAIN, "NXDOMAIN"),
    (rcode::SERVFAIL, "SERVFAIL"),
    (rcode::REFUSED, "REFUSED"),
    (rcode::FORMERR, "FORMERR"),
    (rcode::NOTIMP, "NOTIMP"),
    (rcode::BADVERS, "BADVERS"),
    (u16::MAX, "other"),
];

/// The counters of the DNS side.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    /// By type, then by code: looked up once, not for each query.
    queries: Vec<IntCounter>,
    dropped: IntCounter,
    upstream_seconds: Histogram,
    in_flight: IntGauge,
}

impl Metrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// Where the registry holds one of their names already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let queries = IntCounterVec::new(
            Opts::new(
                "tidegate_dns_queries_total",
                "DNS queries answered, by record type and response code.",
            ),
            &["qtype", "rcode"],
        )?;
        let dropped = IntCounter::new(
            "tidegate_dns_dropped_total",
            "DNS messages that were no query and got no answer.",
        )?;
        let seconds = HistogramOpts::new(
            "tidegate_dns_upstream_seconds",
            "Seconds that DNS upstreams took, a failed try included.",
        );
        let upstream_seconds = Histogram::with_opts(
            seconds.buckets(vec![0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0]),
        )?;
        let in_flight = IntGauge::new("tidegate_dns_in_flight", "DNS questions that wait for upstreams.")?;
        registry.register(Box::new(queries.clone()))?;
        registry.register(Box::new(dropped.clone()))?;
        registry.register(Box::new(upstream_seconds.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        let labels =
            QTYPES.iter().flat_map(|(_, qtype)| RCODES.iter().map(move |(_, rcode)| [*qtype, *rcode]));
        let queries = labels.map(|labels| queries.with_label_values(&labels)).collect();
        Ok(Self(Arc::new(Counters { queries, dropped, upstream_seconds, in_flight })))
    }

    /// Counts an answer; `None` where the question's type could not be read.
    pub(crate) fn answered(&self, qtype: Option<QType>, code: u16) {
        let qtype = qtype.and_then(|qtype| QTYPES.iter().position(|(number, _)| *number == qtype.0));
        let code = RCODES.iter().position(|(number, _)| *number == code);
        let row = qtype.unwrap_or(QTYPES.len() - 1);
        let place = row * RCODES.len() + code.unwrap_or(RCODES.len() - 1);
        if let Some(counter) = self.0.queries.get(place) {
            counter.inc();
        }
    }

    pub(crate) fn dropped(&self) {
        self.0.dropped.inc();
    }

    pub(crate) fn upstream_took(&self, time: Duration) {
        self.0.upstream_seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn in_flight(&self) -> &IntGauge {
        &self.0.in_flight
    }
}

#[cfg(test)]
mod tests {
    use prometheus::proto::MetricType;

    use super::*;

    #[test]
    fn labels_come_from_closed_sets() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        for number in 0..=u16::MAX {
            metrics.answered(Some(QType(number)), number % 32);
        }
        metrics.answered(None, rcode::FORMERR);
        let families = registry.gather();
        let queries = families.iter().find(|family| family.name() == "tidegate_dns_queries_total").unwrap();
        assert_eq!(queries.get_field_type(), MetricType::COUNTER);
        assert_eq!(queries.get_metric().len(), QTYPES.len() * RCODES.len());
        let total: f64 = queries.get_metric().iter().map(|metric| metric.get_counter().get_value()).sum();
        assert_eq!(total, 65_537.0);
    }
}
