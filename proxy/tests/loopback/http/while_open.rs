//! Responses that last: streams of events, a reload and a drain under them.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{OK, get, rest, scene};
use crate::scene::{SOON, Scene, gets, head, policy, send};

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
    assert_eq!(scene.recorder.told.lock().unwrap().len(), 2 * STREAMS, "a decision and an end for each");
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
