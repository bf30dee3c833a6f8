//! What a permit, a denial and the events say: whole values, line by line.

use super::*;
use crate::decision::VettedAddrs;
use crate::receipt::AuditLost;
use crate::rule::Ech;

fn permit(rules: Vec<Rule>, ask: Ask) -> Permit {
    Bench::new(rules).permit(ask)
}

fn with(text: &str, terms: Terms) -> Rule {
    entry(text, Action::Allow, Some(terms))
}

fn get_only() -> Terms {
    Terms { methods: Some(vec!["GET".into()]), ..Terms::default() }
}

fn v1_only() -> Terms {
    Terms { paths: Some(vec![PathPattern::parse("/v1/**").expect("a pattern")]), ..Terms::default() }
}

#[test]
fn a_permit_says_what_was_allowed_and_by_which_rule() {
    let ech = Terms { ech: Ech::Deny, ..Terms::default() };
    let by_ech = permit(vec![with("a.example.com", ech)], stream("a.example.com:443"));
    let by_method =
        permit(vec![with("a.example.com:80", get_only())], request("GET", "a.example.com:80", "/"));
    let by_path =
        permit(vec![with("a.example.com:80", v1_only())], request("PUT", "a.example.com:80", "/v1/"));
    let name = permit(vec![allow("a.example.com")], lookup("a.example.com", QType::A));
    let literal = permit(vec![allow("8.8.8.8:443")], stream("8.8.8.8:443"));
    let told = |permit: &Permit| {
        let flags = (permit.refuses_ech(), permit.limits_methods(), permit.limits_paths());
        let to = permit.destination().map(ToString::to_string);
        let rule = permit.rule().map(ToString::to_string);
        (flags, to, rule, permit.known_addresses(), permit.generation().to_string())
    };
    let rule = || Some("base.allow[0]".to_owned());
    let web = || Some("a.example.com:80".to_owned());
    let generation = || "1".to_owned();
    let tls = Some("a.example.com:443".to_owned());
    assert_eq!(told(&by_ech), ((true, false, false), tls, rule(), None, generation()));
    assert_eq!(told(&by_method), ((false, true, false), web(), rule(), None, generation()));
    assert_eq!(told(&by_path), ((false, false, true), web(), rule(), None, generation()));
    assert_eq!(told(&name), ((false, false, false), None, rule(), None, generation()));
    let known = Some(vec!["8.8.8.8".parse().expect("an address")]);
    let to = Some("8.8.8.8:443".to_owned());
    assert_eq!(told(&literal), ((false, false, false), to, rule(), known, generation()));
    assert_eq!(name.host(), Some(Host::Name(Hostname::parse("a.example.com").expect("a name"))));
    assert_eq!(name.sandbox().id.as_str(), "s1");
    assert_eq!(name.attempt().inbound, Inbound::Connect);
}

#[test]
fn a_step_that_is_cancelled_is_on_record_and_one_that_ends_is_not() {
    let bench = Bench::new(vec![allow("a.example.com")]);
    let permit = bench.permit(stream("a.example.com:443"));
    bench.gate.under_way(&permit, Reason::UpstreamDnsFailed).over();
    assert_eq!(bench.seen(), [""; 0]);
    drop(bench.gate.under_way(&permit, Reason::UpstreamConnectFailed));
    let seen = bench.seen();
    let [line] = seen.as_slice() else { panic!("{seen:?}") };
    assert!(line.contains("allow") && line.contains("upstream_connect_failed"), "{line}");
}

#[test]
fn pinned_addresses_are_known_only_where_all_are_single() {
    let known = |addresses: &[&str], host_port: Option<&str>| {
        let nets = addresses.iter().map(|text| text.parse().expect("net")).collect();
        let host_port = host_port.map(|text| text.parse().expect("a socket"));
        let terms = Terms {
            internal: Some(Internal { addresses: nets, host_port, shared: false }),
            ..Terms::default()
        };
        let permit = permit(vec![with("db.corp.example:5432", terms)], stream("db.corp.example:5432"));
        let text = |all: Vec<IpAddr>| all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        permit.known_addresses().map(text)
    };
    assert_eq!(known(&["10.0.3.7/32", "fd00:1::7/128"], None).as_deref(), Some("10.0.3.7 fd00:1::7"));
    assert_eq!(known(&["10.0.3.7/32", "10.0.4.0/31"], None), None);
    assert_eq!(known(&[], Some("127.0.0.1:11434")).as_deref(), Some("127.0.0.1"));
}

