//! Shared parts: address guard, limits, histograms, runtimes, the output line.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Any failure ends the run with a message.
pub type Res<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Refuse to send load anywhere but loopback, unless `allow` (namespaces made for the run).
pub fn guard(addr: SocketAddr, allow: bool) -> Res<SocketAddr> {
    if addr.ip().is_loopback() || allow {
        Ok(addr)
    } else {
        Err(format!("{addr} is not a loopback address (--allow-non-loopback overrides)").into())
    }
}

/// Raise the limit of open descriptors as far as this process may.
pub fn raise_nofile() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum;
    let try_for = |n: u64| setrlimit(Resource::Nofile, Rlimit { current: Some(n), maximum: Some(n) }).is_ok();
    if ![1_000_000, 200_000, 65_536].into_iter().any(try_for) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard });
    }
}

/// A tokio runtime: current-thread for one thread, else multi-thread.
pub fn runtime(threads: usize) -> Res<tokio::runtime::Runtime> {
    let rt = if threads <= 1 {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?
    };
    Ok(rt)
}

/// A latency histogram in nanoseconds, 3 significant digits, up to 60 s.
pub fn hist() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("static bounds")
}

/// Count one duration.
pub fn record(h: &mut Histogram<u64>, d: Duration) {
    h.saturating_record((d.as_nanos() as u64).max(1));
}

/// Percentiles in microseconds.
pub fn hist_json(h: &Histogram<u64>) -> Value {
    let us = |q: f64| (h.value_at_quantile(q) as f64 / 10.0).round() / 100.0;
    json!({
        "p50_us": us(0.50), "p90_us": us(0.90), "p99_us": us(0.99), "p999_us": us(0.999),
        "max_us": (h.max() as f64 / 10.0).round() / 100.0,
        "mean_us": (h.mean() / 10.0).round() / 100.0,
    })
}

/// Error tally by short text.
#[derive(Default, Clone)]
pub struct Errors(pub BTreeMap<String, u64>);

impl Errors {
    /// Count one error.
    pub fn add(&mut self, e: &io::Error) {
        *self.0.entry(e.to_string().chars().take(80).collect()).or_default() += 1;
    }
    /// Add another tally.
    pub fn merge(&mut self, o: Errors) {
        for (k, v) in o.0 {
            *self.0.entry(k).or_default() += v;
        }
    }
    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// `x` to this many decimal places.
pub fn round(x: f64, digits: i32) -> f64 {
    let f = 10f64.powi(digits);
    (x * f).round() / f
}

/// Print the one JSON line of a run; later parts win where names meet.
pub fn emit(cmd: &str, label: &str, parts: impl IntoIterator<Item = Map<String, Value>>) {
    let mut m = Map::new();
    m.insert("cmd".into(), json!(cmd));
    m.insert("label".into(), json!(label));
    m.extend(parts.into_iter().flatten());
    println!("{}", Value::Object(m));
}

/// The fields of a `json!({…})`.
pub fn fields(v: Value) -> Map<String, Value> {
    match v {
        Value::Object(m) => m,
        _ => Map::new(),
    }
}
