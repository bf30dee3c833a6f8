//! What becomes of permits and live streams when the policy changes. Policies are written as their authors write them.

use super::*;
use crate::file::{Document, load};

/// The client of every attempt here.
const CLIENT: &str = "10.88.0.7:40000";

/// A sandbox that is the client's, with these tables before it.
fn config(tables: &str) -> Arc<Policy> {
    config_of(&format!(
        "{tables}\n[sandbox.s1]\npolicies = [\"p\"]\nidentify = [{{ source = \"10.88.0.7\" }}]\n"
    ))
}

fn config_of(text: &str) -> Arc<Policy> {
    let document = Document::new("t.toml", text.as_bytes()).expect("text");
    let loaded = load(&[document], NOW, &LocalAddresses::default());
    Arc::new(loaded.unwrap_or_else(|mistakes| panic!("{text}\n{mistakes:?}")))
}

fn policy(rules: &str) -> Arc<Policy> {
    config(&format!("[policy.p]\n{rules}"))
}

fn internal(table: &str) -> Arc<Policy> {
    config_of(&format!(
        "[policy.p]\n[internal.i]\nhost = \"api.corp.example\"\n{table}\n\
         [sandbox.s1]\npolicies = [\"p\"]\ninternal = [\"i\"]\nidentify = [{{ source = \"10.88.0.7\" }}]\n"
    ))
}

fn peer() -> Peer {
    Peer::new("127.0.0.1:3128".into(), CLIENT.parse().ok())
}

fn permit(gate: &Gate, ask: Ask) -> Permit {
    match gate.check(gate.attempt(NOW, &peer(), Inbound::Connect, ask)) {
        Decision::Allow(permit) => permit,
        Decision::Ask(_) => panic!("a person is asked"),
        Decision::Deny(denial) => panic!("denied: {}", denial.value.reason()),
    }
}

fn vetted(gate: &Gate, ask: Ask, socket: SocketAddr) -> VettedAddrs {
    let addresses = [socket.ip()];
    let resolved = Resolved { chain: &[], addresses: &addresses };
    gate.vet(permit(gate, ask), resolved, NOW).expect("an open address")
}

/// What a stream that was opened under one policy hears after another one is in force.
fn after(before: Arc<Policy>, ask: Ask, socket: &str, now: Arc<Policy>) -> Result<(), Reason> {
    let bench = Bench::with(before);
    let socket = socket.parse().expect("a socket");
    let live = bench.gate.opened(vetted(&bench.gate, ask, socket), socket, NOW).expect("opened").value;
    assert_eq!(bench.gate.still_allows(&live, NOW), Ok(Flow::Flows), "before the reload");
    bench.gate.install(now);
    bench.gate.still_allows(&live, NOW).map(|_| ())
}

const CUT: Result<(), Reason> = Err(Reason::PolicyChanged);

/// A rule in its long form for `api.example.com`.
fn rule(rest: &str) -> Arc<Policy> {
    policy(&format!("[[policy.p.rule]]\nhost = \"api.example.com\"\n{rest}\n"))
}

fn plain() -> Arc<Policy> {
    policy("allow = [\"api.example.com\"]")
}

fn api() -> Ask {
    stream("api.example.com:443")
}

#[test]
fn a_reload_that_still_allows_a_stream_leaves_it_alone() {
    let public = "8.8.8.8:443";
    for now in [
        plain(),
        policy("allow = [\"*.example.com\"]"),
        rule("ports = [443, 8443]"),
        rule("raw = true"),
        rule("ech = \"permit\""),
        rule("qtypes = [\"A\"]"),
        policy("allow = [\"api.example.com\"]\ndeny = [\"api.example.com:80\", \"8.8.8.8:80\", \"8.8.4.4\"]"),
        config("[addresses]\ntreat_as_private = [\"9.0.0.0/8\"]\n[policy.p]\nallow = [\"api.example.com\"]"),
    ] {
        assert_eq!(after(plain(), api(), public, now), Ok(()));
    }
    assert_eq!(after(rule("ech = \"deny\""), api(), public, rule("ech = \"deny\"")), Ok(()));
    assert_eq!(after(rule("ech = \"deny\""), api(), public, plain()), Ok(()));
    assert_eq!(after(rule("raw = true"), api(), public, rule("raw = true\nports = [443, 22]")), Ok(()));
}