#[test]
fn vetted_addresses_make_the_sockets_to_dial() {
    let bench = Bench::new(vec![allow("api.example.com:8443")]);
    let addresses: Vec<IpAddr> =
        ["8.8.8.8", "10.0.0.1", "2a00::1"].iter().map(|text| text.parse().expect("an address")).collect();
    let vet = |ask: Ask| -> VettedAddrs {
        let resolved = Resolved { chain: &[], addresses: &addresses };
        bench.gate.vet(bench.permit(ask), resolved, NOW).expect("vetted")
    };
    let vetted = vet(stream("api.example.com:8443"));
    let sockets: Vec<_> = vetted.sockets().map(|socket| socket.to_string()).collect();
    assert_eq!((sockets.join(" ").as_str(), vetted.dropped()), ("8.8.8.8:8443 [2a00::1]:8443", 1));
    let shown = vet(lookup("api.example.com", QType::A));
    assert_eq!((shown.addresses().len(), shown.sockets().count()), (2, 0));
    let dropped = |addresses: &[&str]| {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        let resolved = Resolved { chain: &[], addresses: &addresses };
        let permit = bench.permit(stream("api.example.com:8443"));
        bench.gate.vet(permit, resolved, NOW).expect("vetted").dropped()
    };
    assert_eq!([dropped(&["8.8.8.8"]), dropped(&["8.8.8.8", "10.0.0.1", "10.0.0.2"])], [0, 2]);
    let hint = |text: &str| bench.gate.judge_hint(&shown, text.parse().expect("an address"));
    assert_eq!(hint("8.8.4.4"), Ok(()));
    assert_eq!(hint("10.0.0.1"), Err(Reason::AddressNotPublic));
    let target = |text: &str| bench.gate.allows_target(&shown, &Hostname::parse(text).expect("a name"));
    assert!(target("api.example.com") && !target("other.example.com"));
    let port = |number: u16| bench.gate.allows_port(&shown, Port::new(number).expect("a port"));
    assert!(port(8443) && !port(443));
}

#[test]
fn only_a_rule_that_names_the_host_itself_is_exact() {
    let exact = |rules: Vec<Rule>| permit(rules, stream("a.example.com:443")).is_exact();
    assert!(exact(vec![allow("a.example.com")]));
    assert!(!exact(vec![allow("*.example.com")]));
}

#[test]
fn a_rule_opens_the_types_that_it_names() {
    let terms = Terms { qtypes: Some(vec![QType::TXT]), ..Terms::default() };
    let bench = Bench::new(vec![with("a.example.com:443", terms)]);
    let answer = |qtype| bench.answer(lookup("a.example.com", qtype));
    assert_eq!([QType::TXT, QType::ANY, QType::A].map(answer), ["allow", "allow", "qtype_not_allowed"]);
}

#[test]
fn a_rule_that_has_ended_opens_nothing_under_the_same_generation() {
    let until = NOW.plus_nanos(1_000_000_000);
    let bench = Bench::new(vec![with("a.example.com:443", Terms { until: Some(until), ..Terms::default() })]);
    let addresses = ["8.8.8.8".parse().expect("an address")];
    let resolved = Resolved { chain: &[], addresses: &addresses };
    let vet = |permit: Permit, now| bench.gate.vet(permit, resolved, now);
    let (held, late) = (bench.permit(stream("a.example.com:443")), bench.permit(stream("a.example.com:443")));
    let looked_up = vet(bench.permit(lookup("a.example.com", QType::A)), NOW).expect("it holds");
    assert!(vet(held, NOW).is_ok());
    let (target, port) = (Hostname::parse("a.example.com").expect("a name"), Port::HTTPS);
    assert!(bench.gate.allows_target(&looked_up, &target) && bench.gate.allows_port(&looked_up, port));
    assert_eq!(vet(late, until).expect_err("it has ended").value.reason(), Reason::NotListed);
    // What is asked without a time of its own is judged at the latest that was seen.
    assert!(!bench.gate.allows_target(&looked_up, &target) && !bench.gate.allows_port(&looked_up, port));
}

