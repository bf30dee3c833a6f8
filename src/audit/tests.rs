//! The audit behind a real gate: what is in the file is what happened.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::OnceLock;

use policy::identity::Evidence;
use policy::pattern::{Entry, PortSet};
use policy::rule::{Action, Rule, RuleName};
use policy::source::{self, PolicySource, SandboxSource, Source};
use policy::{
    Ask, Decision, Denial, Destination, Ending, Gate, Inbound, Live, LocalAddresses, Mode, Peer, Policy,
    QType, Reason, Resolved, SandboxId, Timestamp,
};
use proptest::prelude::*;
use serde_json::Value;

use super::*;

const T: Timestamp = Timestamp::from_secs(1_800_000_000);

struct Bench {
    folder: tempfile::TempDir,
    path: PathBuf,
    registry: Registry,
    audit: Arc<Audit>,
    gate: Arc<Gate>,
}

impl Bench {
    fn new() -> Self {
        Self::with(true, None)
    }

    fn with(required: bool, rotation: Option<Rotation>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        Self::over(folder, path, required, rotation)
    }

    fn over(folder: tempfile::TempDir, path: PathBuf, required: bool, rotation: Option<Rotation>) -> Self {
        let registry = Registry::new();
        let settings = Settings { place: Place::File(path.clone()), required, rotation };
        let audit = Arc::new(Audit::open(&settings, &registry).expect("the audit opens"));
        let observer: Arc<dyn Observer> = Arc::clone(&audit) as _;
        let gate = Arc::new(Gate::new(policy(), Arc::new(LocalAddresses::default()), observer, 7));
        Self { folder, path, registry, audit, gate }
    }

    fn ask(&self, inbound: Inbound, ask: Ask) -> policy::Attempt {
        let client: SocketAddr = "10.88.0.7:40000".parse().expect("an address");
        self.gate.attempt(T, &Peer::new("127.0.0.1:3128".into(), Some(client)), inbound, ask)
    }

    fn check(&self, to: &str) -> Decision {
        let to = Destination::from_authority(to.as_bytes()).expect("a destination");
        self.gate.check(self.ask(Inbound::Connect, Ask::Stream(to)))
    }

    async fn denied(&self, to: &str) -> Denial {
        let Decision::Deny(denial) = self.check(to) else { panic!("{to} is allowed") };
        denial.settle().await
    }

    async fn open(&self, to: &str) -> Result<Live, Denial> {
        let address: SocketAddr = "93.184.216.34:443".parse().expect("an address");
        let resolved = Resolved { chain: &[], addresses: &[address.ip()] };
        let permit = match self.check(to) {
            Decision::Allow(permit) => permit,
            Decision::Ask(_) => panic!("a person is asked"),
            Decision::Deny(denial) => return Err(denial.settle().await),
        };
        let vetted = self.gate.vet(permit, resolved, T).expect("a public address");
        self.gate.opened(vetted, address, T).expect("nothing changed").settle().await
    }

    fn lines(&self) -> Vec<Value> {
        self.audit.finish();
        read(&self.path)
    }

    fn counter(&self, name: &str) -> u64 {
        let family = self.registry.gather().into_iter().find(|family| family.name() == name);
        family.expect("the counter").get_metric()[0].get_counter().get_value() as u64
    }
}

fn read(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the log");
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    text.lines().map(|line| serde_json::from_str(line).expect("valid JSON")).collect()
}

