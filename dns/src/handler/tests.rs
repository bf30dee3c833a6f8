use std::task::{Context, Poll, Waker};

use hickory_resolver::proto::op::{Message as Decoded, ResponseCode};
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use policy::special::AddressClass;
use proptest::prelude::*;

use super::*;
use crate::testing::{gate, metrics, resolver, response};
use crate::wire::write_query;

const POLICY: &str = r#"
[policy.case]
allow = ["cdn.example.com"]
deny  = ["tracker.example.net"]

[[policy.case.rule]]
host   = "api.example.com"
qtypes = ["A", "AAAA", "HTTPS", "SVCB", "CNAME", "MX", "SRV", "NAPTR", "TXT", "NS"]
"#;

const NAMES: [&str; 6] = [
    "api.example.com.",
    "cdn.example.com.",
    "a.example.net.",
    "tracker.example.net.",
    "metadata.google.internal.",
    ".",
];

const ADDRESSES: [&str; 8] = [
    "203.0.113.7",
    "10.0.0.1",
    "169.254.169.254",
    "127.0.0.1",
    "168.63.129.16",
    "10.200.0.1",
    "0.0.0.0",
    "100.64.0.1",
];

const ADDRESSES_V6: [&str; 8] = [
    "2001:db8:cafe::7",
    "::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::1",
    "fd00:ec2::254",
    "fe80::1",
    "::ffff:203.0.113.7",
];

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

/// A record that an upstream, or whoever speaks for it, might send.
fn any_record() -> impl Strategy<Value = String> {
    let v4 = || prop::sample::select(&ADDRESSES[..]);
    let v6 = || prop::sample::select(&ADDRESSES_V6[..]);
    let data = prop_oneof![
        v4().prop_map(|address| format!("A {address}")),
        v6().prop_map(|address| format!("AAAA {address}")),
        name().prop_map(|name| format!("CNAME {name}")),
        name().prop_map(|name| format!("MX 10 {name}")),
        (name(), 0_u16..2).prop_map(|(name, port)| format!("SRV 0 0 {} {name}", 443 + port)),
        Just("TXT text".to_owned()),
        (name(), v4(), v6(), 0_u16..2, any::<bool>()).prop_map(|(name, v4, v6, port, ech)| {
            let ech = if ech { " ech=AEX+DQBBpQAg" } else { "" };
            format!("HTTPS 1 {name} port={} ipv4hint={v4}{ech} ipv6hint={v6}", 443 + port)
        }),
    ];
    (name(), 0_u32..400, data).prop_map(|(owner, ttl, data)| format!("{owner} {ttl} {data}"))
}

/// A future that has no reason to wait.
fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// Whether the policy of the test calls an address public: none of the forbidden ones above, but changed bytes may
/// make one that is.
fn is_public(gate: &Gate, address: IpAddr) -> bool {
    gate.policy().addresses.classify(address, &gate.local_addresses()) == AddressClass::Public
}

fn is_allowed(target: &str) -> bool {
    matches!(target, "." | "api.example.com." | "cdn.example.com.")
}

