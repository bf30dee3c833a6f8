//! The gate as its callers use it, and the properties that every policy has.

mod asks;
mod inside;
mod permits;
mod refusals;
mod reload;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::approval::Approved;
use crate::attempt::QType;
use crate::decide::View;
use crate::decision::FirstBytes;
use crate::destination::Destination;
use crate::identity::Evidence;
use crate::life::{Flow, Life};
use crate::path::PathPattern;
use crate::pattern::{Entry, PortSet};
use crate::policy::Mode;
use crate::rule::{Action, Internal, Rule, RuleName, Terms};
use crate::sandbox::SandboxId;
use crate::source::{InternalSource, Place, PolicySource, SandboxSource, Source};
use crate::special::AddressBook;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// What an observer was told, in short, and whether it has lost what it must keep.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>, AtomicBool);

impl Observer for Recorder {
    fn record(&self, event: &Event<'_>) -> Receipt {
        let line = match event {
            Event::Decision(told) => {
                let reason = told.reason.map_or("-", Reason::code);
                format!("{} {reason} {:?}", told.answer.as_str(), told.rcode)
            }
            Event::Close(told) => format!("close {} {}", told.bytes_up, told.bytes_down),
        };
        self.0.lock().expect("no test panics with it").push(line);
        Receipt::written()
    }

    fn keeps(&self) -> bool {
        !self.1.load(Ordering::Relaxed)
    }
}

fn entry(text: &str, action: Action, terms: Option<Terms>) -> Rule {
    let entry = Entry::parse(text).expect("an entry");
    let bare = match action {
        Action::Allow | Action::Ask => PortSet::parse("443").expect("a port"),
        Action::Deny => PortSet::any(),
    };
    Rule {
        host: entry.host,
        ports: entry.ports.unwrap_or(bare),
        action,
        name: RuleName::Listed(action, 0),
        line: 1,
        column: 1,
        terms: terms.map(Box::new),
    }
}

fn allow(text: &str) -> Rule {
    entry(text, Action::Allow, None)
}

fn deny(text: &str) -> Rule {
    entry(text, Action::Deny, None)
}

fn place() -> Place {
    Place { file: "t.toml".into(), line: 1, column: 1 }
}

fn compile(rules: Vec<Rule>, internal: Option<Rule>, mode: Mode) -> Arc<Policy> {
    Arc::new(Policy::compile(source(rules, internal, mode)).expect("no conflict"))
}

/// The rules, or none of them where they conflict.
fn compile_any(rules: Vec<Rule>, mode: Mode) -> Arc<Policy> {
    let compiled = Policy::compile(source(rules, None, mode));
    Arc::new(compiled.unwrap_or_else(|_| Policy::compile(source(Vec::new(), None, mode)).expect("no rule")))
}

fn source(rules: Vec<Rule>, internal: Option<Rule>, mode: Mode) -> Source {
    let sandbox = SandboxSource {
        id: SandboxId::parse("s1").expect("a name"),
        place: place(),
        policies: vec!["base".into()],
        internal: internal.iter().map(|_| "db".into()).collect(),
        identify: vec![Evidence::Default],
        sockets: Vec::new(),
        labels: std::collections::BTreeMap::new(),
        local_peers: Vec::new(),
        mode,
        hints: true,
        limits: crate::Limits::default(),
        owners: Vec::new(),
        life: Life::default(),
    };
    Source {
        registries: Vec::new(),
        policies: vec![PolicySource {
            name: "base".into(),
            place: place(),
            rules,
            lists: Vec::new(),
            registries: Vec::new(),
        }],
        internals: internal
            .into_iter()
            .map(|rule| InternalSource { name: "db".into(), place: place(), rule })
            .collect(),
        sandboxes: vec![sandbox],
        addresses: AddressBook::default(),
    }
}

/// A gate with a recorder, and the host address 198.51.100.1.
struct Bench {
    gate: Gate,
    seen: Arc<Recorder>,
}

impl Bench {
    fn new(rules: Vec<Rule>) -> Self {
        Self::with(compile(rules, None, Mode::Enforce))
    }

    fn with(policy: Arc<Policy>) -> Self {
        let seen = Arc::new(Recorder::default());
        let local = LocalAddresses::new(["198.51.100.1/32".parse().expect("net")]);
        let observer: Arc<dyn Observer> = Arc::clone(&seen) as _;
        Self { gate: Gate::new(policy, Arc::new(local), observer, 7), seen }
    }

    fn check(&self, ask: Ask) -> Decision {
        let peer = Peer::new("127.0.0.1:3128".into(), "127.0.0.1:40000".parse().ok());
        self.gate.check(self.gate.attempt(NOW, &peer, Inbound::Connect, ask))
    }

    fn permit(&self, ask: Ask) -> Permit {
        match self.check(ask) {
            Decision::Allow(permit) => permit,
            Decision::Ask(_) => panic!("a person is asked"),
            Decision::Deny(denial) => panic!("denied: {}", denial.value.reason()),
        }
    }

