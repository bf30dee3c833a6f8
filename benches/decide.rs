//! What one decision costs: with ten rules and with a million names, for every outcome that traffic has.

mod support;

use std::fmt::Write;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use policy::{Ask, Destination, Hostname, Inbound, Peer, QType};

/// Ten rules of every kind, and `names` listed names beside them: one half allowed, one half denied.
fn config(names: usize) -> String {
    let mut text = String::from(
        r#"
[sandbox.bench]
policies = ["ten", "many"]
identify = [{ default = true }]

[policy.ten]
allow = [
    "api.example.com", "*.cdn.example.com", "git.example.com:22", "packages.example.org:80,443",
    "192.0.2.0/24:8443", ".example.net", "ec2.*.example.com", "[2001:db8::/64]:443",
]
deny = ["gist.example.com", "*.tracker.example"]

[policy.many]
"#,
    );
    for (key, half) in [("allow", "a"), ("deny", "d")] {
        let _ = write!(text, "{key} = [");
        for i in 0..names / 2 {
            let _ = write!(text, "\"h{i}.{half}{}.example.org\",", i % 977);
        }
        text.push_str("]\n");
    }
    text
}

fn stream(authority: &str) -> Ask {
    Ask::Stream(Destination::from_authority(authority.as_bytes()).expect("an authority"))
}

fn lookup(name: &str) -> Ask {
    Ask::Lookup { name: Hostname::parse(name).expect("a name"), qtype: QType::A }
}

/// `cargo test --benches` runs each benchmark once, without `--bench`: a million names would take long there.
fn many() -> usize {
    if std::env::args().any(|arg| arg == "--bench") { 1_000_000 } else { 1_000 }
}

fn decide(c: &mut Criterion) {
    let many = many();
    let gates = [("10 rules", support::gate(&config(0))), ("1,000,000 names", support::gate(&config(many)))];
    let listed = format!("h{}.a{}.example.org:443", many / 4, (many / 4) % 977);
    let denied = format!("h{}.d{}.example.org:443", many / 4, (many / 4) % 977);
    let asks = [
        ("exact name allowed", stream("api.example.com:443")),
        ("suffix allowed", stream("a.b.example.net:443")),
        ("literal allowed", stream("192.0.2.9:8443")),
        ("denied by rule", stream("x.tracker.example:443")),
        ("not listed", stream("nowhere.example.edu:443")),
        ("look-up allowed", lookup("img.cdn.example.com")),
        ("look-up not listed", lookup("nowhere.example.edu")),
        ("one of many allowed", stream(&listed)),
        ("one of many denied", stream(&denied)),
    ];
    let peer = Peer::new("127.0.0.1:3128".into(), "127.0.0.1:40000".parse().ok());
    let mut group = c.benchmark_group("decide");
    for (size, gate) in &gates {
        for (what, ask) in &asks {
            if *size == "10 rules" && what.starts_with("one of many") {
                continue;
            }
            group.bench_with_input(BenchmarkId::new(*what, size), ask, |b, ask| {
                b.iter(|| {
                    gate.check(gate.attempt(support::NOW, &peer, Inbound::Connect, black_box(ask).clone()))
                });
            });
        }
    }
    group.finish();
}

fn load(c: &mut Criterion) {
    let mut group = c.benchmark_group("load");
    group.sample_size(10).measurement_time(Duration::from_secs(8));
    for names in [1_000, many()] {
        let text = config(names);
        group.throughput(Throughput::Elements(names as u64));
        group.bench_with_input(BenchmarkId::from_parameter(names), &text, |b, text| {
            b.iter(|| support::policy(text));
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = support::criterion();
    decide(&mut criterion);
    load(&mut criterion);
    criterion.final_summary();
}
