use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::http::body::Extent;
use crate::http::head::Version;

const HOUR: Duration = Duration::from_secs(3600);

const HEAD: &[u8] = b"POST /u HTTP/1.1\r\nHost: web.example\r\n\r\n";

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/// The far ends of a running exchange, and what comes of it.
struct Running {
    client: TcpStream,
    upstream: TcpStream,
    ended: JoinHandle<(Ended, Leg)>,
}

#[expect(clippy::disallowed_methods, reason = "the test is both ends of its own loopback connection")]
async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, far)
}

fn asked() -> Asked {
    Asked { head: false, version: Version::Http11, upgrade: None, keep_alive: true, tied: false }
}

/// Starts an exchange whose request has `body`, of which `came` is read already.
async fn start(asked: Asked, body: Extent, came: &[u8], idle: Duration) -> Running {
    let (near_client, client) = tcp().await;
    let (near_upstream, upstream) = tcp().await;
    let came = came.to_vec();
    let ended = tokio::spawn(async move {
        let mut client = Leg::new(near_client.into(), came);
        let mut upstream = Leg::new(near_upstream.into(), Vec::new());
        upstream.outbox().extend_from_slice(HEAD);
        let meter = Meter::default();
        let exchange = Exchange {
            client: &mut client,
            upstream: &mut upstream,
            asked: &asked,
            body: Transfer::new(body, body),
            meter: &meter,
            tunnel: None,
            idle,
        };
        let ended = exchange.run().await;
        (ended, client)
    });
    let mut running = Running { client, upstream, ended };
    assert_eq!(read(&mut running.upstream, HEAD.len()).await, HEAD);
    running
}

async fn get() -> Running {
    start(asked(), Extent::Empty, b"", HOUR).await
}

async fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut bytes))
        .await
        .expect("bytes come")
        .unwrap();
    bytes
}

async fn ends(ended: JoinHandle<(Ended, Leg)>) -> (Ended, Vec<u8>) {
    let (ended, mut client) =
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the exchange ends").unwrap();
    (ended, client.take_unread())
}

/// Sends from the origin and expects exactly that at the client.
async fn comes_through(running: &mut Running, sent: &str, got: &str) {
    running.upstream.write_all(sent.as_bytes()).await.unwrap();
    assert_eq!(String::from_utf8(read(&mut running.client, got.len()).await).unwrap(), got);
}

#[tokio::test]
async fn a_response_of_known_length_leaves_both_connections_usable() {
    let mut running = get().await;
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    comes_through(&mut running, text, text).await;
    assert_eq!(ends(running.ended).await.0, Ended::Whole { keep_client: true, keep_upstream: true });
}

#[tokio::test]
async fn every_event_of_a_stream_is_passed_on_as_it_comes() {
    let mut running = get().await;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    comes_through(&mut running, head, head).await;
    for event in ["7\r\ndata: a\r\n", "1\r\n\n\r\n", "7\r\ndata: b\r\n"] {
        comes_through(&mut running, event, event).await;
    }
    comes_through(&mut running, "0\r\nX-Sum: 1\r\n\r\n", "0\r\nX-Sum: 1\r\n\r\n").await;
    assert_eq!(ends(running.ended).await.0, Ended::Whole { keep_client: true, keep_upstream: true });
}

