mod inside;
mod transport;
mod upstreams;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_resolver::proto::rr::{DNSClass, Name, RData, RecordType};
use policy::{AuditLost, Hostname, ListenerName, Namespace, QType, Receipt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::testing::{Asked, Recorder, gate, gate_with, metrics, resolver, response, upstream, zone};

const POLICY: &str = r#"
[policy.case]
allow = ["api.example.com", "*.wild.example.com", "cdn.example.com:*", "_sip._tcp.example.com"]
deny  = ["tracker.attacker.test", "bad.wild.example.com"]

[[policy.case.rule]]
host   = "text.example.com"
qtypes = ["A", "TXT", "SRV", "MX", "CNAME"]

[[policy.case.rule]]
host   = "*.txt.example.com"
qtypes = ["TXT"]

[[policy.case.rule]]
host   = "7.113.0.203.in-addr.arpa"
qtypes = ["PTR"]
"#;

const RECORDS: &[&str] = &[
    "api.example.com. 3600 A 203.0.113.10",
    "api.example.com. 3600 AAAA 2001:db8:cafe::10",
    "api.example.com. 3600 HTTPS 1 . alpn=h2,h3 port=443 ipv4hint=203.0.113.10,10.0.0.1 ech=AEX+DQBBpQAg",
    "cdn.example.com. 60 CNAME e7.cdn.test.",
    "e7.cdn.test. 30 CNAME e8.cdn.test.",
    "e8.cdn.test. 40 A 203.0.113.20",
    "a.wild.example.com. 0 A 203.0.113.30",
    "half.wild.example.com. 5 A 203.0.113.31",
    "half.wild.example.com. 5 A 10.0.0.31",
    "half.wild.example.com. 5 A 169.254.169.254",
    "inner.wild.example.com. 5 A 10.0.0.32",
    "inner.wild.example.com. 5 AAAA ::ffff:10.0.0.32",
    "mapped.wild.example.com. 5 AAAA ::ffff:203.0.113.33",
    "cloak.wild.example.com. 5 CNAME tracker.attacker.test.",
    "tracker.attacker.test. 5 A 203.0.113.66",
    "meta.wild.example.com. 5 CNAME metadata.google.internal.",
    "loop.wild.example.com. 5 CNAME loop2.wild.example.com.",
    "loop2.wild.example.com. 5 CNAME loop.wild.example.com.",
    "text.example.com. 5 TXT hello",
    "text.example.com. 5 MX 10 api.example.com.",
    "text.example.com. 5 MX 20 mail.attacker.test.",
    "text.example.com. 5 SRV 0 0 443 tracker.attacker.test.",
];

/// A server on loopback with its policy and upstream.
struct Scene {
    udp: SocketAddr,
    tcp: SocketAddr,
    asked: Asked,
    recorder: Arc<Recorder>,
    gate: Arc<Gate>,
}

impl Scene {
    async fn new() -> Self {
        Self::over(upstream(zone(RECORDS)).await).await
    }

    async fn over((upstream, asked): (SocketAddr, Asked)) -> Self {
        let (gate, recorder) = gate(POLICY);
        Self::with(gate, recorder, [upstream], asked).await
    }

    async fn with(
        gate: Arc<Gate>,
        recorder: Arc<Recorder>,
        upstreams: impl IntoIterator<Item = SocketAddr>,
        asked: Asked,
    ) -> Self {
        let entrances = ["udp", "tcp"].map(|name| Entrance::Listener(name.into()));
        Self::entered(gate, recorder, upstreams, asked, entrances).await
    }

    /// A server whose sockets stand for a namespace of the sandbox.
    async fn inside() -> (Self, Arc<Namespace>) {
        let (gate, recorder) = gate(POLICY);
        let (upstream, asked) = upstream(zone(RECORDS)).await;
        let namespace = gate.namespace(SandboxId::parse("s1").unwrap());
        let entrances = [(); 2].map(|()| Entrance::Namespace(Arc::clone(&namespace)));
        (Self::entered(gate, recorder, [upstream], asked, entrances).await, namespace)
    }

    async fn entered(
        gate: Arc<Gate>,
        recorder: Arc<Recorder>,
        upstreams: impl IntoIterator<Item = SocketAddr>,
        asked: Asked,
        [over_udp, over_tcp]: [Entrance; 2],
    ) -> Self {
        let server =
            Server::new(Arc::clone(&gate), resolver(upstreams), metrics(), Limits::default(), Arc::default());
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scene =
            Self { udp: udp.local_addr().unwrap(), tcp: tcp.local_addr().unwrap(), asked, recorder, gate };
        let other = server.clone();
        tokio::spawn(async move { server.serve_udp(udp, over_udp, std::future::pending()).await });
        tokio::spawn(async move { other.serve_tcp(tcp, over_tcp, std::future::pending()).await });
        scene
    }

    /// Sends one datagram and reads one.
    async fn exchange(&self, message: &[u8]) -> Vec<u8> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(message, self.udp).await.unwrap();
        let mut buffer = vec![0; 65_535];
        let (length, _) =
            timeout(Duration::from_secs(6), socket.recv_from(&mut buffer)).await.unwrap().unwrap();
        buffer.truncate(length);
        buffer
    }

    /// Asks one question and checks what holds for every answer: one event, with the code that the client sees.
    async fn ask(&self, name: &str, qtype: RecordType) -> Message {
        self.send(&query(name, qtype)).await
    }

    async fn send(&self, query: &Message) -> Message {
        self.recorder.take();
        let sent = query.to_vec().unwrap();
        let reply = self.exchange(&sent).await;
        let read = Message::from_vec(&reply).expect("a well-formed reply");
        assert_eq!(reply[..2], sent[..2], "the id");
        assert_eq!(reply[2] & 0xfd, 0x80 | sent[2] & 1, "QR, no AA, RD copied");
        assert_eq!(reply[3] & 0xf0, 0x80 | sent[3] & 0x10, "RA, no AD, CD copied");
        let question = 12..sent.len() - if query.edns.is_some() { 11 } else { 0 };
        assert_eq!(reply[question.clone()], sent[question], "the question byte for byte");
        assert_eq!(read.edns.is_some(), query.edns.is_some(), "EDNS only where it was offered");
        let events = self.recorder.events();
        assert_eq!(events.len(), 1, "{events:?}");
        let code = format!(" {}", u16::from(read.metadata.response_code));
        assert!(events[0].ends_with(&code), "{events:?} and {:?}", read.metadata.response_code);
        read
    }

    fn asked(&self) -> Vec<(String, u16)> {
        self.asked.lock().unwrap().clone()
    }

    fn event(&self) -> String {
        self.recorder.events().concat()
    }
}

