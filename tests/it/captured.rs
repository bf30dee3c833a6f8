//! What a sandbox in a namespace of its own opens to any address arrives at the gateway, which decides by the name that is
//! meant; names have addresses there that stand for them alone.

use std::{
    io::Read as _,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_proto::{
    op::ResponseCode,
    rr::{RData, RecordType},
};
use policy::approval::Approved;
use policy::{Ask, Destination, SandboxId, decide::View};
use tidegate::lab::origin::Behaviour;

use crate::support::{
    Client, ClientCertificate, Inside, InsideBuilder, PATIENCE, Response, TestAuthority, eventually,
    extended_error,
};

const POLICY: &str = r#"
[sandbox.s1]
policies = ["base"]
identify = [{ default = true }]
[policy.base]
allow = [
    "web.example.com:80,8080", "api.example.com", "git.example.com:22", "*.wild.example.com:22,443",
    "203.0.113.40:5432,80", "[2001:db8:cafe::40]:5432",
]
deny = ["203.0.113.99", "bad.wild.example.com"]
"#;

/// A policy with one entry.
fn allowing(entry: &str) -> String {
    let (before, _) = POLICY.split_once("allow").unwrap();
    format!("{before}allow = [{entry:?}]")
}

/// A world in which port 22 and 5432 speak first, as SSH and others do.
fn inside() -> InsideBuilder {
    Inside::new(POLICY)
        .resolving("web.example.com", &["A 203.0.113.11"])
        .resolving("api.example.com", &["A 203.0.113.10", "AAAA 2001:db8:cafe::10"])
        .resolving("git.example.com", &["A 203.0.113.17"])
        .resolving("here.wild.example.com", &["A 203.0.113.18"])
        .resolving("bad.wild.example.com", &["A 203.0.113.19"])
        .resolving("imds.wild.example.com", &["A 169.254.169.254"])
        .resolving("attacker.test", &["A 203.0.113.66"])
        .origins(&[22, 80, 443, 2222, 5432, 8080], |to| match to.port() {
            80 | 8080 => Behaviour::Http,
            22 | 5432 => Behaviour::Banner(b"hello\n".to_vec()),
            _ => Behaviour::Echo,
        })
}

/// Reads to the end: what came, and whether the end was a reset.
fn ended(client: Client) -> (Vec<u8>, bool) {
    let (mut stream, mut all) = (client.into_stream(), Vec::new());
    let read = stream.read_to_end(&mut all);
    (all, read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset))
}