fn policy() -> Arc<Policy> {
    let place = source::Place { file: "t.toml".into(), line: 1, column: 1 };
    let entry = Entry::parse("api.example.com").expect("an entry");
    let rule = Rule {
        host: entry.host,
        ports: PortSet::parse("80,443").expect("ports"),
        action: Action::Allow,
        name: RuleName::Listed(Action::Allow, 0),
        line: 1,
        column: 1,
        terms: None,
    };
    let sandbox = SandboxSource {
        id: SandboxId::parse("agent-7").expect("a name"),
        place: place.clone(),
        policies: vec!["base".into()],
        internal: Vec::new(),
        identify: vec![Evidence::source("10.88.0.7/32".parse().expect("a net"))],
        sockets: Vec::new(),
        labels: BTreeMap::from([("tool".into(), "code \"exec\"\u{202e}".into())]),
        local_peers: Vec::new(),
        mode: Mode::Enforce,
        hints: false,
        limits: policy::Limits::default(),
        owners: Vec::new(),
        life: policy::life::Life::default(),
    };
    let policies = vec![PolicySource {
        name: "base".into(),
        place,
        rules: vec![rule],
        lists: Vec::new(),
        registries: Vec::new(),
    }];
    let source = Source { policies, sandboxes: vec![sandbox], ..Source::default() };
    Arc::new(Policy::compile(source).expect("no conflict"))
}

fn schema() -> &'static jsonschema::Validator {
    static SCHEMA: OnceLock<jsonschema::Validator> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let text = fs::read_to_string("docs/audit.schema.json").expect("the schema");
        jsonschema::validator_for(&serde_json::from_str(&text).expect("JSON")).expect("a schema")
    })
}

#[track_caller]
fn assert_fits(schema: &jsonschema::Validator, line: &Value) {
    let errors: Vec<String> = schema.iter_errors(line).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{line} does not fit: {errors:?}");
}

#[tokio::test]
async fn every_kind_of_line_fits_the_published_schema() {
    let bench = Bench::new();
    let live = bench.open("api.example.com:443").await.expect("recorded");
    let ending = Ending { reason: Some(Reason::SniMismatch), bytes_up: 1, bytes_down: 2, sni: None };
    let _ = bench.gate.close(&live, ending, T).await;
    bench.denied("other.example:443").await;
    let request = Ask::Request {
        destination: Destination::from_authority(b"api.example.com:80").expect("a destination"),
        method: "GET".into(),
        path: "/a\u{1b}[2J".into(),
    };
    let Decision::Allow(permit) = bench.gate.check(bench.ask(Inbound::Http, request)) else {
        panic!("denied")
    };
    bench.gate.failed(permit, Reason::UpstreamDnsFailed, None, T).settle().await;
    let lookup =
        Ask::Lookup { name: policy::Hostname::parse("api.example.com").expect("a name"), qtype: QType::A };
    let Decision::Allow(permit) = bench.gate.check(bench.ask(Inbound::Dns, lookup)) else { panic!("denied") };
    let vetted = bench.gate.vet(permit, Resolved::default(), T).expect("no address is no reason");
    bench.gate.answered(vetted, 0, T).settle().await.expect("recorded");
    let stranger =
        bench.gate.attempt(T, &Peer::new("unix:/x".into(), None), Inbound::Connect, Ask::unreadable(b"\xff"));
    bench.gate.refuse(stranger, Reason::BadRequest).settle().await;
    for notice in [
        Notice::Sandbox {
            sandbox: bench.gate.policy().sandboxes.values().next().expect("one"),
            change: SandboxChange::Exit { status: Some(137) },
            by: None,
        },
        Notice::Sandbox {
            sandbox: bench.gate.policy().sandboxes.values().next().expect("one"),
            change: SandboxChange::EndTunnel { id: "0-1-2" },
            by: Some(&By::Uid(1000)),
        },
        Notice::Reload {
            generation: bench.gate.generation(),
            error: Some("t.toml:1:1: unknown key"),
            by: Some(&By::Certificate("ops.example".into())),
        },
        Notice::Reload { generation: bench.gate.generation(), error: None, by: None },
        Notice::Enforcement {
            sandbox: bench.gate.policy().sandboxes.keys().next(),
            check: "links",
            holds: false,
            reason: Some(Reason::LinkAppeared),
            detail: "eth0",
        },
        Notice::Enforcement { sandbox: None, check: "route", holds: true, reason: None, detail: "only lo" },
    ] {
        bench.audit.note(notice).await.expect("recorded");
    }
    for _ in 0..2000 {
        bench.denied("other.example:443").await;
    }
    let lines = bench.lines();
    let schema = schema();
    lines.iter().for_each(|line| assert_fits(schema, line));
    let mut kinds: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ["close", "decision", "enforcement", "reload", "repeated", "sandbox"]);
    assert!(!schema.is_valid(&serde_json::json!({"v": 1, "ts": "now", "event": "decision"})));
}

