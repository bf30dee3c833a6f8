//! What one timed section cost: wall time, the subject's CPU time, how busy and how robbed each core was.

use crate::common::round;
use crate::sys::process_cpu_ns;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// Tells every worker of a run whether results count now, so that the operations counted and the CPU time read
/// belong to the same stretch of time however late the timer fires.
#[derive(Default)]
pub struct Window(AtomicU8);

impl Window {
    const WARM: u8 = 0;
    const OPEN: u8 = 1;
    const OVER: u8 = 2;

    /// Results count.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Window::OPEN
    }
    /// The run has ended: workers return.
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Window::OVER
    }
    /// Warm up, then measure; both in seconds.
    pub async fn run(&self, warmup: f64, duration: f64, pids: &[u32]) -> Reading {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), Window::WARM);
        tokio::time::sleep(std::time::Duration::from_secs_f64(warmup)).await;
        let m = Meter::start(pids);
        self.0.store(Window::OPEN, Ordering::Relaxed);
        tokio::time::sleep(std::time::Duration::from_secs_f64(duration)).await;
        self.0.store(Window::OVER, Ordering::Relaxed);
        m.stop()
    }
}

/// Every process id named, plus all descendants that exist now.
pub fn with_descendants(pids: &[u32]) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|s| s.parse::<u32>().ok()) else { continue };
        if let Some(parent) = stat_fields(pid).and_then(|f| f.get(1)?.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut out: Vec<u32> = Vec::new();
    let mut todo = pids.to_vec();
    while let Some(p) = todo.pop() {
        if !out.contains(&p) {
            out.push(p);
            todo.extend(children.get(&p).into_iter().flatten());
        }
    }
    out
}

/// Fields of /proc/PID/stat after the command name: \[0\] is the state (proc(5) calls it field 3).
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let s = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = s.get(s.rfind(')')? + 2..)?;
    Some(rest.split_whitespace().map(String::from).collect())
}

/// CPU seconds of these processes, their descendants, and of children of theirs that have ended and been waited
/// for (cutime and cstime, in ticks): a subject that forks per connection is charged for it.
fn cpu_seconds(pids: &[u32]) -> f64 {
    let hz = rustix::param::clock_ticks_per_second() as f64;
    let reaped = |pid: u32| -> Option<f64> {
        let f = stat_fields(pid)?;
        Some((f.get(13)?.parse::<f64>().ok()? + f.get(14)?.parse::<f64>().ok()?) / hz)
    };
    with_descendants(pids)
        .iter()
        .map(|p| process_cpu_ns(*p).unwrap_or(0) as f64 / 1e9 + reaped(*p).unwrap_or(0.0))
        .sum()
}

/// (Pss KiB, Rss KiB) of these processes and their descendants.
pub fn memory_kib(pids: &[u32]) -> (u64, u64) {
    let (mut pss, mut rss) = (0, 0);
    for p in with_descendants(pids) {
        let text = std::fs::read_to_string(format!("/proc/{p}/smaps_rollup")).unwrap_or_default();
        pss += field_kib(&text, "Pss:");
        rss += field_kib(&text, "Rss:");
    }
    (pss, rss)
}

/// Kernel slab of the whole machine, KiB: what sockets and pipes cost outside RSS.
pub fn kernel_slab_kib() -> u64 {
    field_kib(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default(), "Slab:")
}

fn field_kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Ticks of one core since boot.
struct Core {
    total: u64,
    idle: u64,
    stolen: u64,
}

fn cores() -> Vec<Core> {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let is_core = |l: &&str| l.starts_with("cpu") && !l.starts_with("cpu ");
    text.lines()
        .filter(is_core)
        .map(|l| {
            let v: Vec<u64> = l.split_whitespace().skip(1).filter_map(|x| x.parse().ok()).collect();
            let at = |i: usize| v.get(i).copied().unwrap_or(0);
            // Niced time (field 1) gives way to us, so it counts as idle; that also
            // lets a run keep cores awake with a niced spinner.
            Core { total: v.iter().take(8).sum(), idle: at(1) + at(3) + at(4), stolen: at(7) }
        })
        .collect()
}

/// Measures one timed section.
pub struct Meter {
    started: Instant,
    cpu: f64,
    cores: Vec<Core>,
    pids: Vec<u32>,
}

impl Meter {
    /// Begin; `pids` are the subject's processes.
    pub fn start(pids: &[u32]) -> Meter {
        Meter { cores: cores(), cpu: cpu_seconds(pids), pids: pids.to_vec(), started: Instant::now() }
    }
    /// End.
    pub fn stop(&self) -> Reading {
        let secs = self.started.elapsed().as_secs_f64();
        let cpu_s = cpu_seconds(&self.pids) - self.cpu;
        let now = cores();
        let share = |part: fn(&Core, &Core) -> u64| {
            let one = |(a, b): (&Core, &Core)| part(a, b) as f64 / (b.total - a.total).max(1) as f64;
            self.cores.iter().zip(&now).map(one).collect::<Vec<f64>>()
        };
        Reading {
            secs,
            cpu_s,
            busy: share(|a, b| (b.total - a.total).saturating_sub((b.idle - a.idle) + (b.stolen - a.stolen))),
            stolen: share(|a, b| b.stolen - a.stolen),
        }
    }
}

/// What a `Meter` saw.
pub struct Reading {
    /// Wall seconds.
    pub secs: f64,
    /// CPU seconds of the subject.
    pub cpu_s: f64,
    busy: Vec<f64>,
    stolen: Vec<f64>,
}

impl Reading {
    /// Fields for the output of a run of `ops` operations. `core0_us_per_op` is all the work of core 0, kernel
    /// threads included (10 ms ticks): far above `proxy_cpu_us_per_op` it says that something else ran there or
    /// that the kernel worked for the subject outside of its processes.
    pub fn json(&self, ops: u64) -> Map<String, Value> {
        let n = ops.max(1) as f64;
        let shares = |v: &[f64]| v.iter().map(|x| round(*x, 3)).collect::<Vec<f64>>();
        let core0 = self.busy.first().copied().unwrap_or(0.0) * self.secs;
        let Value::Object(m) = json!({
            "secs": round(self.secs, 4), "ops": ops, "per_s": round(ops as f64 / self.secs, 1),
            "proxy_cpu_s": round(self.cpu_s, 4), "proxy_cpu_us_per_op": round(self.cpu_s * 1e6 / n, 3),
            "core0_us_per_op": round(core0 * 1e6 / n, 3),
            "cpu_busy": shares(&self.busy), "cpu_stolen": shares(&self.stolen),
        }) else {
            return Map::new();
        };
        m
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_time_is_charged_and_grows() {
        let me = std::process::id();
        let m = Meter::start(&[me]);
        let mut x = 1u64;
        while process_cpu_ns(me).is_some_and(|n| (n as f64 / 1e9) < m.cpu + 0.02) {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        let r = m.stop();
        assert!(r.cpu_s >= 0.019, "{} with {x}", r.cpu_s);
    }

    #[test]
    fn time_of_an_ended_child_is_charged_to_its_parent() {
        let me = std::process::id();
        let m = Meter::start(&[me]);
        let mut child = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])
            .spawn()
            .expect("sh runs");
        child.wait().expect("sh ends");
        assert!(m.stop().cpu_s >= 0.02);
    }

    #[test]
    fn kib_field_is_read() {
        assert_eq!(field_kib("Rss:    12 kB\nPss: 7 kB\n", "Pss:"), 7);
        assert_eq!(field_kib("Rss:    12 kB\n", "Swap:"), 0);
    }
}