    /// The reason, or `allow`, or `ask`.
    fn answer(&self, ask: Ask) -> &'static str {
        match self.check(ask) {
            Decision::Allow(_) => "allow",
            Decision::Ask(_) => "ask",
            Decision::Deny(denial) => denial.value.reason().code(),
        }
    }

    fn vet(&self, ask: Ask, chain: &[&str], addresses: &[&str]) -> Result<Vec<String>, &'static str> {
        let chain: Vec<_> = chain.iter().map(|name| Hostname::parse(name).expect("a name")).collect();
        let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        let resolved = Resolved { chain: &chain, addresses: &addresses };
        match self.gate.vet(self.permit(ask), resolved, NOW) {
            Ok(vetted) => Ok(vetted.addresses().iter().map(IpAddr::to_string).collect()),
            Err(denial) => Err(denial.value.reason().code()),
        }
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.0.lock().expect("no test panics with it"))
    }
}

fn stream(to: &str) -> Ask {
    Ask::Stream(Destination::from_authority(to.as_bytes()).expect("a destination"))
}

fn lookup(name: &str, qtype: QType) -> Ask {
    Ask::Lookup { name: Hostname::parse(name).expect("a name"), qtype }
}

fn request(method: &str, to: &str, path: &str) -> Ask {
    let destination = Destination::from_authority(to.as_bytes()).expect("a destination");
    Ask::Request { destination, method: method.into(), path: path.into() }
}

#[test]
fn what_no_rule_allows_is_denied() {
    let bench = Bench::new(Vec::new());
    assert_eq!(bench.answer(stream("api.example.com:443")), "not_listed");
    assert_eq!(bench.answer(stream("192.0.2.9:443")), "address_literal_not_listed");
    assert_eq!(bench.seen(), ["deny not_listed None", "deny address_literal_not_listed None"]);
}

#[test]
fn nothing_is_permitted_while_a_required_audit_is_lost() {
    let bench = Bench::new(vec![allow("api.example.com")]);
    bench.seen.1.store(true, Ordering::Relaxed);
    assert_eq!(bench.answer(stream("api.example.com:443")), "audit_unavailable");
    assert_eq!(bench.answer(stream("other.example.com:443")), "not_listed");
    bench.seen.1.store(false, Ordering::Relaxed);
    assert_eq!(bench.answer(stream("api.example.com:443")), "allow");
}

#[test]
fn deny_beats_allow_however_specific() {
    let bench = Bench::new(vec![allow("secret.example.com"), deny("*.example.com")]);
    assert_eq!(bench.answer(stream("secret.example.com:443")), "denied_by_rule");
    assert_eq!(bench.answer(stream("example.com:443")), "not_listed");
}

#[test]
fn the_nearest_miss_names_the_reason() {
    let narrow = Terms {
        methods: Some(vec!["GET".into()]),
        paths: Some(vec![PathPattern::parse("/v1/**").expect("a pattern")]),
        ..Terms::default()
    };
    let rules = vec![allow("api.example.com"), entry("web.example.com:80", Action::Allow, Some(narrow))];
    let bench = Bench::new(rules);
    assert_eq!(bench.answer(stream("api.example.com:22")), "port_not_allowed");
    assert_eq!(bench.answer(request("GET", "web.example.com:80", "/v1/a")), "allow");
    assert_eq!(bench.answer(request("POST", "web.example.com:80", "/v1/a")), "method_not_allowed");
    assert_eq!(bench.answer(request("GET", "web.example.com:80", "/v2")), "path_not_allowed");
    assert_eq!(bench.answer(request("get", "web.example.com:80", "/v1/a")), "method_not_allowed");
}

#[test]
fn a_narrowed_host_is_not_opened_by_a_wider_plain_entry() {
    let narrow = Terms { methods: Some(vec!["GET".into()]), ..Terms::default() };
    let rules = vec![allow("*.example.com:80"), entry("web.example.com:80", Action::Allow, Some(narrow))];
    let bench = Bench::new(rules);
    assert_eq!(bench.answer(request("DELETE", "web.example.com:80", "/")), "method_not_allowed");
    assert_eq!(bench.answer(request("DELETE", "other.example.com:80", "/")), "allow");
    let permit = bench.permit(stream("web.example.com:80"));
    assert_eq!(permit.first_bytes(), FirstBytes::Http);
}

#[test]
fn the_end_of_a_narrowing_rule_opens_nothing() {
    let until = Some(Timestamp::from_secs(1_800_000_000));
    let narrow = Terms { methods: Some(vec!["GET".into()]), until, ..Terms::default() };
    let rules = vec![allow("*.example.com:80"), entry("web.example.com:80", Action::Allow, Some(narrow))];
    let bench = Bench::new(rules);
    assert_eq!(bench.answer(request("DELETE", "web.example.com:80", "/")), "not_listed");
    assert_eq!(bench.answer(request("DELETE", "other.example.com:80", "/")), "allow");
}

#[test]
fn the_floor_cannot_be_lifted() {
    let bench = Bench::new(vec![allow("*:*"), allow("198.51.100.1:80"), allow("127.0.0.1:80")]);
    assert_eq!(bench.answer(stream("metadata.google.internal:80")), "metadata_endpoint");
    assert_eq!(bench.answer(stream("169.254.169.254:80")), "metadata_endpoint");
    assert_eq!(bench.answer(stream("127.0.0.1:80")), "gateway_address");
    assert_eq!(bench.answer(stream("[::ffff:127.0.0.1]:80")), "gateway_address");
    assert_eq!(bench.answer(stream("198.51.100.1:80")), "gateway_address");
    assert_eq!(bench.answer(stream("localhost:80")), "special_use_name");
    assert_eq!(bench.answer(stream("printer.local:80")), "special_use_name");
}

