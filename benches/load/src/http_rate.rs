//! Plain HTTP through a forward proxy: absolute-form GET over keep-alive
//! connections (origin-form when direct). A connection that the proxy closes is
//! reopened and counted under `reconnects`.

use crate::common::{Errors, Res, emit, fields, hist, hist_json, record, runtime};
use crate::conn::{Target, exchange, timed};
use crate::meter::Window;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Keep-alive connections, one request outstanding on each
    #[arg(long, default_value_t = 64)]
    conns: usize,
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    #[arg(long, default_value_t = 64)]
    size: usize,
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

pub fn run(a: Args) -> Res<()> {
    let d = Arc::new(a.target.dialer()?);
    let path = format!("/bytes/{}", a.size);
    let line = if a.target.direct || a.target.no_connect {
        format!("GET {path} HTTP/1.1\r\n")
    } else {
        format!("GET http://{}{path} HTTP/1.1\r\n", d.authority)
    };
    let req = Arc::new(format!("{line}Host: {}\r\n{}\r\n", d.authority, d.auth_header).into_bytes());
    runtime(a.threads)?.block_on(async {
        let window = Arc::new(Window::default());
        let mut tasks = Vec::new();
        for _ in 0..a.conns {
            let (d, req, window) = (d.clone(), req.clone(), window.clone());
            tasks.push(tokio::spawn(async move {
                let (mut h, mut errs, mut reconn) = (hist(), Errors::default(), 0u64);
                let mut buf = vec![0u8; 16384];
                'conn: while !window.is_over() {
                    let mut c = match timed(d.timeout, d.tcp()).await {
                        Ok(c) => c,
                        Err(e) => {
                            errs.add(&e);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                            continue;
                        }
                    };
                    let mut first = true;
                    while !window.is_over() {
                        let s = Instant::now();
                        let r = timed(d.timeout, exchange(&mut c, &req, &mut buf)).await;
                        let took = s.elapsed();
                        match r {
                            Ok(_) => {
                                if window.is_open() {
                                    record(&mut h, took);
                                }
                            }
                            Err(x) => {
                                reconn += u64::from(window.is_open());
                                if first {
                                    errs.add(&x);
                                    tokio::time::sleep(Duration::from_millis(5)).await;
                                }
                                continue 'conn;
                            }
                        }
                        first = false;
                    }
                }
                (h, errs, reconn)
            }));
        }
        let reading = window.run(a.warmup, a.duration, &a.target.pid).await;
        let (mut h, mut errs, mut reconn) = (hist(), Errors::default(), 0);
        for t in tasks {
            let (x, e, r) = t.await?;
            h.add(&x)?;
            errs.merge(e);
            reconn += r;
        }
        emit(
            "http-rate",
            &a.target.label,
            [
                reading.json(h.len()),
                fields(json!({
                    "conns": a.conns, "lat": hist_json(&h), "errors": errs.total(), "error_kinds": errs.0,
                    "reconnects": reconn, "direct": a.target.direct,
                })),
            ],
        );
        Ok(())
    })
}
