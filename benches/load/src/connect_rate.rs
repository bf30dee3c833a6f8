//! New tunnels per second. One operation is: TCP connect, CONNECT, one small
//! GET and its whole response, close. Its latency is that of the whole.

use crate::common::{Errors, Res, emit, fields, hist, hist_json, record, runtime};
use crate::conn::{REFUSED, Target, exchange, timed};
use crate::meter::Window;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Concurrent workers
    #[arg(long, default_value_t = 64)]
    workers: usize,
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Response body size
    #[arg(long, default_value_t = 64)]
    size: usize,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Count refusals (403 and the like) as the wanted outcome
    #[arg(long)]
    expect_deny: bool,
}

pub fn run(a: Args) -> Res<()> {
    let d = Arc::new(a.target.dialer()?);
    let req =
        Arc::new(format!("GET /bytes/{} HTTP/1.1\r\nHost: {}\r\n\r\n", a.size, d.authority).into_bytes());
    runtime(a.threads)?.block_on(async {
        let window = Arc::new(Window::default());
        let mut tasks = Vec::new();
        for _ in 0..a.workers {
            let (d, req, deny, window) = (d.clone(), req.clone(), a.expect_deny, window.clone());
            tasks.push(tokio::spawn(async move {
                let (mut h, mut errs) = (hist(), Errors::default());
                let mut buf = vec![0u8; 8192];
                while !window.is_over() {
                    let s = Instant::now();
                    let r = timed(d.timeout, async {
                        let mut c = d.open().await?;
                        exchange(&mut c, &req, &mut buf).await
                    })
                    .await;
                    let took = s.elapsed();
                    let good = match &r {
                        Ok(_) => !deny,
                        Err(x) => deny && x.to_string().starts_with(REFUSED),
                    };
                    if window.is_open() {
                        if good {
                            record(&mut h, took);
                        } else {
                            match r {
                                Err(x) => errs.add(&x),
                                Ok(_) => errs.add(&std::io::Error::other("allowed, expected denial")),
                            }
                        }
                    }
                    if !good {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                (h, errs)
            }));
        }
        let reading = window.run(a.warmup, a.duration, &a.target.pid).await;
        let (mut h, mut errs) = (hist(), Errors::default());
        for t in tasks {
            let (x, e) = t.await?;
            h.add(&x)?;
            errs.merge(e);
        }
        emit(
            "connect-rate",
            &a.target.label,
            [
                reading.json(h.len()),
                fields(json!({
                    "workers": a.workers, "lat": hist_json(&h), "errors": errs.total(), "error_kinds": errs.0,
                    "tls": a.target.tls, "direct": a.target.direct, "socks5": a.target.socks5,
                })),
            ],
        );
        Ok(())
    })
}