#[test]
fn a_host_that_a_tunnel_shows_is_judged() {
    let bench = Bench::new(vec![allow("a.example.com:80"), allow("8.8.8.8:80"), deny("bad.example.com")]);
    let judged = |ask: &str, host: &str| {
        let host = Host::parse(host).expect("a host");
        bench.gate.judge_shown(&bench.permit(stream(ask)), Shown::Host(&host))
    };
    assert_eq!(judged("a.example.com:80", "a.example.com"), Ok(()));
    assert_eq!(judged("a.example.com:80", "b.example.com"), Err(Reason::HostMismatch));
    assert_eq!(judged("8.8.8.8:80", "b.example.com"), Ok(()));
    assert_eq!(judged("8.8.8.8:80", "bad.example.com"), Err(Reason::DeniedByRule));
}

#[test]
fn what_is_on_record_need_not_be_waited_for() {
    let bench = Bench::new(Vec::new());
    let Decision::Deny(denial) = bench.check(stream("b.example.com:443")) else { panic!("allowed") };
    assert!(denial.is_settled());
    let waiting = Unsettled::new((), Receipt::waiting(async { Ok(()) }));
    assert!(!waiting.is_settled());
}

#[test]
fn a_denied_question_has_the_code_that_stalls_nobody() {
    let bench = Bench::new(vec![
        allow("a.b.example.com"),
        allow("*:9418"),
        deny("bad.example.com"),
        allow("up.bad.example.com"),
    ]);
    for (ask, expected) in [
        (lookup("a.b.example.com", QType::TXT), ("qtype_not_allowed", Some(0), true)),
        (lookup("b.example.com", QType::TXT), ("qtype_not_allowed", Some(0), true)),
        (lookup("x.test", QType::A), ("special_use_name", Some(3), false)),
        (lookup("bad.example.com", QType::A), ("denied_by_rule", Some(0), true)),
        (lookup("localhost", QType::A), ("special_use_name", Some(0), true)),
        (lookup("a.onion", QType::A), ("special_use_name", Some(3), false)),
        (lookup("metadata.google.internal", QType::A), ("metadata_endpoint", Some(3), false)),
        (lookup("_dns.resolver.arpa", QType::SVCB), ("special_use_name", Some(0), true)),
        (stream("x.test:443"), ("port_not_allowed", None, false)),
        (Ask::unreadable(b"a b"), ("bad_request", None, false)),
    ] {
        let Decision::Deny(denial) = bench.check(ask.clone()) else { panic!("{ask:?} is allowed") };
        let denial = denial.value;
        assert_eq!((denial.reason().code(), denial.rcode(), denial.name_exists()), expected, "{ask:?}");
    }
    // A stranger is refused at once, whatever it asks.
    let strict = Bench::with(Arc::new(Policy::default()));
    let Decision::Deny(denial) = strict.check(lookup("a.b.example.com", QType::A)) else { panic!("allowed") };
    assert_eq!((denial.value.reason(), denial.value.rcode()), (Reason::UnknownSandbox, Some(5)));
    assert!(denial.value.sandbox().is_none());
}

#[test]
fn messages_that_ask_nothing_are_refused_with_the_code_that_was_found() {
    let known = Bench::new(Vec::new());
    let strange = Bench::with(Arc::new(Policy::default()));
    let told = |bench: &Bench, ask: Ask| {
        let peer = Peer::new("127.0.0.1:53".into(), None);
        let attempt = bench.gate.attempt(NOW, &peer, Inbound::Dns, ask);
        let denial = bench.gate.refuse_message(attempt, 1).value;
        (denial.reason(), denial.rcode())
    };
    let name = || lookup("a.example.com", QType(252));
    assert_eq!(told(&known, name()), (Reason::QtypeNotAllowed, Some(1)));
    assert_eq!(told(&known, Ask::unreadable(b"x")), (Reason::BadRequest, Some(1)));
    assert_eq!(told(&strange, name()), (Reason::UnknownSandbox, Some(5)));
    assert_eq!(told(&strange, Ask::unreadable(b"x")), (Reason::UnknownSandbox, Some(5)));
    let limited = |ask: Ask| {
        let attempt = known.gate.attempt(NOW, &Peer::new("127.0.0.1:53".into(), None), Inbound::Dns, ask);
        let denial = known.gate.refuse(attempt, Reason::LimitRate).value;
        (denial.reason(), denial.rcode(), denial.sandbox().map(|sandbox| sandbox.id.to_string()))
    };
    assert_eq!(limited(name()), (Reason::LimitRate, Some(5), Some("s1".to_owned())));
    assert_eq!(limited(stream("a.example.com:443")), (Reason::LimitRate, None, Some("s1".to_owned())));
}

