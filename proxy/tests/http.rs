//! Plain HTTP through the gateway as a client and an origin see it, on loopback: a policy that opens ports of this host
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
use policy::{Ask, Event, Gate, LocalAddresses, Observer, Policy, Reason, Receipt, Timestamp};
use prometheus::Registry;
use proxy::{Config, Gateway, Listener};
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
                let what = match &told.attempt.ask {
                    Ask::Request { destination, method, path } => format!("{method} {destination}{path}"),
                    Ask::Stream(destination) => format!("to {destination}"),
                    Ask::Lookup { .. } | Ask::Unreadable { .. } => "?".to_owned(),
                };
                format!("{} {what} {}", told.answer.as_str(), told.reason.map_or("-", Reason::code))
            }
            Event::Close(told) => format!("close {}", told.reason.map_or("-", Reason::code)),
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

/// Opens two names; `narrow.example.test` for some requests only.
fn opening(port: u16) -> String {
    format!(
        "[internal.web]\nhost = \"web.example.test\"\nhost_port = \"127.0.0.1:{port}\"\nports = [80, 8080]\n\
         [internal.narrow]\nhost = \"narrow.example.test\"\nhost_port = \"127.0.0.1:{port}\"\nports = [80]\n\
         methods = [\"GET\"]\npaths = [\"/public/**\"]\n\
         [sandbox.s1]\ninternal = [\"web\", \"narrow\"]\npolicies = []\nidentify = [{{ default = true }}]\n"
    )
}