/// Whether a client that says nothing is reset, perhaps before it has seen that it is connected.
fn is_reset(inside: &Inside, to: &str) -> bool {
    match inside.try_connect(to.parse().unwrap()) {
        Ok(client) => ended(client) == (vec![], true),
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// What a client is told that is refused before it has said anything. It speaks at once, but a busy machine may be later
/// than the gateway waits; then it is refused without a word, and tries again.
fn told(inside: &Inside, to: SocketAddr, sent: &[u8]) -> Vec<u8> {
    eventually("an answer", || {
        let mut client = inside.try_connect(to).ok()?;
        client.send(sent);
        let (answer, _) = ended(client);
        (!answer.is_empty()).then_some(answer)
    })
}

/// Status and reason of an answer.
fn status(answer: &[u8]) -> (u16, Option<String>) {
    let (response, _) = Response::read(answer, true).expect("a response");
    (response.status, response.reason().map(str::to_owned))
}

fn request(host: &str) -> Vec<u8> {
    format!("GET /a HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
}

/// A hello for `attacker.test`, as a client sends it.
fn hello(name: &str) -> Vec<u8> {
    let vector = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
    let server_name = vector(&[&[0], &vector(name.as_bytes())[..]].concat());
    let extensions = vector(&[&[0, 0][..], &vector(&server_name), &[0, 43], &vector(&[2, 3, 4])].concat());
    let body = [&[3, 3][..], &[0x5a; 32], &[0], &vector(&[0x13, 1]), &[1, 0], &extensions].concat();
    let [_, length @ ..] = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1], &length[..], &body].concat();
    [&[22, 3, 1][..], &vector(&message)].concat()
}

const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

#[test]
fn a_listed_name_is_reached_by_its_bound_address_and_nobody_is_asked_before() {
    let Some(inside) = inside().start() else { return };
    for kind in [RecordType::A, RecordType::AAAA] {
        let reply = inside.ask("Git.example.com", kind);
        let [record] = &reply.answers[..] else { panic!("{reply:?}") };
        assert_eq!((record.ttl, record.name.to_string().as_str()), (1, "Git.example.com."));
        let address = record.data.ip_addr().unwrap();
        match address {
            IpAddr::V4(v4) => assert_eq!(v4.octets()[..1], [198], "{v4}"),
            IpAddr::V6(v6) => assert_eq!(v6.segments()[..4], [0x2001, 2, 0, 0], "{v6}"),
        }
        assert!(inside.asked().is_empty(), "{:?}", inside.asked());
        assert_eq!(inside.address_of("git.example.com", kind), address, "it keeps its address");
        inside.takes_events(&[format!("dns allow - git.example.com {kind} 0").as_str(); 2]);
    }
    for kind in [RecordType::A, RecordType::AAAA] {
        let address = inside.address_of("git.example.com", kind);
        let mut client = inside.connect(SocketAddr::new(address, 22));
        // The server speaks first, and the client has said nothing.
        assert_eq!(client.take(6), b"hello\n");
        client.send(b"x");
        assert_eq!(client.take(1), b"x");
        drop(client);
        inside.takes_events(&[
            &format!("dns allow - git.example.com {kind} 0"),
            "tcp allow - git.example.com:22",
            "close tcp -",
        ]);
    }
    let dialled: Vec<_> = inside.contacts().iter().map(|contact| contact.dialled.to_string()).collect();
    assert_eq!(dialled, ["203.0.113.17:22", "203.0.113.17:22"]);
}

#[test]
fn a_bound_address_opens_the_ports_of_its_name_only() {
    let Some(inside) = inside().start() else { return };
    let address = inside.address_of("git.example.com", RecordType::A);
    let port = |port| SocketAddr::new(address, port);
    assert!(is_reset(&inside, &port(2222).to_string()));
    inside
        .takes_events(&["dns allow - git.example.com A 0", "tcp deny port_not_allowed git.example.com:2222"]);
    assert_eq!(told(&inside, port(443), &hello("git.example.com")), ACCESS_DENIED);
    inside.takes_only("tcp deny port_not_allowed git.example.com:443");
    let answer = told(&inside, port(80), &request("git.example.com"));
    assert_eq!(status(&answer), (403, Some("port_not_allowed".to_owned())));
    inside.takes_only("tcp deny port_not_allowed git.example.com:80");
    assert!(inside.contacts().is_empty());
}

#[test]
fn a_name_under_a_wildcard_is_bound_where_it_exists_and_may_be_reached() {
    let Some(inside) = inside().start() else { return };
    let mut client = inside.to_name("here.wild.example.com", 22);
    assert_eq!(client.take(6), b"hello\n");
    let missing = inside.ask("gone.wild.example.com", RecordType::A);
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    // It has IPv4 addresses alone, as it would elsewhere.
    let other = inside.ask("here.wild.example.com", RecordType::AAAA);
    assert_eq!((other.metadata.response_code, other.answers.len()), (ResponseCode::NoError, 0));
    let forbidden = inside.ask("imds.wild.example.com", RecordType::A);
    assert_eq!(forbidden.answers.len(), 0);
    assert_eq!(extended_error(&forbidden), Some((15, "metadata_endpoint".to_owned())));
    for denied in ["bad.wild.example.com", "attacker.test"] {
        assert_eq!(inside.ask(denied, RecordType::A).metadata.response_code, ResponseCode::NXDomain);
    }
    let asked = inside.asked();
    assert!(!asked.iter().any(|name| name == "bad.wild.example.com" || name == "attacker.test"), "{asked:?}");
}

#[test]
fn other_ways_to_a_bound_name_are_not_told() {
    let Some(inside) = inside().start() else { return };
    for kind in [RecordType::HTTPS, RecordType::SVCB, RecordType::CNAME] {
        for name in ["api.example.com", "here.wild.example.com"] {
            let reply = inside.ask(name, kind);
            assert_eq!(
                (reply.metadata.response_code, reply.answers.len()),
                (ResponseCode::NoError, 0),
                "{name} {kind}"
            );
            assert_eq!(reply.authorities.len(), 1);
        }
    }
    assert!(!inside.asked().iter().any(|name| name == "api.example.com"));
}

#[test]
fn a_bound_address_tells_its_name() {
    let Some(inside) = inside().start() else { return };
    for kind in [RecordType::A, RecordType::AAAA] {
        let reverse = hickory_proto::rr::Name::from(inside.address_of("api.example.com", kind)).to_string();
        let reply = inside.ask(&reverse, RecordType::PTR);
        let [record] = &reply.answers[..] else { panic!("{reply:?}") };
        let RData::PTR(name) = &record.data else { panic!("{record:?}") };
        assert_eq!(name.to_string(), "api.example.com.");
    }
    let others = ["1.113.0.203.in-addr.arpa", "9.9.19.198.in-addr.arpa"];
    for other in others {
        assert_eq!(inside.ask(other, RecordType::PTR).metadata.response_code, ResponseCode::NXDomain);
    }
    inside.reload(&allowing("web.example.com:80"));
    let address = inside.namespace.bind(&policy::Hostname::parse("api.example.com").unwrap(), true).unwrap();
    let reverse = hickory_proto::rr::Name::from(IpAddr::V4(address.v4)).to_string();
    let reply = inside.ask(&reverse, RecordType::PTR);
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "a name that is denied is not told");
    assert!(inside.asked().is_empty(), "{:?}", inside.asked());
}