#[test]
fn forbidden_addresses_are_dropped_and_the_strongest_reason_speaks() {
    let bench = Bench::new(vec![allow("api.example.com"), deny("8.8.4.0/24")]);
    let vet = |addresses: &[&str]| bench.vet(stream("api.example.com:443"), &[], addresses);
    assert_eq!(vet(&["10.0.0.1", "8.8.8.8"]), Ok(vec!["8.8.8.8".to_owned()]));
    assert_eq!(vet(&["10.0.0.1"]), Err("address_not_public"));
    assert_eq!(vet(&["10.0.0.1", "8.8.4.4"]), Err("denied_by_rule"));
    assert_eq!(vet(&["10.0.0.1", "224.0.0.1", "8.8.4.4"]), Err("address_forbidden"));
    assert_eq!(vet(&["198.51.100.1", "224.0.0.1"]), Err("gateway_address"));
    assert_eq!(vet(&["169.254.169.254", "127.0.0.1"]), Err("metadata_endpoint"));
    assert_eq!(vet(&["64:ff9b::a9fe:a9fe"]), Err("metadata_endpoint"));
    assert_eq!(vet(&["64:ff9b::808:404"]), Err("denied_by_rule"));
    assert_eq!(vet(&["::ffff:8.8.8.8"]), Ok(vec!["8.8.8.8".to_owned()]));
}

#[test]
fn aliases_meet_the_floor_and_written_deny_rules_only() {
    let bench = Bench::new(vec![allow("api.example.com"), deny("tracker.test")]);
    let vet = |chain: &[&str]| bench.vet(stream("api.example.com:443"), chain, &["8.8.8.8"]);
    assert!(vet(&["cdn.example.net"]).is_ok());
    assert_eq!(vet(&["tracker.test"]), Err("denied_by_rule"));
    assert_eq!(vet(&["metadata.google.internal"]), Err("metadata_endpoint"));
    // Asking for them would tell a resolver of them.
    assert_eq!(vet(&["cdn.example.net", "abcdef.onion"]), Err("special_use_name"));
    assert_eq!(vet(&["localhost"]), Err("special_use_name"));
    assert!(vet(&["db.internal"]).is_ok());
}

#[test]
fn an_internal_table_opens_its_addresses_for_its_name_alone() {
    let table =
        Internal { addresses: vec!["10.0.3.0/24".parse().expect("net")], host_port: None, shared: false };
    let terms = Terms { internal: Some(table), ..Terms::default() };
    let rule = entry("db.corp.example:5432", Action::Allow, Some(terms));
    let bench = Bench::with(compile(vec![allow("api.example.com")], Some(rule), Mode::Enforce));
    let db = || stream("db.corp.example:5432");
    assert_eq!(bench.vet(db(), &[], &["10.0.3.7"]), Ok(vec!["10.0.3.7".to_owned()]));
    assert_eq!(bench.vet(db(), &[], &["10.0.4.7"]), Err("address_not_public"));
    assert_eq!(bench.vet(db(), &[], &["8.8.8.8"]), Err("address_not_public"));
    assert_eq!(bench.vet(stream("api.example.com:443"), &[], &["10.0.3.7"]), Err("address_not_public"));
}

#[test]
fn a_host_port_opens_one_loopback_port_of_the_host() {
    let table = Internal { addresses: Vec::new(), host_port: "127.0.0.1:11434".parse().ok(), shared: false };
    let terms = Terms { internal: Some(table), ..Terms::default() };
    let rule = entry("llm.internal.example:80", Action::Allow, Some(terms));
    let bench = Bench::with(compile(Vec::new(), Some(rule), Mode::Enforce));
    let permit = bench.permit(stream("llm.internal.example:80"));
    let known = permit.known_addresses().expect("pinned");
    let resolved = Resolved { chain: &[], addresses: &known };
    let vetted = bench.gate.vet(permit, resolved, NOW).expect("opened");
    let sockets: Vec<_> = vetted.sockets().map(|socket| socket.to_string()).collect();
    assert_eq!(sockets, ["127.0.0.1:11434"]);
}

#[test]
fn deny_rules_beat_a_host_port() {
    let table = Internal { addresses: Vec::new(), host_port: "127.0.0.1:11434".parse().ok(), shared: false };
    let terms = Terms { internal: Some(table), ..Terms::default() };
    let ask = || stream("llm.corp.example:80");
    for (denied, expected) in [
        ("127.0.0.1", Err("denied_by_rule")),
        ("127.0.0.1:11434", Err("denied_by_rule")),
        ("127.0.0.1:80", Err("denied_by_rule")),
        ("127.0.0.1:11435", Ok(vec!["127.0.0.1".to_owned()])),
    ] {
        let rule = entry("llm.corp.example:80", Action::Allow, Some(terms.clone()));
        let bench = Bench::with(compile(vec![deny(denied)], Some(rule), Mode::Enforce));
        assert_eq!(bench.vet(ask(), &[], &["127.0.0.1"]), expected, "{denied}");
        assert_eq!(bench.vet(ask(), &[], &["127.0.0.2"]), Err("gateway_address"));
    }
}

