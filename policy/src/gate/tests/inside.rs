//! Clients in a namespace of their own: bound addresses, captured connections, and what closing ends.

use super::*;
use crate::approval::Approved;
use crate::namespace::Namespace;

/// A gate, a namespace of its sandbox, and a client there.
struct Inside {
    bench: Bench,
    namespace: Arc<Namespace>,
    peer: Peer,
}

impl Inside {
    fn new(rules: Vec<Rule>, mode: Mode) -> Self {
        let bench = Bench::with(compile(rules, None, mode));
        let namespace = bench.gate.namespace(SandboxId::parse("s1").expect("a name"));
        let peer = Peer::inside(Arc::clone(&namespace), "10.9.8.7:40000".parse().ok());
        Self { bench, namespace, peer }
    }

    fn attempt(&self, ask: Ask) -> Attempt {
        self.bench.gate.attempt(NOW, &self.peer, Inbound::Tcp, ask)
    }

    fn by_name(&self, to: &str) -> ByName {
        self.bench.gate.by_name(&self.attempt(stream(to)))
    }

    fn bound(&self, name: &str) -> crate::Bound {
        self.namespace.bind(&host(name), true).expect("room")
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.bench.seen.0.lock().expect("no test panics with it"))
    }
}

fn host(name: &str) -> Hostname {
    Hostname::parse(name).expect("a name")
}

fn stream(to: &str) -> Ask {
    Ask::Stream(Destination::from_authority(to.as_bytes()).expect("a destination"))
}

fn rules() -> Vec<Rule> {
    vec![
        allow("api.example.com"),
        allow("*.wild.example.com:22"),
        allow("203.0.113.7:5432"),
        deny("203.0.113.99"),
        deny("bad.wild.example.com"),
    ]
}

#[test]
fn a_bound_address_is_its_name_in_its_own_namespace_alone() {
    let inside = Inside::new(rules(), Mode::Enforce);
    let addresses = inside.bound("api.example.com");
    let request = |to: &str| {
        let destination = Destination::from_authority(to.as_bytes()).expect("a destination");
        Ask::Request { destination, method: "GET".into(), path: "/".into() }
    };
    for to in [format!("{}:443", addresses.v4), format!("[{}]:443", addresses.v6)] {
        assert_eq!(inside.attempt(stream(&to)).ask, stream("api.example.com:443"));
        assert_eq!(inside.attempt(request(&to)).ask, request("api.example.com:443"));
        let other = inside.bench.gate.namespace(SandboxId::parse("s2").expect("a name"));
        let outsiders = [Peer::inside(other, None), Peer::new("127.0.0.1:3128".into(), None)];
        for outsider in outsiders {
            let attempt = inside.bench.gate.attempt(NOW, &outsider, Inbound::Tcp, stream(&to));
            assert_eq!(attempt.ask, stream(&to));
        }
    }
    let lookup = Ask::Lookup { name: host("api.example.com"), qtype: QType::A };
    assert_eq!(inside.attempt(lookup.clone()).ask, lookup);
}

#[test]
fn two_namespaces_of_a_gate_begin_at_different_places() {
    let inside = Inside::new(rules(), Mode::Enforce);
    let before = inside.bound("api.example.com");
    let after = inside.bench.gate.namespace(SandboxId::parse("s1").expect("a name"));
    let again = after.bind(&host("api.example.com"), true).expect("room");
    assert!(before.v4 != again.v4 && before.v6 != again.v6, "{before:?} {again:?}");
}

#[test]
fn the_name_is_waited_for_where_it_could_change_something() {
    let until = Timestamp::from_secs(1_800_000_060);
    let inside = Inside::new(rules(), Mode::Enforce);
    for (to, by_name) in [
        // The address decides: a rule lists it, denies it, or the floor is in the way.
        ("203.0.113.7:5432", ByName::No),
        ("203.0.113.99:443", ByName::No),
        ("169.254.169.254:443", ByName::No),
        ("198.51.100.1:443", ByName::No),
        ("198.18.0.1:443", ByName::No),
        // It is a name.
        ("api.example.com:443", ByName::No),
        ("other.example.com:80", ByName::No),
        ("203.0.113.8:443", ByName::Yes),
        ("203.0.113.7:443", ByName::Yes),
        ("203.0.113.8:22", ByName::Yes),
        // No rule opens these ports to a name.
        ("203.0.113.8:5432", ByName::InVain),
        ("203.0.113.7:80", ByName::InVain),
    ] {
        assert_eq!(inside.by_name(to), by_name, "{to}");
    }
    assert_eq!(inside.by_name(&format!("{}:22", inside.bound("api.example.com").v4)), ByName::No);
    // Learn mode lists no address, and opens every port to names.
    let learning = Inside::new(rules(), Mode::Learn { until });
    for to in ["203.0.113.8:5432", "203.0.113.7:80"] {
        assert_eq!(learning.by_name(to), ByName::Yes, "{to}");
    }
    assert_eq!(learning.by_name("203.0.113.7:5432"), ByName::No);
    // Nothing is recorded by asking.
    assert!(inside.seen().is_empty() && learning.seen().is_empty());
}