fn query(name: &str, qtype: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    message.add_query(Query::query(name, qtype));
    let mut edns = Edns::new();
    edns.set_max_payload(1232);
    message.set_edns(edns);
    message
}

fn addresses(message: &Message) -> Vec<IpAddr> {
    message.answers.iter().filter_map(|record| record.data.ip_addr()).collect()
}

/// The extended error and its text.
fn extended(message: &Message) -> Option<(u16, String)> {
    match message.edns.as_ref()?.option(EdnsCode::Unknown(15))? {
        EdnsOption::Unknown(15, bytes) => {
            Some((u16::from_be_bytes([bytes[0], bytes[1]]), String::from_utf8(bytes[2..].to_vec()).unwrap()))
        }
        other => panic!("{other:?}"),
    }
}

fn soa_ttls(message: &Message) -> (u32, u32) {
    match message.authorities.as_slice() {
        [record] => match &record.data {
            RData::SOA(soa) => (record.ttl, soa.minimum),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

const MANY: &str = "many.wild.example.com.";

fn many(query: &Message, _: bool) -> Vec<Vec<u8>> {
    let records: Vec<_> = (1..60).map(|last| format!("{MANY} 5 A 203.0.113.{last}")).collect();
    let records: Vec<_> = records.iter().map(String::as_str).collect();
    vec![response(query, ResponseCode::NoError, &records).to_vec().unwrap()]
}

/// An address where nothing listens.
async fn nobody() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_denied_name_gets_nxdomain_with_soa_and_reason_and_is_never_asked_for() {
    let scene = Scene::new().await;
    for (name, qtype) in [
        ("attacker.test", RecordType::A),
        ("c2VjcmV0.t.attacker.test", RecordType::AAAA),
        ("0.c2VjcmV0.attacker.test", RecordType::TXT),
        ("x.api.example.com", RecordType::A),
        ("_443._tcp.api.example.com", RecordType::TLSA),
        ("attacker.test", RecordType::HTTPS),
        ("attacker.test", RecordType::ANY),
    ] {
        let reply = scene.ask(name, qtype).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{name}");
        assert_eq!(soa_ttls(&reply), (5, 5), "{name}");
        assert_eq!(extended(&reply), Some((15, "not_listed".into())), "{name}");
        assert!(reply.answers.is_empty());
    }
    let reply = scene.ask("bad.wild.example.com", RecordType::A).await;
    assert_eq!(extended(&reply), Some((15, "denied_by_rule".into())));
    for name in ["metadata.google.internal", "printer.local", "x.onion", "wpad", "use-application-dns.net"] {
        let reply = scene.ask(name, RecordType::A).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{name}");
    }
    assert_eq!(scene.asked(), []);
}

#[tokio::test]
async fn what_exists_by_policy_has_no_data_instead_of_no_name() {
    let scene = Scene::new().await;
    for (name, qtype, reason) in [
        ("example.com", RecordType::A, "not_listed"),
        ("com", RecordType::NS, "not_listed"),
        ("wild.example.com", RecordType::A, "not_listed"),
        ("api.example.com", RecordType::TXT, "qtype_not_allowed"),
        ("api.example.com", RecordType::Unknown(65280), "qtype_not_allowed"),
        ("resolver.arpa", RecordType::SVCB, "not_listed"),
        ("_dns.resolver.arpa", RecordType::SVCB, "not_listed"),
    ] {
        let reply = scene.ask(name, qtype).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError, "{name}");
        assert_eq!(soa_ttls(&reply), (5, 5), "{name}");
        assert_eq!(extended(&reply), Some((15, reason.into())), "{name}");
        assert!(reply.answers.is_empty(), "{name}");
        assert_eq!(scene.event(), format!("deny {reason} {name} {} 0", QType(qtype.into())));
    }
    assert_eq!(scene.asked(), []);
}

#[tokio::test]
async fn an_allowed_name_is_answered_in_the_case_it_was_asked_in_and_then_kept() {
    let scene = Scene::new().await;
    for name in ["aPi.ExAmPlE.cOm", "api.example.com", "API.EXAMPLE.COM"] {
        let reply = scene.ask(name, RecordType::A).await;
        assert_eq!(addresses(&reply), ["203.0.113.10".parse::<IpAddr>().unwrap()]);
        assert_eq!(reply.answers[0].name.to_string(), format!("{name}."));
        assert!((299..=300).contains(&reply.answers[0].ttl), "{}", reply.answers[0].ttl);
        assert_eq!(scene.event(), "allow - api.example.com A 0");
    }
    let reply = scene.ask("api.example.com", RecordType::AAAA).await;
    assert_eq!(addresses(&reply), ["2001:db8:cafe::10".parse::<IpAddr>().unwrap()]);
    assert_eq!(scene.asked(), [("api.example.com".into(), 1), ("api.example.com".into(), 28)]);
}

#[tokio::test]
async fn a_ttl_of_zero_is_told_as_one_second_and_not_kept() {
    let scene = Scene::new().await;
    for _ in 0..2 {
        assert_eq!(scene.ask("a.wild.example.com", RecordType::A).await.answers[0].ttl, 1);
    }
    assert_eq!(scene.asked().len(), 2);
}

#[tokio::test]
async fn forbidden_addresses_are_removed() {
    let scene = Scene::new().await;
    let reply = scene.ask("half.wild.example.com", RecordType::A).await;
    assert_eq!(addresses(&reply), ["203.0.113.31".parse::<IpAddr>().unwrap()]);
    assert_eq!(extended(&reply), Some((4, "2 addresses removed".into())));
    for qtype in [RecordType::A, RecordType::AAAA] {
        let reply = scene.ask("inner.wild.example.com", qtype).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
        assert_eq!(extended(&reply), Some((15, "address_not_public".into())));
        assert_eq!((reply.answers.len(), soa_ttls(&reply)), (0, (5, 5)));
    }
    let reply = scene.ask("mapped.wild.example.com", RecordType::AAAA).await;
    assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 0));
}

