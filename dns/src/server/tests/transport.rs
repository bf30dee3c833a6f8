//! Datagrams and connections: sizes, framing, caps, order, and what waits for the record.

use super::*;

#[tokio::test]
async fn what_does_not_fit_is_cut_and_marked_and_whole_over_tcp() {
    let scene = Scene::over(upstream(many).await).await;
    let mut plain = query(MANY, RecordType::A);
    plain.edns = None;
    let reply = scene.send(&plain).await;
    assert!(
        reply.metadata.truncation && reply.answers.len() == (512 - 12 - 27) / 16,
        "{}",
        reply.answers.len()
    );
    assert!(reply.to_vec().unwrap().len() <= 512);
    let reply = scene.ask(MANY, RecordType::A).await;
    assert!(!reply.metadata.truncation && reply.answers.len() == 59);

    let mut stream = TcpStream::connect(scene.tcp).await.unwrap();
    let sent = plain.to_vec().unwrap();
    stream.write_all(&[&(sent.len() as u16).to_be_bytes()[..], &sent].concat()).await.unwrap();
    let mut reply = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut reply).await.unwrap();
    let reply = Message::from_vec(&reply).unwrap();
    assert!(!reply.metadata.truncation && reply.answers.len() == 59);
}

#[tokio::test]
async fn an_answer_whose_event_is_lost_is_not_given() {
    let recorder = Recorder::with_receipts(Receipt::lost);
    let gate = gate_with(POLICY, "{ default = true }", &recorder);
    let (upstream, asked) = upstream(zone(RECORDS)).await;
    let scene = Scene::with(gate, recorder, [upstream], asked).await;
    for name in ["api.example.com", "attacker.test"] {
        let reply =
            Message::from_vec(&scene.exchange(&query(name, RecordType::A).to_vec().unwrap()).await).unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert_eq!((reply.answers.len(), extended(&reply)), (0, Some((0, "audit_unavailable".into()))));
    }
}

#[tokio::test]
async fn a_reply_waits_for_its_event() {
    let (written, wait) = tokio::sync::watch::channel(false);
    let recorder = Recorder::with_receipts(move || {
        let mut wait = wait.clone();
        Receipt::waiting(
            async move { wait.wait_for(|written| *written).await.map(drop).map_err(|_| AuditLost) },
        )
    });
    let gate = gate_with(POLICY, "{ default = true }", &recorder);
    let scene = Scene::with(gate, recorder, [nobody().await], Asked::default()).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(scene.udp).await.unwrap();
    for name in ["one.attacker.test", "two.attacker.test"] {
        socket.send(&query(name, RecordType::A).to_vec().unwrap()).await.unwrap();
    }
    while scene.recorder.events().len() < 2 {
        tokio::task::yield_now().await;
    }
    let mut buffer = [0; 512];
    let early = timeout(Duration::from_millis(50), socket.recv(&mut buffer)).await;
    assert!(early.is_err(), "a reply left before its event was written");
    written.send_replace(true);
    for _ in 0..2 {
        timeout(Duration::from_secs(5), socket.recv(&mut buffer)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn pipelined_queries_are_answered_as_their_answers_come() {
    let release = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&release);
    let (upstream, asked) = upstream(move |query, _| {
        let slow = query.queries[0].name().to_string().starts_with("api.");
        if slow && held.try_acquire().is_err() { Vec::new() } else { zone(RECORDS)(query, false) }
    })
    .await;
    let scene = Scene::over((upstream, asked)).await;
    let mut stream = TcpStream::connect(scene.tcp).await.unwrap();
    let mut sent = Vec::new();
    for (id, name) in [(1, "api.example.com"), (2, "half.wild.example.com"), (3, "attacker.test")] {
        let mut query = query(name, RecordType::A);
        query.metadata.id = id;
        let bytes = query.to_vec().unwrap();
        sent.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        sent.extend_from_slice(&bytes);
    }
    stream.write_all(&sent).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let mut reply =
            vec![0; timeout(Duration::from_secs(5), stream.read_u16()).await.unwrap().unwrap().into()];
        stream.read_exact(&mut reply).await.unwrap();
        let id = Message::from_vec(&reply).unwrap().metadata.id;
        ids.push(id);
        // The second answer came while the first was held up; the next try of the first may now succeed.
        release.add_permits(usize::from(id == 2));
    }
    assert_eq!(ids[2], 1, "{ids:?}");
}

#[tokio::test]
async fn connections_that_break_the_framing_are_closed() {
    let scene = Scene::new().await;
    for sent in [&b"\0\0"[..], b"\xff\xff\0\0\0\0", b"\0\x0b\0\0\0\0\0\0\0\0\0\0\0", b"\x10\x01"] {
        let mut stream = TcpStream::connect(scene.tcp).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut rest = Vec::new();
        // Unread bytes make the close a reset.
        let closed = timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await.expect("closed");
        assert!(closed.is_err() || rest.is_empty(), "{sent:?}");
    }
}

#[tokio::test]
async fn a_client_has_so_many_connections_and_a_connection_so_many_queries() {
    let scene = Scene::new().await;
    let mut open = Vec::new();
    let asking = query("localhost", RecordType::A).to_vec().unwrap();
    let framed = [&(asking.len() as u16).to_be_bytes()[..], &asking].concat();
    for _ in 0..16 {
        let mut stream = TcpStream::connect(scene.tcp).await.unwrap();
        stream.write_all(&framed).await.unwrap();
        stream.read_u16().await.unwrap();
        open.push(stream);
    }
    let mut refused = TcpStream::connect(scene.tcp).await.unwrap();
    let mut rest = Vec::new();
    let closed = timeout(Duration::from_secs(5), refused.read_to_end(&mut rest)).await.expect("closed");
    assert!(closed.is_err() || rest.is_empty());

    let mut stream = open.swap_remove(0);
    let mut sink = Vec::new();
    for _ in 0..110 {
        // The last ones meet a closed connection.
        let _ = stream.write_all(&framed).await;
    }
    let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut sink)).await.expect("closed");
    // 100 replies in all; the first one's length was read above.
    assert!(sink.len() <= 100 * (2 + 63) && !sink.is_empty(), "{}", sink.len());
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_stops() {
    let (gate, _) = gate(POLICY);
    let server = Server::new(gate, resolver([nobody().await]), metrics(), Limits::default(), Arc::default());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let until = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(tcp.local_addr().unwrap()).await.unwrap();
    let over_udp = server.serve_udp(udp, ListenerName::from("udp"), until(stopped.clone()));
    let over_tcp = server.serve_tcp(tcp, ListenerName::from("tcp"), until(stopped));
    let tell = async {
        let asking = query("localhost", RecordType::A).to_vec().unwrap();
        client.write_all(&[&(asking.len() as u16).to_be_bytes()[..], &asking].concat()).await.unwrap();
        client.read_u16().await.unwrap();
        stop.send_replace(true);
    };
    let (udp, tcp, ()) =
        timeout(Duration::from_secs(5), async { tokio::join!(over_udp, over_tcp, tell) }).await.unwrap();
    assert!(udp.is_ok() && tcp.is_ok());
    let closed = timeout(Duration::from_secs(5), client.read_to_end(&mut Vec::new())).await.expect("closed");
    assert!(closed.is_ok());
}