#[test]
fn explain_follows_the_same_order() {
    let inside = Inside::new(rules(), Mode::Enforce);
    let (policy, local) = (inside.bench.gate.policy(), inside.bench.gate.local_addresses());
    let view = View { policy: &policy, local: &local, now: NOW, approved: Approved::NONE };
    for (to, reason, waits) in [
        ("203.0.113.7:5432", None, false),
        ("203.0.113.99:443", Some(Reason::DeniedByRule), false),
        ("203.0.113.8:443", Some(Reason::AddressLiteralNotListed), true),
        ("203.0.113.7:443", Some(Reason::PortNotAllowed), true),
        ("api.example.com:443", None, false),
    ] {
        let told = view.explain_captured(&SandboxId::parse("s1").expect("a name"), &stream(to));
        assert_eq!(told.reason, reason, "{to}");
        assert_eq!(told.steps.iter().any(|step| step.starts_with("captured: ")), waits, "{:?}", told.steps);
    }
}

#[test]
fn the_name_behind_an_address_is_told_exactly_when_it_may_be_looked_up() {
    let inside = Inside::new(rules(), Mode::Enforce);
    let reverse = Ask::Lookup { name: host("1.0.18.198.in-addr.arpa"), qtype: QType::PTR };
    let told = |name: &str| {
        let attempt = inside.attempt(reverse.clone());
        match inside.bench.gate.check_reverse(attempt, &host(name)) {
            Decision::Allow(permit) => {
                assert_eq!(permit.attempt().ask, reverse, "the question stays what it was");
                None
            }
            Decision::Ask(_) => Some(Reason::ApprovalPending),
            Decision::Deny(denial) => Some(denial.value.reason()),
        }
    };
    assert_eq!(told("api.example.com"), None);
    assert_eq!(told("a.wild.example.com"), None);
    assert_eq!(told("other.example.com"), Some(Reason::NotListed));
    assert_eq!(told("bad.wild.example.com"), Some(Reason::DeniedByRule));
    assert_eq!(inside.seen().len(), 2, "denials are recorded, permits when they are answered");
}

#[test]
fn what_is_allowed_and_cannot_be_is_refused_and_recorded() {
    let inside = Inside::new(rules(), Mode::Enforce);
    let permit = |ask| match inside.bench.gate.check(inside.attempt(ask)) {
        Decision::Allow(permit) => permit,
        Decision::Ask(_) => panic!("a person is asked"),
        Decision::Deny(denial) => panic!("denied: {}", denial.value.reason()),
    };
    let gate = &inside.bench.gate;
    let refused = gate.refuse_permit(permit(stream("api.example.com:443")), Reason::TlsRequired, NOW).value;
    assert_eq!((refused.reason(), refused.rcode()), (Reason::TlsRequired, None));
    let lookup = Ask::Lookup { name: host("a.wild.example.com"), qtype: QType::A };
    let refused = gate.refuse_binding(permit(lookup), NOW).value;
    // SERVFAIL: the name may exist, and can be asked for again.
    assert_eq!((refused.reason(), refused.rcode()), (Reason::LimitNames, Some(2)));
    assert_eq!(inside.seen(), ["deny tls_required None", "deny limit_names Some(2)"]);
}

#[test]
fn whoever_is_in_a_closed_namespace_is_nobody() {
    let inside = Inside::new(rules(), Mode::Enforce);
    let before = inside.attempt(stream("api.example.com:443"));
    assert_eq!(before.sandbox().map(SandboxId::as_str), Some("s1"));
    inside.namespace.close();
    assert!(inside.namespace.is_closed());
    assert!(inside.attempt(stream("api.example.com:443")).sandbox().is_none());
}

#[test]
fn names_without_a_rule_of_their_own_have_a_room_of_their_own() {
    let inside = Inside::new(rules(), Mode::Enforce);
    let unlisted = (0_u32..).map(|count| host(&format!("n{count}.wild.example.com")));
    let bound = unlisted.take_while(|name| inside.namespace.bind(name, false).is_some()).count();
    assert_eq!(bound, 32_768);
    assert!(inside.namespace.bind(&host("api.example.com"), true).is_some());
    assert_eq!(
        inside.namespace.name_of(IpAddr::V4(inside.bound("api.example.com").v4)),
        Some(host("api.example.com"))
    );
}
