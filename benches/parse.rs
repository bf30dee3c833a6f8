//! What reading costs: what every connection begins with, and the config.

mod support;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use policy::{Destination, Hostname};
use proxy::http::head::HeadReader;
use proxy::tcp::client_hello::{HelloReader, Progress};

fn names(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    for (what, authority) in [
        ("authority, short", "api.example.com:443"),
        (
            "authority, long",
            "a-rather-long-bucket-name-0123456789.storage.eu-central-1.cloud.example.com:8443",
        ),
        ("authority, IPv4", "203.0.113.10:443"),
        ("authority, IPv6", "[2001:db8:cafe::10]:443"),
    ] {
        group.bench_function(what, |b| {
            b.iter(|| Destination::from_authority(black_box(authority.as_bytes())).expect("an authority"));
        });
    }
    group.bench_function("name, IDNA", |b| {
        b.iter(|| Hostname::parse(black_box("bücher.example")).expect("a name"));
    });
    group.finish();
}

/// A CONNECT as curl sends it, and a plain request as a browser sends it.
const HEADS: [(&str, &str); 2] = [
    (
        "head, CONNECT",
        "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\nUser-Agent: curl/8.5.0\r\n\
         Proxy-Connection: Keep-Alive\r\n\r\n",
    ),
    (
        "head, GET with 12 fields",
        "GET http://web.example.com/a/path?with=query HTTP/1.1\r\nHost: web.example.com\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
         Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
         Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate\r\nDNT: 1\r\nSec-GPC: 1\r\n\
         Connection: keep-alive\r\nCookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
         Upgrade-Insecure-Requests: 1\r\nIf-None-Match: \"5f3-61a\"\r\nPriority: u=0, i\r\n\r\n",
    ),
];

fn heads(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    for (what, head) in HEADS {
        group.throughput(Throughput::Bytes(head.len() as u64));
        group.bench_function(what, |b| {
            b.iter(|| {
                HeadReader::default()
                    .feed(black_box(head.as_bytes()))
                    .expect("a good head")
                    .expect("all of it")
            });
        });
    }
    let hello = client_hello();
    group.throughput(Throughput::Bytes(hello.len() as u64));
    group.bench_function("ClientHello", |b| {
        b.iter(|| {
            let progress = HelloReader::default().feed(black_box(&hello));
            assert!(matches!(progress, Progress::Hello(_)));
        });
    });
    group.finish();
}

/// The first flight of a real client.
fn client_hello() -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has what the versions need")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("api.example.com").expect("a name");
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("memory takes it");
    bytes
}

/// The tables of policy as a small installation writes them.
const CONFIG: &str = r#"
[addresses]
own = ["198.51.100.7"]
treat_as_private = ["25.0.0.0/8"]

[policy.base]
allow = [
    "api.example.com", "*.cdn.example.com", "git.example.com:22", "packages.example.org:80,443",
    "192.0.2.0/24:8443", ".example.net", "ec2.*.example.com", "[2001:db8::/64]:443",
]
deny = ["gist.example.com", "*.tracker.example"]

[[policy.issues.rule]]
id = "read-issues"
host = "issues.example.com"
ports = [80]
methods = ["GET", "HEAD"]
paths = ["/repos/*/*/issues/**"]

[sandbox.agent-7]
policies = ["base", "issues"]
identify = [{ source = "10.88.0.7/32" }]
labels = { workspace = "w-12" }
"#;

fn config(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    group.throughput(Throughput::Bytes(CONFIG.len() as u64));
    group.bench_function("config, small", |b| {
        b.iter(|| support::gate(black_box(CONFIG)));
    });
    group.finish();
}

fn main() {
    let mut criterion = support::criterion();
    names(&mut criterion);
    heads(&mut criterion);
    config(&mut criterion);
    criterion.final_summary();
}