#[test]
fn a_reload_cuts_what_it_no_longer_allows_whatever_forbids_it() {
    let public = "8.8.8.8:443";
    for (what, now) in [
        ("nothing is left", Arc::new(Policy::default())),
        ("the rule is gone", policy("allow = []")),
        ("the port is gone", policy("allow = [\"api.example.com:8443\"]")),
        ("a name is denied", policy("allow = [\"api.example.com\"]\ndeny = [\"*.example.com\"]")),
        ("an address is denied", policy("allow = [\"api.example.com\"]\ndeny = [\"8.8.8.0/24\"]")),
        (
            "an address is denied on the port",
            policy("allow = [\"api.example.com\"]\ndeny = [\"8.8.8.8:443\"]"),
        ),
        ("the rule has ended", rule("until = 2027-01-01T00:00:00Z")),
        ("ECH is refused", rule("ech = \"deny\"")),
        (
            "the address is private now",
            config(
                "[addresses]\ntreat_as_private = [\"8.0.0.0/8\"]\n[policy.p]\nallow = [\"api.example.com\"]",
            ),
        ),
        (
            "the address is the gateway's own",
            config("[addresses]\nown = [\"8.8.8.8\"]\n[policy.p]\nallow = [\"api.example.com\"]"),
        ),
        (
            "the name is internal now",
            config_of(
                "[internal.i]\nhost = \"api.example.com\"\naddresses = [\"10.0.3.0/24\"]\n\
                 [sandbox.s1]\ninternal = [\"i\"]\nidentify = [{ source = \"10.88.0.7\" }]",
            ),
        ),
        (
            "the sandbox is gone",
            config_of(
                "[policy.p]\nallow = [\"api.example.com\"]\n[sandbox.s2]\npolicies = [\"p\"]\nidentify = [{ default = true }]",
            ),
        ),
        (
            "the client is another sandbox",
            config_of(
                "[policy.p]\nallow = [\"api.example.com\"]\n[sandbox.s1]\npolicies = [\"p\"]\n\
                 [sandbox.s2]\npolicies = [\"p\"]\nidentify = [{ source = \"10.88.0.0/24\" }]",
            ),
        ),
        (
            "the listener is another sandbox's",
            config_of(
                "[policy.p]\nallow = [\"api.example.com\"]\n\
                 [sandbox.s1]\npolicies = [\"p\"]\nidentify = [{ source = \"10.88.0.7\" }]\n\
                 [sandbox.s2]\npolicies = [\"p\"]\nidentify = [{ listener = \"127.0.0.1:3128\" }]",
            ),
        ),
        (
            "nobody knows the client",
            config_of(
                "[policy.p]\nallow = [\"api.example.com\"]\n[sandbox.s1]\npolicies = [\"p\"]\nidentify = [{ source = \"10.88.0.8\" }]",
            ),
        ),
    ] {
        assert_eq!(after(plain(), api(), public, now), CUT, "{what}");
    }
    // What passed unread cannot be read now.
    assert_eq!(after(rule("raw = true"), api(), public, plain()), CUT);
    assert_eq!(
        after(
            rule("raw = true\nports = [22]"),
            stream("api.example.com:22"),
            "8.8.8.8:22",
            rule("ports = [22]")
        ),
        CUT
    );
    let narrowed = || rule("ports = [80]\nmethods = [\"GET\"]");
    let on_80 = || policy("allow = [\"api.example.com:80\"]");
    assert_eq!(after(on_80(), stream("api.example.com:80"), "8.8.8.8:80", narrowed()), CUT);
    assert_eq!(after(narrowed(), stream("api.example.com:80"), "8.8.8.8:80", on_80()), Ok(()));
    // Each request was judged by itself.
    let get = || request("GET", "api.example.com:80", "/");
    assert_eq!(after(on_80(), get(), "8.8.8.8:80", narrowed()), Ok(()));
    assert_eq!(after(on_80(), request("POST", "api.example.com:80", "/"), "8.8.8.8:80", narrowed()), CUT);
}