/// An audit that cannot write.
struct Lost;

impl Observer for Lost {
    fn record(&self, _: &Event<'_>) -> Receipt {
        Receipt::lost()
    }
}

fn now_or_never<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn nothing_is_let_through_that_could_not_be_recorded() {
    let policy = compile(vec![allow("api.example.com")], None, Mode::Enforce);
    let gate = Gate::new(policy, Arc::new(LocalAddresses::default()), Arc::new(Lost), 1);
    let check = |ask: Ask| {
        let peer = Peer::new("127.0.0.1:3128".into(), None);
        gate.check(gate.attempt(NOW, &peer, Inbound::Connect, ask))
    };
    let vetted = |ask: Ask| {
        let Decision::Allow(permit) = check(ask) else { panic!("denied") };
        let addresses = ["8.8.8.8".parse().expect("an address")];
        gate.vet(permit, Resolved { chain: &[], addresses: &addresses }, NOW).expect("vetted")
    };
    let Decision::Deny(denial) = check(stream("b.example.com:443")) else { panic!("allowed") };
    assert_eq!(now_or_never(denial.settle()).reason(), Reason::AuditUnavailable);
    let socket = "8.8.8.8:443".parse().expect("a socket");
    let opened = gate.opened(vetted(stream("api.example.com:443")), socket, NOW).expect("allowed");
    assert_eq!(now_or_never(opened.settle()).expect_err("unrecorded").reason(), Reason::AuditUnavailable);
    let answered = gate.answered(vetted(lookup("api.example.com", QType::A)), 0, NOW);
    let denial = now_or_never(answered.settle()).expect_err("unrecorded");
    assert_eq!((denial.reason(), denial.rcode()), (Reason::AuditUnavailable, Some(2)));
    // What failed has let nothing through.
    let failed = gate.unreachable(vetted(stream("api.example.com:443")), Reason::UpstreamTimeout, NOW);
    let failure = now_or_never(failed.settle());
    assert_eq!(failure.reason(), Reason::UpstreamTimeout);
    assert_eq!(failure.attempt().ask, stream("api.example.com:443"));
    assert_eq!(now_or_never(Receipt::waiting(async { Err(AuditLost) })), Err(AuditLost));
    assert_eq!(now_or_never(Receipt::waiting(async { Ok(()) })), Ok(()));
    let shown = [Receipt::written(), Receipt::lost(), Receipt::waiting(async { Ok(()) })]
        .map(|receipt| (format!("{receipt:?}"), receipt.is_written()));
    let expected = [("Receipt(written)", true), ("Receipt(lost)", false), ("Receipt(waiting)", false)];
    assert_eq!(shown, expected.map(|(text, written)| (text.to_owned(), written)));
}

/// Everything that an event says, on one line.
#[derive(Default)]
struct Verbose(Mutex<Vec<String>>);

impl Observer for Verbose {
    fn record(&self, event: &Event<'_>) -> Receipt {
        let line = match event {
            Event::Decision(told) => format!(
                "{} sandbox={} {} reason={} would_deny={} rule={} gen={} addr={} rcode={}",
                told.at.millis() - NOW.millis(),
                show(told.sandbox.map(|sandbox| &sandbox.id)),
                told.answer.as_str(),
                show(told.reason),
                show(told.would_deny),
                show(told.rule),
                told.generation,
                show(told.address),
                show(told.rcode),
            ),
            Event::Close(told) => format!(
                "{} sandbox={} close reason={} rule={} gen={} addr={} sni={} up={} down={} ns={}",
                told.at.millis() - NOW.millis(),
                show(told.sandbox.map(|sandbox| &sandbox.id)),
                show(told.reason),
                show(told.rule),
                told.generation,
                show(told.address),
                show(told.sni),
                told.bytes_up,
                told.bytes_down,
                told.duration,
            ),
        };
        self.0.lock().expect("no test panics with it").push(line);
        Receipt::written()
    }
}

