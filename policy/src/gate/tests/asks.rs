//! Rules that ask, and what an approval of one attempt opens. Policies are written as their authors write them.

use super::*;
use crate::approval::{Approval, Approver, Consent, MOST, PathPrefix, Term};
use crate::file::{Document, load};

fn config(text: &str) -> Arc<Policy> {
    let text =
        format!("{text}\n[sandbox.s1]\npolicies = [\"p\"]\nidentify = [{{ source = \"10.88.0.7\" }}]\n");
    let document = Document::new("t.toml", text.as_bytes()).expect("text");
    let loaded = load(&[document], NOW, &LocalAddresses::default());
    Arc::new(loaded.unwrap_or_else(|mistakes| panic!("{text}\n{mistakes:?}")))
}

fn policy(rules: &str) -> Arc<Policy> {
    config(&format!("[policy.p]\n{rules}"))
}

fn peer() -> Peer {
    Peer::new("127.0.0.1:3128".into(), "10.88.0.7:40000".parse().ok())
}

/// A gate whose client is sandbox s1.
struct Desk(Bench);

impl Desk {
    fn new(rules: &str) -> Self {
        Self(Bench::with(policy(rules)))
    }

    fn gate(&self) -> &Gate {
        &self.0.gate
    }

    fn attempt(&self, ask: Ask) -> Attempt {
        self.gate().attempt(NOW, &peer(), Inbound::Connect, ask)
    }

    fn check(&self, ask: Ask) -> Decision {
        self.gate().check(self.attempt(ask))
    }

    /// `allow`, `ask`, or the reason of a denial.
    fn answer(&self, ask: Ask) -> &'static str {
        word(&self.check(ask))
    }

    fn pending(&self, ask: Ask) -> Pending {
        match self.check(ask) {
            Decision::Ask(pending) => pending,
            other => panic!("{}", word(&other)),
        }
    }

    fn approve(&self, pending: &Pending, consent: Consent) -> Result<Arc<Approval>, NotApproved> {
        let attempt = pending.attempt();
        let asked = (attempt.ask.clone(), attempt.at);
        let approval = Approval::new(attempt.id, &pending.sandbox().id, asked, consent);
        self.gate().approve(approval.expect("it binds something"), NOW)
    }
}

fn word(decision: &Decision) -> &'static str {
    match decision {
        Decision::Allow(_) => "allow",
        Decision::Ask(_) => "ask",
        Decision::Deny(denial) => denial.value.reason().code(),
    }
}

fn given(term: Term) -> Consent {
    Consent { term, path: None, at: NOW, by: Approver::Uid(1000) }
}

#[test]
fn what_only_an_ask_rule_matches_waits() {
    let desk = Desk::new(
        r#"
        allow = ["api.example.com", "*.both.example.com"]
        ask   = ["api.example.com", "*.example.com", "a.both.example.com", "8.8.8.8:53", "git.example.org:22"]
        deny  = ["bad.example.com"]
        "#,
    );
    for (to, expected) in [
        ("api.example.com:443", "allow"),
        ("a.both.example.com:443", "allow"),
        ("www.example.com:443", "ask"),
        ("www.example.com:80", "port_not_allowed"),
        ("bad.example.com:443", "denied_by_rule"),
        ("example.com:443", "not_listed"),
        ("git.example.org:22", "ask"),
        ("8.8.8.8:53", "ask"),
        ("8.8.4.4:53", "address_literal_not_listed"),
        ("metadata.google.internal:443", "metadata_endpoint"),
        ("169.254.169.254:443", "metadata_endpoint"),
    ] {
        assert_eq!(desk.answer(stream(to)), expected, "{to}");
    }
    for (name, expected) in [
        ("www.example.com", "ask"),
        ("api.example.com", "allow"),
        ("bad.example.com", "denied_by_rule"),
        ("example.com", "not_listed"),
    ] {
        assert_eq!(desk.answer(lookup(name, QType::A)), expected, "{name}");
    }
    assert_eq!(desk.answer(lookup("www.example.com", QType::TXT)), "qtype_not_allowed");
    let Decision::Deny(above) = desk.check(lookup("example.org", QType::A)) else { panic!("allowed") };
    assert!(above.value.name_exists(), "a name that is asked for lies below it");
}

