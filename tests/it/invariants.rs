//! The ten invariants of ARCHITECTURE.md, each shown once from outside. (2 and 4 are in `one_answer.rs`.)

use std::{fs, os::unix::fs::PermissionsExt};

use hickory_proto::{op::ResponseCode, rr::RecordType};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};
use tidegate::lab::origin::Behaviour;

use crate::support::{Client, PROXY, PROXY_DNS, Scene, SocksReply, ask, question};

/// Asks for a host in every way there is: the statuses of CONNECT and plain HTTP, the SOCKS5 reply, the DNS code.
fn everywhere(scene: &Scene, host: &str) -> (u16, u16, SocksReply, ResponseCode) {
    let mut client = scene.client();
    client.send(format!("CONNECT {host}:443 HTTP/1.1\r\n\r\n").as_bytes());
    let connect = client.response().status;
    let mut client = scene.client();
    client.send(format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    let http = client.response().status;
    let socks = scene.client().socks5(host, 443);
    let dns = ask(scene.lab(), PROXY_DNS.parse().unwrap(), host, RecordType::A).unwrap();
    (connect, http, socks, dns.metadata.response_code)
}

fn sandbox(allow: &[&str], identify: &str) -> String {
    format!(
        "[policy.case]\nallow = {allow:?}\n[sandbox.s1]\npolicies = [\"case\"]\nidentify = [{identify}]\n"
    )
}

#[test]
fn invariant_1_default_deny() {
    let nothing = Scene::new().policy(&sandbox(&[], "{ default = true }"));
    let Some(scene) = nothing.resolving("api.example.com", &["A 203.0.113.10"]).start() else { return };
    assert_eq!(everywhere(&scene, "api.example.com"), (403, 403, SocksReply(2), ResponseCode::NXDomain));
    let stranger = Scene::new().policy(&sandbox(&["*.example.com:80,443"], "{ source = \"192.0.2.7/32\" }"));
    let Some(scene) = stranger.resolving("api.example.com", &["A 203.0.113.10"]).start() else { return };
    assert_eq!(everywhere(&scene, "api.example.com"), (403, 403, SocksReply(2), ResponseCode::Refused));
    assert!(scene.dialled().is_empty() && scene.dns().asked().is_empty());
}

#[test]
fn invariant_3_vetted_addresses_only() {
    let rebinding = serde_json::json!({
        "api.example.com": { "seq": [["A 203.0.113.10"], ["A 10.0.0.1"]], "ttl": 0 },
        "inside.example.com": ["A 10.0.0.1"],
    });
    let scene = Scene::new()
        .allow(&["api.example.com", "inside.example.com"])
        .zone(tidegate::lab::Zone::from_json(&rebinding).unwrap())
        .start();
    let Some(scene) = scene else { return };
    let mut client = scene.client();
    client.send(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n");
    assert_eq!(client.response().status, 200);
    assert_eq!(scene.dialled(), ["203.0.113.10:443".parse().unwrap()]);
    let mut client = scene.client();
    client.send(b"CONNECT inside.example.com:443 HTTP/1.1\r\n\r\n");
    let refused = client.response();
    assert_eq!((refused.status, refused.reason()), (403, Some("address_not_public")));
    assert!(scene.dialled().is_empty());
}

#[test]
fn invariant_5_no_silent_contact() {
    let scene = Scene::new()
        .allow(&["api.example.com:80,443"])
        .resolving("api.example.com", &["A 203.0.113.10"])
        .start();
    let Some(scene) = scene else { return };
    for host in ["api.example.com", "other.example.com", "169.254.169.254"] {
        let _ = everywhere(&scene, host);
    }
    let mut client = scene.client();
    client.send(b"CONNECT nonsense HTTP/1.1\r\n\r\n");
    assert_eq!(client.response().status, 400);
    let lines = scene.gateway().audit();
    let decisions: Vec<_> = lines.iter().filter(|line| line["event"] == "decision").collect();
    // Three hosts in four ways, where an address is no name to look up; and one that could not be read.
    assert_eq!(decisions.len(), 3 * 4 + 1, "{decisions:#?}");
    let (_, metrics) = scene.gateway().metrics(scene.lab(), "/metrics");
    let counted: u64 = metrics
        .lines()
        .filter(|line| line.starts_with("tidegate_decisions_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(counted, decisions.len() as u64, "{metrics}");
}

#[test]
fn invariant_6_fail_closed() {
    let scene = Scene::new()
        .allow(&["api.example.com:80,443"])
        .resolving("api.example.com", &["A 203.0.113.10"])
        // Every write fails with ENOSPC.
        .configure(|config| config.audit = Some("/dev/full".into()))
        .try_start();
    match scene {
        None => {}
        Some(Err(refused)) => {
            assert_eq!(refused.status.and_then(|status| status.code()), Some(1), "{refused:?}")
        }
        Some(Ok(scene)) => {
            let unwritten = everywhere(&scene, "api.example.com");
            assert_eq!(unwritten, (403, 403, SocksReply(2), ResponseCode::ServFail));
            assert!(scene.contacts().iter().all(|contact| contact.total() == 0));
        }
    }
}

#[test]
fn invariant_7_identity_is_not_a_claim() {
    let policy = "[policy.open]\nallow = [\"api.example.com\"]\n[policy.shut]\nallow = []\n\
        [sandbox.open]\npolicies = [\"open\"]\nidentify = [{ listener = \"10.200.0.1:3129\" }]\n\
        [sandbox.shut]\npolicies = [\"shut\"]\nidentify = [{ listener = \"10.200.0.1:3128\" }]\n";
    let scene = Scene::new()
        .policy(policy)
        .configure(|config| config.proxy = vec![PROXY.into(), "10.200.0.1:3129".into()])
        .resolving("api.example.com", &["A 203.0.113.10"])
        .start();
    let Some(scene) = scene else { return };
    let claims = "X-Sandbox-Id: open\r\nX-Forwarded-For: 10.200.0.1\r\nForwarded: for=10.200.0.1\r\n\
                  Proxy-Authorization: Basic b3BlbjpvcGVu\r\nTidegate-Sandbox: open\r\n";
    for (listener, status) in [(PROXY, 403), ("10.200.0.1:3129", 200)] {
        let mut client = Client::connect(scene.lab(), listener.parse().unwrap());
        client.send(format!("CONNECT api.example.com:443 HTTP/1.1\r\n{claims}\r\n").as_bytes());
        assert_eq!(client.response().status, status, "{listener}");
    }
    let audit = scene.gateway().audit();
    let who: Vec<_> =
        audit.iter().filter(|line| line["event"] == "decision").map(|line| &line["sandbox"]).collect();
    assert_eq!(who, ["shut", "open"]);
}

#[test]
fn invariant_8_the_controls_are_out_of_reach() {
    let policy = "[[policy.case.rule]]\nid = \"web\"\nhost = \"*\"\nports = \"*\"\nbroad = true\n\
        [sandbox.s1]\npolicies = [\"case\"]\nidentify = [{ default = true }]\n";
    let scene =
        Scene::new().policy(policy).resolving("gate.example.com", &["A 127.0.0.1", "AAAA ::1"]).start();
    let Some(scene) = scene else { return };
    for to in [
        "127.0.0.1:9464",
        "[::1]:9464",
        "[::ffff:127.0.0.1]:9464",
        "10.200.0.1:3128",
        "203.0.113.1:9464",
        "localhost:9464",
        "gate.example.com:9464",
        "0.0.0.0:9464",
        "[::]:9464",
    ] {
        let mut client = scene.client();
        client.send(format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(client.response().status, 403, "{to}");
    }
    let audit = scene.gateway().dir().join("audit.jsonl");
    assert_eq!(fs::metadata(audit).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn invariant_9_no_decryption() {
    let scene = Scene::new()
        .allow(&["api.example.com"])
        .resolving("api.example.com", &["A 203.0.113.10"])
        .origins(|_| Behaviour::Echo)
        .start();
    let Some(scene) = scene else { return };
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = "api.example.com".try_into().unwrap();
    let mut hello = Vec::new();
    ClientConnection::new(config.into(), name).unwrap().write_tls(&mut hello).unwrap();
    let mut client = scene.client();
    client.send(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n");
    assert_eq!(client.response().status, 200);
    client.send(&hello);
    assert_eq!(client.take(hello.len()), hello, "the echo is not what was sent");
    assert_eq!(scene.contacts()[0].received(), hello, "the origin got other bytes");
}

#[test]
fn invariant_10_nothing_from_the_network_breaks_it() {
    let scene = Scene::new()
        .allow(&["api.example.com:80,443"])
        .resolving("api.example.com", &["A 203.0.113.10"])
        .start();
    let Some(mut scene) = scene else { return };
    let mut random = SmallRng::seed_from_u64(7);
    let heads: [&[u8]; 4] = [
        b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n",
        b"GET http://api.example.com/\x1b[2J HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        b"\x05\x01\x00\x05\x01\x00\x03\x0fapi.example.com\x01\xbb",
        b"POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ];
    let query = question("api.example.com", RecordType::A).to_vec().unwrap();
    let dns = scene.lab().gateway().udp_bind("10.200.0.1:0".parse().unwrap()).unwrap();
    for round in 0..400 {
        let mut bytes = heads[round % heads.len()].to_vec();
        let mut wire = query.clone();
        for _ in 0..=round % 5 {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
            let at = random.random_range(0..wire.len());
            wire[at] = random.random();
        }
        bytes.truncate(random.random_range(1..=bytes.len()));
        let mut client = scene.client();
        client.send(&bytes);
        client.half_close();
        dns.send_to(&wire, PROXY_DNS).unwrap();
    }
    assert_eq!(everywhere(&scene, "api.example.com").0, 200);
    assert!(scene.gateway_mut().alive());
    let text = scene.gateway().audit_text();
    let printable = |byte: u8| byte == b'\n' || (0x20..0x7f).contains(&byte);
    assert!(text.bytes().all(printable), "a byte stands unescaped in the log");
    let said = scene.gateway().stderr();
    assert!(!said.contains("panicked"), "{said}");
}