#[test]
fn a_look_up_is_allowed_exactly_when_some_port_is() {
    let bench = Bench::new(vec![
        allow("api.example.com:443"),
        deny("api.example.com:22"),
        allow("shut.example.com:443"),
        deny("shut.example.com:400-500"),
    ]);
    assert_eq!(bench.answer(lookup("api.example.com", QType::A)), "allow");
    assert_eq!(bench.answer(lookup("shut.example.com", QType::A)), "denied_by_rule");
    assert_eq!(bench.answer(lookup("api.example.com", QType::TXT)), "qtype_not_allowed");
    assert_eq!(bench.answer(lookup("example.com", QType::A)), "not_listed");
    assert_eq!(bench.answer(lookup("example.net", QType::A)), "not_listed");
    let rcodes: Vec<_> =
        bench.seen().iter().filter_map(|line| line.split(' ').nth(2).map(str::to_owned)).collect();
    // denied for every port; exists without that type; an ancestor exists; a stranger does not
    assert_eq!(rcodes, ["Some(3)", "Some(0)", "Some(0)", "Some(3)"]);
}

#[test]
fn ports_that_are_not_open_open_no_look_up() {
    let until = Some(NOW);
    let narrow = Terms { methods: Some(vec!["GET".into()]), until, ..Terms::default() };
    let bench = Bench::new(vec![
        allow("*.example.com:80"),
        entry("ended.example.com:80", Action::Allow, Some(narrow)),
        deny("half.test:1-1000"),
        allow("cut.test:443,8443"),
        deny("cut.test:1-1000"),
        deny("cut.test:1001-65535"),
    ]);
    assert_eq!(bench.answer(lookup("other.example.com", QType::A)), "allow");
    assert_eq!(bench.answer(lookup("ended.example.com", QType::A)), "not_listed");
    assert_eq!(bench.answer(lookup("half.test", QType::A)), "not_listed");
    assert_eq!(bench.answer(lookup("cut.test", QType::A)), "denied_by_rule");
}

#[test]
fn a_look_up_shows_no_address_that_no_port_may_reach() {
    let bench = Bench::new(vec![
        allow("api.example.com:443,8443"),
        deny("8.8.8.8:443"),
        deny("8.8.4.4:443"),
        deny("8.8.4.4:8000-9000"),
        deny("half.test:443"),
        deny("other.test:8443"),
        deny("whole.test:443,8443"),
    ]);
    let vet =
        |chain: &[&str], addresses: &[&str]| bench.vet(lookup("api.example.com", QType::A), chain, addresses);
    assert_eq!(vet(&[], &["8.8.8.8", "8.8.4.4"]), Ok(vec!["8.8.8.8".to_owned()]));
    assert_eq!(vet(&[], &["8.8.4.4"]), Err("denied_by_rule"));
    assert_eq!(vet(&["half.test"], &["1.1.1.1"]), Ok(vec!["1.1.1.1".to_owned()]));
    assert_eq!(vet(&["whole.test"], &["1.1.1.1"]), Err("denied_by_rule"));
    // One port is closed on the way and the other at its end.
    assert_eq!(vet(&["other.test"], &["8.8.8.8"]), Err("denied_by_rule"));
    assert_eq!(vet(&["half.test", "other.test"], &["1.1.1.1"]), Err("denied_by_rule"));
    assert_eq!(vet(&["half.test"], &["8.8.8.8"]), Ok(vec!["8.8.8.8".to_owned()]));
}

#[test]
fn learning_looks_up_what_it_would_let_through() {
    let until = Timestamp::from_secs(1_800_000_100);
    let rules = vec![
        deny("ssh.example.com:22"),
        allow("cut.example.com:443"),
        deny("cut.example.com:443"),
        deny("bad.example.com"),
    ];
    let bench = Bench::with(compile(rules, None, Mode::Learn { until }));
    for name in ["ssh.example.com", "cut.example.com", "x.test"] {
        let by_port = bench.answer(stream(&format!("{name}:80")));
        assert_eq!(bench.answer(lookup(name, QType::A)), by_port, "{name}");
    }
    assert_eq!(bench.answer(lookup("new.example.com", QType::A)), "allow");
    assert_eq!(bench.answer(lookup("new.example.com", QType::ANY)), "allow");
    assert_eq!(bench.answer(lookup("new.example.com", QType::TXT)), "qtype_not_allowed");
    assert_eq!(bench.answer(lookup("bad.example.com", QType::A)), "denied_by_rule");
}

#[test]
fn a_broad_rule_opens_no_type_of_a_special_name() {
    let qtypes = Some(vec![QType::TXT]);
    let broad = entry("*:*", Action::Allow, Some(Terms { qtypes, ..Terms::default() }));
    let bench = Bench::new(vec![broad, allow("db.internal")]);
    assert_eq!(bench.answer(lookup("db.internal", QType::A)), "allow");
    assert_eq!(bench.answer(lookup("db.internal", QType::TXT)), "qtype_not_allowed");
    assert_eq!(bench.answer(lookup("other.internal", QType::TXT)), "special_use_name");
    assert_eq!(bench.answer(lookup("api.example.com", QType::TXT)), "allow");
}