#[test]
fn literals_are_cut_by_what_forbids_the_literal() {
    let listed = || policy("allow = [\"8.8.8.8:443\", \"10.20.0.0/24:443\"]");
    let public = || stream("8.8.8.8:443");
    let private = || stream("10.20.0.5:443");
    assert_eq!(after(listed(), public(), "8.8.8.8:443", listed()), Ok(()));
    assert_eq!(after(listed(), private(), "10.20.0.5:443", listed()), Ok(()));
    for now in [
        policy("allow = [\"10.20.0.5:80\", \"8.8.8.8:80\"]"),
        policy("allow = [\"8.8.8.8:443\", \"10.20.0.0/24:443\"]\ndeny = [\"10.0.0.0/8\", \"8.8.0.0/16\"]"),
        config("[addresses]\nown = [\"8.8.8.8\", \"10.20.0.5\"]\n[policy.p]\nallow = [\"10.20.0.0/24\"]"),
    ] {
        assert_eq!(after(listed(), public(), "8.8.8.8:443", Arc::clone(&now)), CUT);
        assert_eq!(after(listed(), private(), "10.20.0.5:443", now), CUT);
    }
}

#[test]
fn internal_streams_are_held_to_what_the_table_opens_now() {
    let range = || internal("ports = [443]\naddresses = [\"10.0.3.0/24\"]");
    let ask = || stream("api.corp.example:443");
    let to = |now| after(range(), ask(), "10.0.3.7:443", now);
    assert_eq!(to(range()), Ok(()));
    assert_eq!(to(internal("ports = [443]\naddresses = [\"10.0.3.7\"]")), Ok(()));
    assert_eq!(to(internal("ports = [443]\naddresses = [\"10.0.3.8/29\"]")), CUT);
    assert_eq!(to(internal("ports = [443]\nhost_port = \"127.0.0.1:443\"")), CUT);
    assert_eq!(to(policy("allow = [\"api.corp.example\"]")), CUT);

    let host_port = |port: u16| internal(&format!("ports = [443]\nhost_port = \"127.0.0.1:{port}\""));
    let to = |now| after(host_port(11434), ask(), "127.0.0.1:11434", now);
    assert_eq!(to(host_port(11434)), Ok(()));
    assert_eq!(to(host_port(11435)), CUT);
    assert_eq!(to(range()), CUT);
    assert_eq!(to(policy("allow = [\"api.corp.example\"]")), CUT);
}

#[test]
fn what_led_to_a_stream_and_what_it_showed_are_judged_again() {
    let name = |text: &str| Hostname::parse(text).expect("a name");
    let chain = [name("cdn.example.net")];
    let socket: SocketAddr = "8.8.8.8:443".parse().expect("a socket");
    let open = |bench: &Bench, ask: Ask, chain: &[Hostname]| {
        let resolved = Resolved { chain, addresses: &[socket.ip()] };
        let vetted = bench.gate.vet(permit(&bench.gate, ask), resolved, NOW).expect("vetted");
        bench.gate.opened(vetted, socket, NOW).expect("opened").value
    };
    let listed = |deny: &str| policy(&format!("allow = [\"api.example.com\", \"8.8.8.8\"]\ndeny = [{deny}]"));
    let bench = Bench::with(listed(""));
    let aliased = open(&bench, api(), &chain);
    let literal = open(&bench, stream("8.8.8.8:443"), &[]);
    let sni = |text: &str| bench.gate.judge_shown(literal.permit(), Shown::Sni(&name(text)));
    assert_eq!((sni("a.example.net"), sni("a.example.net")), (Ok(()), Ok(())));
    assert_eq!(sni("b.example.net"), Err(Reason::SniMismatch), "a second hello");
    let resolved = Resolved { chain: &chain, addresses: &[socket.ip()] };
    let dialled = bench.gate.vet(permit(&bench.gate, api()), resolved, NOW).expect("vetted");
    for (denied, of_aliased, of_literal) in [
        ("\"other.example.net\"", Ok(()), Ok(())),
        ("\"cdn.example.net\"", CUT, Ok(())),
        ("\"a.example.net:443\"", Ok(()), CUT),
        ("\"a.example.net:80\"", Ok(()), Ok(())),
        ("\"*.example.net\"", CUT, CUT),
    ] {
        bench.gate.install(listed(denied));
        assert_eq!(bench.gate.still_allows(&aliased, NOW).map(|_| ()), of_aliased, "{denied}");
        assert_eq!(bench.gate.still_allows(&literal, NOW).map(|_| ()), of_literal, "{denied}");
    }
    let denied = bench.gate.opened(dialled, socket, NOW).map(|_| ()).expect_err("an alias is denied").value;
    assert_eq!(denied.reason(), Reason::DeniedByRule);
}