fn show(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[test]
fn each_event_says_everything_that_is_known() {
    let until = NOW.plus_nanos(1_000_000_000);
    let policy =
        compile(vec![allow("api.example.com"), deny("bad.example.com")], None, Mode::Learn { until });
    let seen = Arc::new(Verbose::default());
    let observer: Arc<dyn Observer> = Arc::clone(&seen) as _;
    let gate = Gate::new(policy, Arc::new(LocalAddresses::default()), observer, 1);
    let at = |millis: u64| NOW.plus_nanos(millis * 1_000_000);
    let peer = Peer::new("127.0.0.1:3128".into(), None);
    let vetted = |ask: Ask, millis| {
        let attempt = gate.attempt(at(millis), &peer, Inbound::Connect, ask);
        let Decision::Allow(permit) = gate.check(attempt) else { panic!("denied") };
        let addresses = ["8.8.8.8".parse().expect("an address")];
        gate.vet(permit, Resolved { chain: &[], addresses: &addresses }, at(millis)).expect("vetted")
    };
    let socket = "8.8.8.8:443".parse().expect("a socket");
    let live = gate.opened(vetted(stream("api.example.com:443"), 1), socket, at(2)).expect("open").value;
    assert_eq!((live.address(), live.permit().attempt().at), (socket, at(1)));
    let sni = Hostname::parse("api.example.com").expect("a name");
    let ending = Ending { reason: Some(Reason::PolicyChanged), bytes_up: 3, bytes_down: 4, sni: Some(&sni) };
    drop(gate.close(&live, ending, at(12)));
    drop(gate.answered(vetted(lookup("new.example.com", QType::A), 13), 0, at(14)));
    drop(gate.failed(
        vetted(stream("api.example.com:443"), 15).permit,
        Reason::UpstreamDnsFailed,
        Some(2),
        at(16),
    ));
    drop(gate.check(gate.attempt(at(17), &peer, Inbound::Connect, stream("bad.example.com:443"))));
    let expected = [
        "2 sandbox=s1 allow reason=- would_deny=- rule=base.allow[0] gen=1 addr=8.8.8.8 rcode=-",
        "12 sandbox=s1 close reason=policy_changed rule=base.allow[0] gen=1 addr=8.8.8.8 sni=api.example.com up=3 down=4 ns=10000000",
        "14 sandbox=s1 allow reason=- would_deny=not_listed rule=- gen=1 addr=- rcode=0",
        "16 sandbox=s1 allow reason=upstream_dns_failed would_deny=- rule=base.allow[0] gen=1 addr=- rcode=2",
        "17 sandbox=s1 deny reason=denied_by_rule would_deny=- rule=base.deny[0] gen=1 addr=- rcode=-",
    ];
    assert_eq!(*seen.0.lock().expect("no test panics with it"), expected);
    // The end of learning is an end, and a permit of it ends with it.
    assert_eq!(gate.next_expiry(at(0)), Some(until));
    let learned = vetted(stream("new.example.com:443"), 20);
    let denied = gate.opened(learned, socket, until).map(|_| ()).expect_err("learning has ended").value;
    assert_eq!(denied.reason(), Reason::NotListed);
    assert_eq!(gate.next_expiry(until), None);
}

#[test]
fn generations_count_every_change() {
    let bench = Bench::new(Vec::new());
    assert_eq!(bench.gate.generation().get(), 1);
    assert_eq!(bench.gate.install(compile(vec![allow("a.test")], None, Mode::Enforce)).get(), 2);
    let local = Arc::new(LocalAddresses::new(["8.8.8.8/32".parse().expect("net")]));
    assert_eq!(bench.gate.set_local_addresses(Arc::clone(&local)).get(), 3);
    assert_eq!(bench.gate.generation().to_string(), "3");
    assert_eq!(bench.gate.local_addresses(), local);
    assert_eq!(bench.gate.policy().sandboxes.len(), 1);
    assert_eq!(format!("{:?}", bench.gate), "Gate { generation: Generation(3), .. }");
    // The new addresses are the floor at once.
    assert_eq!(bench.answer(stream("8.8.8.8:443")), "gateway_address");
    // Ids count on.
    let peer = Peer::new("x".into(), None);
    let ids: Vec<_> =
        (0..2).map(|_| bench.gate.attempt(NOW, &peer, Inbound::Http, stream("a.test:80")).id).collect();
    assert!(ids.is_sorted() && ids.first() != ids.last());
}
