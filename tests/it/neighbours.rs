//! A hundred sandboxes on one gateway, one of which floods everything that it can: it alone is refused, nobody waits for
//! it, and nobody's events are lost.
//!
//! The whole acceptance, with 200,000 denials, and how long the neighbour waits:
//!
//! ```text
//! TIDEGATE_FLOOD=200000 cargo test --test it neighbours
//! TIDEGATE_BIN=target/release/tidegate cargo test --test it neighbours -- --ignored --nocapture
//! ```

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use hickory_proto::rr::RecordType;
use serde_json::Value;
use tidegate::lab::origin::Behaviour;

use crate::support::{Client, PROXY_DNS, Scene, ask, eventually_within};

const SANDBOXES: usize = 100;

/// A line of the audit for each of 200,000 denials would not fit into it.
const VOLUME: u64 = 64 << 20;

/// Who floods, and whose wait is measured.
const FLOODER: usize = 0;
const NEIGHBOUR: usize = 1;

/// Clients that flood at once.
const CLIENTS: usize = 4;

fn token(sandbox: usize) -> String {
    format!("token-{sandbox}")
}

fn scene() -> Option<Scene> {
    let mut policy = "[policy.case]\nallow = [\"198.51.100.9:8443\", \"198.51.100.9:8444\"]\n".to_owned();
    for sandbox in 0..SANDBOXES {
        let hash = ring::digest::digest(&ring::digest::SHA256, token(sandbox).as_bytes());
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let dns = format!(", {{ listener = \"{PROXY_DNS}\" }}");
        let dns = if sandbox == FLOODER { dns.as_str() } else { "" };
        let _ = write!(
            policy,
            "[sandbox.n{sandbox}]\npolicies = [\"case\"]\nidentify = [{{ token_sha256 = \"{hash}\" }}{dns}]\n"
        );
    }
    let _ = write!(
        policy,
        "[sandbox.n{FLOODER}.limits]\nconnections = 32\nupload = \"256KiB/h\"\n\
         [sandbox.n{NEIGHBOUR}.limits]\nnew_connections_per_second = \"unlimited\"\nconnections = \"unlimited\"\n"
    );
    Scene::new()
        .policy(&policy)
        .ports([8443, 8444])
        .origins(|to| if to.port() == 8444 { Behaviour::Silent } else { Behaviour::Echo })
        .configure(|config| config.volume = Some(VOLUME))
        .start()
}

/// A tunnel, or the refusal's reason.
fn tunnel(scene: &Scene, sandbox: usize, port: u16) -> Result<Client, String> {
    let mut client = scene.client();
    let head = format!(
        "CONNECT 198.51.100.9:{port} HTTP/1.1\r\nProxy-Authorization: Bearer {}\r\n\r\n",
        token(sandbox)
    );
    client.send(head.as_bytes());
    let response = client.response();
    if response.status == 200 { Ok(client) } else { Err(response.reason().unwrap_or_default().to_owned()) }
}

/// One tunnel that carries a byte each way; how long it took to open.
fn visit(scene: &Scene, sandbox: usize) -> Duration {
    let begun = Instant::now();
    let mut client = tunnel(scene, sandbox, 8443).unwrap_or_else(|reason| panic!("n{sandbox}: {reason}"));
    let took = begun.elapsed();
    client.send(b"x");
    assert_eq!(client.take(1), b"x");
    took
}

/// What the flooder was refused.
#[derive(Default)]
struct Refused {
    plain: AtomicUsize,
    tunnels: AtomicUsize,
    questions: AtomicUsize,
}

impl Refused {
    fn all(&self) -> usize {
        [&self.plain, &self.tunnels, &self.questions].map(|count| count.load(Ordering::Relaxed)).iter().sum()
    }
}

/// Floods with plain requests, each for another name, until `over`.
fn flood_requests(scene: &Scene, refused: &Refused, over: impl Fn() -> bool) {
    let mut client = scene.client();
    let mut number = 0_u64;
    while !over() {
        number += 1;
        let host = format!("d{}.example", number % 1000);
        let request = format!(
            "GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Bearer {}\r\n\r\n",
            token(FLOODER)
        );
        client.send(request.as_bytes());
        let status = client.response().status;
        assert!(matches!(status, 403 | 429), "{status}");
        refused.plain.fetch_add(1, Ordering::Relaxed);
        if client.ended() || number.is_multiple_of(1000) {
            client = scene.client();
        }
    }
}