#[test]
fn a_permit_is_judged_anew_after_a_reload() {
    let bench = Bench::new(vec![allow("api.example.com")]);
    let permit = bench.permit(stream("api.example.com:443"));
    bench.gate.install(compile(Vec::new(), None, Mode::Enforce));
    let addresses = ["8.8.8.8".parse().expect("an address")];
    let denied = bench.gate.vet(permit, Resolved { chain: &[], addresses: &addresses }, NOW);
    assert_eq!(denied.expect_err("denied").value.reason(), Reason::NotListed);
}

#[test]
fn a_live_stream_ends_with_its_rule_and_does_not_revive() {
    let until = Timestamp::from_secs(1_800_000_100);
    let terms = Terms { until: Some(until), ..Terms::default() };
    let bench = Bench::new(vec![entry("api.example.com", Action::Allow, Some(terms))]);
    let permit = bench.permit(stream("api.example.com:443"));
    let addresses = ["8.8.8.8".parse().expect("an address")];
    let vetted = bench.gate.vet(permit, Resolved { chain: &[], addresses: &addresses }, NOW).expect("vetted");
    let opened = bench.gate.opened(vetted, "8.8.8.8:443".parse().expect("socket"), NOW).expect("opened");
    let live = opened.value;
    assert_eq!(bench.gate.next_expiry(NOW), Some(until));
    assert_eq!(bench.gate.still_allows(&live, NOW), Ok(Flow::Flows));
    assert_eq!(bench.gate.still_allows(&live, until), Err(Reason::PolicyChanged));
    assert_eq!(bench.gate.still_allows(&live, NOW), Err(Reason::PolicyChanged), "the clock stepped back");
    drop(bench.gate.close(&live, Ending { bytes_up: 3, bytes_down: 4, ..Ending::default() }, until));
    assert_eq!(bench.seen(), ["allow - None", "close 3 4"]);
}

#[test]
fn learn_lets_through_what_no_rule_mentions_and_nothing_more() {
    let until = Timestamp::from_secs(1_800_000_100);
    let rules = vec![deny("bad.example.com")];
    let bench = Bench::with(compile(rules, None, Mode::Learn { until }));
    let permit = bench.permit(stream("new.example.com:443"));
    assert_eq!(permit.grant.would_deny, Some(Reason::NotListed));
    assert_eq!(bench.answer(stream("bad.example.com:443")), "denied_by_rule");
    assert_eq!(bench.answer(stream("10.0.0.1:443")), "address_literal_not_listed");
    assert_eq!(bench.answer(stream("x.local:443")), "special_use_name");
    assert_eq!(bench.vet(stream("new.example.com:443"), &[], &["10.0.0.1"]), Err("address_not_public"));
}

#[test]
fn a_tunnel_shows_the_name_that_was_allowed() {
    let bench = Bench::new(vec![allow("api.example.com"), allow("8.8.8.8:443"), deny("bad.example.com")]);
    let name = |text: &str| Hostname::parse(text).expect("a name");
    let by_name = bench.permit(stream("api.example.com:443"));
    let by_address = bench.permit(stream("8.8.8.8:443"));
    let sni = |permit: &Permit, text: &str| bench.gate.judge_shown(permit, Shown::Sni(&name(text)));
    assert_eq!(sni(&by_name, "api.example.com"), Ok(()));
    assert_eq!(sni(&by_name, "other.example.com"), Err(Reason::SniMismatch));
    assert_eq!(bench.gate.judge_shown(&by_name, Shown::NoSni), Err(Reason::SniMissing));
    assert_eq!(sni(&by_address, "other.example.com"), Ok(()));
    assert_eq!(sni(&by_address, "bad.example.com"), Err(Reason::DeniedByRule));
    assert_eq!(sni(&by_address, "metadata.google.internal"), Err(Reason::MetadataEndpoint));
    assert_eq!(bench.gate.judge_shown(&by_address, Shown::NoSni), Ok(()));
}

#[test]
fn tls_to_a_narrowed_host_is_cut_because_it_cannot_be_read() {
    let narrow = |methods, paths| Terms { methods, paths, ..Terms::default() };
    let any_path = || Some(vec![PathPattern::parse("/v1/**").expect("a pattern")]);
    let bench = Bench::new(vec![
        entry("m.example.com:8443", Action::Allow, Some(narrow(Some(vec!["GET".into()]), any_path()))),
        entry("p.example.com:8443", Action::Allow, Some(narrow(None, any_path()))),
    ]);
    for (host, reason) in
        [("m.example.com", Reason::MethodNotAllowed), ("p.example.com", Reason::PathNotAllowed)]
    {
        let permit = bench.permit(stream(&format!("{host}:8443")));
        let name = Hostname::parse(host).expect("a name");
        assert_eq!(bench.gate.judge_shown(&permit, Shown::Sni(&name)), Err(reason));
        assert_eq!(bench.gate.judge_shown(&permit, Shown::NoSni), Err(reason));
        assert_eq!(bench.gate.judge_shown(&permit, Shown::Host(&Host::Name(name))), Ok(()));
    }
}