#[tokio::test]
async fn aliases_are_followed_by_us_and_judged_before_they_are_asked_for() {
    let scene = Scene::new().await;
    let reply = scene.ask("cdn.example.com", RecordType::A).await;
    let owners: Vec<_> = reply.answers.iter().map(|record| record.name.to_string()).collect();
    assert_eq!(owners, ["cdn.example.com.", "e7.cdn.test.", "e8.cdn.test."]);
    assert!(reply.answers.iter().all(|record| record.ttl == 30), "the least of the chain");
    assert_eq!(addresses(&reply), ["203.0.113.20".parse::<IpAddr>().unwrap()]);

    for (name, reason) in
        [("cloak.wild.example.com", "denied_by_rule"), ("meta.wild.example.com", "metadata_endpoint")]
    {
        let reply = scene.ask(name, RecordType::A).await;
        assert_eq!((reply.answers.len(), extended(&reply)), (0, Some((15, reason.into()))));
    }
    let reply = scene.ask("e7.cdn.test", RecordType::A).await;
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "an alias is not allowed by itself");
    let asked: Vec<_> = scene.asked().into_iter().map(|(name, _)| name).collect();
    assert!(!asked.iter().any(|name| name.contains("attacker") || name.contains("google")), "{asked:?}");
}

#[tokio::test]
async fn aliases_that_loop_end_in_servfail() {
    let scene = Scene::new().await;
    let reply = scene.ask("loop.wild.example.com", RecordType::A).await;
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(extended(&reply), Some((24, "alias chain does not end".into())));
    assert_eq!(scene.event(), "allow upstream_dns_failed loop.wild.example.com A 2");
}