#[tokio::test]
async fn a_line_says_what_the_gate_decided() {
    let bench = Bench::new();
    let live = bench.open("api.example.com:443").await.expect("recorded");
    let id = live.permit().attempt().id.to_string();
    let lines = read(&bench.path);
    assert_eq!(
        lines,
        [serde_json::json!({
            "v": 1, "ts": "2027-01-15T08:00:00.000Z", "event": "decision", "id": id, "sandbox": "agent-7",
            "labels": {"tool": "code \"exec\"\u{202e}"}, "identified_by": "source", "inbound": "connect", "client": "10.88.0.7:40000",
            "host": "api.example.com", "port": 443, "decision": "allow", "reason": null,
            "rule": "base.allow[0]", "addr": "93.184.216.34", "policy_generation": 1, "count": 1,
        })],
        "and it is in the file before anybody could reply"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_connection_has_its_lines_whoever_writes_them() {
    let bench = Arc::new(Bench::new());
    let tasks = (0..400).map(|_| {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move {
            let live = bench.open("api.example.com:443").await.expect("recorded");
            drop(bench.gate.close(&live, Ending::default(), T));
            live.permit().attempt().id.to_string()
        })
    });
    let mut ids = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        ids.push(task.await.expect("no task panics"));
    }
    let lines = bench.lines();
    assert_eq!(lines.len(), 800);
    for id in ids {
        let of_it: Vec<_> =
            lines.iter().filter(|line| line["id"] == *id).map(|line| &line["event"]).collect();
        assert_eq!(of_it, ["decision", "close"], "{id}");
    }
    assert_eq!(bench.counter("tidegate_audit_written_total"), 800);
}

#[tokio::test]
async fn a_flood_of_one_denial_is_counted_exactly_and_stays_small() {
    let bench = Bench::new();
    for _ in 0..200_000 {
        assert_eq!(bench.denied("attacker.test:443").await.reason(), Reason::NotListed);
    }
    let lines = bench.lines();
    let sum: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
    assert_eq!(sum, 200_000);
    let size = fs::metadata(&bench.path).expect("the log").len();
    assert!(size < 2_000_000, "{size} bytes");
    let repeated = bench.counter("tidegate_audit_repeated_total");
    let in_lines =
        lines.iter().filter(|line| line["event"] == "repeated").filter_map(|line| line["count"].as_u64());
    assert_eq!(repeated, in_lines.sum::<u64>());
}

#[tokio::test]
async fn a_flood_of_different_hosts_is_counted_exactly_and_stays_small() {
    let bench = Bench::new();
    for host in 0..50_000 {
        bench.denied(&format!("h{host}.attacker.test:443")).await;
    }
    let lines = bench.lines();
    let sum: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
    assert_eq!(sum, 50_000);
    assert!(fs::metadata(&bench.path).expect("the log").len() < 2_000_000);
    assert!(lines.iter().any(|line| line["event"] == "repeated" && line["host"].is_null()));
}

#[tokio::test]
async fn what_was_let_through_is_never_counted_away() {
    let bench = Bench::new();
    for _ in 0..3000 {
        bench.denied("attacker.test:443").await;
    }
    for _ in 0..2000 {
        drop(bench.open("api.example.com:443").await.expect("recorded"));
    }
    let lines = bench.lines();
    assert_eq!(lines.iter().filter(|line| line["decision"] == "allow").count(), 2000);
}