#[test]
fn a_bound_address_is_its_name_through_every_inbound() {
    let Some(inside) = inside().start() else { return };
    let address = inside.address_of("web.example.com", RecordType::A);
    let authority = format!("{address}:80");
    let mut client = inside.to("127.0.0.1:3128");
    client.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes());
    assert_eq!(client.response().status, 200);
    client.send(&request(&address.to_string()));
    assert_eq!(client.response().status, 200);
    let mut client = inside.to("[::1]:3128");
    client.send(
        format!("GET http://{address}/b HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    );
    assert_eq!(client.response().status, 200);
    assert_eq!(inside.to("127.0.0.1:3128").socks5(&address.to_string(), 80).0, 0);
    let mut client = inside.connect(SocketAddr::new(address, 80));
    client.send(&request(&address.to_string()));
    assert_eq!(client.response().status, 200);
    let contacts = inside.contacts();
    assert!(
        contacts.iter().all(|contact| contact.dialled.ip().to_string() == "203.0.113.11"),
        "{}",
        contacts.len()
    );
    let hosts: Vec<_> = contacts
        .iter()
        .flat_map(|contact| contact.requests())
        .map(|request| request.header("host").map(str::to_owned))
        .collect();
    assert_eq!(hosts, vec![Some("web.example.com".to_owned()); 3]);
}

#[test]
fn an_address_of_the_pools_that_stands_for_nothing_is_forbidden() {
    let Some(inside) = inside().start() else { return };
    let far = inside.address_of("web.example.com", RecordType::A);
    let IpAddr::V4(v4) = far else { panic!("{far}") };
    let other = IpAddr::V4((v4.to_bits() ^ 0x0001_0000).into());
    let to = SocketAddr::new(other, 80);
    assert!(is_reset(&inside, &to.to_string()));
    assert_eq!(inside.to("127.0.0.1:3128").socks5(&other.to_string(), 80).0, 2);
    assert!(is_reset(&inside, "[2001:2::1]:80"));
    inside.takes_events(&[
        "dns allow - web.example.com A 0",
        &format!("tcp deny address_forbidden {to}"),
        &format!("socks5 deny address_forbidden {to}"),
        "tcp deny address_forbidden [2001:2::1]:80",
    ]);
}

#[test]
fn a_listed_address_is_dialled_at_once() {
    let Some(inside) = inside().start() else { return };
    for to in ["203.0.113.40:5432", "[2001:db8:cafe::40]:5432"] {
        let mut client = inside.to(to);
        assert_eq!(client.take(6), b"hello\n");
        drop(client);
        inside.takes_events(&[&format!("tcp allow - {to}"), "close tcp -"]);
        assert_eq!(inside.dialled(), [to.parse().unwrap()]);
    }
}

#[test]
fn the_floor_and_deny_rules_for_an_address_need_no_name() {
    let Some(inside) = inside().start() else { return };
    for (to, reason) in [
        ("169.254.169.254:80", "metadata_endpoint"),
        ("[fd00:ec2::254]:80", "metadata_endpoint"),
        ("203.0.113.1:443", "gateway_address"),
        ("203.0.113.99:80", "denied_by_rule"),
    ] {
        // The name would be allowed.
        let answer = told(&inside, to.parse().unwrap(), &request("web.example.com"));
        assert_eq!(status(&answer), (403, Some(reason.to_owned())));
        inside.takes_only(&format!("tcp deny {reason} {to}"));
    }
    assert!(inside.dialled().is_empty() && inside.asked().is_empty());
}

#[test]
fn the_name_of_a_request_decides_and_the_chosen_address_is_never_dialled() {
    let Some(inside) = inside().start() else { return };
    for port in [80, 8080] {
        let to = format!("203.0.113.66:{port}");
        let mut client = inside.to(&to);
        client.send(&request("web.example.com"));
        assert_eq!(client.response().status, 200);
        let (name, request) = (format!("web.example.com:{port}"), format!("GET web.example.com:{port}"));
        inside.takes_events(&[
            &format!("tcp allow - {name}"),
            &format!("http allow - {request}"),
            "close http -",
            "close tcp -",
        ]);
        assert_eq!(inside.dialled(), [format!("203.0.113.11:{port}").parse().unwrap()]);
    }
}

#[test]
fn a_request_that_is_denied_is_told_so_and_leads_nowhere() {
    let Some(inside) = inside().start() else { return };
    for (to, sent, status, event) in [
        ("203.0.113.11:80", &request("attacker.test")[..], 403, "tcp deny not_listed attacker.test:80"),
        (
            "203.0.113.11:80",
            b"GET / HTTP/1.0\r\n\r\n",
            403,
            "tcp deny address_literal_not_listed 203.0.113.11:80",
        ),
        (
            "203.0.113.11:80",
            &request("203.0.113.40"),
            403,
            "tcp deny address_literal_not_listed 203.0.113.11:80",
        ),
        ("203.0.113.10:443", &request("api.example.com"), 403, "tcp deny tls_required api.example.com:443"),
        (
            "203.0.113.11:80",
            b"GET http://attacker.test/ HTTP/1.1\r\nHost: web.example.com\r\n\r\n",
            400,
            "tcp deny bad_request \"http://attacker.test/\"",
        ),
        (
            "203.0.113.11:80",
            b"CONNECT web.example.com:80 HTTP/1.1\r\nHost: web.example.com\r\n\r\n",
            400,
            "tcp deny bad_request \"web.example.com:80\"",
        ),
        (
            "203.0.113.11:80",
            b"GET / HTTP/1.1\r\nHost: web.example.com\r\nHost: attacker.test\r\n\r\n",
            400,
            "tcp deny bad_request \"/\"",
        ),
        (
            "203.0.113.11:80",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            400,
            "tcp deny bad_request \"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\"",
        ),
    ] {
        let mut client = inside.to(to);
        client.send(sent);
        let response = client.response();
        assert_eq!(response.status, status, "{}", String::from_utf8_lossy(sent));
        inside.takes_events(&[event]);
    }
    assert!(inside.dialled().is_empty() && inside.asked().is_empty());
}

#[test]
fn each_request_of_a_captured_connection_is_judged() {
    let Some(inside) = inside().start() else { return };
    for to in ["203.0.113.66:8080", "203.0.113.66:80"] {
        let mut client = inside.to(to);
        client.send(b"GET /1 HTTP/1.1\r\nHost: web.example.com\r\n\r\n");
        assert_eq!(client.response().status, 200);
        client.send(b"GET /2 HTTP/1.1\r\nHost: attacker.test\r\n\r\n");
        let response: Response = client.response();
        assert_eq!((response.status, response.reason()), (403, Some("host_mismatch")));
    }
    assert!(inside.contacts().iter().all(|contact| contact.requests().len() == 1));
}

#[test]
fn the_name_of_a_hello_decides_and_the_chosen_address_is_never_dialled() {
    let authority = TestAuthority::new();
    let https = authority.https(&["api.example.com"], ClientCertificate::Unasked);
    let Some(inside) = inside().origins(&[443], move |_| https.clone()).start() else { return };
    let client = authority.client(&[], ClientCertificate::Unasked);
    let mut tls = client.handshake(inside.to("203.0.113.66:443").into_stream(), "api.example.com").unwrap();
    std::io::Write::write_all(&mut tls, &request("api.example.com")).unwrap();
    let mut answer = [0; 12];
    tls.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert!(
        inside
            .contacts()
            .iter()
            .all(|contact| contact.dialled.ip() != "203.0.113.66".parse::<IpAddr>().unwrap())
    );
    assert_eq!(inside.events()[0], "tcp allow - api.example.com:443");
    // By the bound address too, where the name must agree.
    let address = inside.address_of("api.example.com", RecordType::AAAA);
    client.handshake(inside.connect(SocketAddr::new(address, 443)).into_stream(), "api.example.com").unwrap();
    let mut other = inside.connect(SocketAddr::new(address, 443));
    other.send(&hello("attacker.test"));
    assert_eq!(ended(other), (ACCESS_DENIED.to_vec(), true));
    eventually("its record", || inside.events().contains(&"close tcp sni_mismatch".to_owned()).then_some(()));
}

#[test]
fn a_hello_that_shows_no_allowed_name_is_refused_in_tls() {
    let Some(inside) = inside().start() else { return };
    for (to, sent, event) in [
        ("203.0.113.10:443", hello("attacker.test"), "tcp deny not_listed attacker.test:443"),
        ("203.0.113.10:8080", hello("api.example.com"), "tcp deny port_not_allowed api.example.com:8080"),
        ("203.0.113.10:443", hello("203.0.113.10"), "tcp deny address_literal_not_listed 203.0.113.10:443"),
        (
            "203.0.113.10:443",
            b"\x16\x03\x01\0\x03\x01\0\0\0\0".to_vec(),
            "tcp deny address_literal_not_listed 203.0.113.10:443",
        ),
    ] {
        let mut client = inside.to(to);
        client.send(&sent);
        assert_eq!(ended(client), (ACCESS_DENIED.to_vec(), true), "{event}");
        inside.takes_events(&[event]);
    }
    assert!(inside.dialled().is_empty() && inside.asked().is_empty());
}

#[test]
fn what_shows_no_name_is_its_address() {
    let Some(inside) = inside().start() else { return };
    for sent in [&b"SSH-2.0-x\r\n"[..], b"\0\0\0\x08", b"*1\r\n$4\r\nPING\r\n", b"EHLO a\r\n"] {
        let mut client = inside.to("203.0.113.66:22");
        client.send(sent);
        assert_eq!(ended(client), (vec![], true));
        inside.takes_events(&["tcp deny address_literal_not_listed 203.0.113.66:22"]);
    }
    assert!(inside.dialled().is_empty());
}

#[test]
fn where_no_name_is_open_a_silent_client_is_not_kept_waiting() {
    let Some(inside) = inside().configure(|config| config.timeouts.head = PATIENCE * 2).start() else {
        return;
    };
    for port in [21, 3306, 5433] {
        assert!(is_reset(&inside, &format!("203.0.113.66:{port}")));
        inside.takes_only(&format!("tcp deny address_literal_not_listed 203.0.113.66:{port}"));
    }
    // The name is told and logged all the same.
    let to = "203.0.113.66:3306".parse().unwrap();
    assert_eq!(status(&told(&inside, to, &request("web.example.com"))).0, 403);
    assert!(inside.events().contains(&"tcp deny port_not_allowed web.example.com:3306".to_owned()));
}

#[test]
fn a_client_that_says_nothing_is_closed_and_never_led_to_the_address() {
    let soon = Duration::from_millis(300);
    for learn in ["", "x = 1"] {
        let Some(inside) = inside().configure(|config| config.timeouts.head = soon).start() else { return };
        if !learn.is_empty() {
            inside.gate.install(learning());
        }
        assert_eq!(ended(inside.to("203.0.113.66:22")), (vec![], true));
        let mut gone = inside.to("203.0.113.66:22");
        gone.half_close();
        assert_eq!(ended(gone), (vec![], true));
        let event = "tcp deny address_literal_not_listed 203.0.113.66:22";
        inside.takes_events(&[event, event]);
        assert!(inside.dialled().is_empty());
    }
}

/// A policy that lists nothing and learns.
fn learning() -> std::sync::Arc<policy::Policy> {
    let until = dns::clock::now();
    let text = format!(
        "[policy.base]\nallow = []\n[sandbox.s1]\npolicies = [\"base\"]\nmode = \"learn\"\nuntil = {}\n\
         identify = [{{ default = true }}]",
        policy::Timestamp::from_secs(until.millis() / 1000 + 3600)
    );
    let documents = [policy::file::Document::new("learn.toml", text.as_bytes()).unwrap()];
    std::sync::Arc::new(policy::file::load(&documents, until, &policy::LocalAddresses::default()).unwrap())
}

#[test]
fn whoever_speaks_to_the_listener_itself_has_no_destination() {
    let Some(inside) = inside().start() else { return };
    for own in ["127.0.0.1:15001", "[::1]:15001"] {
        assert!(is_reset(&inside, own));
        inside.takes_events(&[&format!("tcp deny bad_request {own:?}")]);
    }
    assert!(inside.dialled().is_empty());
}

#[test]
fn a_reload_ends_captured_streams_and_names_keep_their_addresses() {
    let Some(inside) = inside().start() else { return };
    let before = inside.address_of("git.example.com", RecordType::A);
    let mut client = inside.connect(SocketAddr::new(before, 22));
    assert_eq!(client.take(6), b"hello\n");
    inside.reload(&allowing("new.example.com:22"));
    assert_eq!(ended(client), (vec![], true));
    assert_ne!(inside.address_of("new.example.com", RecordType::A), before);
    assert!(is_reset(&inside, &SocketAddr::new(before, 22).to_string()));
    inside.takes_events(&[
        "dns allow - git.example.com A 0",
        "tcp allow - git.example.com:22",
        "close tcp policy_changed",
        "dns allow - new.example.com A 0",
        "tcp deny not_listed git.example.com:22",
    ]);
    inside.reload(POLICY);
    assert_eq!(inside.address_of("git.example.com", RecordType::A), before);
}

#[test]
fn closing_a_namespace_ends_whatever_its_clients_have_open() {
    let Some(inside) = inside().start() else { return };
    let mut tunnel = inside.to_name("git.example.com", 22);
    assert_eq!(tunnel.take(6), b"hello\n");
    let mut resting = inside.to("127.0.0.1:3128");
    resting.send(b"GET http://web.example.com/ HTTP/1.1\r\nHost: web.example.com\r\n\r\n");
    assert_eq!(resting.response().status, 200);
    let silent = inside.to("203.0.113.66:22");
    eventually("all three are in", || (inside.gateway.clients() == 3).then_some(()));
    inside.gateway.close_namespace(&inside.namespace, Some(policy::Reason::LinkAppeared));
    assert_eq!(ended(tunnel), (vec![], true));
    for client in [resting, silent] {
        assert_eq!(ended(client).0, b"");
    }
    eventually("nobody is left", || (inside.gateway.clients() == 0).then_some(()));
    assert!(inside.events().contains(&"close tcp link_appeared".to_owned()), "{:?}", inside.events());
    // Its listeners are still there in this test, and know nobody.
    let reply = inside.ask("git.example.com", RecordType::A);
    assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
}

#[test]
fn a_pool_that_is_spent_answers_servfail_and_says_why() {
    let Some(inside) = inside().start() else { return };
    let mut names =
        (0..).map(|count| policy::Hostname::parse(&format!("n{count}.wild.example.com")).unwrap());
    while inside.namespace.bind(&names.next().unwrap(), false).is_some() {}
    let reply = inside.ask("here.wild.example.com", RecordType::A);
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(extended_error(&reply), Some((0, "limit_names".to_owned())));
    inside.takes_events(&["dns deny limit_names here.wild.example.com A 2"]);
    // The listed ones have room of their own.
    assert_eq!(inside.to_name("git.example.com", 22).take(6), b"hello\n");
}

#[test]
fn explain_says_of_captured_connections_what_becomes_of_them() {
    let Some(inside) = inside().start() else { return };
    let (policy, local) = (inside.gate.policy(), inside.gate.local_addresses());
    let sandbox = SandboxId::parse("s1").unwrap();
    for (to, expected) in [
        ("203.0.113.40:5432", None),
        ("[2001:db8:cafe::40]:5432", None),
        ("169.254.169.254:80", Some("metadata_endpoint")),
        ("203.0.113.1:80", Some("gateway_address")),
        ("203.0.113.99:443", Some("denied_by_rule")),
        ("203.0.113.66:443", Some("address_literal_not_listed")),
        ("203.0.113.40:443", Some("port_not_allowed")),
        ("198.18.0.1:443", Some("address_forbidden")),
    ] {
        let view = View { policy: &policy, local: &local, now: dns::clock::now(), approved: Approved::NONE };
        let ask = Ask::Stream(Destination::from_authority(to.as_bytes()).unwrap());
        let told = view.explain_captured(&sandbox, &ask);
        assert_eq!(told.reason.map(policy::Reason::code), expected, "{to}");
        let client = inside.try_connect(to.parse().unwrap()).map(|mut client| {
            client.send(b"no name\r\n");
            client
        });
        let seen = eventually("its record", || inside.events().first().cloned());
        let answer = expected.map_or("allow -".to_owned(), |reason| format!("deny {reason}"));
        assert_eq!(seen, format!("tcp {answer} {to}"));
        drop(client);
        let all = if expected.is_none() { 2 } else { 1 };
        eventually("the end", || (inside.events().len() == all).then_some(()));
        let seen: Vec<_> = inside.events();
        inside.takes_events(&seen.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
