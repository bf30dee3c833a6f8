//! Streams: CONNECT and SOCKS5, what is dialled, refused, kept and told.

mod ends;
mod tls;

use std::sync::Arc;

use policy::{Event, Reason};
use proxy::{Config, Listener, UpstreamProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::scene::{SOON, Scene, head, policy, rest};

fn tell(event: &Event<'_>) -> String {
    match event {
        Event::Decision(told) => {
            let inbound = told.attempt.inbound.as_str();
            format!("{inbound} {} {}", told.answer.as_str(), told.reason.map_or("-", Reason::code))
        }
        Event::Close(told) => {
            let sni = told.sni.map_or("-", |name| name.as_str());
            let reason = told.reason.map_or("-", Reason::code);
            format!("close {reason} {sni} {} {}", told.bytes_up, told.bytes_down)
        }
    }
}

fn opening(port: u16, more: &str) -> String {
    format!(
        "[policy.base]\nallow = [\"listed.example.test\"]\n\
         [internal.api]\nhost = \"api.example.test\"\nhost_port = \"127.0.0.1:{port}\"\nports = [80, 443, 5432]\n\
         [sandbox.s1]\npolicies = [\"base\"]\ninternal = [\"api\"]\nidentify = [{{ default = true }}]\n{more}"
    )
}

async fn scene() -> Scene {
    scene_with(Config::default()).await
}

async fn scene_with(config: Config) -> Scene {
    Scene::new(|port| opening(port, ""), tell, config).await
}

/// A policy whose one destination is an address that only the upstream proxy is asked for.
const BEHIND_PROXY: &str = "[policy.base]\nallow = [\"203.0.113.10:5432\", \"203.0.113.11:5432\"]\n\
    [addresses]\ntreat_as_public = [\"203.0.113.0/24\"]\n\
    [sandbox.s1]\npolicies = [\"base\"]\nidentify = [{ default = true }]\n";

#[tokio::test]
async fn a_tunnel_carries_bytes_and_leaves_two_records() {
    let scene = scene().await;
    let (mut client, mut origin) = scene.tunnel(5432).await;
    client.write_all(b"ask").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut origin).await, b"ask");
    origin.write_all(b"answer").await.unwrap();
    drop(origin);
    assert_eq!(rest(&mut client).await, b"answer");
    scene.records(&["connect allow -", "close - - 3 6"]).await;
    assert_eq!(scene.gateway.streams().count(), 0);
}

