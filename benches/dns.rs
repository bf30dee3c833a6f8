//! What a DNS answer costs from datagram to datagram: 32 queries at once over loopback, on one thread.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use dns::{Limits, Metrics, Resolver, ResolverConfig, Server, Upstream};
use prometheus::Registry;
use tokio::net::UdpSocket;
use tokio::runtime::Runtime;

/// Queries under way at once.
const AT_ONCE: u16 = 32;

const CONFIG: &str = r#"
[policy.base]
allow = ["*.allowed.example"]

[sandbox.bench]
policies = ["base"]
identify = [{ default = true }]

[sandbox.bench.limits]
connections = "unlimited"
new_connections_per_second = "unlimited"
requests_per_second = "unlimited"
dns_per_second = "unlimited"
new_names_per_minute = "unlimited"
upload = "unlimited"
download = "unlimited"
"#;

/// A query for the A record of a name.
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).expect("a label is short"));
        message.extend_from_slice(label.as_bytes());
    }
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    message
}

/// Answers every query with one address that may be kept for an hour.
async fn upstream(socket: UdpSocket) {
    let mut buffer = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let mut reply = buffer.get(..length).unwrap_or_default().to_vec();
        // RFC 1035 section 4.1.1: a response, no error, one answer; OPT is not echoed.
        let question_ends = 12 + reply.iter().skip(12).position(|byte| *byte == 0).unwrap_or(0) + 5;
        reply.truncate(question_ends);
        for (at, byte) in [(2, 0x81), (3, 0x80), (7, 1), (11, 0)] {
            if let Some(place) = reply.get_mut(at) {
                *place = byte;
            }
        }
        reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4, 203, 0, 113, 9]);
        let _ = socket.send_to(&reply, from).await;
    }
}

async fn bound() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("loopback has a port");
    let address = socket.local_addr().expect("it is bound");
    (socket, address)
}

/// Starts an upstream and a server that asks it; the server's address.
async fn start() -> SocketAddr {
    let (socket, address) = bound().await;
    tokio::spawn(upstream(socket));
    let metrics = Metrics::new(&Registry::new()).expect("a new registry takes them");
    let config = ResolverConfig { upstreams: vec![Upstream::Udp(address)], ..ResolverConfig::default() };
    let resolver = Resolver::new(&config, metrics.clone()).expect("one upstream is enough");
    let server =
        Server::new(Arc::new(support::gate(CONFIG)), resolver, metrics, Limits::default(), Arc::default());
    let (socket, address) = bound().await;
    tokio::spawn(async move {
        let served = server
            .serve_udp(socket, policy::ListenerName::from("127.0.0.1:53"), std::future::pending())
            .await;
        served.expect("the socket works");
    });
    address
}

async fn ask(client: &UdpSocket, server: SocketAddr, queries: &[Vec<u8>], rcode: u8) {
    for query in queries {
        client.send_to(query, server).await.expect("the server is there");
    }
    let mut buffer = [0; 1500];
    for _ in queries {
        let length = client.recv(&mut buffer).await.expect("the server answers");
        assert!(length > 12 && buffer.get(3).is_some_and(|flags| flags & 15 == rcode));
    }
}

fn answer(c: &mut Criterion, runtime: &Runtime) {
    let (client, server) = runtime.block_on(async { (bound().await.0, start().await) });
    let mut group = c.benchmark_group("dns");
    group.throughput(Throughput::Elements(u64::from(AT_ONCE)));
    for (what, domain, rcode) in [("blocked", "blocked.example", 3), ("cached", "allowed.example", 0)] {
        let queries: Vec<_> = (0..AT_ONCE).map(|id| query(id, &format!("h{id}.{domain}"))).collect();
        runtime.block_on(ask(&client, server, &queries, rcode));
        group.bench_function(what, |b| b.iter(|| runtime.block_on(ask(&client, server, &queries, rcode))));
    }
    let mut fresh = 0_u64;
    group.bench_function("forwarded", |b| {
        b.iter(|| {
            let queries: Vec<_> = (0..AT_ONCE)
                .map(|id| {
                    fresh += 1;
                    query(id, &format!("f{fresh}.allowed.example"))
                })
                .collect();
            runtime.block_on(ask(&client, server, &queries, 0));
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = support::criterion();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    answer(&mut criterion, &runtime);
    criterion.final_summary();
}