#[tokio::test]
async fn negative_answers_pass_with_the_soa_of_their_zone() {
    let scene = Scene::new().await;
    let reply = scene.ask("none.wild.example.com", RecordType::A).await;
    assert_eq!((reply.metadata.response_code, soa_ttls(&reply)), (ResponseCode::NXDomain, (20, 20)));
    assert_eq!(reply.authorities[0].name.to_string(), "example.com.");
    let reply = scene.ask("cdn.example.com", RecordType::HTTPS).await;
    assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 2));
}

#[tokio::test]
async fn service_bindings_lose_ech_and_forbidden_hints() {
    let scene = Scene::new().await;
    let reply = scene.ask("api.example.com", RecordType::HTTPS).await;
    let [record] = reply.answers.as_slice() else { panic!("{reply}") };
    assert_eq!(record.data.to_string(), "1 . alpn=h2,h3, port=443 ipv4hint=203.0.113.10,");
    assert_eq!(extended(&reply), Some((4, "edited by policy".into())));
}

#[tokio::test]
async fn other_types_are_served_where_a_rule_opens_them_and_point_to_allowed_names_only() {
    let scene = Scene::new().await;
    let reply = scene.ask("text.example.com", RecordType::TXT).await;
    assert_eq!(reply.answers[0].data.to_string(), "hello");
    let reply = scene.ask("text.example.com", RecordType::MX).await;
    let shown: Vec<_> = reply.answers.iter().map(|record| record.data.to_string()).collect();
    assert_eq!(shown, ["10 api.example.com."]);
    let reply = scene.ask("text.example.com", RecordType::SRV).await;
    assert_eq!((reply.answers.len(), soa_ttls(&reply)), (0, (5, 5)));
}

