//! What a change of one sandbox does to streams: its own stop at the answer, nobody else's notice.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::json;
use tidegate::lab::origin::Behaviour;

use super::{POLICY, add, connect};
use crate::admin::Desk;
use crate::support::{Client, Scene, eventually};

fn get(client: &mut Client, token: &str) -> (u16, Option<String>) {
    let head = "GET http://198.51.100.9:8443/ HTTP/1.1\r\nHost: 198.51.100.9:8443\r\n";
    client.send(format!("{head}Proxy-Authorization: Bearer {token}\r\n\r\n").as_bytes());
    let response = client.response();
    (response.status, response.reason().map(str::to_owned))
}

/// Answers with the body that comes, chunk by chunk as it comes.
fn echo_chunks() -> Behaviour {
    Behaviour::Custom(Arc::new(|mut stream: TcpStream, _| {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..length])?;
        }
    }))
}

#[test]
fn a_paused_exchange_stands_still_and_goes_on() {
    let scene = Scene::new().policy(POLICY).ports([8443]).origins(|_| echo_chunks());
    let Some(desk) = Desk::start_with_state(scene, "") else { return };
    let (_, token) = add(&desk, &json!({ "id": "agent", "policies": ["case"] }));
    let mut client = desk.scene.client();
    let head = "POST http://198.51.100.9:8443/ HTTP/1.1\r\nHost: 198.51.100.9:8443\r\nTransfer-Encoding: chunked\r\n";
    client.send(format!("{head}Proxy-Authorization: Bearer {token}\r\n\r\n1\r\na\r\n").as_bytes());
    let head = client.wait_for(0, b"\r\n\r\n").expect("a head");
    let first = client.wait_for(head, b"1\r\na\r\n").expect("what was sent comes back");
    assert_eq!(desk.ask("POST", "/v1/sandboxes/agent/pause", None).0, 200);
    client.send(b"1\r\nb\r\n");
    assert!(!client.read_more(Duration::from_millis(300)), "a byte passed while paused");
    assert!(!client.ended(), "the exchange is kept");
    // Another request of a paused sandbox is refused.
    assert_eq!(get(&mut desk.scene.client(), &token), (403, Some("sandbox_paused".to_owned())));
    assert_eq!(desk.ask("POST", "/v1/sandboxes/agent/resume", None).0, 200);
    let second = client.wait_for(first, b"1\r\nb\r\n").expect("it goes on");
    client.send(b"0\r\n\r\n");
    client.wait_for(second, b"0\r\n\r\n").expect("to its end");
}

#[test]
fn a_change_of_one_sandbox_leaves_the_connections_of_others_in_use() {
    let scene = Scene::new().policy(POLICY).ports([8443]).origins(|_| Behaviour::Http);
    let Some(desk) = Desk::start_with_state(scene, "") else { return };
    let (_, token) = add(&desk, &json!({ "id": "agent", "policies": ["case"] }));
    let mut client = desk.scene.client();
    let used = |client: &mut Client| {
        assert_eq!(get(client, &token).0, 200);
        desk.scene.contacts().len()
    };
    assert_eq!(used(&mut client), 1);
    let (_, other) = add(&desk, &json!({ "id": "other", "policies": ["case"] }));
    assert_eq!(used(&mut client), 1, "the connection to the origin is used again");
    assert_eq!(get(&mut desk.scene.client(), &other).0, 200);
    assert_eq!(desk.scene.contacts().len(), 2, "nobody else's connection is");
    assert_eq!(desk.ask("DELETE", "/v1/sandboxes/other", None).0, 200);
    assert_eq!(used(&mut client), 2);
    assert_eq!(desk.ask("PATCH", "/v1/sandboxes/agent", Some(r#"{"hints":true}"#)).0, 200);
    assert_eq!(used(&mut client), 3, "its own change closes it");
}

/// A tunnel that carries bytes without a pause stands still when its removal is answered, and so does one whose sandbox is
/// paused, or whose time is over.
#[test]
fn after_the_answer_no_byte_passes() {
    let last = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&last);
    let sink = Behaviour::Custom(Arc::new(move |mut stream: TcpStream, _| {
        let mut buffer = [0; 4096];
        while stream.read(&mut buffer)? > 0 {
            seen.fetch_max(unix_millis(), Ordering::Relaxed);
        }
        Ok(())
    }));
    let scene = Scene::new().policy(POLICY).ports([8443]).origins(move |_| sink.clone());
    let Some(desk) = Desk::start_with_state(scene, "") else { return };
    let pump = |token: &str| {
        let (status, _, client) = connect(&desk.scene, token, 8443);
        assert_eq!(status, 200);
        let mut stream = client.into_stream();
        // It ends with the tunnel.
        stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        thread::spawn(move || while stream.write_all(&[b'x'; 1024]).is_ok() {})
    };
    for (name, method, path) in
        [("removed", "DELETE", ""), ("cut", "POST", "/pause"), ("held", "POST", "/pause")]
    {
        let (_, token) = add(&desk, &json!({ "id": name, "policies": ["case"] }));
        let before = unix_millis();
        let pump = pump(&token);
        eventually("bytes flow", || (last.load(Ordering::Relaxed) > before).then_some(()));
        let body = (name == "cut").then_some(r#"{"tunnels":"cut"}"#);
        let (status, _) = desk.ask(method, &format!("/v1/sandboxes/{name}{path}"), body);
        assert_eq!(status, 200);
        let answered = unix_millis();
        pump.join().unwrap();
        let late = last.load(Ordering::Relaxed).saturating_sub(answered);
        println!("{name}: the last byte {late} ms after the answer");
        assert!(late <= 100, "{name}: {late} ms");
    }
    // By itself: when its time is over.
    let ttl = Duration::from_secs(1);
    let (_, token) = add(&desk, &json!({ "id": "ttl", "policies": ["case"], "ttl": "1s" }));
    let added = unix_millis();
    pump(&token).join().unwrap();
    let late = last.load(Ordering::Relaxed).saturating_sub(added + ttl.as_millis() as u64);
    println!("ttl: the last byte {late} ms after its end");
    assert!(late <= 100, "{late} ms");
}

fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}
