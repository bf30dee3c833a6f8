//! Who a client is: each kind of evidence, each way of forging it, and what is said to whom.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};

mod forged;

use serde_json::Value;
use tidegate::lab::origin::Behaviour;

use crate::support::{Client, PATIENCE, PROXY, Response, Scene, eventually};

/// `token-of-s1` and `token-of-s2`.
const S1: &str = "3fb44e6c4bef5d50ae1c497f6c17bc61a7aa3a9e919dd27236f6218d8c523dc3";
const S2: &str = "0c5bb086ed2c282b87c8ad61d558a7c2cf14a47cb4759330be202040d56981cb";

/// `s1:token-of-s1`, `s2:token-of-s2`, `s1:token-of-s2` and `s1:wrong`, as Basic carries them.
const BASIC_S1: &str = "Basic czE6dG9rZW4tb2YtczE=";
const BASIC_S2: &str = "Basic czI6dG9rZW4tb2YtczI=";
const CROSSED: &str = "Basic czE6dG9rZW4tb2YtczI=";
const WRONG: &str = "Basic czE6d3Jvbmc=";

const OTHER: &str = "10.200.0.1:3129";

fn policy(s1: &str, s2: &str) -> String {
    format!(
        "[policy.one]\nallow = [\"one.example.com:80,443\"]\n[policy.two]\nallow = [\"two.example.com:80,443\"]\n\
         [sandbox.s1]\npolicies = [\"one\"]\nidentify = [{s1}]\n\
         [sandbox.s2]\npolicies = [\"two\"]\nidentify = [{s2}]\n"
    )
}

fn token(hash: &str) -> String {
    format!("{{ token_sha256 = \"{hash}\" }}")
}

fn scene(s1: &str, s2: &str) -> Option<Scene> {
    Scene::new()
        .policy(&policy(s1, s2))
        .configure(|config| config.proxy = vec![PROXY.into(), OTHER.into(), "127.0.0.1:3128".into()])
        .resolving("one.example.com", &["A 203.0.113.10"])
        .resolving("two.example.com", &["A 203.0.113.20"])
        .origins(|to| if to.port() == 80 { Behaviour::Http } else { Behaviour::Echo })
        .start()
}

fn head(authorization: Option<&str>) -> String {
    authorization.map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default()
}

fn connect_on(scene: &Scene, listener: &str, to: &str, authorization: Option<&str>) -> Response {
    let mut client = Client::connect(scene.lab(), listener.parse().unwrap());
    client.send(format!("CONNECT {to} HTTP/1.1\r\n{}\r\n", head(authorization)).as_bytes());
    client.response()
}

fn connect(scene: &Scene, to: &str, authorization: Option<&str>) -> (u16, Option<String>) {
    let response = connect_on(scene, PROXY, to, authorization);
    (response.status, response.reason().map(str::to_owned))
}

fn get(to: &str, authorization: Option<&str>) -> String {
    format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n{}\r\n", head(authorization))
}

/// The sandboxes of the decisions so far, and their reasons.
fn decisions(scene: &Scene) -> Vec<(Option<String>, Option<String>)> {
    let text = |line: &Value, key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
    let lines = scene.gateway().audit();
    let decisions = lines.iter().filter(|line| line["event"] == "decision");
    decisions.map(|line| (text(line, "sandbox"), text(line, "reason"))).collect()
}

#[test]
fn a_token_names_its_sandbox_and_a_wrong_one_names_nobody() {
    let Some(scene) = scene(&token(S1), &token(S2)) else { return };
    let unknown = (407, Some("unknown_sandbox".to_owned()));
    let not_listed = (403, Some("not_listed".to_owned()));
    for (to, authorization, expected) in [
        ("one.example.com:443", Some(BASIC_S1), (200, None)),
        ("two.example.com:443", Some(BASIC_S2), (200, None)),
        ("one.example.com:443", Some("Bearer token-of-s1"), (200, None)),
        ("one.example.com:443", Some("bearer token-of-s1"), (200, None)),
        ("two.example.com:443", Some(BASIC_S1), not_listed.clone()),
        ("one.example.com:443", Some(BASIC_S2), not_listed),
        ("one.example.com:443", None, unknown.clone()),
        ("one.example.com:443", Some(WRONG), unknown.clone()),
        ("one.example.com:443", Some(CROSSED), unknown.clone()),
        ("one.example.com:443", Some("Bearer wrong"), unknown.clone()),
        ("one.example.com:443", Some("Digest username=\"s1\""), unknown.clone()),
        ("one.example.com:443", Some(""), unknown.clone()),
        // Two at once, one of them right.
        (
            "one.example.com:443",
            Some("Bearer token-of-s1\r\nProxy-Authorization: Bearer token-of-s2"),
            unknown.clone(),
        ),
    ] {
        assert_eq!(connect(&scene, to, authorization), expected, "{to} {authorization:?}");
    }
    let refused = connect_on(&scene, PROXY, "one.example.com:443", Some(WRONG));
    assert_eq!(refused.header("proxy-authenticate"), Some("Basic realm=\"tidegate\""));
    let (text, log) = (scene.gateway().audit_text(), scene.gateway().stderr());
    for secret in ["token-of-s1", "czE6", S1, "d3Jvbmc"] {
        assert!(!text.contains(secret) && !log.contains(secret), "{secret} stands in a log");
        assert!(!String::from_utf8_lossy(&refused.body).contains(secret), "{secret} is echoed");
    }
    let strangers = decisions(&scene).into_iter().filter(|(sandbox, _)| sandbox.is_none()).count();
    assert_eq!(strangers, 8);
}

