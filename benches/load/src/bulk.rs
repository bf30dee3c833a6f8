//! Bulk transfer through k tunnels at once. Content is HTTP (`GET /bytes/N`,
//! `POST /sink`), so that intercepting proxies can be measured as well.

use crate::common::{Errors, Res, emit, fields, round, runtime};
use crate::conn::{Target, read_response};
use crate::meter::Meter;
use serde_json::json;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Dir {
    Pull,
    Push,
}

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    #[arg(long, value_enum, default_value = "pull")]
    dir: Dir,
    /// MiB in all, over every tunnel
    #[arg(long, default_value_t = 2048)]
    mib: usize,
    /// Tunnels
    #[arg(long, default_value_t = 4)]
    tunnels: usize,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Client read/write size, KiB
    #[arg(long, default_value_t = 256)]
    block_kib: usize,
}

pub fn run(a: Args) -> Res<()> {
    let d = Arc::new(a.target.dialer()?);
    let per = a.mib * 1024 * 1024 / a.tunnels;
    let block = a.block_kib * 1024;
    runtime(a.threads)?.block_on(async {
        let mut conns = Vec::new();
        for _ in 0..a.tunnels {
            conns.push(d.open_timed().await?);
        }
        let m = Meter::start(&a.target.pid);
        let mut tasks = Vec::new();
        for mut c in conns {
            let (auth, dir) = (d.authority.clone(), a.dir);
            tasks.push(tokio::spawn(async move {
                let mut buf = vec![b'x'; block];
                match dir {
                    Dir::Pull => {
                        c.write_all(format!("GET /bytes/{per} HTTP/1.1\r\nHost: {auth}\r\n\r\n").as_bytes())
                            .await?;
                    }
                    Dir::Push => {
                        c.write_all(
                            format!("POST /sink HTTP/1.1\r\nHost: {auth}\r\ncontent-length: {per}\r\n\r\n")
                                .as_bytes(),
                        )
                        .await?;
                        let mut left = per;
                        while left > 0 {
                            let n = block.min(left);
                            c.write_all(&buf[..n]).await?;
                            left -= n;
                        }
                        c.flush().await?;
                    }
                }
                read_response(&mut c, &mut buf).await.map(|_| ())
            }));
        }
        let mut errs = Errors::default();
        let mut ok = 0u64;
        for t in tasks {
            match t.await? {
                Ok(()) => ok += 1,
                Err(e) => errs.add(&e),
            }
        }
        let reading = m.stop();
        let mib = per as f64 * ok as f64 / 1_048_576.0;
        let gib = (mib / 1024.0).max(1e-9);
        emit(
            "bulk",
            &a.target.label,
            [
                reading.json(ok),
                fields(json!({
                    "dir": if a.dir == Dir::Pull { "pull" } else { "push" }, "tunnels": a.tunnels, "mib": mib,
                    "mib_per_s": round(mib / reading.secs, 1),
                    "proxy_cpu_s_per_gib": round(reading.cpu_s / gib, 4),
                    "errors": errs.total(), "error_kinds": errs.0,
                    "tls": a.target.tls, "direct": a.target.direct,
                })),
            ],
        );
        Ok(())
    })
}