#[test]
fn a_permit_follows_its_client_to_no_other_sandbox() {
    let bench = Bench::with(plain());
    let gate = &bench.gate;
    let socket: SocketAddr = "8.8.8.8:443".parse().expect("a socket");
    let moved = || {
        config_of(
            "[policy.p]\nallow = [\"api.example.com\"]\n[sandbox.s1]\npolicies = [\"p\"]\n\
             [sandbox.s2]\npolicies = [\"p\"]\nidentify = [{ source = \"10.88.0.7\" }]",
        )
    };
    let (undialled, dialled) = (permit(gate, api()), vetted(gate, api(), socket));
    let asked = gate.attempt(NOW, &peer(), Inbound::Connect, api());
    gate.install(moved());
    let resolved = Resolved { chain: &[], addresses: &[socket.ip()] };
    let denied = gate.vet(undialled, resolved, NOW).expect_err("another sandbox's").value;
    assert_eq!(denied.reason(), Reason::PolicyChanged);
    assert_eq!(denied.sandbox().map(|sandbox| sandbox.id.as_str()), Some("s1"));
    let denied = gate.opened(dialled, socket, NOW).map(|_| ()).expect_err("another sandbox's").value;
    assert_eq!(denied.reason(), Reason::PolicyChanged);
    // What has not been decided yet is the new sandbox's.
    let Decision::Allow(permit) = gate.check(asked) else { panic!("denied") };
    assert_eq!(permit.sandbox().id.as_str(), "s2");
}

#[test]
fn a_permit_is_renewed_with_the_terms_of_the_new_policy() {
    let bench = Bench::with(plain());
    let permit = permit(&bench.gate, api());
    bench.gate.install(rule("raw = true\nech = \"deny\""));
    let resolved = Resolved { chain: &[], addresses: &["8.8.8.8".parse().expect("an address")] };
    let vetted = bench.gate.vet(permit, resolved, NOW).expect("allowed");
    assert_eq!(vetted.permit().generation().get(), 2);
    assert_eq!(vetted.permit().first_bytes(), FirstBytes::Raw);
    assert!(vetted.permit().refuses_ech());
}

#[test]
fn only_a_vetted_socket_is_opened() {
    let bench = Bench::with(policy("allow = [\"api.example.com\", \"8.8.8.8:443\"]"));
    let gate = &bench.gate;
    for (ask, found, socket) in [
        (api(), "8.8.8.8", "8.8.8.8:80"),
        (api(), "8.8.8.8", "10.0.0.1:443"),
        (stream("8.8.8.8:443"), "8.8.8.8", "8.8.4.4:443"),
        (stream("8.8.8.8:443"), "8.8.8.8", "8.8.8.8:22"),
    ] {
        let resolved = Resolved { chain: &[], addresses: &[found.parse().expect("an address")] };
        let vetted = gate.vet(permit(gate, ask), resolved, NOW).expect("vetted");
        assert!(gate.opened(vetted, socket.parse().expect("a socket"), NOW).is_err(), "{socket}");
    }
    // A literal is no way to another address.
    let resolved = Resolved { chain: &[], addresses: &["10.0.0.1".parse().expect("an address")] };
    assert!(gate.vet(permit(gate, stream("8.8.8.8:443")), resolved, NOW).is_err());
}