#[test]
fn a_lone_star_asks_for_ordinary_names_and_nothing_else() {
    let desk = Desk::new("ask = [\"*\"]\nallow = [\"printer.local\"]");
    for (to, expected) in [
        ("www.example.com:443", "ask"),
        ("www.example.com:8443", "port_not_allowed"),
        ("printer.local:443", "allow"),
        ("other.local:443", "special_use_name"),
        ("host.docker.internal:443", "special_use_name"),
        ("intranet:443", "special_use_name"),
        ("localhost:443", "special_use_name"),
        ("8.8.8.8:443", "address_literal_not_listed"),
        ("10.0.0.1:443", "address_literal_not_listed"),
    ] {
        assert_eq!(desk.answer(stream(to)), expected, "{to}");
    }
    assert_eq!(desk.answer(lookup("other.local", QType::A)), "special_use_name");
}

/// Ask beats learn mode, which turns into an allow only what nothing matches.
#[test]
fn learn_mode_asks_as_well() {
    let until = Timestamp::from_secs(NOW.millis() / 1000 + 60);
    let rules = vec![entry("a.example.com", Action::Ask, None)];
    let bench = Bench::with(compile(rules, None, Mode::Learn { until }));
    assert_eq!(bench.answer(stream("a.example.com:443")), "ask");
    assert_eq!(bench.answer(stream("b.example.com:443")), "allow");
}

#[test]
fn methods_and_paths_of_ask_rules_narrow_their_host() {
    let desk = Desk::new(
        r#"
        allow = ["*.example.com:80"]
        [[policy.p.rule]]
        action = "ask"
        host = "web.example.com"
        ports = [80]
        methods = ["POST"]
        paths = ["/items/**"]
        [[policy.p.rule]]
        host = "web.example.com"
        ports = [80]
        methods = ["GET"]
        "#,
    );
    let web = |method, path| desk.answer(request(method, "web.example.com:80", path));
    assert_eq!(web("GET", "/x"), "allow");
    assert_eq!(web("POST", "/items/7"), "ask");
    assert_eq!(web("POST", "/x"), "path_not_allowed");
    assert_eq!(web("PUT", "/items/7"), "method_not_allowed");
    assert_eq!(desk.answer(stream("web.example.com:80")), "allow", "each of its requests is judged");
    assert_eq!(desk.answer(request("PUT", "other.example.com:80", "/")), "allow");
    // A request on the port of TLS is refused at once: nobody is asked in vain.
    let tls = Desk::new("ask = [\"web.example.com\"]");
    assert_eq!(tls.answer(request("GET", "web.example.com:443", "/")), "tls_required");
}

#[test]
fn an_approval_opens_what_it_binds_and_no_more() {
    let desk = Desk::new("ask = [\"*.example.com:80,443\"]");
    let waiting = desk.pending(request("GET", "web.example.com:80", "/v1/items"));
    let approval = desk.approve(&waiting, given(Term::Session)).expect("it is asked for");
    let Decision::Allow(permit) = desk.gate().resume(waiting, NOW) else { panic!("denied") };
    assert_eq!(permit.approval(), Some(&approval));
    for (ask, expected) in [
        (request("GET", "web.example.com:80", "/v1/items/7"), "allow"),
        (request("GET", "web.example.com:80", "/v1"), "ask"),
        (request("POST", "web.example.com:80", "/v1/items"), "ask"),
        (stream("web.example.com:80"), "ask"),
        (stream("web.example.com:443"), "ask"),
        (stream("www.example.com:443"), "ask"),
        (lookup("web.example.com", QType::A), "allow"),
        (lookup("www.example.com", QType::A), "ask"),
    ] {
        assert_eq!(desk.answer(ask.clone()), expected, "{ask:?}");
    }
    desk.gate().revoke(approval.id, NOW);
    assert_eq!(desk.answer(request("GET", "web.example.com:80", "/v1/items")), "ask");
    assert_eq!(desk.answer(lookup("web.example.com", QType::A)), "ask");
}