#[test]
fn hints_say_what_to_add_where() {
    let internal = || {
        let table =
            Internal { addresses: vec!["10.0.3.7/32".parse().expect("net")], host_port: None, shared: false };
        let terms = Some(Terms { internal: Some(table), ..Terms::default() });
        Rule { name: RuleName::Internal, ..entry("db.corp.example:80", Action::Allow, terms) }
    };
    let rules = vec![allow("api.example.com"), allow("*:9418"), deny("bad.example.com")];
    let bench = Bench::with(compile(rules, Some(internal()), Mode::Enforce));
    let remedy = |ask: Ask| {
        let Decision::Deny(denial) = bench.check(ask) else { panic!("allowed") };
        denial.value.remedy().map(|remedy| [remedy.entry, remedy.policy, remedy.file].join(" "))
    };
    for (ask, expected) in [
        (stream("web.example.com:80"), Some("web.example.com:80 base t.toml")),
        (stream("api.example.com:22"), Some("api.example.com:22 base t.toml")),
        (stream("[2001:db8::1]:443"), Some("[2001:db8::1]:443 base t.toml")),
        (request("GET", "web.example.com:80", "/x"), Some("web.example.com:80 base t.toml")),
        (lookup("web.example", QType::A), Some("web.example base t.toml")),
        (stream("db.internal:9418"), Some("db.internal:9418 base t.toml")),
        (stream("localhost:9418"), None),
        (stream("bad.example.com:443"), None),
        (stream("169.254.169.254:80"), None),
        (stream("metadata.google.internal:80"), None),
        (lookup("api.example.com", QType::TXT), None),
        (Ask::unreadable(b"x"), None),
    ] {
        assert_eq!(remedy(ask.clone()).as_deref(), expected, "{ask:?}");
    }
    // A sandbox without a policy has no list to add to.
    let mut alone = source(Vec::new(), Some(internal()), Mode::Enforce);
    alone.policies.clear();
    let bench = Bench::with(Arc::new(Policy::compile(alone).expect("no conflict")));
    let Decision::Deny(denial) = bench.check(stream("web.example.com:80")) else { panic!("allowed") };
    assert_eq!(denial.value.remedy(), None);
}

#[test]
fn a_permit_says_what_its_first_bytes_must_be() {
    let raw = Terms { raw: true, ..Terms::default() };
    let no_ech = Terms { ech: crate::rule::Ech::Deny, ..Terms::default() };
    let get = Terms { methods: Some(vec!["GET".into()]), ..Terms::default() };
    let under =
        Terms { paths: Some(vec![PathPattern::parse("/v1/**").expect("a pattern")]), ..Terms::default() };
    let bench = Bench::new(vec![
        allow("api.example.com:80,443,8443"),
        allow("8.8.8.8:80,443"),
        entry("raw.example.com:80,443", Action::Allow, Some(raw)),
        entry("plain.example.com:443", Action::Allow, Some(no_ech)),
        entry("get.example.com:8080", Action::Allow, Some(get)),
        entry("under.example.com:8080", Action::Allow, Some(under)),
    ]);
    let told = |to: &str| {
        let permit = bench.permit(stream(to));
        let limits = (permit.refuses_ech(), permit.limits_methods(), permit.limits_paths());
        (permit.first_bytes(), limits)
    };
    let nothing = (false, false, false);
    assert_eq!(told("api.example.com:443"), (FirstBytes::Tls, nothing));
    assert_eq!(told("api.example.com:80"), (FirstBytes::Http, nothing));
    assert_eq!(told("api.example.com:8443"), (FirstBytes::Any, nothing));
    assert_eq!(told("8.8.8.8:443"), (FirstBytes::Any, nothing));
    assert_eq!(told("8.8.8.8:80"), (FirstBytes::Http, nothing));
    assert_eq!(told("raw.example.com:443"), (FirstBytes::Raw, nothing));
    assert_eq!(told("raw.example.com:80"), (FirstBytes::Raw, nothing));
    assert_eq!(told("plain.example.com:443"), (FirstBytes::Tls, (true, false, false)));
    assert_eq!(told("get.example.com:8080"), (FirstBytes::Http, (false, true, false)));
    assert_eq!(told("under.example.com:8080"), (FirstBytes::Http, (false, false, true)));
}

/// Seen in review: a plain request to port 443 passed where a tunnel would have been cut.
#[test]
fn a_plain_request_on_port_443_is_no_tls() {
    let raw = Terms { raw: true, ..Terms::default() };
    let bench = Bench::new(vec![
        allow("api.example.com:80,443"),
        allow("8.8.8.8:443"),
        entry("raw.example.com:443", Action::Allow, Some(raw)),
    ]);
    assert_eq!(bench.answer(request("GET", "api.example.com:443", "/")), "tls_required");
    assert_eq!(bench.answer(request("GET", "api.example.com:80", "/")), "allow");
    assert_eq!(bench.answer(request("GET", "raw.example.com:443", "/")), "allow");
    assert_eq!(bench.answer(request("GET", "8.8.8.8:443", "/")), "allow");
    assert_eq!(bench.answer(stream("api.example.com:443")), "allow");
}