/// Floods with connections that stay open.
fn flood_connections(scene: &Scene, refused: &Refused, over: impl Fn() -> bool) {
    let mut held = Vec::new();
    while !over() {
        match tunnel(scene, FLOODER, 8444) {
            Ok(client) => held.push(client),
            Err(reason) => {
                assert!(matches!(&*reason, "limit_connections" | "limit_rate" | "limit_upload"), "{reason}");
                refused.tunnels.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn flood_questions(scene: &Scene, refused: &Refused, over: impl Fn() -> bool) {
    let mut number = 0_u64;
    while !over() {
        number += 1;
        let name = format!("q{}.example", number % 1000);
        ask(scene.lab(), PROXY_DNS.parse().unwrap(), &name, RecordType::A).unwrap();
        refused.questions.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends until the tunnel is cut, once connections have been refused: where no byte is left, that would be said instead.
fn flood_bytes(mut client: Client, refused: &Refused) {
    while !client.ended() {
        if refused.tunnels.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
            continue;
        }
        client.send(&[b'x'; 16 * 1024]);
        client.read_more(Duration::from_millis(1));
    }
}

fn sandbox(line: &Value) -> String {
    line["sandbox"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_flooder_alone_is_refused_and_nobody_loses_an_event() {
    let Some(scene) = scene() else { return };
    let (wanted, refused, quiet) = (denials(), Refused::default(), AtomicBool::new(false));
    let mut visits = BTreeMap::from([(format!("n{NEIGHBOUR}"), 0_usize)]);
    let is_enough = || refused.plain.load(Ordering::Relaxed) >= wanted;
    let is_over = || quiet.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let bytes = tunnel(&scene, FLOODER, 8444).expect("nothing is spent yet");
        scope.spawn(|| flood_bytes(bytes, &refused));
        for _ in 0..CLIENTS {
            scope.spawn(|| flood_requests(&scene, &refused, is_enough));
        }
        scope.spawn(|| flood_connections(&scene, &refused, is_over));
        scope.spawn(|| flood_questions(&scene, &refused, is_over));
        let mut next = NEIGHBOUR;
        while !is_enough() || visits.len() < SANDBOXES - 1 {
            for sandbox in [NEIGHBOUR, next] {
                visit(&scene, sandbox);
                *visits.entry(format!("n{sandbox}")).or_default() += 1;
            }
            next = if next + 1 < SANDBOXES { next + 1 } else { NEIGHBOUR + 1 };
        }
        quiet.store(true, Ordering::Relaxed);
    });

    let flooder = format!("n{FLOODER}");
    let lines = eventually_within(Duration::from_secs(60), "everything is on record", || {
        let lines = scene.gateway().audit();
        let denied = lines.iter().filter(|line| line["decision"] == "deny" && line["event"] != "close");
        let denied: u64 = denied.filter_map(|line| line["count"].as_u64()).sum();
        let ends = lines.iter().filter(|line| line["event"] == "close" && sandbox(line) != flooder).count();
        (denied >= refused.all() as u64 && ends >= visits.values().sum()).then_some(lines)
    });
    let count = |wanted: &dyn Fn(&Value) -> bool| {
        let mut counts = BTreeMap::<String, usize>::new();
        for line in lines.iter().filter(|line| wanted(line)) {
            let many = line["count"].as_u64().unwrap_or(1);
            *counts.entry(sandbox(line)).or_default() += usize::try_from(many).unwrap();
        }
        counts
    };
    for (inbound, refused) in
        [("connect", &refused.tunnels), ("http", &refused.plain), ("dns", &refused.questions)]
    {
        let denied = |line: &Value| line["decision"] == "deny" && line["event"] != "close";
        let of_inbound = count(&|line| line["inbound"] == inbound && denied(line));
        let expected = BTreeMap::from([(flooder.clone(), refused.load(Ordering::Relaxed))]);
        assert_eq!(of_inbound, expected, "{inbound}: each once, and nobody else's");
    }
    let mut allowed = count(&|line| line["decision"] == "allow" && line["event"] == "decision");
    allowed.remove(&flooder);
    assert_eq!(allowed, visits);
    let mut closed = count(&|line| line["event"] == "close" && line["reason"].is_null());
    closed.remove(&flooder);
    assert_eq!(closed, visits);
    for limit in ["limit_upload", "limit_rate", "limit_connections"] {
        assert!(lines.iter().any(|line| line["reason"] == limit && sandbox(line) == flooder), "{limit}");
    }
    let (_, metrics) = scene.gateway().metrics(scene.lab(), "/metrics");
    let lost = metrics.lines().filter(|line| line.starts_with("tidegate_audit_lost_total"));
    assert!(lost.clone().all(|line| line.ends_with(" 0")), "{:?}", lost.collect::<Vec<_>>());
    assert_eq!(scene.gateway().metrics(scene.lab(), "/readyz").0, 200);
}

/// Prints how long the neighbour waits for a tunnel, alone and beside the flood. A figure for docs/performance.md, and no
/// test: how long anything takes depends on what else the machine does.
#[test]
#[ignore = "a measurement"]
fn how_long_the_neighbour_waits() {
    let Some(scene) = scene() else { return };
    let measure = || {
        let mut took: Vec<Duration> = (0..2000).map(|_| visit(&scene, NEIGHBOUR)).collect();
        took.sort_unstable();
        [50, 90, 99].map(|percent| took[took.len() * percent / 100])
    };
    let (refused, over) = (Refused::default(), AtomicBool::new(false));
    measure();
    for _ in 0..3 {
        let alone = measure();
        over.store(false, Ordering::Relaxed);
        let before = refused.all();
        let begun = Instant::now();
        let is_over = || over.load(Ordering::Relaxed);
        let beside = thread::scope(|scope| {
            scope.spawn(|| flood_requests(&scene, &refused, is_over));
            scope.spawn(|| flood_connections(&scene, &refused, is_over));
            scope.spawn(|| flood_questions(&scene, &refused, is_over));
            let beside = measure();
            over.store(true, Ordering::Relaxed);
            beside
        });
        let rate = (refused.all() - before) as f64 / begun.elapsed().as_secs_f64();
        let ratio = beside[2].as_secs_f64() / alone[2].as_secs_f64();
        println!("alone {alone:?}, beside {rate:.0} denials/s {beside:?} (p50, p90, p99): p99 x {ratio:.2}");
    }
}

#[expect(clippy::disallowed_methods, reason = "how whoever runs it by hand asks for more")]
fn denials() -> usize {
    std::env::var("TIDEGATE_FLOOD").ok().and_then(|text| text.parse().ok()).unwrap_or(4000)
}
