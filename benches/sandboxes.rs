//! What sandboxes cost that come and go while ten thousand others live: one that joins, one that leaves, and a reload; and
//! what it costs to tell whose a client is among them.

use std::fmt::Write;
use std::time::Duration;

use criterion::{BatchSize, Criterion};
use policy::file::{Document, load, read_sandbox};
use policy::source::SandboxSource;
use policy::{Credentials, LocalAddresses, Peer, Policy, SandboxId, Timestamp, TokenHash, User};

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

/// Ways to know a sandbox by, as its config writes them.
const KINDS: [&str; 5] = ["listener", "unix and uid", "source", "token", "token and source"];

fn token(number: usize) -> String {
    format!("tg_{number:064x}")
}

fn hash(token: &str) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("32 bytes")
}

fn evidence(kind: &str, number: usize) -> String {
    let source = format!("source = \"10.{}.{}.{}/32\"", number >> 16, number >> 8 & 255, number & 255);
    let hex: String = hash(&token(number)).iter().map(|byte| format!("{byte:02x}")).collect();
    match kind {
        "listener" => format!("listener = \"127.0.{}.{}:3128\"", number >> 8, number & 255),
        "unix and uid" => format!("unix = \"/run/s/{number}/p.sock\", uid = 1000"),
        "source" => source,
        "token" => format!("token_sha256 = \"{hex}\""),
        _ => format!("token_sha256 = \"{hex}\", {source}"),
    }
}

/// A client of that sandbox, without what it presents.
fn client(kind: &str, number: usize) -> Peer {
    let source = format!("10.{}.{}.{}:40000", number >> 16, number >> 8 & 255, number & 255);
    let peer = |listener: &str| Peer::new(listener.into(), source.parse().ok());
    match kind {
        "listener" => peer(&format!("127.0.{}.{}:3128", number >> 8, number & 255)),
        "unix and uid" => {
            let peer = Peer::new(format!("unix:/run/s/{number}/p.sock").into(), None);
            peer.run_by(User { uid: 1000, gid: 1000 })
        }
        _ => peer("127.0.0.1:3128"),
    }
}

fn identities(c: &mut Criterion) {
    let many = many();
    let mut group = c.benchmark_group(format!("whose client/{many}"));
    for kind in KINDS {
        let mut config = String::new();
        for number in 0..many {
            let _ = writeln!(config, "[sandbox.s{number}]\nidentify = [{{ {} }}]", evidence(kind, number));
        }
        let policy = policy(&config);
        let (number, id) = (many / 2, SandboxId::parse(&format!("s{}", many / 2)).expect("a name"));
        let (bare, secret) = (client(kind, number), token(number));
        let presents = kind.starts_with("token");
        group.bench_function(kind, |b| {
            b.iter(|| {
                let peer = bare.clone();
                let peer = if presents {
                    let hash = TokenHash::new(hash(&secret));
                    peer.presenting(Credentials::Token { name: Some(id.as_str().into()), hash })
                } else {
                    peer
                };
                assert_eq!(policy.identities.identify(&peer), Ok(&id));
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().measurement_time(Duration::from_secs(3)).configure_from_args();
    sandboxes(&mut criterion);
    identities(&mut criterion);
    criterion.final_summary();
}