#[test]
fn a_permit_tells_whose_it_is_and_under_what() {
    let bench = Bench::new(vec![allow("api.example.com"), allow("8.8.8.8:443")]);
    let permit = bench.permit(stream("api.example.com:443"));
    assert_eq!(permit.rule().map(ToString::to_string).as_deref(), Some("base.allow[0]"));
    assert_eq!(permit.destination().map(ToString::to_string).as_deref(), Some("api.example.com:443"));
    assert_eq!(permit.sandbox().id.as_str(), "s1");
    assert_eq!(permit.attempt().peer.address.map(|client| client.port()), Some(40000));
    assert_eq!((permit.generation().get(), permit.known_addresses()), (1, None));
    let literal = bench.permit(stream("8.8.8.8:443"));
    assert_eq!(literal.known_addresses(), Some(vec!["8.8.8.8".parse().expect("an address")]));
    let dns = bench.permit(lookup("api.example.com", QType::A));
    assert_eq!(
        (dns.destination(), dns.host().map(|host| host.to_string()).as_deref()),
        (None, Some("api.example.com"))
    );
}

#[test]
fn what_is_explained_is_what_is_served() {
    let bench = Bench::new(vec![allow("api.example.com"), allow("8.8.8.8:443"), deny("bad.example.com")]);
    let (policy, local) = (bench.gate.policy(), bench.gate.local_addresses());
    let view = View { policy: &policy, local: &local, now: NOW, approved: Approved::NONE };
    let sandbox = SandboxId::parse("s1").expect("a name");
    let told = view.explain(&sandbox, &stream("api.example.com:443"));
    let limits = format!("limits: of sandbox s1: {}", crate::limits::Limits::default());
    assert_eq!(told.steps.last(), Some(&limits));
    let known = |to: &str| view.explain(&sandbox, &stream(to)).known_addresses;
    assert_eq!(known("8.8.8.8:443"), Some(vec!["8.8.8.8".parse().expect("an address")]));
    assert_eq!(known("api.example.com:443"), None);
    for (to, first_step) in [
        ("api.example.com:443", "who: sandbox s1, known by showing nothing else"),
        ("bad.example.com:443", "who: sandbox s1, known by showing nothing else"),
        ("api.example.com:22", "who: sandbox s1, known by showing nothing else"),
        ("169.254.169.254:80", "who: sandbox s1, known by showing nothing else"),
    ] {
        let told = view.explain(&sandbox, &stream(to));
        assert_eq!(told.reason.map_or("allow", Reason::code), bench.answer(stream(to)), "{to}");
        assert_eq!(told.steps.first().map(String::as_str), Some(first_step));
        assert!(told.steps.len() > 1, "{to}: {:?}", told.steps);
    }
    let mut told = view.explain(&sandbox, &stream("api.example.com:443"));
    let addresses = ["10.0.0.1".parse().expect("an address")];
    let resolved = Resolved { chain: &[], addresses: &addresses };
    view.explain_resolved(&mut told, &sandbox, &stream("api.example.com:443"), resolved);
    assert_eq!(told.reason, Some(Reason::AddressNotPublic));
    let stranger = view.explain(&SandboxId::parse("other").expect("a name"), &stream("api.example.com:443"));
    assert_eq!(stranger.reason, Some(Reason::UnknownSandbox));
}

#[test]
fn a_denied_name_above_a_listed_one_exists() {
    let bench = Bench::new(vec![allow("a.metadata.google.internal.example"), allow("x.localhost.example")]);
    let exists = |name: &str| match bench.check(lookup(name, QType::A)) {
        Decision::Deny(denial) => (denial.value.name_exists(), denial.value.rcode()),
        Decision::Allow(_) | Decision::Ask(_) => panic!("{name} is not denied"),
    };
    assert_eq!(exists("metadata.google.internal.example"), (true, Some(0)));
    assert_eq!(exists("localhost.example"), (true, Some(0)));
    assert_eq!(exists("metadata.google.internal"), (false, Some(3)));
    assert_eq!(exists("other.example"), (false, Some(3)));
}

#[test]
fn public_words_are_what_the_docs_say() {
    let words: Vec<_> = Inbound::ALL.iter().map(|inbound| inbound.as_str()).collect();
    assert_eq!(words, ["connect", "http", "socks5", "tcp", "tls", "dns"]);
    assert_eq!(
        (QType::HTTPS.to_string(), QType(999).to_string()),
        ("HTTPS".to_owned(), "TYPE999".to_owned())
    );
    let words = [Answer::Allow, Answer::Deny, Answer::Ask].map(Answer::as_str);
    assert_eq!(words, ["allow", "deny", "ask"]);
}

/// Entries over a small alphabet, so that rules and attempts meet often.
fn any_entry() -> impl Strategy<Value = String> {
    let host = prop_oneof![
        "(a|b)\\.x\\.(test|net)",
        "\\*\\.x\\.(test|net)",
        "\\.x\\.(test|net)",
        "a\\.\\*\\.test\\.example",
        "8\\.8\\.8\\.(8|9)",
        Just("8.8.8.0/24".to_owned()),
    ];
    (host, prop_oneof![Just(""), Just(":80"), Just(":443"), Just(":*"), Just(":80,400-500")])
        .prop_map(|(host, ports)| format!("{host}{ports}"))
}

/// Nothing, an end that has come, methods, or methods whose rule has ended.
fn any_terms() -> impl Strategy<Value = Terms> {
    (any::<bool>(), any::<bool>()).prop_map(|(ended, narrows)| Terms {
        until: ended.then_some(NOW),
        methods: narrows.then(|| vec!["GET".into()]),
        ..Terms::default()
    })
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let to = prop_oneof!["(a|b|a\\.b)\\.x\\.(test|net)", "x\\.(test|net)", "8\\.8\\.8\\.(8|9)"];
    (to, prop_oneof![Just(80_u16), Just(443), Just(450)], any::<bool>()).prop_map(|(host, port, dns)| {
        match Hostname::parse(&host) {
            Ok(name) if dns => Ask::Lookup { name, qtype: QType::A },
            _ => stream(&format!("{host}:{port}")),
        }
    })
}