#[test]
fn each_plain_request_is_whose_token_it_carries() {
    let Some(scene) = scene(&token(S1), &token(S2)) else { return };
    let mut client = scene.client();
    for (to, authorization, status) in [
        ("one.example.com", Some(BASIC_S1), 200),
        ("two.example.com", Some(BASIC_S1), 403),
        ("two.example.com", Some(BASIC_S2), 200),
        // Nothing is taken over from the request before.
        ("two.example.com", None, 407),
        ("one.example.com", Some(BASIC_S1), 200),
    ] {
        client.send(get(to, authorization).as_bytes());
        let response = client.response();
        assert_eq!(response.status, status, "{to} {authorization:?}");
        let echoed = String::from_utf8_lossy(&response.body).to_lowercase();
        assert!(!echoed.contains("proxy-authorization") && !echoed.contains("cze6"), "{echoed}");
    }
    client.send(b"CONNECT one.example.com:443 HTTP/1.1\r\n\r\n");
    assert_eq!(client.response().status, 407);
    let who: Vec<_> = decisions(&scene).into_iter().map(|(sandbox, _)| sandbox.unwrap_or_default()).collect();
    assert_eq!(who, ["s1", "s1", "s2", "", "s1", ""]);
    for contact in scene.contacts() {
        let received = String::from_utf8_lossy(&contact.received()).to_lowercase();
        assert!(!received.contains("proxy-authorization"), "{received}");
    }
}

/// Greets with these methods; the method that is chosen.
fn greet(client: &mut Client, methods: &[u8]) -> u8 {
    client.send(&[&[5, u8::try_from(methods.len()).unwrap()], methods].concat());
    client.take(2)[1]
}

/// Sends a user name and a password; the status.
fn password(client: &mut Client, user: &str, password: &str) -> u8 {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    let mut message = vec![1, length(user)];
    message.extend(user.as_bytes());
    message.push(length(password));
    message.extend(password.as_bytes());
    client.send(&message);
    client.take(2)[1]
}

#[test]
fn socks5_takes_a_token_as_password() {
    let Some(scene) = scene(&token(S1), &format!("{{ listener = \"{OTHER}\" }}")) else { return };
    let mut client = scene.client();
    assert_eq!(greet(&mut client, &[0, 2]), 2, "asked for, where tokens are known");
    assert_eq!(password(&mut client, "s1", "token-of-s1"), 0);
    assert_eq!(client.socks5_request("one.example.com", 443).0, 0);
    for (user, secret) in [("s1", "wrong"), ("s2", "token-of-s1"), ("", "token-of-s1")] {
        let mut client = scene.client();
        assert_eq!(greet(&mut client, &[2]), 2);
        assert_eq!(password(&mut client, user, secret), 1, "{user}");
        assert!(!client.read_more(std::time::Duration::from_secs(5)) && client.ended(), "closed (RFC 1929)");
    }
    // Who is known by its place needs none, and may have none to send.
    let other = || Client::connect(scene.lab(), OTHER.parse().unwrap());
    let mut client = other();
    assert_eq!(greet(&mut client, &[0]), 0);
    assert_eq!(client.socks5_request("two.example.com", 443).0, 0);
    let mut client = other();
    assert_eq!((greet(&mut client, &[0, 2]), password(&mut client, "", "")), (2, 0));
    assert_eq!(client.socks5_request("two.example.com", 443).0, 0);
    // A stranger without a password is told so for what it asks.
    let mut client = scene.client();
    assert_eq!(greet(&mut client, &[0]), 0);
    assert_eq!(client.socks5_request("one.example.com", 443).0, 2);
    let who: Vec<_> = decisions(&scene).into_iter().map(|(sandbox, _)| sandbox.unwrap_or_default()).collect();
    assert_eq!(who, ["s1", "", "", "", "s2", "s2", ""]);
}