#[tokio::test]
async fn a_server_may_speak_first_and_early_bytes_are_kept() {
    let scene = scene().await;
    let mut client = scene.sends(b"CONNECT api.example.test:5432 HTTP/1.0\r\n\r\nearly").await;
    let mut origin = scene.accept().await;
    assert_eq!(head(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\n");
    let mut early = [0; 5];
    origin.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
    let (mut client, mut origin) = scene.tunnel(5432).await;
    origin.write_all(b"banner").await.unwrap();
    let mut banner = [0; 6];
    client.read_exact(&mut banner).await.unwrap();
    assert_eq!(&banner, b"banner");
}

#[tokio::test]
async fn a_denial_says_why_and_nothing_is_dialled() {
    let scene = scene().await;
    let mut client = scene.sends(b"CONNECT other.example.test:443 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let answer = String::from_utf8(rest(&mut client).await).unwrap();
    let status = answer.lines().next().unwrap();
    assert!(
        status.starts_with("HTTP/1.1 403 Blocked by tidegate: not_listed, id ") && status.len() <= 120,
        "{status}"
    );
    for line in [
        "\r\nProxy-Status: tidegate; error=http_request_denied; details=\"not_listed\"\r\n",
        "\r\nTidegate-Reason: not_listed\r\n",
        "\r\nTidegate-Id: ",
        "\r\nConnection: close\r\n",
        "other.example.test:443",
        "do not retry another way",
    ] {
        assert!(answer.contains(line), "{line} in {answer}");
    }
    assert!(!answer.contains("to allow it"), "hints are off");
    scene.records(&["connect deny not_listed"]).await;
    assert!(scene.is_undialled());
}

#[tokio::test]
async fn an_agent_gets_json_and_hints_say_what_to_add() {
    let scene = scene().await;
    let port = scene.origin.local_addr().unwrap().port();
    scene.gate.install(policy(&opening(port, "hints = true\n")));
    let request = b"CONNECT listed.example.test:8443 HTTP/1.1\r\nAccept: application/json\r\n\r\n";
    let answer = String::from_utf8(rest(&mut scene.sends(request).await).await).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: application/json"), "{head}");
    assert!(body.starts_with("{\"error\":\"policy_denied\",\"reason\":\"port_not_allowed\""), "{body}");
    let hint = "to allow it, add \\\"listed.example.test:8443\\\" to allow of [policy.base] in t.toml";
    assert!(body.contains(hint), "{body}");
}

#[tokio::test]
async fn bytes_behind_a_denied_connect_are_no_request() {
    let scene = scene().await;
    let sent = b"CONNECT a.test:443 HTTP/1.1\r\n\r\nCONNECT api.example.test:5432 HTTP/1.1\r\n\r\n";
    let answer = String::from_utf8(rest(&mut scene.sends(sent).await).await).unwrap();
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    scene.records(&["connect deny not_listed"]).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_answered_and_recorded() {
    let scene = scene().await;
    for (sent, status) in [
        (&b"CONNECT 127.1:443 HTTP/1.1\r\n\r\n"[..], "400"),
        (b"CONNECT api.example.test:443 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
        (b"\x16\x03\x01\x00\x05hello", "400"),
        (b"TRACE http://a.test/ HTTP/1.1\r\n\r\n", "405"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ] {
        scene.recorder.told.lock().unwrap().clear();
        let answer = String::from_utf8(rest(&mut scene.sends(sent).await).await).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let inbound = if sent.starts_with(b"CONNECT") { "connect" } else { "http" };
        scene.records(&[&format!("{inbound} deny bad_request")]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_is_answered_408() {
    let scene = scene().await;
    let mut client = scene.sends(b"CONNECT api.example.test:443 HTTP/1.1\r\n").await;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    scene.records(&["connect deny bad_request"]).await;
}

#[tokio::test]
async fn socks5_opens_denies_and_refuses() {
    let scene = scene().await;
    let named = |command: u8, name: &str, port: u16| {
        [&[5, 1, 0, 5, command, 0, 3, name.len() as u8][..], name.as_bytes(), &port.to_be_bytes()].concat()
    };
    let mut client = scene.sends(&[&named(1, "api.example.test", 5432)[..], b"early"].concat()).await;
    let mut origin = scene.accept().await;
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let mut early = [0; 5];
    origin.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
    drop((client, origin));
    scene.records(&["socks5 allow -", "close - - 5 0"]).await;
    for (sent, code, record) in [
        (named(1, "other.example.test", 443), 2, "socks5 deny not_listed"),
        (named(1, "attacker.test\0.example.test", 443), 1, "socks5 deny bad_request"),
        (named(1, "2130706433", 443), 1, "socks5 deny bad_request"),
        (named(2, "api.example.test", 5432), 7, "socks5 deny bad_request"),
        (named(3, "api.example.test", 5432), 7, "socks5 deny bad_request"),
    ] {
        scene.recorder.told.lock().unwrap().clear();
        assert_eq!(rest(&mut scene.sends(&sent).await).await[..4], [5, 0, 5, code]);
        scene.records(&[record]).await;
    }
}

#[tokio::test]
async fn a_destination_that_refuses_is_502() {
    let mut scene = scene().await;
    // The one that the policy opens is gone with this.
    scene.origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sent = b"CONNECT api.example.test:5432 HTTP/1.1\r\n\r\n";
    let answer = String::from_utf8(rest(&mut scene.sends(sent).await).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 502 Not reached by tidegate: upstream_connect_failed"), "{answer}");
    scene.records(&["connect allow upstream_connect_failed"]).await;
}

#[tokio::test]
async fn a_unix_socket_serves_as_an_address_does() {
    let scene = scene().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.sock");
    let listener = Listener::unix("unix:proxy.sock".into(), &path).unwrap();
    tokio::spawn(listener.run(Arc::clone(&scene.gateway)));
    let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
    client.write_all(b"CONNECT api.example.test:5432 HTTP/1.1\r\n\r\nhello").await.unwrap();
    let mut origin = scene.accept().await;
    let mut hello = [0; 5];
    origin.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
}

#[tokio::test]
async fn an_upstream_proxy_is_asked_for_the_vetted_address() {
    let corporate = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = vec![corporate.local_addr().unwrap()];
    let upstream = Some(UpstreamProxy { addresses, except: Vec::new() });
    let scene = scene_with(Config { upstream, ..Config::default() }).await;
    scene.gate.install(policy(BEHIND_PROXY));

    let mut client = scene.sends(b"CONNECT 203.0.113.10:5432 HTTP/1.1\r\n\r\nearly").await;
    let mut proxy = timeout(SOON, corporate.accept()).await.unwrap().unwrap().0;
    let asked = "CONNECT 203.0.113.10:5432 HTTP/1.1\r\nHost: 203.0.113.10:5432\r\n\r\n";
    assert_eq!(head(&mut proxy).await, asked);
    proxy.write_all(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nbanner").await.unwrap();
    assert_eq!(head(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\n");
    let (mut banner, mut early) = ([0; 6], [0; 5]);
    client.read_exact(&mut banner).await.unwrap();
    proxy.read_exact(&mut early).await.unwrap();
    assert_eq!((&banner, &early), (b"banner", b"early"));

    let mut client = scene.sends(b"CONNECT 203.0.113.11:5432 HTTP/1.1\r\n\r\n").await;
    let mut proxy = timeout(SOON, corporate.accept()).await.unwrap().unwrap().0;
    head(&mut proxy).await;
    proxy.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    assert!(head(&mut client).await.starts_with("HTTP/1.1 502 "));

    // A denial is no matter of the other proxy's.
    let mut client = scene.sends(b"CONNECT 203.0.113.12:5432 HTTP/1.1\r\n\r\n").await;
    assert!(head(&mut client).await.starts_with("HTTP/1.1 403 "));
}
