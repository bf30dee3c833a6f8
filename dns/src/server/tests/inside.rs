//! A sandbox's own namespace: bound addresses.

use super::*;

/// The addresses of an answer, with their TTLs.
fn timed_addresses(reply: &Message) -> Vec<(IpAddr, u32)> {
    reply.answers.iter().map(|record| (record.data.ip_addr().expect("an address"), record.ttl)).collect()
}

#[tokio::test]
async fn inside_a_listed_name_has_an_address_that_nobody_is_asked_for() {
    let (scene, namespace) = Scene::inside().await;
    for name in ["api.example.com.", "cdn.example.com.", "text.example.com."] {
        let bound = namespace.bind(&Hostname::parse(name).unwrap(), true).unwrap();
        for (qtype, address) in
            [(RecordType::A, IpAddr::V4(bound.v4)), (RecordType::AAAA, IpAddr::V6(bound.v6))]
        {
            if name.starts_with("text") && qtype == RecordType::AAAA {
                continue; // its rule opens no such records
            }
            assert_eq!(timed_addresses(&scene.ask(name, qtype).await), [(address, 1)], "{name} {qtype}");
        }
    }
    for qtype in [RecordType::HTTPS, RecordType::SVCB, RecordType::CNAME] {
        let reply = scene.ask("api.example.com.", qtype).await;
        assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 0));
        assert_eq!(reply.authorities[0].record_type(), RecordType::SOA);
    }
    assert_eq!(
        scene.ask("api.example.com.", RecordType::ANY).await.answers[0].record_type(),
        RecordType::HINFO
    );
    assert_eq!(scene.asked(), []);
    // What a rule opens beyond addresses is asked for.
    assert_eq!(scene.ask("text.example.com.", RecordType::TXT).await.answers.len(), 1);
    assert_eq!(scene.asked(), [("text.example.com".to_owned(), 16)]);
}

#[tokio::test]
async fn inside_a_name_under_a_wildcard_is_bound_where_one_of_its_addresses_could_be_dialled() {
    let (scene, namespace) = Scene::inside().await;
    let is_bound = |reply: &Message, name: &str| {
        let bound = namespace.bind(&Hostname::parse(name).unwrap(), false).unwrap();
        timed_addresses(reply).iter().all(|(address, ttl)| {
            *ttl == 1 && (*address == IpAddr::V4(bound.v4) || *address == IpAddr::V6(bound.v6))
        })
    };
    for (name, qtype) in [
        ("a.wild.example.com.", RecordType::A),
        ("half.wild.example.com.", RecordType::A),
        ("mapped.wild.example.com.", RecordType::AAAA),
    ] {
        let reply = scene.ask(name, qtype).await;
        assert!(reply.answers.len() == 1 && is_bound(&reply, name), "{name}: {reply:?}");
        assert_eq!(scene.event(), format!("allow - {} {qtype} 0", name.trim_end_matches('.')));
    }
    for (name, qtype, code, event) in [
        ("gone.wild.example.com.", RecordType::A, ResponseCode::NXDomain, "allow -"),
        ("gone.wild.example.com.", RecordType::HTTPS, ResponseCode::NXDomain, "allow -"),
        ("a.wild.example.com.", RecordType::AAAA, ResponseCode::NoError, "allow -"),
        ("a.wild.example.com.", RecordType::HTTPS, ResponseCode::NoError, "allow -"),
        ("inner.wild.example.com.", RecordType::A, ResponseCode::NoError, "deny address_not_public"),
        ("cloak.wild.example.com.", RecordType::A, ResponseCode::NoError, "deny denied_by_rule"),
        ("bad.wild.example.com.", RecordType::A, ResponseCode::NXDomain, "deny denied_by_rule"),
        ("loop.wild.example.com.", RecordType::A, ResponseCode::ServFail, "allow upstream_dns_failed"),
    ] {
        let reply = scene.ask(name, qtype).await;
        assert_eq!((reply.metadata.response_code, reply.answers.len()), (code, 0), "{name} {qtype}");
        assert!(scene.event().starts_with(event), "{name} {qtype}: {}", scene.event());
    }
}

#[tokio::test]
async fn inside_a_bound_address_tells_its_name_and_no_other_does() {
    let (scene, namespace) = Scene::inside().await;
    let bound = namespace.bind(&Hostname::parse("api.example.com").unwrap(), true).unwrap();
    for address in [IpAddr::V4(bound.v4), IpAddr::V6(bound.v6)] {
        let reply = scene.ask(&Name::from(address).to_string(), RecordType::PTR).await;
        let [record] = &reply.answers[..] else { panic!("{reply:?}") };
        assert_eq!(
            record.data,
            RData::PTR(hickory_resolver::proto::rr::rdata::PTR("api.example.com.".parse().unwrap()))
        );
        let other = scene.ask(&Name::from(address).to_string(), RecordType::A).await;
        assert_eq!(other.metadata.response_code, ResponseCode::NXDomain, "only its name is told");
    }
    let denied = namespace.bind(&Hostname::parse("other.test").unwrap(), true).unwrap();
    for address in [IpAddr::V4(denied.v4), "198.18.255.1".parse().unwrap(), "203.0.113.10".parse().unwrap()] {
        let reply = scene.ask(&Name::from(address).to_string(), RecordType::PTR).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{address}");
    }
    assert_eq!(scene.asked(), []);
}

#[tokio::test]
async fn inside_a_spent_room_is_servfail_with_its_reason() {
    let (scene, namespace) = Scene::inside().await;
    let mut names = (0..).map(|count| Hostname::parse(&format!("n{count}.wild.example.com")).unwrap());
    while namespace.bind(&names.next().unwrap(), false).is_some() {}
    let reply = scene.ask("a.wild.example.com.", RecordType::A).await;
    assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::ServFail, 0));
    assert_eq!(scene.event(), "deny limit_names a.wild.example.com A 2");
    assert_eq!(timed_addresses(&scene.ask("api.example.com.", RecordType::A).await).len(), 1);
}

#[tokio::test]
async fn inside_all_connections_are_the_sandboxs_whatever_address_they_come_from() {
    let (scene, _namespace) = Scene::inside().await;
    let mut open = Vec::new();
    for host in 0..Limits::default().connections_per_client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("127.0.1.{}:0", 1 + host % 200).parse().unwrap()).unwrap();
        open.push(socket.connect(scene.tcp).await.unwrap());
    }
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.2.1:0".parse().unwrap()).unwrap();
    let mut over = socket.connect(scene.tcp).await.unwrap();
    let closed = timeout(Duration::from_secs(5), over.read(&mut [0])).await.expect("it is closed at once");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}
