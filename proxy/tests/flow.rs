//! Streams through the gateway as a client and an origin see them, on loopback: a policy that opens ports of this host
//! stands in for names and their resolution.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy knows the tests, and not the functions that they share"
)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use policy::file::{Document, load};
use policy::{Event, Gate, LocalAddresses, Observer, Policy, Reason, Receipt, Timestamp};
use prometheus::Registry;
use proxy::{Config, Gateway, Listener, UpstreamProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// What the gate told its observer, in short.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>);

impl Observer for Recorder {
    fn record(&self, event: &Event<'_>) -> Receipt {
        let line = match event {
            Event::Decision(told) => {
                let inbound = told.attempt.inbound.as_str();
                format!("{inbound} {} {}", told.answer.as_str(), told.reason.map_or("-", Reason::code))
            }
            Event::Close(told) => {
                let sni = told.sni.map_or("-", |name| name.as_str());
                let reason = told.reason.map_or("-", Reason::code);
                format!("close {reason} {sni} {} {}", told.bytes_up, told.bytes_down)
            }
        };
        self.0.lock().unwrap().push(line);
        Receipt::written()
    }
}

/// A gateway and the one origin behind every name that its policy opens.
struct Scene {
    gate: Arc<Gate>,
    gateway: Arc<Gateway>,
    recorder: Arc<Recorder>,
    registry: Registry,
    proxy: SocketAddr,
    origin: TcpListener,
}

fn policy(text: &str) -> Arc<Policy> {
    let documents = [Document::new("t.toml", text.as_bytes()).unwrap()];
    let policy = load(&documents, Timestamp::from_secs(1_800_000_000), &LocalAddresses::default());
    Arc::new(policy.unwrap_or_else(|mistakes| panic!("{mistakes:?}")))
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
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let recorder = Arc::new(Recorder::default());
    let text = opening(origin.local_addr().unwrap().port(), "");
    let observer: Arc<dyn Observer> = recorder.clone();
    let gate = Arc::new(Gate::new(policy(&text), Arc::new(LocalAddresses::default()), observer, 1));
    let upstreams = vec![dns::Upstream::Udp("127.0.0.1:9".parse().unwrap())];
    let resolving = dns::ResolverConfig { upstreams, ..Default::default() };
    let registry = Registry::new();
    let resolver = dns::Resolver::new(&resolving, dns::Metrics::new(&registry).unwrap()).unwrap();
    let gateway = Gateway::new(Arc::clone(&gate), resolver, Arc::default(), config, &registry).unwrap();
    let listener = Listener::tcp("127.0.0.1:0".into(), "127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = listener.address().unwrap();
    tokio::spawn(listener.run(Arc::clone(&gateway)));
    Scene { gate, gateway, recorder, registry, proxy, origin }
}

/// Nothing here takes longer than this unless it hangs.
const SOON: Duration = Duration::from_secs(5);

impl Scene {
    #[expect(clippy::disallowed_methods, reason = "the client's side")]
    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.proxy).await.unwrap()
    }

    async fn sends(&self, bytes: &[u8]) -> TcpStream {
        let mut client = self.client().await;
        client.write_all(bytes).await.unwrap();
        client
    }

    async fn accept(&self) -> TcpStream {
        timeout(SOON, self.origin.accept()).await.expect("the origin is dialled").unwrap().0
    }

    /// A tunnel to a port of the one open name.
    async fn tunnel(&self, port: u16) -> (TcpStream, TcpStream) {
        let connect = format!("CONNECT api.example.test:{port} HTTP/1.1\r\nHost: api.example.test\r\n\r\n");
        let mut client = self.sends(connect.as_bytes()).await;
        let origin = self.accept().await;
        assert_eq!(head(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\n");
        (client, origin)
    }

    async fn records(&self, expected: &[&str]) {
        let held = || self.recorder.0.lock().unwrap().clone();
        let same = async {
            while held() != expected {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(SOON, same).await.is_ok(), "{:#?}\nis not\n{expected:#?}", held());
    }

    fn is_undialled(&self) -> bool {
        Future::poll(
            std::pin::pin!(self.origin.accept()),
            &mut std::task::Context::from_waker(std::task::Waker::noop()),
        )
        .is_pending()
    }
}

async fn head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(SOON, client.read_u8()).await.expect("an answer").unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let end = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("an end");
    if end.is_err() {
        rest.extend(b"<reset>");
    }
    rest
}

fn hello(name: &str) -> Vec<u8> {
    let vector = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let names = [&[0][..], &vector(name.as_bytes())].concat();
    let extensions = [&[0, 0][..], &vector(&vector(&names))].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &vector(&extensions)].concat();
    record(22, &[&[1, 0][..], &vector(&body)].concat())
}

fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &(payload.len() as u16).to_be_bytes(), payload].concat()
}