#[tokio::test]
async fn what_is_known_by_definition_is_answered_without_asking() {
    let scene = Scene::new().await;
    let reply = scene.ask("localhost", RecordType::A).await;
    assert_eq!(addresses(&reply), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
    let reply = scene.ask("x.localhost", RecordType::AAAA).await;
    assert_eq!(addresses(&reply), ["::1".parse::<IpAddr>().unwrap()]);
    let reply = scene.ask("localhost", RecordType::HTTPS).await;
    assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 0));
    let reply = scene.ask("api.example.com", RecordType::ANY).await;
    assert_eq!(reply.answers[0].record_type(), RecordType::HINFO);
    assert_eq!(reply.answers[0].ttl, 60);
    for name in ["7.113.0.203.in-addr.arpa", "8.113.0.203.in-addr.arpa"] {
        let reply = scene.ask(name, RecordType::PTR).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{name}");
    }
    assert_eq!(scene.asked(), []);
}

#[tokio::test]
async fn what_is_never_served_is_refused_in_the_words_of_its_rfc() {
    let scene = Scene::new().await;
    for qtype in [RecordType::AXFR, RecordType::IXFR] {
        let reply = scene.ask("api.example.com", qtype).await;
        let code = reply.metadata.response_code;
        assert_eq!((code, extended(&reply).map(|(code, _)| code)), (ResponseCode::Refused, Some(20)));
    }
    for qtype in [RecordType::Unknown(253), RecordType::Unknown(254), RecordType::Unknown(128)] {
        assert_eq!(scene.ask("api.example.com", qtype).await.metadata.response_code, ResponseCode::Refused);
    }
    for class in [DNSClass::CH, DNSClass::HS, DNSClass::ANY] {
        let mut query = query("version.bind", RecordType::TXT);
        query.queries[0].set_query_class(class);
        let reply = scene.send(&query).await;
        let code = reply.metadata.response_code;
        assert_eq!((code, extended(&reply).map(|(code, _)| code)), (ResponseCode::Refused, Some(21)));
    }
    let mut versioned = query("api.example.com", RecordType::A);
    versioned.edns.as_mut().unwrap().set_version(1);
    let reply = scene.send(&versioned).await;
    // 16 is BADVERS here and BADSIG in TSIG (RFC 6895 section 2.3).
    assert_eq!(u16::from(reply.metadata.response_code), 16);
    assert_eq!(extended(&reply), None);
    assert_eq!(reply.edns.unwrap().version(), 0);
    for opcode in [OpCode::Notify, OpCode::Update, OpCode::Status] {
        let mut other = query("api.example.com", RecordType::SOA);
        other.metadata.op_code = opcode;
        let reply = Message::from_vec(&scene.exchange(&other.to_vec().unwrap()).await).unwrap();
        assert_eq!((reply.metadata.op_code, reply.metadata.response_code), (opcode, ResponseCode::NotImp));
        assert_eq!(extended(&reply).map(|(code, _)| code), Some(21));
    }
    let root = scene.ask(".", RecordType::NS).await;
    assert_eq!((root.metadata.response_code, root.answers.len()), (ResponseCode::NoError, 0));
    assert_eq!(scene.asked(), []);
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[tokio::test]
async fn malformed_messages_get_formerr_and_one_event() {
    let scene = Scene::new().await;
    for (message, code) in [
        ("000101000000000000000000", 1),
        ("00010100ffff000000000000", 1),
        (
            "00010100000200000000000003617069076578616d706c6503636f6d00000100010861747461636b657204746573740000010001",
            1,
        ),
        ("12340100000100090000000003617069076578616d706c6503636f6d0000010001", 1),
        ("123401000001000000000000c00c00010001", 1),
        ("12340100000100000000000003617069c00c00010001", 1),
        ("123401000001000000000000406170690000010001", 1),
        ("123401000001000000000000800000010001", 1),
        // Two OPT records, and one that is not at the root.
        (
            "12340100000100000000000203617069076578616d706c6503636f6d000001000100002904d000000000000000002904d0000000000000",
            1,
        ),
        ("12340100000100000000000103617069076578616d706c6503636f6d0000010001016100002904d0000000000000", 1),
        ("12341000000100000000000003617069076578616d706c6503636f6d0000010001", 4),
        ("12342000000100000000000003617069076578616d706c6503636f6d0000010001", 4),
        // A dot, a NUL, a control byte and a byte above 127 inside a label.
        ("1234010000010000000000000f6170692e6578616d706c652e636f6d0000010001", 3),
        ("12340100000100000000000003610062076578616d706c6503636f6d0000010001", 3),
        ("123401000001000000000000041b5b324a076578616d706c6503636f6d0000010001", 3),
        ("12340100000100000000000002c3a4076578616d706c6503636f6d0000010001", 3),
    ] {
        scene.recorder.take();
        let reply = scene.exchange(&hex(message)).await;
        assert_eq!((reply[2] & 0x80, reply[3] & 15), (0x80, code), "{message}");
        let events = scene.recorder.events();
        assert_eq!(events.len(), 1, "{message} {events:?}");
        assert!(
            events[0].starts_with("deny bad_request") && events[0].ends_with(&format!(" {code}")),
            "{events:?}"
        );
    }
    // Bytes behind the message, and every covert bit of the header: nothing of them goes upstream (see `note`).
    let trailing = "beef0170000100000000000003617069076578616d706c6503636f6d00000100017365637265742d646174612d61667465722d7468652d7175657374696f6e";
    assert_eq!(scene.exchange(&hex(trailing)).await[3] & 15, 0);
    let options = "12340100000100000000000103617069076578616d706c6503636f6d000001000100002904d000008000002d000800080001200073656372fde90006736563726574000a00087365637265746964000f00070000657866696c";
    assert_eq!(scene.exchange(&hex(options)).await[3] & 15, 0);
    // A response is not answered; the next query is, so that the server lives.
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket
        .send_to(&hex("12348100000100000000000003617069076578616d706c6503636f6d0000010001"), scene.udp)
        .await
        .unwrap();
    socket.send_to(&query("localhost", RecordType::A).to_vec().unwrap(), scene.udp).await.unwrap();
    let mut buffer = [0; 512];
    let length = timeout(Duration::from_secs(5), socket.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(addresses(&Message::from_vec(&buffer[..length]).unwrap()).len(), 1);
}

#[tokio::test]
async fn a_stranger_is_refused_whatever_it_asks() {
    let recorder = Recorder::with_receipts(Receipt::written);
    let gate = gate_with(POLICY, "{ source = \"10.9.9.0/24\" }", &recorder);
    let (upstream, asked) = upstream(zone(RECORDS)).await;
    let scene = Scene::with(gate, recorder, [upstream], asked).await;
    for name in ["api.example.com", "attacker.test", "localhost"] {
        let reply = scene.ask(name, RecordType::A).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
        assert_eq!(extended(&reply), Some((18, "unknown_sandbox".into())));
        assert!(reply.authorities.is_empty());
    }
    let reply = scene.exchange(&hex("000101000000000000000000")).await;
    assert_eq!(reply[3] & 15, 5);
    assert_eq!(scene.asked(), []);
}

#[tokio::test]
async fn a_policy_that_changes_decides_the_next_query() {
    let scene = Scene::new().await;
    assert_eq!(addresses(&scene.ask("api.example.com", RecordType::A).await).len(), 1);
    let (other, _) = gate("[policy.case]\nallow = [\"other.example.com\"]\n");
    scene.gate.install(other.policy());
    let reply = scene.ask("api.example.com", RecordType::A).await;
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn a_wildcard_sends_little_text_and_an_exact_rule_all_of_it() {
    let (upstream, asked) = upstream(|query, _| {
        let name = query.queries[0].name().to_string();
        let records: Vec<_> =
            ["a", "b", "c"].map(|letter| format!("{name} 5 TXT {}", letter.repeat(200))).into();
        let records: Vec<_> = records.iter().map(String::as_str).collect();
        vec![response(query, ResponseCode::NoError, &records).to_vec().unwrap()]
    })
    .await;
    let scene = Scene::over((upstream, asked)).await;
    let reply = scene.ask("a.txt.example.com", RecordType::TXT).await;
    assert_eq!((reply.answers.len(), extended(&reply)), (2, Some((4, "edited by policy".into()))));
    let reply = scene.ask("text.example.com", RecordType::TXT).await;
    assert_eq!((reply.answers.len(), extended(&reply)), (3, None));
}