#[test]
fn once_is_one_attempt_and_the_requests_in_its_tunnel() {
    let desk = Desk::new("ask = [\"web.example.com:80\"]");
    let (first, second) =
        (desk.pending(stream("web.example.com:80")), desk.pending(stream("web.example.com:80")));
    let id = first.attempt().id;
    desk.approve(&first, given(Term::Once)).expect("it is asked for");
    assert_eq!(desk.gate().awaits(first.attempt(), NOW), Awaits::Approved);
    assert_eq!(desk.gate().awaits(second.attempt(), NOW), Awaits::Still);
    assert_eq!(word(&desk.gate().resume(second, NOW)), "ask");
    let Decision::Allow(permit) = desk.gate().resume(first, NOW) else { panic!("denied") };
    let get = || desk.attempt(request("GET", "web.example.com:80", "/"));
    assert_eq!(word(&desk.gate().check(get().inside(id))), "allow");
    assert_eq!(word(&desk.gate().check(get())), "ask");
    assert_eq!(desk.answer(lookup("web.example.com", QType::A)), "ask", "another attempt");
    let socket = "203.0.113.9:80".parse().expect("a socket");
    desk.gate().install(policy_with_public("ask = [\"web.example.com:80\"]"));
    let addresses = [IpAddr::from([203, 0, 113, 9])];
    let vetted =
        desk.gate().vet(permit, Resolved { chain: &[], addresses: &addresses }, NOW).expect("public");
    let live = desk.gate().opened(vetted, socket, NOW).expect("opened").value;
    assert_eq!(desk.gate().still_allows(&live, NOW), Ok(Flow::Flows));
    drop(desk.gate().close(&live, Ending::default(), NOW));
    assert_eq!(word(&desk.gate().check(get().inside(id))), "ask", "its attempt has ended");
}

fn policy_with_public(rules: &str) -> Arc<Policy> {
    config(&format!("[addresses]\ntreat_as_public = [\"203.0.113.0/24\"]\n[policy.p]\n{rules}"))
}

#[test]
fn an_approval_opens_no_private_address() {
    let desk = Desk::new("ask = [\"web.example.com\"]");
    let waiting = desk.pending(stream("web.example.com:443"));
    desk.approve(&waiting, given(Term::Session)).expect("it is asked for");
    for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1"] {
        let Decision::Allow(permit) = desk.check(stream("web.example.com:443")) else { panic!("denied") };
        let addresses = [address.parse().expect("an address")];
        let vetted = desk.gate().vet(permit, Resolved { chain: &[], addresses: &addresses }, NOW);
        assert!(vetted.is_err(), "{address}");
    }
}

#[test]
fn the_policy_of_the_moment_has_the_last_word() {
    let desk = Desk::new("ask = [\"web.example.com\"]");
    for (now, expected, awaits) in [
        ("ask = [\"web.example.com\"]\ndeny = [\"web.example.com\"]", "denied_by_rule", Awaits::Changed),
        ("allow = [\"web.example.com\"]", "allow", Awaits::Changed),
        ("ask = [\"www.example.com\"]", "not_listed", Awaits::Changed),
        ("ask = [\"*.example.com\"]", "ask", Awaits::Still),
    ] {
        desk.gate().install(policy("ask = [\"web.example.com\"]"));
        let waiting = desk.pending(stream("web.example.com:443"));
        desk.gate().install(policy(now));
        assert_eq!(desk.gate().awaits(waiting.attempt(), NOW), awaits, "{now}");
        let approved = desk.approve(&waiting, given(Term::Session));
        assert_eq!(approved.is_ok(), awaits == Awaits::Still, "{now}: {approved:?}");
        let expected = if approved.is_ok() { "allow" } else { expected };
        assert_eq!(word(&desk.gate().resume(waiting, NOW)), expected, "{now}");
    }
}

#[test]
fn a_reload_keeps_what_is_still_asked_for_and_nothing_comes_back() {
    let desk = Desk::new("ask = [\"web.example.com\", \"www.example.com\"]");
    for to in ["web.example.com:443", "www.example.com:443"] {
        desk.approve(&desk.pending(stream(to)), given(Term::Session)).expect("it is asked for");
    }
    desk.gate().install(policy("ask = [\"*.example.com\"]\ndeny = [\"www.example.com\"]"));
    assert_eq!(desk.gate().approvals().iter().count(), 1);
    desk.gate().install(policy("ask = [\"web.example.com\", \"www.example.com\"]"));
    assert_eq!(desk.answer(stream("web.example.com:443")), "allow");
    assert_eq!(desk.answer(stream("www.example.com:443")), "ask", "it was denied meanwhile");
    desk.gate().install(Arc::new(Policy::default()));
    assert_eq!(desk.gate().approvals().iter().count(), 0, "its sandbox is gone");
}

