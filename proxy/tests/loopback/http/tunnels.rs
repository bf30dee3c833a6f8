//! Requests that become tunnels, and tunnels that carry requests.

use super::{OK, answer, rest, scene};
use crate::scene::{gets, head, send};

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
        scene.recorder.told.lock().unwrap().clear();
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