/// A HelloRetryRequest, or with another random a ServerHello.
fn server_hello(retry: bool) -> Vec<u8> {
    const RETRY: &str = "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c";
    let random: Vec<u8> =
        (0..32).map(|at| u8::from_str_radix(&RETRY[2 * at..2 * at + 2], 16).unwrap()).collect();
    let random = if retry { random } else { vec![7; 32] };
    record(22, &[&[2, 0, 0, 38, 3, 3][..], &random, &[0, 0x13, 1, 0]].concat())
}

const ALERT: &[u8] = b"\x15\x03\x03\x00\x02\x02\x31<reset>";

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
        scene.recorder.0.lock().unwrap().clear();
        let answer = String::from_utf8(rest(&mut scene.sends(sent).await).await).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let inbound = if sent.starts_with(b"CONNECT") { "connect" } else { "http" };
        scene.records(&[&format!("{inbound} deny bad_request")]).await;
    }
}

#[tokio::test]
async fn tls_with_the_allowed_name_passes_byte_for_byte() {
    let scene = scene().await;
    let (mut client, mut origin) = scene.tunnel(443).await;
    let sent = [hello("API.example.test"), record(23, b"early data")].concat();
    for part in sent.chunks(9) {
        client.write_all(part).await.unwrap();
    }
    let mut got = vec![0; sent.len()];
    origin.read_exact(&mut got).await.unwrap();
    assert_eq!(got, sent);
    let answer = [server_hello(false), record(23, b"secret")].concat();
    origin.write_all(&answer).await.unwrap();
    drop(origin);
    let mut got = vec![0; answer.len()];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(got, answer);
    drop(client);
    let close = format!("close - api.example.test {} {}", sent.len(), answer.len());
    scene.records(&["connect allow -", &close]).await;
}

#[tokio::test]
async fn tls_with_another_name_ends_with_an_alert() {
    let scene = scene().await;
    for (port, first, reason, sni) in [
        (443, hello("other.example.test"), "sni_mismatch", "other.example.test"),
        (5432, hello("other.example.test"), "sni_mismatch", "other.example.test"),
        (80, hello("other.example.test"), "sni_mismatch", "other.example.test"),
        (443, record(22, &[1, 0, 0, 1, 0]), "hello_invalid", "-"),
        (443, hello("a.example.test."), "hello_invalid", "-"),
        (5432, hello(""), "hello_invalid", "-"),
    ] {
        scene.recorder.0.lock().unwrap().clear();
        let (mut client, mut origin) = scene.tunnel(port).await;
        client.write_all(&first).await.unwrap();
        assert_eq!(rest(&mut client).await, ALERT, "{reason}");
        assert_eq!(rest(&mut origin).await, b"<reset>", "{reason}");
        let close = format!("close {reason} {sni} {} 0", first.len());
        scene.records(&["connect allow -", &close]).await;
    }
}

#[tokio::test]
async fn port_443_carries_tls_only() {
    let scene = scene().await;
    for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SSH-2.0-x\r\n", &[5, 1, 0], &[0x80, 46, 1, 3, 1]] {
        scene.recorder.0.lock().unwrap().clear();
        let (mut client, mut origin) = scene.tunnel(443).await;
        client.write_all(first).await.unwrap();
        assert_eq!(rest(&mut client).await, b"<reset>");
        assert_eq!(rest(&mut origin).await, b"<reset>");
        scene.records(&["connect allow -", &format!("close tls_required - {} 0", first.len())]).await;
    }
}

#[tokio::test]
async fn a_server_on_443_cannot_speak_before_the_hello() {
    let scene = scene().await;
    let (mut client, mut origin) = scene.tunnel(443).await;
    origin.write_all(b"220 hello\r\n").await.unwrap();
    client.write_all(b"EHLO").await.unwrap();
    assert_eq!(rest(&mut client).await, b"<reset>");
}

