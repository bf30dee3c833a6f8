use std::net::SocketAddr;

use hickory_resolver::proto::rr::RecordType;
use policy::{Ask, Decision, Destination, Inbound, Peer, Receipt};

use super::*;
use crate::testing::{Asked, Recorder, gate, gate_with, resolver, upstream, zone};
use crate::{Limits, Upstream, clock, testing};

const POLICY: &str = r#"
[policy.case]
allow = ["api.example.com", "*.wild.example.com", "203.0.113.80:443"]
deny  = ["tracker.attacker.test"]
"#;

const RECORDS: &[&str] = &[
    "api.example.com. 60 A 203.0.113.1",
    "api.example.com. 60 A 203.0.113.2",
    "api.example.com. 60 A 203.0.113.3",
    "api.example.com. 60 AAAA 2001:db8:cafe::1",
    "one.wild.example.com. 60 A 203.0.113.4",
    "cloak.wild.example.com. 60 CNAME tracker.attacker.test.",
    "tracker.attacker.test. 60 A 203.0.113.66",
    "alias.wild.example.com. 60 CNAME cdn.test.",
    "cdn.test. 60 A 203.0.113.5",
];

/// A permit for a stream to port 443 of a host, from a client with this address.
fn permit(gate: &Gate, host: &str, client: &str) -> Permit {
    let peer = Peer::new("proxy".into(), Some(SocketAddr::new(client.parse().unwrap(), 9)));
    let destination = Destination::from_authority(format!("{host}:443").as_bytes()).unwrap();
    match gate.check(gate.attempt(clock::now(), &peer, Inbound::Connect, Ask::Stream(destination))) {
        Decision::Allow(permit) => permit,
        other => panic!("{other:?}"),
    }
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

async fn scene() -> (Arc<Gate>, Resolver, Asked) {
    let (address, asked) = upstream(zone(RECORDS)).await;
    (gate(POLICY).0, resolver([address]), asked)
}

#[tokio::test]
async fn both_families_are_asked_for_once_and_come_by_turns() {
    let (gate, resolver, asked) = scene().await;
    for _ in 0..2 {
        let found = resolver.lookup(&gate, &permit(&gate, "api.example.com", "127.0.0.1")).await.unwrap();
        let expected = addresses(&["2001:db8:cafe::1", "203.0.113.1", "203.0.113.2", "203.0.113.3"]);
        assert_eq!((found.addresses, found.chain), (expected, vec![]));
    }
    assert_eq!(asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_literal_is_asked_of_nobody() {
    let (gate, resolver, asked) = scene().await;
    let found = resolver.lookup(&gate, &permit(&gate, "203.0.113.80", "127.0.0.1")).await.unwrap();
    assert_eq!(found.addresses, addresses(&["203.0.113.80"]));
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_denied_alias_ends_the_chain_unasked_and_an_unlisted_one_does_not() {
    let (gate, resolver, asked) = scene().await;
    let found = resolver.lookup(&gate, &permit(&gate, "cloak.wild.example.com", "127.0.0.1")).await.unwrap();
    assert_eq!((found.chain.len(), found.addresses.len()), (1, 0));
    let found = resolver.lookup(&gate, &permit(&gate, "alias.wild.example.com", "127.0.0.1")).await.unwrap();
    assert_eq!(
        (found.chain, found.addresses),
        (vec![Hostname::parse("cdn.test").unwrap()], addresses(&["203.0.113.5"]))
    );
    assert!(asked.lock().unwrap().iter().all(|(name, _)| name != "tracker.attacker.test"));
}

#[tokio::test]
async fn what_one_sandbox_asks_under_a_wildcard_another_cannot_tell() {
    let recorder = Recorder::with_receipts(Receipt::written);
    let identify = "{ source = \"127.0.0.1/32\" }]\n[sandbox.s2]\npolicies = [\"case\"]\nidentify = [{ source = \"127.0.0.2/32\" }";
    let gate = gate_with(POLICY, identify, &recorder);
    let (address, asked) = upstream(zone(RECORDS)).await;
    let resolver = resolver([address]);
    for (name, questions) in [("api.example.com", 2), ("one.wild.example.com", 4)] {
        asked.lock().unwrap().clear();
        for client in ["127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"] {
            resolver.lookup(&gate, &permit(&gate, name, client)).await.unwrap();
        }
        assert_eq!(asked.lock().unwrap().len(), questions, "{name}");
    }
}

#[tokio::test]
async fn a_family_that_is_slow_is_not_waited_for_and_its_answer_is_kept() {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let (address, asked) = upstream(move |query, tcp| {
        let v6 = query.queries[0].query_type() == RecordType::AAAA;
        let lost = v6 && tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        if lost { Vec::new() } else { zone(RECORDS)(query, tcp) }
    })
    .await;
    let (gate, _) = gate(POLICY);
    let resolver = resolver([address]);
    let look_up =
        async || resolver.lookup(&gate, &permit(&gate, "api.example.com", "127.0.0.1")).await.unwrap();
    assert_eq!(look_up().await.addresses, addresses(&["203.0.113.1", "203.0.113.2", "203.0.113.3"]));
    // The second try of the first question comes after two seconds; no look-up starts a question of its own.
    while look_up().await.addresses.len() < 4 {}
    assert_eq!(asked.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_family_that_fails_does_not_spoil_the_other() {
    let (address, _) = upstream(|query, tcp| {
        let mut answers = zone(RECORDS)(query, tcp);
        if query.queries[0].query_type() == RecordType::AAAA {
            answers[0][3] = 2;
        }
        answers
    })
    .await;
    let (gate, _) = gate(POLICY);
    let resolver = resolver([address]);
    let found = resolver.lookup(&gate, &permit(&gate, "api.example.com", "127.0.0.1")).await.unwrap();
    assert_eq!(found.addresses.len(), 3);
    let failed = resolver.lookup(&gate, &permit(&gate, "none.wild.example.com", "127.0.0.1")).await;
    assert_eq!(failed, Err(LookupError::Failed(2)));
}

#[tokio::test]
async fn beyond_the_limit_a_question_fails_at_once() {
    let (address, asked) = upstream(|_, _| Vec::new()).await;
    let limits = Limits { in_flight: 1, ..Limits::default() };
    let config =
        ResolverConfig { upstreams: vec![Upstream::Udp(address)], limits, ..ResolverConfig::default() };
    let resolver = Resolver::new(&config, testing::metrics()).unwrap();
    let (gate, _) = gate(POLICY);
    let judge = gate.alias_judge(&permit(&gate, "api.example.com", "127.0.0.1"));
    let key = |name: &str| Key::shared(Hostname::parse(name).unwrap(), QType::A);
    let held = tokio::spawn({
        let (resolver, judge, key) = (resolver.clone(), judge.clone(), key("api.example.com"));
        async move { resolver.resolve(&judge, key).await }
    });
    while asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(resolver.resolve(&judge, key("other.example.com")).await, Err(LookupError::Overloaded));
    held.abort();
    assert!(held.await.unwrap_err().is_cancelled());
    assert_eq!(resolver.0.in_flight.available_permits(), 1, "an abandoned question gives its place back");
}
