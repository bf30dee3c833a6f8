//! Memory per held tunnel. Opens N tunnels (each does one small exchange, so
//! that lazily made buffers exist), holds them, reads the proxy's memory, then
//! checks that a sample still works.

use crate::common::{Errors, Res, emit, fields, round, runtime};
use crate::conn::{Target, exchange, timed};
use crate::meter::{Meter, kernel_slab_kib, memory_kib};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Tunnels to hold
    #[arg(long, default_value_t = 1000)]
    n: usize,
    /// Seconds to hold before reading memory
    #[arg(long, default_value_t = 2.0)]
    hold: f64,
    /// Tunnels being opened at one time
    #[arg(long, default_value_t = 32)]
    opening: usize,
    /// Skip the small exchange after opening
    #[arg(long)]
    untouched: bool,
}

pub fn run(a: Args) -> Res<()> {
    let d = Arc::new(a.target.dialer()?);
    let req = Arc::new(format!("GET /bytes/64 HTTP/1.1\r\nHost: {}\r\n\r\n", d.authority).into_bytes());
    runtime(1)?.block_on(async {
        let (pss0, rss0) = memory_kib(&a.target.pid);
        let k0 = kernel_slab_kib();
        let t = Instant::now();
        let sem = Arc::new(Semaphore::new(a.opening));
        let mut tasks = Vec::new();
        for _ in 0..a.n {
            let p = sem.clone().acquire_owned().await?;
            let (d, req, untouched) = (d.clone(), req.clone(), a.untouched);
            tasks.push(tokio::spawn(async move {
                let _p = p;
                timed(d.timeout, async {
                    let mut c = d.open().await?;
                    if !untouched {
                        let mut buf = vec![0u8; 4096];
                        exchange(&mut c, &req, &mut buf).await?;
                    }
                    Ok(c)
                })
                .await
            }));
        }
        let (mut conns, mut errs) = (Vec::new(), Errors::default());
        for t in tasks {
            match t.await? {
                Ok(c) => conns.push(c),
                Err(e) => errs.add(&e),
            }
        }
        let open_secs = t.elapsed().as_secs_f64();
        tokio::time::sleep(Duration::from_secs_f64(a.hold)).await;
        let (pss1, rss1) = memory_kib(&a.target.pid);
        let k1 = kernel_slab_kib();
        let m = Meter::start(&a.target.pid);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let idle = m.stop();
        let held = conns.len();
        let mut alive = 0;
        let mut sampled = 0;
        let mut buf = vec![0u8; 4096];
        for c in conns.iter_mut().step_by((held / 200).max(1)) {
            sampled += 1;
            if timed(d.timeout, exchange(c, &req, &mut buf)).await.is_ok() {
                alive += 1;
            }
        }
        let per = |b: u64, a: u64| round((b as f64 - a as f64) / held.max(1) as f64, 3);
        emit(
            "idle",
            &a.target.label,
            [fields(json!({
                "n": a.n, "held": held, "open_secs": round(open_secs, 2), "errors": errs.total(), "error_kinds": errs.0,
                "rss0_kib": rss0, "rss1_kib": rss1, "pss0_kib": pss0, "pss1_kib": pss1,
                "rss_kib_per_tunnel": per(rss1, rss0), "pss_kib_per_tunnel": per(pss1, pss0),
                "kernel_slab_kib_per_tunnel": per(k1, k0), "idle_cpu_s_per_s": round(idle.cpu_s / idle.secs, 4),
                "sampled": sampled, "alive": alive,
            }))],
        );
        Ok(())
    })
}