#[tokio::test]
async fn a_second_hello_is_judged_as_the_first() {
    let scene = scene().await;
    for (second, passes) in [("api.example.test", true), ("other.example.test", false)] {
        let (mut client, mut origin) = scene.tunnel(443).await;
        let first = hello("api.example.test");
        client.write_all(&first).await.unwrap();
        origin.read_exact(&mut vec![0; first.len()]).await.unwrap();
        let retry = server_hello(true);
        origin.write_all(&retry[..44]).await.unwrap();
        client.read_exact(&mut [0; 44]).await.unwrap();
        origin.write_all(&retry[44..]).await.unwrap();
        client.read_exact(&mut vec![0; retry.len() - 44]).await.unwrap();
        client.write_all(&[record(20, &[1]), hello(second)].concat()).await.unwrap();
        if passes {
            let mut got = vec![0; record(20, &[1]).len() + hello(second).len()];
            origin.read_exact(&mut got).await.unwrap();
            assert_eq!(got, [record(20, &[1]), hello(second)].concat());
        } else {
            assert_eq!(rest(&mut client).await, ALERT);
            assert_eq!(rest(&mut origin).await, [&record(20, &[1])[..], b"<reset>"].concat());
        }
    }
}

#[tokio::test]
async fn a_second_hello_that_comes_too_early_is_held_until_the_server_has_answered() {
    let scene = scene().await;
    for retry in [true, false] {
        let (mut client, mut origin) = scene.tunnel(443).await;
        let (first, second) = (hello("api.example.test"), hello("other.example.test"));
        client.write_all(&[&first[..], &second].concat()).await.unwrap();
        let mut got = vec![0; first.len()];
        origin.read_exact(&mut got).await.unwrap();
        assert_eq!(got, first);
        origin.write_all(&server_hello(retry)).await.unwrap();
        if retry {
            let answer = [&server_hello(true)[..], ALERT].concat();
            assert_eq!(rest(&mut client).await, answer);
            assert_eq!(rest(&mut origin).await, b"<reset>");
        } else {
            let mut got = vec![0; second.len()];
            origin.read_exact(&mut got).await.unwrap();
            assert_eq!(got, second, "not a hello to this server: it goes its way");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_on_443_is_closed() {
    let scene = scene().await;
    let (mut client, _origin) = scene.tunnel(443).await;
    let mut rest = Vec::new();
    assert!(client.read_to_end(&mut rest).await.is_err());
    assert_eq!(rest, b"");
    scene.records(&["connect allow -", "close hello_invalid - 0 0"]).await;
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
        scene.recorder.0.lock().unwrap().clear();
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
async fn a_reload_ends_what_is_no_longer_allowed_at_once() {
    let scene = scene().await;
    let (mut client, mut origin) = scene.tunnel(5432).await;
    client.write_all(b"x").await.unwrap();
    origin.read_exact(&mut [0]).await.unwrap();
    scene.gate.install(policy("[sandbox.s1]\npolicies = []\nidentify = [{ default = true }]\n"));
    scene.gateway.policy_changed();
    let both = async { (rest(&mut client).await, rest(&mut origin).await) };
    let (client, origin) = timeout(Duration::from_millis(100), both).await.expect("within 100 ms");
    assert_eq!((client.as_slice(), origin.as_slice()), (&b"<reset>"[..], &b"<reset>"[..]));
    scene.records(&["connect allow -", "close policy_changed - 1 0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_clients_and_then_resets_them() {
    let scene = scene().await;
    let (mut client, _origin) = scene.tunnel(5432).await;
    scene.gateway.drain().await;
    assert!(client.read(&mut [0]).await.is_err());
    scene.records(&["connect allow -", "close - - 0 0"]).await;
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
async fn open_and_ended_streams_are_counted_with_their_bytes() {
    let scene = scene().await;
    let gathered = || {
        let families = scene.registry.gather();
        prometheus::TextEncoder::new().encode_to_string(&families).unwrap()
    };
    for open in [1, 1] {
        let (mut client, mut origin) = scene.tunnel(5432).await;
        client.write_all(b"ask").await.unwrap();
        origin.read_exact(&mut [0; 3]).await.unwrap();
        let text = gathered();
        assert!(text.contains(&format!("tidegate_active_tunnels {open}\n")), "{text}");
        drop((client, origin));
        while scene.gateway.streams().count() > 0 {
            tokio::task::yield_now().await;
        }
    }
    let text = gathered();
    assert!(text.contains("tidegate_active_tunnels 0\n"), "{text}");
    assert!(text.contains("tidegate_bytes_total{direction=\"up\"} 6\n"), "{text}");
    assert!(text.contains("tidegate_upstream_connect_seconds_count 2\n"), "{text}");
}

/// A policy whose one destination is an address that only the upstream proxy is asked for.
const BEHIND_PROXY: &str = "[policy.base]\nallow = [\"203.0.113.10:5432\", \"203.0.113.11:5432\"]\n\
    [addresses]\ntreat_as_public = [\"203.0.113.0/24\"]\n\
    [sandbox.s1]\npolicies = [\"base\"]\nidentify = [{ default = true }]\n";

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

#[tokio::test]
async fn a_stream_ends_when_its_rule_does() {
    let corporate = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = vec![corporate.local_addr().unwrap()];
    let upstream = Some(UpstreamProxy { addresses, except: Vec::new() });
    let scene = scene_with(Config { upstream, ..Config::default() }).await;
    let watch = Arc::clone(&scene.gateway);
    tokio::spawn(async move { watch.watch_expiry().await });
    let until = Timestamp::from_nanos(dns::clock::now().nanos() + 800_000_000);
    let rule = format!("[[policy.base.rule]]\nhost = \"203.0.113.10\"\nports = [5432]\nuntil = {until}\n");
    scene.gate.install(policy(&format!("{rule}{}", BEHIND_PROXY.replace("[policy.base]", "[policy.other]"))));
    scene.gateway.policy_changed();

    let mut client = scene.sends(b"CONNECT 203.0.113.10:5432 HTTP/1.1\r\n\r\n").await;
    let mut proxy = timeout(SOON, corporate.accept()).await.unwrap().unwrap().0;
    head(&mut proxy).await;
    proxy.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    assert!(head(&mut client).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(rest(&mut client).await, b"<reset>");
    let late = dns::clock::now().since(until);
    assert!(dns::clock::now() >= until && late < 100_000_000, "{late} ns after its end");
    scene.records(&["connect allow -", "close policy_changed - 0 0"]).await;
}

/// Ends of real handshakes. The client guesses X25519; a server that wants P-384 asks for another hello.
mod real {
    use rustls::crypto::ring::{default_provider, kx_group};
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    pub(super) fn ends(names: &[&str]) -> (TlsConnector, TlsAcceptor) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let certificate: CertificateDer<'static> = made.cert.der().clone();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let mut provider = default_provider();
        provider.kx_groups = vec![kx_group::SECP384R1];
        let server = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let mut provider = default_provider();
        provider.kx_groups = vec![kx_group::X25519, kx_group::SECP384R1];
        let client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(client).into(), Arc::new(server).into())
    }
}

#[tokio::test]
async fn a_real_handshake_with_a_retry_passes_and_carries_bulk() {
    let scene = scene().await;
    let (connector, acceptor) = real::ends(&["api.example.test"]);
    let (client, origin) = scene.tunnel(443).await;
    let origin = tokio::spawn(async move {
        let mut tls = acceptor.accept(origin).await.unwrap();
        let retried = rustls::HandshakeKind::FullWithHelloRetryRequest;
        assert_eq!(tls.get_ref().1.handshake_kind(), Some(retried));
        let mut asked = vec![0; 3 << 20];
        tls.read_exact(&mut asked).await.unwrap();
        tls.write_all(&asked).await.unwrap();
        tls.shutdown().await.unwrap();
    });
    let mut tls = connector.connect("api.example.test".try_into().unwrap(), client).await.unwrap();
    let sent: Vec<u8> = (0..3_u32 << 20).map(|at| (at ^ (at >> 9)) as u8).collect();
    let (mut read, mut write) = tokio::io::split(&mut tls);
    let mut got = Vec::new();
    let (wrote, all) = tokio::join!(write.write_all(&sent), read.read_to_end(&mut got));
    wrote.unwrap();
    all.unwrap();
    assert!(got == sent, "other bytes came back");
    origin.await.unwrap();
}

#[tokio::test]
async fn a_real_handshake_for_another_name_fails_with_an_alert() {
    let scene = scene().await;
    let (connector, _) = real::ends(&["other.example.test"]);
    let (client, mut origin) = scene.tunnel(443).await;
    let error = connector.connect("other.example.test".try_into().unwrap(), client).await.unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    assert_eq!(rest(&mut origin).await, b"<reset>");
}
