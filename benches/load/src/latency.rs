//! Fixed-rate small exchanges over established tunnels. One blocking thread per
//! tunnel sleeps to an absolute time (1 µs timer slack, since an async timer is
//! too coarse), sends a POST /echo and waits for the answer. `lat` runs from the
//! actual send; `sched` from the scheduled time, so that a stalled proxy is
//! charged for the requests it held up.

use crate::common::{Errors, Res, emit, fields, hist, hist_json, record};
use crate::conn::{Target, find_end, parse_head};
use crate::meter::Meter;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::json;
use std::io::{Read, Write};
use std::sync::{Arc, Barrier};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    #[arg(long, default_value_t = 4)]
    tunnels: usize,
    /// Messages per second, over every tunnel
    #[arg(long, default_value_t = 2000.0)]
    rate: f64,
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    /// Body bytes each way
    #[arg(long, default_value_t = 64)]
    size: usize,
}

/// From the barrier to the first message: every thread is at its clock by then.
const LEAD_NS: i64 = 5_000_000;

fn now_ns() -> i64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}

fn sleep_until_ns(at: i64) {
    let t = Timespec { tv_sec: at / 1_000_000_000, tv_nsec: at % 1_000_000_000 };
    while clock_nanosleep_absolute(ClockId::Monotonic, &t) == Err(rustix::io::Errno::INTR) {}
}

pub fn run(a: Args) -> Res<()> {
    let d = Arc::new(a.target.dialer()?);
    let gap = (1e9 * a.tunnels as f64 / a.rate) as i64;
    let per = (a.duration * a.rate / a.tunnels as f64) as i64;
    let warm = per / 10;
    let req = Arc::new({
        let mut r =
            format!("POST /echo HTTP/1.1\r\nHost: {}\r\ncontent-length: {}\r\n\r\n", d.authority, a.size)
                .into_bytes();
        r.resize(r.len() + a.size, b'm');
        r
    });
    let start = Arc::new(Barrier::new(a.tunnels + 1));
    let threads: Vec<_> = (0..a.tunnels)
        .map(|i| {
            let (d, req, start) = (d.clone(), req.clone(), start.clone());
            std::thread::spawn(move || -> Result<_, String> {
                let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                let conn = d.open_blocking();
                start.wait();
                let mut c = conn.map_err(|e| e.to_string())?;
                let (mut h, mut hs) = (hist(), hist());
                let base = now_ns() + LEAD_NS + gap * i as i64 / a.tunnels as i64;
                let mut buf = vec![0u8; 16384];
                for k in 0..per + warm {
                    let due = base + k * gap;
                    sleep_until_ns(due);
                    let s = now_ns();
                    c.write_all(&req).map_err(|e| e.to_string())?;
                    c.flush().map_err(|e| e.to_string())?;
                    let mut n = 0;
                    loop {
                        let r = c.read(&mut buf[n..]).map_err(|e| e.to_string())?;
                        if r == 0 {
                            return Err("closed".into());
                        }
                        n += r;
                        if let Some(e) = find_end(&buf[..n]) {
                            let (st, len) = parse_head(&buf[..e]).map_err(|e| e.to_string())?;
                            if st != 200 {
                                return Err(format!("status {st}"));
                            }
                            if n >= e + len {
                                break;
                            }
                        }
                    }
                    let e = now_ns();
                    if k >= warm {
                        record(&mut h, Duration::from_nanos((e - s) as u64));
                        record(&mut hs, Duration::from_nanos((e - due) as u64));
                    }
                }
                Ok((h, hs))
            })
        })
        .collect();
    start.wait();
    // The meter starts when the warm-up messages have gone, so that only counted messages are paid for.
    sleep_until_ns(now_ns() + LEAD_NS + warm * gap);
    let m = Meter::start(&a.target.pid);
    let (mut h, mut hs, mut errs) = (hist(), hist(), Errors::default());
    for t in threads {
        match t.join().map_err(|_| "thread panicked")? {
            Ok((x, y)) => {
                h.add(&x)?;
                hs.add(&y)?;
            }
            Err(e) => errs.add(&std::io::Error::other(e)),
        }
    }
    let reading = m.stop();
    emit(
        "latency",
        &a.target.label,
        [
            reading.json(h.len()),
            fields(json!({
                "tunnels": a.tunnels, "rate": a.rate, "lat": hist_json(&h), "sched": hist_json(&hs),
                "errors": errs.total(), "error_kinds": errs.0, "tls": a.target.tls, "direct": a.target.direct,
            })),
        ],
    );
    Ok(())
}
