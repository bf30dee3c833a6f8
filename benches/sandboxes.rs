//! What sandboxes cost that come and go while ten thousand others live: one that joins, one that leaves, and a reload.

use std::fmt::Write;
use std::time::Duration;

use criterion::{BatchSize, Criterion};
use policy::file::{Document, load, read_sandbox};
use policy::source::SandboxSource;
use policy::{LocalAddresses, Policy, SandboxId, Timestamp};

/// A moment at which nothing has ended.
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn policy(text: &str) -> Policy {
    let document = Document::new("bench.toml", text.as_bytes()).expect("the config is text");
    load(&[document], NOW, &LocalAddresses::default()).expect("the config is right")
}

/// Fifty policies of twenty names each.
fn tables() -> String {
    let mut text = String::new();
    for policy in 0..50 {
        let _ = write!(text, "[policy.p{policy}]\nallow = [");
        for host in 0..20 {
            let _ = write!(text, "\"h{host}.p{policy}.example.org\",");
        }
        text.push_str("]\n");
    }
    text
}

/// A sandbox with five of them, known by a token.
fn sandbox(number: usize) -> String {
    let policies: Vec<_> = (0..5).map(|place| format!("\"p{}\"", (number + place * 7) % 50)).collect();
    format!(
        "[sandbox.s{number}]\npolicies = [{}]\nidentify = [{{ token_sha256 = \"{:064x}\" }}]\n\
         labels = {{ workspace = \"w-{number}\" }}\n",
        policies.join(","),
        number + 1
    )
}

fn source(number: usize, base: &Policy) -> SandboxSource {
    let document = Document::new("", sandbox(number).as_bytes()).expect("text");
    read_sandbox(&document, NOW, Some(base)).expect("a sandbox")
}

/// `cargo test --benches` runs each benchmark once, without `--bench`.
fn many() -> usize {
    if std::env::args().any(|arg| arg == "--bench") { 10_000 } else { 100 }
}

fn sandboxes(c: &mut Criterion) {
    let many = many();
    let base = policy(&tables());
    let sources: Vec<_> = (0..many).map(|number| source(number, &base)).collect();
    let mut full = base.clone();
    assert!(full.join_all(sources.iter().cloned()).is_empty());
    let guest = source(many, &base);
    let first = SandboxId::parse("s0").expect("a name");

    let mut group = c.benchmark_group(format!("sandboxes/{many}"));
    group.bench_function("one joins", |b| {
        b.iter(|| {
            let mut policy = full.clone();
            policy.join(guest.clone()).expect("it joins");
            policy
        });
    });
    group.bench_function("one leaves", |b| {
        b.iter(|| {
            let mut policy = full.clone();
            policy.leave(&first);
            policy
        });
    });
    group.sample_size(20).bench_function("all join another base", |b| {
        b.iter_batched(|| sources.clone(), |all| base.clone().join_all(all), BatchSize::PerIteration);
    });
    let mut config = tables();
    (0..many).for_each(|number| config.push_str(&sandbox(number)));
    group.sample_size(20).bench_function("all stand in the config", |b| b.iter(|| policy(&config)));
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().measurement_time(Duration::from_secs(3)).configure_from_args();
    sandboxes(&mut criterion);
    criterion.final_summary();
}