proptest! {
    #[test]
    fn adding_a_deny_rule_never_allows_more(
        allowed in prop::collection::vec(any_entry(), 0..4),
        denied in prop::collection::vec(any_entry(), 0..3),
        extra in any_entry(),
        place in 0_usize..4,
        ask in any_ask(),
    ) {
        let rules: Vec<_> =
            allowed.iter().map(|text| allow(text)).chain(denied.iter().map(|text| deny(text))).collect();
        let mut more = rules.clone();
        more.insert(place.min(more.len()), deny(&extra));
        let before = Bench::new(rules).answer(ask.clone());
        let after = Bench::new(more).answer(ask);
        prop_assert!(after != "allow" || before == "allow");
    }

    #[test]
    fn the_order_of_rules_changes_no_answer(
        allowed in prop::collection::vec(any_entry(), 0..4),
        denied in prop::collection::vec(any_entry(), 0..3),
        ask in any_ask(),
    ) {
        let mut rules: Vec<_> =
            allowed.iter().map(|text| allow(text)).chain(denied.iter().map(|text| deny(text))).collect();
        let before = Bench::new(rules.clone()).answer(ask.clone());
        rules.reverse();
        prop_assert_eq!(Bench::new(rules).answer(ask), before);
    }

    #[test]
    fn a_stream_outlives_a_reload_only_where_it_could_be_opened_again(
        before in prop::collection::vec(any_entry(), 1..4),
        after in prop::collection::vec((any_entry(), any_terms()), 0..4),
        denied in prop::collection::vec(any_entry(), 0..2),
        ask in any_ask(),
    ) {
        let rules = before.iter().map(|text| allow(text)).collect();
        let bench = Bench::new(rules);
        let Decision::Allow(permit) = bench.check(ask.clone()) else { return Ok(()) };
        let Some(port) = ask.port() else { return Ok(()) };
        let ip = ask.host().and_then(|host| host.address()).unwrap_or(IpAddr::from([8, 8, 8, 8]));
        let resolved = || Resolved { chain: &[], addresses: std::slice::from_ref(&ip) };
        let socket = SocketAddr::new(ip, port.get());
        let vetted = bench.gate.vet(permit, resolved(), NOW).expect("a public address");
        let live = bench.gate.opened(vetted, socket, NOW).expect("opened").value;
        let after = after.iter().map(|(text, terms)| entry(text, Action::Allow, Some(terms.clone())));
        let rules = after.chain(denied.iter().map(|text| deny(text))).collect();
        bench.gate.install(compile_any(rules, Mode::Enforce));
        let again = match bench.check(ask) {
            Decision::Allow(permit) => {
                let narrowed = permit.grant.narrowed;
                bench.gate.vet(permit, resolved(), NOW).is_ok() && !narrowed
            }
            Decision::Ask(_) | Decision::Deny(_) => false,
        };
        prop_assert_eq!(bench.gate.still_allows(&live, NOW).is_ok(), again);
    }

    #[test]
    fn a_look_up_agrees_with_the_ports_of_its_name(
        allowed in prop::collection::vec((any_entry(), any_terms()), 0..4),
        denied in prop::collection::vec((any_entry(), any::<bool>()), 0..3),
        alias_denied in prop::option::of(prop_oneof![Just("z.test"), Just("z.test:80"), Just("z.test:400-65535")]),
        learns in any::<bool>(),
        name in "(a|b)\\.x\\.(test|net)",
    ) {
        let ended = |ended: bool| Terms { until: ended.then_some(NOW), ..Terms::default() };
        let allowed = allowed.iter().map(|(text, terms)| entry(text, Action::Allow, Some(terms.clone())));
        let denied = denied.iter().map(|(text, over)| entry(text, Action::Deny, Some(ended(*over))));
        let rules: Vec<_> = allowed.chain(denied).chain(alias_denied.map(deny)).collect();
        let until = Timestamp::from_secs(1_800_000_100);
        let mode = if learns { Mode::Learn { until } } else { Mode::Enforce };
        let bench = Bench::with(compile_any(rules, mode));
        let alias = [Hostname::parse("z.test").expect("a name")];
        let address = ["8.8.8.8".parse().expect("an address")];
        let through = |ask: Ask, chain| match bench.check(ask) {
            Decision::Allow(permit) => {
                bench.gate.vet(permit, Resolved { chain, addresses: &address }, NOW).is_ok()
            }
            Decision::Ask(_) | Decision::Deny(_) => false,
        };
        // Both sides of every border that a rule has.
        let ports = [1_u16, 79, 80, 81, 399, 400, 443, 500, 501, u16::MAX];
        for chain in [&[][..], &alias] {
            let some_port = ports.iter().any(|port| through(stream(&format!("{name}:{port}")), chain));
            prop_assert_eq!(through(lookup(&name, QType::A), chain), some_port, "{:?}", chain);
        }
    }
}
