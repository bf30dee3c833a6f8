//! The stand-in internet holds what the other tests take for granted.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use hickory_proto::{
    op::{Message, OpCode, Query, ResponseCode},
    rr::{Name, RecordType},
};
use tidegate::lab::{
    GATEWAY_V4, GATEWAY_V6, Lab, Zone,
    dns::DnsServer,
    origin::{Behaviour, Origin},
    tap::{Sent, Tap},
};

const PATIENCE: Duration = Duration::from_secs(3);

fn lab() -> Option<Lab> {
    match Lab::new() {
        Ok(lab) => Some(lab),
        Err(unavailable) => {
            eprintln!("skipped: {unavailable}: {}", unavailable.why);
            None
        }
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn connect(lab: &Lab, to: &str) -> TcpStream {
    let stream =
        lab.gateway().tcp_connect(addr(to), PATIENCE).unwrap_or_else(|error| panic!("{to}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn every_address_of_the_world_answers_and_knows_its_name() {
    let Some(lab) = lab() else { return };
    let listener = lab.world().tcp_listen(addr("[::]:443")).unwrap();
    for (to, from) in [
        ("203.0.113.10:443", GATEWAY_V4.to_string()),
        ("169.254.169.254:443", GATEWAY_V4.to_string()),
        ("10.20.0.5:443", GATEWAY_V4.to_string()),
        ("[2001:db8:cafe::10]:443", GATEWAY_V6.to_string()),
        ("[fd00:ec2::254]:443", GATEWAY_V6.to_string()),
    ] {
        let mut client = connect(&lab, to);
        let (mut server, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip().to_canonical().to_string(), from);
        let dialled = server.local_addr().unwrap();
        assert_eq!(SocketAddr::new(dialled.ip().to_canonical(), dialled.port()), addr(to));
        server.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn the_gateways_own_addresses_are_not_the_worlds() {
    let Some(lab) = lab() else { return };
    let _everywhere = lab.world().tcp_listen(addr("[::]:443")).unwrap();
    for own in ["203.0.113.1:443", "10.200.0.1:443", "[2001:db8:cafe::1]:443", "127.0.0.1:443", "[::1]:443"] {
        let refused = lab.gateway().tcp_connect(addr(own), PATIENCE).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{own}");
    }
}

#[test]
fn an_origin_tells_what_it_received_and_on_which_address() {
    let Some(lab) = lab() else { return };
    let origin = Origin::serve(lab.world(), addr("[::]:80"), |_| Behaviour::Http).unwrap();
    let mut client = connect(&lab, "203.0.113.11:80");
    client
        .write_all(b"POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains(r#""body":"hi""#) && answer.contains(r#""dialled":"203.0.113.11:80""#),
        "{answer}"
    );
    let [contact] = &origin.contacts()[..] else { panic!("one contact") };
    assert_eq!((contact.dialled, contact.requests().len()), (addr("203.0.113.11:80"), 1));
}

#[test]
fn an_origin_ends_with_its_value_and_so_do_its_connections() {
    let Some(lab) = lab() else { return };
    let origin = Origin::serve(lab.world(), addr("[::]:7"), |_| Behaviour::Echo).unwrap();
    let mut client = connect(&lab, "203.0.113.11:7");
    client.write_all(b"ping").unwrap();
    let mut back = [0; 4];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"ping");
    drop(origin);
    assert_eq!(client.read(&mut back).unwrap(), 0);
}

#[test]
fn the_dns_server_answers_over_udp_and_tcp_and_remembers() {
    let Some(lab) = lab() else { return };
    let many: Vec<String> = (1..100).map(|n| format!("A 203.0.113.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let zone = Zone::new()
        .with("api.example.com", &["CNAME edge.example.net."])
        .and_then(|zone| zone.with("edge.example.net", &many))
        .unwrap();
    let server = DnsServer::serve(lab.world(), addr("198.51.100.53:53"), zone).unwrap();

    let socket = lab.gateway().udp_bind(addr("0.0.0.0:0")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = |name: &str| {
        socket.send_to(&question(name), server.address()).unwrap();
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    };
    let truncated = ask("api.example.com.");
    assert_eq!((truncated.metadata.truncation, truncated.answers.len()), (true, 0));
    assert_eq!(ask("other.example.com.").metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(ask("example.com.").metadata.response_code, ResponseCode::NoError);

    let mut stream = connect(&lab, "198.51.100.53:53");
    let query = question("api.example.com.");
    stream.write_all(&[&u16::try_from(query.len()).unwrap().to_be_bytes()[..], &query].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut reply = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(Message::from_vec(&reply).unwrap().answers.len(), 100);

    let asked: Vec<_> =
        server.asked_under("example.com").iter().map(|asked| (asked.name.clone(), asked.over_tcp)).collect();
    assert_eq!(
        asked,
        [
            ("api.example.com.", false),
            ("other.example.com.", false),
            ("example.com.", false),
            ("api.example.com.", true)
        ]
        .map(|(name, tcp)| (name.to_owned(), tcp))
    );
}

#[test]
fn the_tap_sees_what_nobody_answers() {
    let Some(lab) = lab() else { return };
    let tap = Tap::open(lab.world()).unwrap();
    let refused = lab.gateway().tcp_connect(addr("203.0.113.66:25"), PATIENCE);
    assert!(refused.is_err());
    lab.gateway().udp_bind(addr("0.0.0.0:0")).unwrap().send_to(b"x", addr("203.0.113.66:53")).unwrap();
    let to: BTreeSet<_> = tap
        .sent()
        .unwrap()
        .into_iter()
        .map(|sent| match sent {
            Sent::Dial { to, .. } => ("dial", to.to_string()),
            Sent::Datagram { to } => ("datagram", to.to_string()),
            Sent::Other { to, .. } => ("other", to.to_string()),
        })
        .collect();
    assert_eq!(
        to,
        BTreeSet::from([("dial", "203.0.113.66:25".into()), ("datagram", "203.0.113.66:53".into())])
    );
    assert!(tap.sent().unwrap().is_empty());
}

fn question(name: &str) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = 7;
    message.metadata.op_code = OpCode::Query;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.to_vec().unwrap()
}