async fn scene() -> Scene {
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let recorder = Arc::new(Recorder::default());
    let text = opening(origin.local_addr().unwrap().port());
    let observer: Arc<dyn Observer> = recorder.clone();
    let gate = Arc::new(Gate::new(policy(&text), Arc::new(LocalAddresses::default()), observer, 1));
    let upstreams = vec![dns::Upstream::Udp("127.0.0.1:9".parse().unwrap())];
    let resolving = dns::ResolverConfig { upstreams, ..Default::default() };
    let registry = Registry::new();
    let resolver = dns::Resolver::new(&resolving, dns::Metrics::new(&registry).unwrap()).unwrap();
    let gateway =
        Gateway::new(Arc::clone(&gate), resolver, Arc::default(), Config::default(), &registry).unwrap();
    let listener = Listener::tcp("127.0.0.1:0".into(), "127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = listener.address().unwrap();
    tokio::spawn(listener.run(Arc::clone(&gateway)));
    Scene { gate, gateway, recorder, registry, proxy, origin }
}

/// Nothing here takes longer than this unless it hangs.
const SOON: Duration = Duration::from_secs(5);

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

impl Scene {
    #[expect(clippy::disallowed_methods, reason = "the client's side")]
    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.proxy).await.unwrap()
    }

    async fn sends(&self, bytes: &str) -> TcpStream {
        let mut client = self.client().await;
        send(&mut client, bytes).await;
        client
    }

    async fn accept(&self) -> TcpStream {
        timeout(SOON, self.origin.accept()).await.expect("the origin is dialled").unwrap().0
    }

    /// The origin gets exactly `request` on a new connection and answers.
    async fn answers(&self, request: &str, answer: &str) -> TcpStream {
        let mut origin = self.accept().await;
        gets(&mut origin, request).await;
        send(&mut origin, answer).await;
        origin
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

    /// Bytes that were taken from clients and from origins.
    fn bytes(&self) -> (f64, f64) {
        let families = self.registry.gather();
        let bytes = families.iter().find(|family| family.name() == "tidegate_bytes_total").unwrap();
        let of = |direction: &str| {
            let mut all = bytes.get_metric().iter();
            all.find(|one| one.get_label().iter().any(|label| label.value() == direction))
                .unwrap()
                .get_counter()
                .get_value()
        };
        (of("up"), of("down"))
    }

    fn is_undialled(&self) -> bool {
        Future::poll(
            std::pin::pin!(self.origin.accept()),
            &mut std::task::Context::from_waker(std::task::Waker::noop()),
        )
        .is_pending()
    }
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Reads as many bytes as `expected` has, which they must be.
async fn gets(stream: &mut TcpStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    let read = timeout(SOON, stream.read_exact(&mut bytes)).await;
    let text = String::from_utf8_lossy(&bytes);
    assert!(matches!(read, Ok(Ok(_))), "{read:?} after {text:?}, not {expected:?}");
    assert_eq!(text, expected);
}

async fn head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(SOON, client.read_u8()).await.expect("an answer").unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// An answer of the gateway's own: its head and as much body as it says.
async fn answer(client: &mut TcpStream) -> String {
    let mut answer = head(client).await;
    let length = answer.split("Content-Length: ").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    timeout(SOON, client.read_exact(&mut body)).await.expect("a body").unwrap();
    answer.push_str(&String::from_utf8(body).unwrap());
    answer
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    let end = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("an end");
    if end.is_err() {
        rest.extend(b"<reset>");
    }
    String::from_utf8(rest).unwrap()
}

fn get(path: &str) -> String {
    format!("GET http://web.example.test{path} HTTP/1.1\r\nHost: web.example.test\r\n\r\n")
}

#[tokio::test]
async fn a_request_reaches_its_origin_rewritten_and_is_on_record() {
    let scene = scene().await;
    let mut client = scene
        .sends(
            "GET http://WEB.example.test:80/a%2Fb?q=1 HTTP/1.1\r\nhost: WEB.example.test:80\r\nX-Odd: 1\r\n\
             Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic AAAA\r\nMcp-Session-Id: s\r\n\r\n",
        )
        .await;
    let request =
        "GET /a%2Fb?q=1 HTTP/1.1\r\nhost: web.example.test\r\nX-Odd: 1\r\nMcp-Session-Id: s\r\n\r\n";
    let answered = "HTTP/1.1 200 OK\r\nAlt-Svc: h3\r\nTidegate-Reason: x\r\nContent-Length: 2\r\n\r\nhi";
    let _origin = scene.answers(request, answered).await;
    gets(&mut client, OK).await;
    scene.records(&["allow GET web.example.test:80/a%2Fb -", "close -"]).await;
    assert_eq!(scene.gateway.streams().count(), 0);
}

#[tokio::test]
async fn every_request_of_a_connection_is_judged() {
    let scene = scene().await;
    let mut client = scene.sends(&get("/1")).await;
    let _origin = scene.answers("GET /1 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
    gets(&mut client, OK).await;
    send(
        &mut client,
        "POST http://attacker.test/ HTTP/1.1\r\nHost: web.example.test\r\nContent-Length: 4\r\n\r\nbody",
    )
    .await;
    let denied = answer(&mut client).await;
    assert!(denied.starts_with("HTTP/1.1 403 Blocked by tidegate: not_listed, id "), "{denied}");
    assert!(denied.contains("\r\nConnection: keep-alive\r\n"), "{denied}");
    send(&mut client, "CONNECT attacker.test:443 HTTP/1.1\r\n\r\n").await;
    assert!(rest(&mut client).await.starts_with("HTTP/1.1 403 "));
    scene
        .records(&[
            "allow GET web.example.test:80/1 -",
            "close -",
            "deny POST attacker.test:80/ not_listed",
            "deny to attacker.test:443 not_listed",
        ])
        .await;
    assert!(scene.is_undialled());
}

#[tokio::test]
async fn the_body_of_a_refused_request_is_no_request() {
    let scene = scene().await;
    let inner = get("/smuggled");
    let length = inner.len();
    for (framing, body) in [
        (format!("Content-Length: {length}"), inner.clone()),
        ("Content-Length: 1000000".to_owned(), inner.clone()),
        ("Transfer-Encoding: chunked".to_owned(), format!("{length:x}\r\n{inner}\r\n0\r\n\r\n")),
    ] {
        let head = format!("POST http://attacker.test/ HTTP/1.1\r\nHost: attacker.test\r\n{framing}\r\n\r\n");
        let mut client = scene.sends(&(head + &body)).await;
        client.shutdown().await.unwrap();
        let answers = rest(&mut client).await;
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{framing}: {answers}");
    }
    assert!(scene.is_undialled());
}

#[tokio::test]
async fn requests_of_one_sandbox_share_connections_to_an_origin() {
    let scene = scene().await;
    let mut first = scene.sends(&get("/1")).await;
    let mut origin = scene.answers("GET /1 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
    gets(&mut first, OK).await;
    let mut second = scene.sends(&get("/2")).await;
    gets(&mut origin, "GET /2 HTTP/1.1\r\nHost: web.example.test\r\n\r\n").await;
    send(&mut origin, OK).await;
    gets(&mut second, OK).await;
    assert!(scene.is_undialled());
    scene.gate.install(policy(&opening(scene.origin.local_addr().unwrap().port())));
    scene.gateway.policy_changed();
    assert_eq!(rest(&mut origin).await, "", "a connection serves one generation of the policy");
    send(&mut second, &get("/3")).await;
    let _origin = scene.answers("GET /3 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
    gets(&mut second, OK).await;
}

#[tokio::test]
async fn a_request_that_met_a_closed_connection_is_sent_again_if_that_is_safe() {
    for (method, body, again) in [("GET", "", true), ("POST", "Content-Length: 0\r\n", false)] {
        let scene = scene().await;
        let mut client = scene.sends(&get("/1")).await;
        let mut origin = scene.answers("GET /1 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
        gets(&mut client, OK).await;
        send(&mut client, &format!("{method} http://web.example.test/2 HTTP/1.1\r\nHost: a\r\n{body}\r\n"))
            .await;
        let request = format!("{method} /2 HTTP/1.1\r\nHost: web.example.test\r\n{body}\r\n");
        gets(&mut origin, &request).await;
        drop(origin);
        if again {
            let _origin = scene.answers(&request, OK).await;
            gets(&mut client, OK).await;
        } else {
            let answer = rest(&mut client).await;
            assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
            assert!(answer.contains("Proxy-Status: tidegate; error=connection_terminated;"), "{answer}");
            assert!(scene.is_undialled());
        }
        let asked = format!("allow {method} web.example.test:80/2 -");
        let mut expected =
            vec!["allow GET web.example.test:80/1 -", "close -", &asked, "close upstream_connect_failed"];
        if again {
            expected.extend([asked.as_str(), "close -"]);
        }
        scene.records(&expected).await;
    }
}

#[tokio::test]
async fn an_ambiguous_answer_is_502_and_its_connection_is_dropped() {
    let scene = scene().await;
    let mut client = scene.sends(&get("/")).await;
    let ambiguous = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let mut origin = scene.answers("GET / HTTP/1.1\r\nHost: web.example.test\r\n\r\n", ambiguous).await;
    let answer = rest(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 502 Not answered by tidegate: upstream_connect_failed"), "{answer}");
    assert!(answer.contains("error=http_protocol_error"), "{answer}");
    assert_eq!(rest(&mut origin).await, "<reset>");
    scene.records(&["allow GET web.example.test:80/ -", "close upstream_connect_failed"]).await;
}

#[tokio::test]
async fn a_queued_second_answer_is_not_the_answer_to_the_next_request() {
    let scene = scene().await;
    let mut client = scene.sends(&get("/1")).await;
    let two = format!("{OK}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
    let _spoilt = scene.answers("GET /1 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", &two).await;
    gets(&mut client, OK).await;
    send(&mut client, &get("/2")).await;
    let _origin = scene.answers("GET /2 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
    gets(&mut client, OK).await;
}

#[tokio::test]
async fn malformed_requests_are_400_before_anybody_is_dialled() {
    let scene = scene().await;
    let many = "a,".repeat(40);
    for (fields, body) in [
        ("Transfer-Encoding: chunked", "5\nhello\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", "7fffffffffffffff\r\nhello\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n"),
        ("Content-Length: 010", "0123456789"),
        (&format!("Connection: {many}"), ""),
    ] {
        let request = format!("POST http://web.example.test/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}");
        let answer = rest(&mut scene.sends(&request).await).await;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.matches("HTTP/1.1 ").count() == 1,
            "{fields}: {answer}"
        );
        assert!(answer.contains("Tidegate-Reason: bad_request"), "{answer}");
    }
    assert!(scene.is_undialled());
}

#[tokio::test]
async fn a_body_that_turns_out_malformed_reaches_nobody_whole() {
    let scene = scene().await;
    let mut client =
        scene.sends("POST http://web.example.test/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").await;
    let mut origin = scene.accept().await;
    gets(
        &mut origin,
        "POST / HTTP/1.1\r\nHost: web.example.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
    )
    .await;
    send(&mut client, "x\r\n").await;
    assert!(rest(&mut client).await.starts_with("HTTP/1.1 400 "));
    assert_eq!(rest(&mut origin).await, "<reset>");
    scene.records(&["allow POST web.example.test:80/ -", "close bad_request"]).await;
}

#[tokio::test]
async fn a_stream_of_events_ends_for_both_when_either_goes() {
    for client_goes in [true, false] {
        let scene = scene().await;
        let mut client = scene.sends(&get("/events")).await;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut origin = scene.answers("GET /events HTTP/1.1\r\nHost: web.example.test\r\n\r\n", head).await;
        gets(&mut client, head).await;
        for event in ["7\r\ndata: 1\r\n", "7\r\ndata: 2\r\n"] {
            send(&mut origin, event).await;
            gets(&mut client, event).await;
        }
        let one = if client_goes {
            drop(client);
            origin
        } else {
            drop(origin);
            client
        };
        let mut one = one;
        let ended = timeout(Duration::from_millis(500), rest(&mut one)).await.expect("at once");
        assert!(matches!(ended.as_str(), "" | "<reset>"), "{ended}");
        scene.records(&["allow GET web.example.test:80/events -", "close -"]).await;
    }
}

/// A hundred streams at once, of which every other client leaves half-way. A proxy of this field crashed on fewer.
#[tokio::test]
async fn many_streams_of_events_do_not_disturb_each_other() {
    const STREAMS: usize = 100;
    let scene = Arc::new(scene().await);
    let event = |stream: &str, at: usize| format!("{:x}\r\n{stream} {at}\n\r\n", stream.len() + 4);
    let serve = |mut origin: TcpStream| async move {
        let asked = head(&mut origin).await;
        let stream = asked.split(' ').nth(1).unwrap().to_owned();
        send(&mut origin, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        for at in 10..20 {
            send(&mut origin, &event(&stream, at)).await;
            tokio::task::yield_now().await;
        }
        if stream.starts_with("/leaves") {
            return matches!(rest(&mut origin).await.as_str(), "" | "<reset>");
        }
        send(&mut origin, "0\r\n\r\n").await;
        true
    };
    let ask = |scene: Arc<Scene>, stream: String| async move {
        let mut client = scene.sends(&get(&stream)).await;
        gets(&mut client, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        for at in 10..20 {
            gets(&mut client, &event(&stream, at)).await;
        }
        if stream.starts_with("/stays") {
            gets(&mut client, "0\r\n\r\n").await;
        }
    };
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..STREAMS {
        let kind = if number % 2 == 0 { "stays" } else { "leaves" };
        tasks.spawn(ask(Arc::clone(&scene), format!("/{kind}/{number:03}")));
    }
    let mut origins = tokio::task::JoinSet::new();
    for _ in 0..STREAMS {
        origins.spawn(serve(scene.accept().await));
    }
    tasks.join_all().await;
    assert!(origins.join_all().await.iter().all(|told| *told), "each origin learns that its client has left");
    let ended = async {
        while scene.gateway.streams().count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, ended).await.expect("every stream ends");
    assert_eq!(scene.recorder.0.lock().unwrap().len(), 2 * STREAMS, "a decision and an end for each");
}

#[tokio::test]
async fn a_reload_ends_a_response_that_is_no_longer_allowed() {
    let scene = scene().await;
    let mut client = scene.sends(&get("/events")).await;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut origin = scene.answers("GET /events HTTP/1.1\r\nHost: web.example.test\r\n\r\n", head).await;
    gets(&mut client, head).await;
    scene.gate.install(policy("[sandbox.s1]\npolicies = []\nidentify = [{ default = true }]\n"));
    scene.gateway.policy_changed();
    let both = async { (rest(&mut client).await, rest(&mut origin).await) };
    let both = timeout(Duration::from_millis(100), both).await.expect("within 100 ms");
    assert_eq!(both, ("<reset>".to_owned(), "<reset>".to_owned()));
    scene.records(&["allow GET web.example.test:80/events -", "close policy_changed"]).await;
}

#[tokio::test]
async fn a_web_socket_is_a_tunnel_after_its_101_and_not_before() {
    let scene = scene().await;
    let ask = "GET http://web.example.test/ws HTTP/1.1\r\nHost: web.example.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let sent =
        "GET /ws HTTP/1.1\r\nHost: web.example.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut client = scene.sends(ask).await;
    let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let mut origin = scene.answers(sent, &format!("{switched}banner")).await;
    gets(&mut client, &format!("{switched}banner")).await;
    send(&mut client, "frame").await;
    gets(&mut origin, "frame").await;
    drop((client, origin));
    scene.records(&["allow GET web.example.test:80/ws -", "close -"]).await;
    assert_eq!(scene.bytes(), ((ask.len() + 5) as f64, (switched.len() + 6) as f64));

    let mut client =
        scene.sends(&format!("{ask}GET /internal HTTP/1.1\r\nHost: attacker.test\r\n\r\n")).await;
    let refused = "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n";
    let origin = scene.answers(sent, refused).await;
    gets(&mut client, refused).await;
    assert!(rest(&mut client).await.starts_with("HTTP/1.1 400 "), "the next bytes are a request again");
    let mut more = [0];
    assert!(origin.try_read(&mut more).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
}

#[tokio::test]
async fn a_narrowed_host_changes_to_web_sockets_alone() {
    for (protocol, passed) in
        [("websocket", "Connection: Upgrade\r\nUpgrade: websocket\r\n"), ("other/1", "")]
    {
        let scene = scene().await;
        let ask = "GET http://narrow.example.test/public/ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n";
        let mut client = scene.sends(&format!("{ask}Upgrade: {protocol}\r\n\r\n")).await;
        let sent = format!("GET /public/ws HTTP/1.1\r\nHost: narrow.example.test\r\n{passed}\r\n");
        let _origin = scene.answers(&sent, OK).await;
        gets(&mut client, OK).await;
    }
}

#[tokio::test]
async fn h2c_is_not_asked_for() {
    let scene = scene().await;
    let ask = "GET http://web.example.test/ HTTP/1.1\r\nHost: web.example.test\r\n\
               Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    let mut client = scene.sends(ask).await;
    let _origin = scene.answers("GET / HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
    gets(&mut client, OK).await;
}

#[tokio::test]
async fn a_narrowed_host_takes_its_methods_and_paths_alone() {
    let scene = scene().await;
    for (method, path, reason) in [
        ("POST", "/public/a", "method_not_allowed"),
        ("get", "/public/a", "method_not_allowed"),
        ("GET", "/admin", "path_not_allowed"),
        ("GET", "/public/../admin", "path_not_allowed"),
        ("GET", "/public/..%2fadmin", "path_not_allowed"),
    ] {
        let request = format!(
            "{method} http://narrow.example.test{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        );
        let answer = rest(&mut scene.sends(&request).await).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
        assert!(answer.contains(&format!("Tidegate-Reason: {reason}\r\n")), "{request}: {answer}");
    }
    assert!(scene.is_undialled());
    let mut client = scene
        .sends(
            "GET http://narrow.example.test/public/a%20b?x=../../admin HTTP/1.1\r\nHost: a\r\n\
             X-HTTP-Method-Override: DELETE\r\nX_Original_URL: /admin\r\n\r\n",
        )
        .await;
    let _origin = scene
        .answers("GET /public/a%20b?x=../../admin HTTP/1.1\r\nHost: narrow.example.test\r\n\r\n", OK)
        .await;
    gets(&mut client, OK).await;
}

#[tokio::test]
async fn requests_in_a_tunnel_to_port_80_are_judged_one_by_one() {
    let scene = scene().await;
    let mut client = scene.sends("CONNECT narrow.example.test:80 HTTP/1.1\r\n\r\n").await;
    let mut origin = scene.accept().await;
    assert_eq!(head(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\n");
    for path in ["/public/1", "/public/2"] {
        send(&mut client, &format!("GET {path} HTTP/1.1\r\nHost: narrow.example.test\r\n\r\n")).await;
        gets(&mut origin, &format!("GET {path} HTTP/1.1\r\nHost: narrow.example.test\r\n\r\n")).await;
        send(&mut origin, OK).await;
        gets(&mut client, OK).await;
    }
    send(&mut client, "GET /admin HTTP/1.1\r\nHost: narrow.example.test\r\n\r\n").await;
    assert!(answer(&mut client).await.contains("Tidegate-Reason: path_not_allowed\r\n"));
    send(&mut client, "GET /public/3 HTTP/1.1\r\nHost: attacker.test\r\n\r\n").await;
    assert!(rest(&mut client).await.contains("Tidegate-Reason: host_mismatch\r\n"));
    assert_eq!(rest(&mut origin).await, "");
    scene
        .records(&[
            "allow to narrow.example.test:80 -",
            "allow GET narrow.example.test:80/public/1 -",
            "close -",
            "allow GET narrow.example.test:80/public/2 -",
            "close -",
            "deny GET narrow.example.test:80/admin path_not_allowed",
            "deny GET attacker.test:80/public/3 host_mismatch",
            "close host_mismatch",
        ])
        .await;
}

#[tokio::test]
async fn other_things_in_a_tunnel_to_port_80_are_refused() {
    let scene = scene().await;
    for sent in ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "SSH-2.0-x\r\n", "CONNECT a.test:443 HTTP/1.1\r\n\r\n"] {
        scene.recorder.0.lock().unwrap().clear();
        let mut client = scene.sends(&format!("CONNECT web.example.test:80 HTTP/1.1\r\n\r\n{sent}")).await;
        let mut origin = scene.accept().await;
        assert_eq!(head(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\n");
        assert!(rest(&mut client).await.starts_with("HTTP/1.1 400 "), "{sent}");
        assert_eq!(rest(&mut origin).await, "", "{sent}");
        scene.records(&["allow to web.example.test:80 -", "deny ? bad_request", "close bad_request"]).await;
    }
}

#[tokio::test]
async fn an_origin_that_closes_a_tunnel_closes_it_for_the_client() {
    let scene = scene().await;
    let mut client = scene.sends("CONNECT web.example.test:80 HTTP/1.1\r\n\r\n").await;
    let mut origin = scene.accept().await;
    assert_eq!(head(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\n");
    send(&mut client, "GET / HTTP/1.1\r\nHost: web.example.test\r\n\r\n").await;
    gets(&mut origin, "GET / HTTP/1.1\r\nHost: web.example.test\r\n\r\n").await;
    send(&mut origin, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi").await;
    assert_eq!(
        rest(&mut client).await,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    );
    assert_eq!(rest(&mut origin).await, "");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let scene = scene().await;
    let mut client = scene.sends(&[get("/1"), get("/2")].concat()).await;
    let mut origin = scene.answers("GET /1 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
    gets(&mut origin, "GET /2 HTTP/1.1\r\nHost: web.example.test\r\n\r\n").await;
    send(&mut origin, "HTTP/1.1 204 No Content\r\n\r\n").await;
    gets(&mut client, &format!("{OK}HTTP/1.1 204 No Content\r\n\r\n")).await;
}

#[tokio::test]
async fn a_drain_sends_resting_clients_away_and_lets_requests_end() {
    let scene = scene().await;
    let mut resting = scene.sends(&get("/1")).await;
    let mut origin = scene.answers("GET /1 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
    gets(&mut resting, OK).await;
    let mut asking = scene.sends(&get("/2")).await;
    gets(&mut origin, "GET /2 HTTP/1.1\r\nHost: web.example.test\r\n\r\n").await;
    let answering = async {
        assert_eq!(rest(&mut resting).await, "");
        send(&mut origin, OK).await;
        gets(&mut asking, OK).await;
        assert_eq!(rest(&mut asking).await, "");
    };
    timeout(SOON, async { tokio::join!(scene.gateway.drain(), answering) }).await.expect("a short drain");
}

#[tokio::test]
async fn an_old_client_gets_a_plain_stream_and_its_end() {
    let scene = scene().await;
    let mut client = scene.sends("GET http://web.example.test/ HTTP/1.0\r\n\r\n").await;
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    let _origin = scene.answers("GET / HTTP/1.1\r\nHost: web.example.test\r\n\r\n", chunked).await;
    assert_eq!(rest(&mut client).await, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi");
}

#[tokio::test]
async fn a_refused_head_request_has_no_body_and_agents_get_json() {
    let scene = scene().await;
    let mut client = scene
        .sends("HEAD http://attacker.test/ HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\nConnection: close\r\n\r\n")
        .await;
    let answer = rest(&mut client).await;
    assert!(
        answer.contains("Content-Type: application/json\r\n") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}