#[test]
fn an_approval_ends_at_its_time_and_does_not_revive() {
    let desk = Desk::new("ask = [\"web.example.com\"]");
    let end = NOW.plus_nanos(1_000_000_000);
    desk.approve(&desk.pending(stream("web.example.com:443")), given(Term::Until(end))).expect("asked for");
    assert_eq!(desk.gate().next_expiry(NOW), Some(end));
    assert_eq!(desk.answer(stream("web.example.com:443")), "allow");
    assert_eq!(desk.gate().next_expiry(end), None);
    assert_eq!(desk.answer(stream("web.example.com:443")), "ask", "although its clock stepped back");
    desk.approve(&desk.pending(stream("web.example.com:443")), given(Term::Session)).expect("asked for");
    assert_eq!(desk.gate().approvals().iter().count(), 1, "what has ended is forgotten");
}

#[test]
fn an_approval_of_one_attempt_goes_with_it_however_it_ends() {
    let desk = Desk::new("ask = [\"web.example.com\"]");
    let approved = || {
        let waiting = desk.pending(stream("web.example.com:443"));
        desk.approve(&waiting, given(Term::Once)).expect("asked for");
        waiting
    };
    let holding = || desk.gate().approvals().iter().filter(|approval| approval.holds_at(NOW)).count();
    let permit = |waiting| match desk.gate().resume(waiting, NOW) {
        Decision::Allow(permit) => permit,
        other => panic!("{}", word(&other)),
    };
    drop(desk.gate().refuse_pending(approved(), Reason::ApprovalPending, NOW));
    assert_eq!(holding(), 0, "its client had left");
    drop(desk.gate().failed(permit(approved()), Reason::UpstreamTimeout, None, NOW));
    assert_eq!(holding(), 0, "it failed upstream");
    drop(desk.gate().refuse_permit(permit(approved()), Reason::TlsRequired, NOW));
    assert_eq!(holding(), 0, "it was refused for what came then");
    drop(desk.gate().refuse_permit_over(permit(approved()), Reason::LimitUpload, std::time::Duration::ZERO));
    assert_eq!(holding(), 0, "a limit stood in the way");
}

#[test]
fn a_sandbox_has_so_many_approvals_and_no_more() {
    let desk = Desk::new("ask = [\"*\"]");
    let approve = |number: usize| {
        let waiting = desk.pending(stream(&format!("n{number}.example.com:443")));
        desk.approve(&waiting, given(Term::Session)).map(|_| ())
    };
    for number in 0..MOST {
        assert_eq!(approve(number), Ok(()));
    }
    assert_eq!(approve(MOST), Err(NotApproved::TooMany));
}

#[test]
fn a_wider_path_stands_by_what_was_asked_for() {
    let desk = Desk::new(
        "[[policy.p.rule]]\naction = \"ask\"\nhost = \"web.example.com\"\nports = [80]\npaths = [\"/v1/**\"]",
    );
    let waiting = desk.pending(request("GET", "web.example.com:80", "/v1/a"));
    let consent = Consent { path: Some(PathPrefix::of("/")), ..given(Term::Session) };
    desk.approve(&waiting, consent).expect("asked for");
    assert_eq!(desk.answer(request("GET", "web.example.com:80", "/v1/b")), "allow");
    assert_eq!(desk.answer(request("GET", "web.example.com:80", "/v2")), "path_not_allowed");
    desk.gate().install(Arc::clone(&desk.gate().policy()));
    assert_eq!(desk.answer(request("GET", "web.example.com:80", "/v1/b")), "allow");
}

#[test]
fn an_attempt_that_waits_is_recorded_once_when_it_is_decided() {
    let desk = Desk::new("ask = [\"web.example.com\"]");
    let waiting = desk.pending(stream("web.example.com:443"));
    assert!(desk.0.seen().is_empty());
    drop(desk.gate().refuse_pending(waiting, Reason::ApprovalTimeout, NOW));
    assert_eq!(desk.0.seen(), ["deny approval_timeout None"]);
    let waiting = desk.pending(lookup("web.example.com", QType::A));
    drop(desk.gate().refuse_pending(waiting, Reason::ApprovalPending, NOW));
    assert_eq!(desk.0.seen(), ["deny approval_pending Some(3)"]);
    let waiting = desk.pending(lookup("web.example.com", QType::A));
    drop(desk.gate().answered_pending(waiting, 0, NOW));
    assert_eq!(desk.0.seen(), ["ask approval_pending Some(0)"]);
    desk.0.seen.1.store(true, Ordering::Relaxed);
    assert_eq!(desk.answer(stream("web.example.com:443")), "audit_unavailable");
}