#[tokio::test]
async fn a_required_audit_that_cannot_be_written_denies() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Bench::over(folder, "/dev/full".into(), true, None);
    let denial = bench.open("api.example.com:443").await.expect_err("nothing passes unrecorded");
    assert_eq!(denial.reason(), Reason::AuditUnavailable);
    assert_eq!(bench.denied("other.example:443").await.reason(), Reason::AuditUnavailable);
    // Known to be lost: nothing is resolved or dialled any more.
    assert_eq!(bench.denied("api.example.com:443").await.reason(), Reason::AuditUnavailable);
    assert_eq!(bench.counter("tidegate_audit_lost_total"), 3);
    assert_eq!(bench.counter("tidegate_audit_written_total"), 0);
}

#[tokio::test]
async fn an_audit_that_is_not_required_counts_what_it_loses() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Bench::over(folder, "/dev/full".into(), false, None);
    bench.open("api.example.com:443").await.expect("traffic goes on");
    assert_eq!(bench.denied("other.example:443").await.reason(), Reason::NotListed);
    assert_eq!(bench.counter("tidegate_audit_lost_total"), 2);
}

#[tokio::test]
async fn a_pipe_that_nobody_reads_costs_its_lines_and_recovers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .expect("a pipe");
    let reading = rustix::fs::open(
        &path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK,
        rustix::fs::Mode::empty(),
    );
    let mut reading = fs::File::from(reading.expect("the other end"));
    let bench = Bench::over(folder, path, true, None);
    // A pipe holds 64 KiB: some hundred lines.
    let mut refused = 0;
    for _ in 0..1000 {
        refused += u32::from(bench.open("api.example.com:443").await.is_err());
        if refused == 3 {
            break;
        }
    }
    assert_eq!(refused, 3, "a full pipe must deny");
    let mut text = Vec::new();
    let drain = |reading: &mut fs::File, text: &mut Vec<u8>| {
        let end = io::Read::read_to_end(reading, text).expect_err("the writer is still there");
        assert_eq!(end.kind(), io::ErrorKind::WouldBlock);
    };
    drain(&mut reading, &mut text);
    bench.open("api.example.com:443").await.expect_err("the line of this denial is the one that shows it");
    bench.open("api.example.com:443").await.expect("the pipe takes lines again");
    drain(&mut reading, &mut text);
    let text = String::from_utf8(text).expect("ASCII");
    for line in text.lines() {
        serde_json::from_str::<Value>(line).expect("no line is torn");
    }
    assert_eq!(text.lines().count() as u64, bench.counter("tidegate_audit_written_total"));
    assert_eq!(bench.counter("tidegate_audit_lost_total"), 3);
}

#[tokio::test]
async fn a_file_is_put_aside_before_it_passes_its_size() {
    let bench = Bench::with(true, Some(Rotation { size: 10_000, keep: 2 }));
    for _ in 0..200 {
        drop(bench.open("api.example.com:443").await.expect("recorded"));
    }
    bench.audit.finish();
    let mut names: Vec<String> = fs::read_dir(bench.folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    assert_eq!(names, ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]);
    let mut ids = Vec::new();
    for name in ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"] {
        let path = bench.folder.path().join(name);
        assert!(fs::metadata(&path).expect("the file").len() <= 10_000);
        ids.extend(read(&path).into_iter().map(|line| line["id"].to_string()));
    }
    assert!(ids.is_sorted() && ids.len() > 50, "the newest lines, in order, over all three");
}

/// Seen with `rm audit.jsonl`: what was required went on being "written", to a file that nobody could read.
#[tokio::test]
async fn a_log_that_was_removed_begins_anew_and_one_that_was_moved_does_not() {
    let bench = Bench::new();
    bench.denied("a.attacker.test:443").await;
    let moved = bench.folder.path().join("moved");
    fs::rename(&bench.path, &moved).expect("moved");
    bench.audit.look().expect("nothing to do");
    bench.denied("b.attacker.test:443").await;
    assert!(!bench.path.exists() && read(&moved).len() == 2);
    fs::remove_file(&moved).expect("removed");
    bench.audit.look().expect("opened anew");
    bench.denied("c.attacker.test:443").await;
    let hosts: Vec<_> = bench.lines().iter().map(|line| line["host"].clone()).collect();
    assert_eq!(hosts, ["c.attacker.test"]);
}