/// More at once than one batch (and fewer than a sandbox may ask a second), and a runtime that has workers to spare: each query is answered once, with its own name.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_flood_is_answered_by_all_workers_and_nothing_twice() {
    const QUERIES: u16 = 400;
    let scene = Scene::new().await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(scene.udp).await.unwrap();
    let (mut answered, mut sent) = (std::collections::HashSet::new(), 0);
    while answered.len() < QUERIES.into() {
        // As many under way as the sockets hold for sure: 208 KiB of them, and each counts for more than a KiB.
        while sent < QUERIES && usize::from(sent) < answered.len() + 96 {
            let mut query = query(&format!("n{sent}.elsewhere.test."), RecordType::A);
            query.metadata.id = sent;
            client.send(&query.to_vec().unwrap()).await.unwrap();
            sent += 1;
        }
        let mut buffer = [0; 512];
        let length =
            timeout(Duration::from_secs(5), client.recv(&mut buffer)).await.expect("a reply").unwrap();
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
        assert_eq!(reply.queries[0].name().to_string(), format!("n{}.elsewhere.test.", reply.metadata.id));
        assert!(answered.insert(reply.metadata.id), "answered twice");
    }
}

/// Seen by reading: whoever has many addresses could take every descriptor of the gateway with idle connections.
#[tokio::test]
async fn all_clients_together_have_so_many_connections_wherever_they_come_from() {
    let (gate, _) = gate(POLICY);
    let limits = Limits { connections: 2, ..Limits::default() };
    let server = Server::new(gate, resolver([nobody().await]), metrics(), limits, Arc::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(
        async move { server.serve_tcp(listener, ListenerName::from("l"), std::future::pending()).await },
    );
    let from = async |address: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(address.parse().unwrap()).unwrap();
        socket.connect(at).await.unwrap()
    };
    let (first, _second) = (from("127.0.1.1:0").await, from("127.0.1.2:0").await);
    let mut third = from("127.0.1.3:0").await;
    let closed = timeout(Duration::from_secs(5), third.read(&mut [0])).await.expect("it is closed at once");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    drop(first);
    // Its place is free once the server has seen it go.
    let has_room = async {
        while let Ok(Ok(0) | Err(_)) =
            timeout(Duration::from_millis(100), from("127.0.1.4:0").await.read(&mut [0])).await
        {}
    };
    timeout(Duration::from_secs(5), has_room).await.expect("there is room again");
    let host = |address: &str| network(address.parse().unwrap());
    assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:2"));
    assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
    assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
}
