//! `egress-load`: one small program that holds everything needed to measure an
//! HTTP egress proxy or a DNS policy gateway on one machine:
//!
//! * `origin`        test server (HTTP/1.1, the same over TLS, raw TCP)
//! * `relay`         reference CONNECT proxies (tokio copy, splice(2), plain TCP)
//! * `connect-rate`  new tunnels per second and the latency of a whole tunnel
//! * `http-rate`     absolute-form plain HTTP requests per second, keep-alive
//! * `bulk`          MiB/s and the proxy's CPU seconds per GiB
//! * `latency`       fixed-rate small messages over established tunnels
//! * `idle`          memory per held tunnel
//! * `dns`           closed-loop UDP queries
//! * `dns-stub`      tiny authoritative server for the DNS peers to forward to
//!
//! Each measuring command prints exactly one JSON object on stdout. Errors are
//! counted and reported, never retried silently. Only loopback addresses are
//! accepted unless `--allow-non-loopback` is given (network namespaces).

mod bulk;
mod common;
mod conn;
mod connect_rate;
mod dns;
mod http_rate;
mod idle;
mod latency;
mod meter;
mod origin;
mod relay;
mod stub;
mod sys;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    cmd: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Test server: HTTP/1.1 keep-alive, TLS variant, raw TCP sink/source/echo
    Origin(origin::Args),
    /// Reference relays: CONNECT proxy by copy, splice or hybrid; plain TCP forwarder
    Relay(relay::Args),
    /// New tunnels per second: connect, CONNECT, one small exchange, close
    ConnectRate(connect_rate::Args),
    /// Absolute-form GETs through a forward proxy over keep-alive connections
    HttpRate(http_rate::Args),
    /// Push or pull many MiB through k tunnels
    Bulk(bulk::Args),
    /// Fixed-rate small messages over established tunnels
    Latency(latency::Args),
    /// Open N tunnels and hold them; memory per tunnel
    Idle(idle::Args),
    /// Closed-loop UDP DNS queries
    Dns(dns::Args),
    /// Authoritative DNS stub on UDP
    DnsStub(stub::Args),
}

fn main() {
    common::raise_nofile();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let res = match Cli::parse().cmd {
        Cmd::Origin(a) => origin::run(a),
        Cmd::Relay(a) => relay::run(a),
        Cmd::ConnectRate(a) => connect_rate::run(a),
        Cmd::HttpRate(a) => http_rate::run(a),
        Cmd::Bulk(a) => bulk::run(a),
        Cmd::Latency(a) => latency::run(a),
        Cmd::Idle(a) => idle::run(a),
        Cmd::Dns(a) => dns::run(a),
        Cmd::DnsStub(a) => stub::run(a),
    };
    if let Err(e) = res {
        eprintln!("egress-load: {e}");
        std::process::exit(1);
    }
}
