//! Plain HTTP: each request judged, rewritten, answered once and in order.

mod tunnels;
mod while_open;

use policy::{Ask, Event, Reason};
use proxy::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::scene::{self, SOON, Scene, gets, head, policy, send};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

fn tell(event: &Event<'_>) -> String {
    match event {
        Event::Decision(told) => {
            let what = match &told.attempt.ask {
                Ask::Request { destination, method, path } => format!("{method} {destination}{path}"),
                Ask::Stream(destination) => format!("to {destination}"),
                Ask::Lookup { .. } | Ask::Unreadable { .. } => "?".to_owned(),
            };
            format!("{} {what} {}", told.answer.as_str(), told.reason.map_or("-", Reason::code))
        }
        Event::Close(told) => format!("close {}", told.reason.map_or("-", Reason::code)),
    }
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
    Scene::new(opening, tell, Config::default()).await
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
    String::from_utf8(scene::rest(stream).await).unwrap()
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
async fn pipelined_requests_are_answered_in_their_order() {
    let scene = scene().await;
    let mut client = scene.sends(&[get("/1"), get("/2")].concat()).await;
    let mut origin = scene.answers("GET /1 HTTP/1.1\r\nHost: web.example.test\r\n\r\n", OK).await;
    gets(&mut origin, "GET /2 HTTP/1.1\r\nHost: web.example.test\r\n\r\n").await;
    send(&mut origin, "HTTP/1.1 204 No Content\r\n\r\n").await;
    gets(&mut client, &format!("{OK}HTTP/1.1 204 No Content\r\n\r\n")).await;
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