#[tokio::test]
async fn a_client_that_closes_its_stream_ends_it_for_the_origin_at_once() {
    let mut running = get().await;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    comes_through(&mut running, head, head).await;
    drop(running.client);
    assert_eq!(ends(running.ended).await.0, Ended::ClientGone);
    assert_eq!(running.upstream.read(&mut [0; 8]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn an_origin_that_breaks_off_ends_it_for_the_client_at_once() {
    for (head, unframed) in [
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", false),
    ] {
        let mut running = get().await;
        comes_through(&mut running, head, head).await;
        drop(running.upstream);
        assert_eq!(ends(running.ended).await.0, Ended::Cut { unframed });
    }
}

#[tokio::test]
async fn a_client_that_half_closes_at_once_still_gets_its_answer() {
    let mut running = get().await;
    running.client.shutdown().await.unwrap();
    tokio::task::yield_now().await;
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    comes_through(&mut running, text, text).await;
    assert_eq!(ends(running.ended).await.0, Ended::Whole { keep_client: true, keep_upstream: true });
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_while_it_waits_has_gone_away() {
    let mut running = get().await;
    tokio::time::advance(2 * SAYS_LAST).await;
    running.client.shutdown().await.unwrap();
    assert_eq!(ends(running.ended).await.0, Ended::ClientGone);
}

#[tokio::test]
async fn what_a_client_sends_ahead_without_end_is_left_in_the_kernel() {
    let mut running = get().await;
    let flood = tokio::spawn(async move {
        let sent = running.client.write_all(&vec![b'x'; 64 << 20]).await;
        (running.client, sent)
    });
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    // One thread: the exchange reads what it will between the yields.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    running.upstream.write_all(text.as_bytes()).await.unwrap();
    let (_, ahead) = ends(running.ended).await;
    assert!(ahead.len() <= READ_AHEAD + 64 * 1024, "{}", ahead.len());
    assert!(flood.await.unwrap().1.is_err(), "nobody reads the rest");
}

#[tokio::test]
async fn a_long_upload_and_its_answer_pass_at_the_same_time() {
    let mut running = start(asked(), Extent::Chunked, b"3;x\r\none\r\n", HOUR).await;
    assert_eq!(read(&mut running.upstream, 8).await, b"3\r\none\r\n");
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    comes_through(&mut running, head, head).await;
    running.client.write_all(b"3\r\ntwo\r\n").await.unwrap();
    assert_eq!(read(&mut running.upstream, 8).await, b"3\r\ntwo\r\n");
    comes_through(&mut running, "2\r\nok\r\n0\r\n\r\n", "2\r\nok\r\n0\r\n\r\n").await;
    running.client.write_all(b"0\r\nX-Sum: 1\r\n\r\n").await.unwrap();
    assert_eq!(read(&mut running.upstream, 15).await, b"0\r\nX-Sum: 1\r\n\r\n");
    assert_eq!(ends(running.ended).await.0, Ended::Whole { keep_client: true, keep_upstream: true });
}

#[tokio::test]
async fn an_origin_that_answers_early_and_closes_ends_the_upload() {
    let mut running = start(asked(), Extent::Length(1 << 30), b"", HOUR).await;
    let text = "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n";
    comes_through(&mut running, text, text).await;
    drop(running.upstream);
    assert_eq!(ends(running.ended).await.0, Ended::Whole { keep_client: false, keep_upstream: false });
}

#[tokio::test]
async fn an_interim_response_lets_the_body_come() {
    let mut running = start(asked(), Extent::Length(4), b"", HOUR).await;
    comes_through(&mut running, "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n").await;
    running.client.write_all(b"body").await.unwrap();
    assert_eq!(read(&mut running.upstream, 4).await, b"body");
    let text = "HTTP/1.1 204 No Content\r\n\r\n";
    comes_through(&mut running, text, text).await;
    assert_eq!(ends(running.ended).await.0, Ended::Whole { keep_client: true, keep_upstream: true });
}

#[tokio::test]
async fn a_second_response_behind_the_first_spoils_the_connection() {
    let mut running = get().await;
    let first = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none";
    comes_through(&mut running, &format!("{first}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"), first)
        .await;
    assert_eq!(ends(running.ended).await.0, Ended::Whole { keep_client: true, keep_upstream: false });
}

#[tokio::test]
async fn what_is_no_answer_is_not_passed_on() {
    for (text, fault) in [
        ("", Fault::Silent),
        ("HTTP/1.1 200 O", Fault::Closed),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Fault::Bad(BadResponse::Framing),
        ),
        ("SSH-2.0-x\r\n", Fault::Bad(BadResponse::Malformed)),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: foo\r\n\r\n", Fault::Bad(BadResponse::Upgrade)),
    ] {
        let mut running = get().await;
        running.upstream.write_all(text.as_bytes()).await.unwrap();
        drop(running.upstream);
        assert_eq!(ends(running.ended).await.0, Ended::Unanswered(fault), "{text:?}");
        let mut rest = Vec::new();
        running.client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"", "{text:?}");
    }
}

#[tokio::test]
async fn requests_sent_ahead_wait_for_their_turn() {
    let mut running = get().await;
    running.client.write_all(b"GET http://b.test/ HTTP/1.1\r\n\r\n").await.unwrap();
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    comes_through(&mut running, text, text).await;
    let (ended, ahead) = ends(running.ended).await;
    assert_eq!(ended, Ended::Whole { keep_client: true, keep_upstream: true });
    assert!(b"GET http://b.test/ HTTP/1.1\r\n\r\n".starts_with(&ahead[..]));
}

#[tokio::test]
async fn malformed_chunks_end_the_exchange() {
    let mut running = start(asked(), Extent::Chunked, b"", HOUR).await;
    running.client.write_all(b"5\nhello\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(ends(running.ended).await.0, Ended::Unanswered(Fault::Body));
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_a_plain_stream() {
    let mut running = start(Asked { version: Version::Http10, ..asked() }, Extent::Empty, b"", HOUR).await;
    let told = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello";
    comes_through(
        &mut running,
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        told,
    )
    .await;
    assert_eq!(ends(running.ended).await.0, Ended::Whole { keep_client: false, keep_upstream: true });
}

#[tokio::test]
async fn a_plain_stream_that_is_lost_is_not_taken_for_whole() {
    let mut running = start(Asked { version: Version::Http10, ..asked() }, Extent::Empty, b"", HOUR).await;
    let told = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhel";
    comes_through(&mut running, "HTTP/1.1 200 OK\r\n\r\nhel", told).await;
    running.upstream.set_zero_linger().unwrap();
    drop(running.upstream);
    assert_eq!(ends(running.ended).await.0, Ended::Cut { unframed: true });
}

#[tokio::test]
async fn a_change_of_protocol_hands_over_what_follows() {
    let asked = Asked { upgrade: Some(b"websocket".to_vec()), ..asked() };
    let mut running = start(asked, Extent::Empty, b"", HOUR).await;
    let told = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    comes_through(&mut running, told, told).await;
    assert_eq!(ends(running.ended).await.0, Ended::Switched);
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_never_answers_is_given_up_after_the_idle_limit() {
    let running = start(asked(), Extent::Empty, b"", Duration::from_secs(8)).await;
    assert_eq!(ends(running.ended).await.0, Ended::Unanswered(Fault::Slow));
}

/// 3 MB that show a shift, a loss and a swap: enough for the bulk phase, which moves pipefuls.
fn large() -> Vec<u8> {
    (0..3_000_000_u32).map(|at| (at ^ (at >> 9) ^ (at >> 17)) as u8).collect()
}

#[tokio::test]
async fn a_large_response_passes_whole_and_what_is_behind_it_does_not() {
    let mut running = get().await;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", large().len());
    let whole = [head.as_bytes(), &large()].concat();
    let sent = [&whole, OK.as_bytes()].concat();
    let writer = tokio::spawn(async move {
        running.upstream.write_all(&sent).await.unwrap();
        running.upstream
    });
    assert!(read(&mut running.client, whole.len()).await == whole);
    writer.await.unwrap();
    let (ended, _) = ends(running.ended).await;
    assert!(matches!(ended, Ended::Whole { keep_client: true, .. }), "{ended:?}");
    let mut more = Vec::new();
    running.client.read_to_end(&mut more).await.unwrap();
    assert_eq!(more, b"");
}

#[tokio::test]
async fn a_large_upload_passes_whole_and_the_next_request_waits() {
    let length = large().len();
    let mut running = start(asked(), Extent::Length(length as u64), b"", HOUR).await;
    let next = b"GET http://b.test/ HTTP/1.1\r\n\r\n";
    let sent = [&large(), &next[..]].concat();
    let writer = tokio::spawn(async move {
        running.client.write_all(&sent).await.unwrap();
        running.client
    });
    assert!(read(&mut running.upstream, length).await == large());
    let mut client = writer.await.unwrap();
    running.upstream.write_all(OK.as_bytes()).await.unwrap();
    assert_eq!(read(&mut client, OK.len()).await, OK.as_bytes());
    let (ended, ahead) = ends(running.ended).await;
    assert_eq!(ended, Ended::Whole { keep_client: true, keep_upstream: true });
    assert!(next.starts_with(&ahead[..]));
}