fn check_record(gate: &Gate, record: &Record) {
    match &record.data {
        RData::A(a) => assert!(is_public(gate, a.0.into()), "{record}"),
        RData::AAAA(aaaa) => assert!(is_public(gate, aaaa.0.into()), "{record}"),
        RData::MX(mx) => assert!(is_allowed(&mx.exchange.to_string()), "{record}"),
        RData::SRV(srv) => assert!(is_allowed(&srv.target.to_string()), "{record}"),
        RData::HTTPS(https) => {
            assert!(is_allowed(&https.0.target_name.to_string()), "{record}");
            let text = record.data.to_string();
            assert!(!text.contains("ech=") && !text.contains("port=444"), "{record}");
            for hint in text.split([' ', ',', '=']).filter_map(|part| part.parse::<IpAddr>().ok()) {
                assert!(is_public(gate, hint), "{record}");
            }
        }
        RData::CNAME(cname) => {
            let target = cname.0.to_string();
            assert!(
                !["tracker.example.net.", "metadata.google.internal."].contains(&target.as_str()),
                "{record}"
            );
        }
        RData::TXT(_) => {}
        other => panic!("{other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever an upstream sends, a reply holds vetted addresses, allowed targets and owners on the chain only.
    #[test]
    fn a_dns_reply_carries_no_unfiltered_byte(
        records in prop::collection::vec(any_record(), 0..8),
        additional in any_record(),
        qtype in prop::sample::select(vec![1_u16, 28, 65, 5, 15, 33, 16]),
        changes in prop::collection::vec((12_usize..300, any::<u8>()), 0..3),
    ) {
        let qtype = QType(qtype);
        let asked = Hostname::parse("api.example.com").unwrap();
        let query = write_query(7, &asked, qtype);
        let texts: Vec<&str> = records.iter().map(String::as_str).collect();
        let mut sent = response(&Decoded::from_vec(&query).unwrap(), ResponseCode::NoError, &texts);
        sent.add_additional(crate::testing::record(&additional));
        let mut sent = sent.to_vec().unwrap();
        for (place, byte) in changes {
            if let Some(slot) = sent.get_mut(place) {
                *slot = byte;
            }
        }
        let Ok(answer) = Answer::read(&sent, &asked, qtype, Instant::now()) else { return Ok(()) };

        let (gate, recorder) = gate(POLICY);
        let nobody = "127.0.0.1:9".parse().unwrap();
        let handler = Handler::new(Arc::clone(&gate), resolver([nobody]), metrics(), Limits::default(), Arc::default());
        let peer = Peer::new("udp".into(), "127.0.0.1:5353".parse().ok());
        let ask = Ask::Lookup { name: asked.clone(), qtype };
        let Decision::Allow(permit) = gate.check(gate.attempt(clock::now(), &peer, Inbound::Dns, ask)) else {
            panic!("the policy allows it");
        };
        let outcome = handler.deliver(permit, Content::Answer(Arc::new(answer)), qtype);
        let settled = now_or_never(outcome.settle());
        let Message::Question(head, _, _) = Message::read(&query) else { panic!("a question") };
        let mut reply = Vec::new();
        handler.reply(Query { head, qtype: Some(qtype) }, &settled, Transport::Udp, &mut reply);
        let reply = Decoded::from_vec(&reply).expect("a well-formed reply");

        prop_assert_eq!(recorder.events().len(), 1);
        prop_assert!(reply.additionals.is_empty() && reply.authorities.len() <= 1);
        prop_assert!(!reply.metadata.authentic_data && !reply.metadata.authoritative);
        let mut on_chain = vec![reply.queries[0].name().clone()];
        for record in &reply.answers {
            prop_assert!(on_chain.contains(&record.name), "{}", record);
            prop_assert!((1..=300).contains(&record.ttl));
            prop_assert!(record.record_type() == RecordType::from(qtype.0) || record.record_type() == RecordType::CNAME);
            check_record(&gate, record);
            if let RData::CNAME(target) = &record.data {
                on_chain.push(target.0.clone());
            }
        }
        for record in &reply.authorities {
            prop_assert_eq!(record.record_type(), RecordType::SOA);
        }
    }
}

/// The answers to a look-up that needs no upstream.
fn told(handler: &Handler, name: &str, qtype: QType) -> Vec<IpAddr> {
    let peer = Peer::new("udp".into(), "127.0.0.1:5353".parse().ok());
    match handler.decide(&peer, Hostname::parse(name).unwrap(), qtype) {
        Ok(Outcome::Answered(vetted, _)) => {
            now_or_never(vetted.settle()).expect("on record").addresses().to_vec()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn pinned_addresses_are_told_without_asking_but_never_the_gateways_loopback() {
    let recorder = crate::testing::Recorder::with_receipts(policy::Receipt::written);
    let tables = r#"
[policy.case]
allow = []
[internal.pinned]
host = "pinned.corp.example"
addresses = ["10.0.3.7/32", "fd00::7/128"]
[internal.local]
host = "local.corp.example"
host_port = "127.0.0.1:11434"
"#;
    let identify = "{ default = true }]\ninternal = [\"pinned\", \"local\"";
    let gate = crate::testing::gate_with(tables, identify, &recorder);
    let handler = Handler::new(
        gate,
        resolver(["127.0.0.1:9".parse().unwrap()]),
        metrics(),
        Limits::default(),
        Arc::default(),
    );
    assert_eq!(told(&handler, "pinned.corp.example", QType::A), ["10.0.3.7".parse::<IpAddr>().unwrap()]);
    assert_eq!(told(&handler, "pinned.corp.example", QType::AAAA), ["fd00::7".parse::<IpAddr>().unwrap()]);
    assert_eq!(told(&handler, "pinned.corp.example", QType::HTTPS), [] as [IpAddr; 0]);
    assert_eq!(told(&handler, "local.corp.example", QType::A), [] as [IpAddr; 0]);
}

#[test]
fn a_sandbox_has_so_many_questions_under_way_and_no_more() {
    let (gate, recorder) = gate(POLICY);
    let limits = Limits { in_flight_per_sandbox: 1, ..Limits::default() };
    let handler =
        Handler::new(gate, resolver(["127.0.0.1:9".parse().unwrap()]), metrics(), limits, Arc::default());
    let peer = Peer::new("udp".into(), "127.0.0.1:5353".parse().ok());
    let ask = |qtype| handler.decide(&peer, Hostname::parse("api.example.com").unwrap(), qtype);
    let Err(first) = ask(QType::A) else { panic!("an upstream must be asked") };
    let Ok(outcome) = ask(QType::AAAA) else { panic!("the limit is reached") };
    let settled = now_or_never(outcome.settle());
    assert!(matches!(settled, Settled::Failed(LookupError::Overloaded)), "{settled:?}");
    assert_eq!(recorder.events(), ["allow upstream_dns_failed api.example.com AAAA 2"]);
    drop(first);
    assert!(ask(QType::AAAA).is_err(), "its place is free again");
}

#[test]
fn the_forbidden_addresses_of_these_tests_are_forbidden() {
    let (gate, _) = gate(POLICY);
    let all = ADDRESSES.iter().chain(&ADDRESSES_V6).map(|text| text.parse().unwrap());
    let public: Vec<IpAddr> = all.filter(|address| is_public(&gate, *address)).collect();
    let expected =
        ["203.0.113.7", "2001:db8:cafe::7", "::ffff:203.0.113.7"].map(|text| text.parse::<IpAddr>().unwrap());
    assert_eq!(public, expected);
}
