//! How streams end: by a reload, by their rule, by a drain; and what is counted of them.

use std::sync::Arc;
use std::time::Duration;

use policy::{SandboxId, Timestamp};
use proxy::{Config, Listener, UpstreamProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::timeout;

use super::{BEHIND_PROXY, opening, scene, scene_with, tell};
use crate::scene::{SOON, Scene, head, policy, rest};

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

/// Seen by reading: what was being looked up or dialled when its namespace closed was dropped without a record, although
/// a name server or an origin had seen it.
#[tokio::test]
async fn what_is_under_way_when_its_namespace_closes_is_on_record() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let open = |port| opening(port, "");
    let scene = Scene::asking(silent.local_addr().unwrap(), open, tell, Config::default()).await;
    let namespace = scene.gate.namespace(SandboxId::parse("s1").unwrap());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = Scene { proxy: listener.local_addr().unwrap(), ..scene };
    let listener = Listener::inside(Arc::clone(&namespace), listener).unwrap();
    tokio::spawn(listener.run(Arc::clone(&inside.gateway)));
    let mut client = inside.sends(b"CONNECT listed.example.test:443 HTTP/1.1\r\n\r\n").await;
    timeout(SOON, silent.recv_from(&mut [0; 512])).await.expect("a question").unwrap();
    inside.gateway.close_namespace(&namespace, None);
    inside.records(&["connect allow upstream_dns_failed"]).await;
    assert_eq!(rest(&mut client).await, b"");
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
