//! What upstreams send, fail to send, or forge.

use super::*;

#[tokio::test]
async fn an_answer_that_does_not_fit_upstream_is_fetched_over_tcp() {
    let (upstream, asked) = upstream(|query, tcp| {
        if tcp {
            return many(query, true);
        }
        let mut short = response(query, ResponseCode::NoError, &["many.wild.example.com. 5 A 203.0.113.1"]);
        short.metadata.truncation = true;
        vec![short.to_vec().unwrap()]
    })
    .await;
    let scene = Scene::over((upstream, asked)).await;
    let reply = scene.ask(MANY, RecordType::A).await;
    assert_eq!((reply.answers.len(), scene.asked().len()), (59, 2));
}

#[tokio::test]
async fn forged_answers_are_ignored_while_the_true_one_is_awaited() {
    let (upstream, asked) = upstream(|query, _| {
        let forged = |id: u16, name: &str| {
            let mut forged = query.clone();
            forged.metadata.id = id;
            forged.queries[0].set_name(Name::from_ascii(name).unwrap());
            let record = format!("{name} 5 A 203.0.113.66");
            response(&forged, ResponseCode::NoError, &[&record]).to_vec().unwrap()
        };
        let id = query.metadata.id;
        let mut sent: Vec<_> = (1..50).map(|off| forged(id.wrapping_add(off), "api.example.com.")).collect();
        sent.push(forged(id, "apx.example.com."));
        sent.push(forged(id, "."));
        sent.push(b"short".to_vec());
        sent.push(query.to_vec().unwrap());
        sent.extend(zone(RECORDS)(query, false));
        sent
    })
    .await;
    let scene = Scene::over((upstream, asked)).await;
    let reply = scene.ask("api.example.com", RecordType::A).await;
    assert_eq!(addresses(&reply), ["203.0.113.10".parse::<IpAddr>().unwrap()]);
}

#[tokio::test]
async fn only_records_on_the_chain_are_delivered() {
    let (upstream, asked) = upstream(|query, _| {
        let records = [
            "e9.cdn.test. 9 A 203.0.113.9",
            "attacker.test. 9 A 203.0.113.66",
            "api.example.com. 9 CNAME e9.cdn.test.",
            "api.example.com. 9 AAAA 2001:db8:cafe::66",
            "attacker.test. 9 CNAME api.example.com.",
        ];
        let mut message = response(query, ResponseCode::NoError, &records);
        message.metadata.authentic_data = true;
        message.metadata.authoritative = true;
        message.add_additional(crate::testing::record("api.example.com. 9 A 203.0.113.67"));
        vec![message.to_vec().unwrap()]
    })
    .await;
    let scene = Scene::over((upstream, asked)).await;
    let reply = scene.ask("api.example.com", RecordType::A).await;
    let shown: Vec<_> =
        reply.answers.iter().map(|record| format!("{} {}", record.name, record.data)).collect();
    assert_eq!(shown, ["api.example.com. e9.cdn.test.", "e9.cdn.test. 203.0.113.9"]);
    assert!(reply.authorities.is_empty() && reply.additionals.is_empty());
}

#[tokio::test]
async fn upstream_faults_are_servfail_and_say_which() {
    for (code, text, fault) in [
        (0, "upstream failed", ResponseCode::ServFail),
        (0, "upstream failed", ResponseCode::Refused),
        (24, "upstream answer malformed", ResponseCode::NoError),
    ] {
        let scene = Scene::over(
            upstream(move |query, _| {
                let mut message =
                    response(query, fault, &["api.example.com. 9 A 203.0.113.9"]).to_vec().unwrap();
                if fault == ResponseCode::NoError {
                    message.truncate(message.len() - 1);
                }
                vec![message]
            })
            .await,
        )
        .await;
        let reply = scene.ask("api.example.com", RecordType::A).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(extended(&reply), Some((code, text.into())));
    }
}

#[tokio::test]
async fn an_upstream_that_is_down_is_told_at_once_and_another_takes_over() {
    let (gate, recorder) = gate(POLICY);
    let scene = Scene::with(gate, recorder, [nobody().await], Asked::default()).await;
    let reply = scene.ask("api.example.com", RecordType::A).await;
    assert_eq!(extended(&reply), Some((23, "upstream unreachable".into())));

    let (gate, recorder) = crate::testing::gate(POLICY);
    let (upstream, asked) = upstream(zone(RECORDS)).await;
    let scene = Scene::with(gate, recorder, [nobody().await, upstream], asked).await;
    let reply = scene.ask("api.example.com", RecordType::A).await;
    assert_eq!(addresses(&reply).len(), 1);
}

#[tokio::test]
async fn a_silent_upstream_costs_one_try_and_then_another_is_asked() {
    let (silent, silent_asked) = upstream(|_, _| Vec::new()).await;
    let (upstream, asked) = upstream(zone(RECORDS)).await;
    let (gate, recorder) = gate(POLICY);
    let scene = Scene::with(gate, recorder, [silent, upstream], asked).await;
    for name in ["api.example.com", "half.wild.example.com"] {
        assert_eq!(addresses(&scene.ask(name, RecordType::A).await).len(), 1);
    }
    assert_eq!(silent_asked.lock().unwrap().len(), 1, "after a failure it is asked last");
}

#[tokio::test]
async fn identical_questions_under_way_are_asked_once() {
    let (upstream, asked) = upstream(zone(RECORDS)).await;
    let scene = Scene::over((upstream, asked)).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(scene.udp).await.unwrap();
    let mut sent = query("api.example.com", RecordType::A);
    for id in 0..20 {
        sent.metadata.id = id;
        socket.send(&sent.to_vec().unwrap()).await.unwrap();
    }
    let mut buffer = [0; 512];
    let mut ids = Vec::new();
    for _ in 0..20 {
        let length = timeout(Duration::from_secs(5), socket.recv(&mut buffer)).await.unwrap().unwrap();
        ids.push(Message::from_vec(&buffer[..length]).unwrap().metadata.id);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    assert_eq!(scene.asked().len(), 1);
}