#[tokio::test]
async fn a_file_that_was_moved_away_is_left_on_reopen() {
    let bench = Bench::new();
    bench.denied("a.example:443").await;
    let moved = bench.folder.path().join("moved");
    fs::rename(&bench.path, &moved).expect("it is there");
    bench.denied("b.example:443").await;
    bench.audit.reopen().expect("the place is free");
    bench.denied("c.example:443").await;
    let hosts = |lines: Vec<Value>| lines.into_iter().map(|line| line["host"].clone()).collect::<Vec<_>>();
    assert_eq!(hosts(read(&moved)), ["a.example", "b.example"]);
    assert_eq!(hosts(read(&bench.path)), ["c.example"]);
}

#[tokio::test]
async fn counted_denials_come_within_a_second_or_so_without_another_event() {
    let bench = Bench::new();
    for _ in 0..1500 {
        bench.denied("attacker.test:443").await;
    }
    let waited = std::time::Instant::now();
    let sum = || read_sum(&bench.path);
    while sum() < 1500 {
        assert!(waited.elapsed() < Duration::from_secs(10), "{} of 1500", sum());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn read_sum(path: &Path) -> u64 {
    read(path).iter().filter_map(|line| line["count"].as_u64()).sum()
}

fn refused(path: &Path) -> String {
    let settings = Settings { place: Place::File(path.to_owned()), required: true, rotation: None };
    let error = Audit::open(&settings, &Registry::new()).expect_err("it must not be opened");
    format!("{error}: {}", std::error::Error::source(&error).expect("a cause"))
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, target) = (folder.path().join("link"), folder.path().join("target"));
    symlink(&target, &link).expect("a link");
    let said = refused(&link);
    assert!(said.starts_with("cannot open the audit log `/") && said.contains("symbolic link"), "{said}");
    assert!(!target.exists());
}

#[test]
fn a_new_file_is_readable_by_its_group_alone_and_a_wider_one_is_narrowed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (new, old) = (folder.path().join("new"), folder.path().join("old"));
    fs::write(&old, "").expect("a file");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o666)).expect("its owner may");
    for path in [new, old] {
        let settings = Settings { place: Place::File(path.clone()), required: true, rotation: None };
        drop(Audit::open(&settings, &Registry::new()).expect("it opens"));
        assert_eq!(fs::metadata(&path).expect("the file").mode() & 0o7777, 0o640, "{}", path.display());
    }
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..6000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_a_client_sends_is_one_line_of_printable_ascii(sent in any_bytes(), text in ".{0,5000}", http in any::<bool>()) {
        let bench = Bench::new();
        let ask = if http {
            Ask::Request {
                destination: Destination::from_authority(b"h.example:80").expect("a destination"),
                method: text.clone().into(),
                path: text.into(),
            }
        } else {
            Ask::unreadable(&sent)
        };
        drop(bench.gate.refuse(bench.ask(Inbound::Http, ask), Reason::BadRequest));
        drop(bench.audit.note(Notice::Reload { generation: bench.gate.generation(), error: Some(&String::from_utf8_lossy(&sent)), by: None }));
        bench.audit.finish();
        let log = fs::read(&bench.path).expect("the log");
        let (last, whole) = log.split_last().expect("something was written");
        prop_assert_eq!(*last, b'\n');
        let lines: Vec<&[u8]> = whole.split(|byte| *byte == b'\n').collect();
        prop_assert_eq!(lines.len(), 2);
        for line in lines {
            prop_assert!(line.len() < 4095, "{} bytes", line.len());
            prop_assert!(line.iter().all(|byte| matches!(byte, 0x20..=0x7e)));
            let value: Value = serde_json::from_slice(line).expect("valid JSON");
            assert_fits(schema(), &value);
        }
    }
}