#[test]
fn evidence_that_disagrees_or_does_not_hold_is_refused() {
    let s1 = format!("{{ token_sha256 = \"{S1}\", source = \"127.0.0.1/32\" }}");
    let s2 = format!("{{ listener = \"{OTHER}\" }}, {}", token(S2));
    let Some(scene) = scene(&s1, &s2) else { return };
    let home = "127.0.0.1:3128";
    for (listener, to, authorization, status, reason) in [
        (home, "one.example.com:443", Some(BASIC_S1), 200, None),
        (home, "one.example.com:443", None, 407, Some("unknown_sandbox")),
        (PROXY, "one.example.com:443", Some(BASIC_S1), 407, Some("unknown_sandbox")),
        (OTHER, "two.example.com:443", None, 200, None),
        (OTHER, "two.example.com:443", Some(BASIC_S2), 200, None),
        (OTHER, "two.example.com:443", Some(BASIC_S1), 403, Some("identity_mismatch")),
        (OTHER, "two.example.com:443", Some(WRONG), 407, Some("unknown_sandbox")),
        (PROXY, "two.example.com:443", Some(BASIC_S2), 200, None),
    ] {
        let response = connect_on(&scene, listener, to, authorization);
        assert_eq!((response.status, response.reason()), (status, reason), "{listener} {authorization:?}");
    }
}

#[test]
fn a_revoked_token_closes_its_tunnels_and_no_others() {
    let Some(scene) = scene(&token(S1), &token(S2)) else { return };
    let tunnel = |to: &str, authorization| {
        let mut client = scene.client();
        client.send(format!("CONNECT {to} HTTP/1.1\r\n{}\r\n", head(Some(authorization))).as_bytes());
        assert_eq!(client.response().status, 200);
        client
    };
    let mut revoked = tunnel("one.example.com:443", BASIC_S1);
    let mut kept = tunnel("two.example.com:443", BASIC_S2);
    let fresh = "a".repeat(64);
    scene.gateway().rewrite_config(|text| text.replace(S1, &fresh));
    eventually("the tunnel is cut", || {
        revoked.read_more(std::time::Duration::from_millis(50));
        revoked.ended().then_some(())
    });
    assert!(!kept.read_more(std::time::Duration::from_millis(50)) && !kept.ended());
    assert_eq!(connect(&scene, "one.example.com:443", Some(BASIC_S1)).0, 407);
    let closes = eventually("the close is on record", || {
        let lines = scene.gateway().audit();
        lines.into_iter().find(|line| line["event"] == "close")
    });
    assert_eq!((&closes["sandbox"], &closes["reason"]), (&"s1".into(), &"policy_changed".into()));
}

/// The next answer on a unix socket to a CONNECT: its status, and the whole of it.
pub fn connect_by_unix(path: &Path, to: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(path).unwrap();
    write!(stream, "CONNECT {to} HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") || !answer.starts_with(b"HTTP/1.1 200") {
        match stream.read(&mut buffer) {
            Ok(1..) => answer.extend_from_slice(&buffer),
            Ok(0) | Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    (text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default(), text)
}

#[test]
fn a_unix_socket_knows_its_sandbox_and_may_ask_for_a_user() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).join("proxy.sock");
    let own = rustix::process::geteuid().as_raw();
    let s1 = format!("{{ unix = {:?}, uid = {own}, mode = \"0600\" }}", at("s1"));
    let s2 = format!("{{ unix = {:?}, uid = {} }}, {}", at("s2"), own + 1, token(S2));
    let Some(scene) = scene(&s1, &s2) else { return };
    assert_eq!(connect_by_unix(&at("s1"), "one.example.com:443").0, 200);
    assert_eq!(connect_by_unix(&at("s1"), "two.example.com:443").0, 403);
    let mode = |name| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("s1"), mode("s2")), (0o600, 0o666));
    // Another's socket: the kernel says who comes, whatever the client says.
    let (status, said) = connect_by_unix(&at("s2"), "two.example.com:443");
    assert_eq!(status, 403);
    assert!(said.contains(&format!("uid {own} ")) && said.contains("s2/proxy.sock"), "{said}");
    let who: Vec<_> = decisions(&scene).into_iter().map(|(sandbox, _)| sandbox.unwrap_or_default()).collect();
    assert_eq!(who, ["s1", "s1", ""]);
    // A reload opens the sockets of new sandboxes and closes those of the gone.
    let moved = |text: String| text.replace("s1/proxy.sock", "moved/proxy.sock");
    scene.gateway().rewrite_config(moved);
    eventually("the new socket is there", || at("moved").exists().then_some(()));
    eventually("the old one is gone", || (!at("s1").exists()).then_some(()));
    assert_eq!(connect_by_unix(&at("moved"), "one.example.com:443").0, 200);
}
