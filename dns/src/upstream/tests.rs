//! Against hickory's own server, over every transport.

use std::time::Duration;

use hickory_resolver::TlsConfig;
use hickory_server::proto::rr::{LowerName, Name};
use hickory_server::store::in_memory::InMemoryZoneHandler;
use hickory_server::zone_handler::{AxfrPolicy, Catalog, ZoneType};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpListener, UdpSocket};

use super::*;
use crate::answer::Data;
use crate::testing::{metrics, record};

const RECORDS: [&str; 7] = [
    "example.com. 30 SOA ns.example.com. host.example.com. 1 2 3 4 20",
    "example.com. 30 NS ns.example.com.",
    "api.example.com. 9 A 203.0.113.10",
    "api.example.com. 9 HTTPS 1 . alpn=h2 ipv4hint=203.0.113.10",
    "www.example.com. 7 CNAME api.example.com.",
    "text.example.com. 9 TXT hello",
    "text.example.com. 9 MX 10 api.example.com.",
];

/// A server of the zone example.com; it stops when the returned value is dropped.
async fn server() -> (SocketAddr, hickory_server::Server<Catalog>) {
    let mut server = hickory_server::Server::new(catalog());
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            break (tcp, udp);
        }
    };
    let address = tcp.local_addr().unwrap();
    server.register_socket(udp);
    server.register_listener(tcp, Duration::from_secs(5), 4096);
    (address, server)
}

fn catalog() -> Catalog {
    let origin = Name::from_ascii("example.com.").unwrap();
    let mut zone: InMemoryZoneHandler =
        InMemoryZoneHandler::empty(origin.clone(), ZoneType::Primary, AxfrPolicy::Deny);
    for text in RECORDS {
        assert!(zone.upsert_mut(record(text), 1), "{text}");
    }
    let mut catalog = Catalog::new();
    catalog.upsert(LowerName::new(&origin), vec![Arc::new(zone)]);
    catalog
}

fn host(text: &str) -> Hostname {
    Hostname::parse(text).unwrap()
}

#[tokio::test]
async fn every_transport_gives_the_same_answers() {
    let (address, _server) = server().await;
    for upstream in [Upstream::Udp(address), Upstream::Tcp(address)] {
        let servers = Servers::new(std::slice::from_ref(&upstream), &metrics()).unwrap();
        let ask = |name: &'static str, qtype| {
            let servers = &servers;
            async move { servers.ask(&host(name), qtype).await.unwrap_or_else(|error| panic!("{name}: {error}")) }
        };
        let answer = ask("www.example.com", QType::A).await;
        assert_eq!(answer.chain, [host("api.example.com")], "{upstream:?}");
        assert_eq!(answer.addresses, ["203.0.113.10".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(answer.ttl, 7);
        let answer = ask("api.example.com", QType::HTTPS).await;
        assert!(matches!(answer.data.as_slice(), [Data::Service(_)]), "{answer:?}");
        let answer = ask("text.example.com", QType(15)).await;
        let [Data::Pointer { target, .. }] = answer.data.as_slice() else { panic!("{answer:?}") };
        assert_eq!(target.as_ref(), Some(&host("api.example.com")));
        let answer = ask("api.example.com", QType::TXT).await;
        assert!(answer.exists && answer.is_negative() && answer.keep && answer.ttl == 20, "{answer:?}");
        let answer = ask("none.example.com", QType::A).await;
        assert!(!answer.exists && answer.is_negative() && answer.keep && answer.ttl == 20, "{answer:?}");
        // Another zone than the server's.
        let refused = servers.ask(&host("api.example.net"), QType::A).await;
        assert!(matches!(refused, Err(LookupError::Failed(5))), "{upstream:?}: {refused:?}");
    }
}

#[tokio::test]
async fn encrypted_upstreams_answer_where_they_are_who_they_should_be() {
    let certified = rcgen::generate_simple_self_signed(["dns.example".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
    let shown = Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate.clone()], key)));
    let mut server = hickory_server::Server::new(catalog());
    let (tls, https) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (tls_at, https_at) = (tls.local_addr().unwrap(), https.local_addr().unwrap());
    let patience = Duration::from_secs(5);
    server.register_tls_listener(tls, patience, shown.clone()).unwrap();
    server.register_https_listener(https, patience, shown, None, "/dns-query".to_owned()).unwrap();

    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let stream = |upstream: &Upstream| {
        let mut tls = TlsConfig::new().unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        tls.config = config.with_root_certificates(roots.clone()).with_no_client_auth();
        Stream::with_tls(upstream, tls).unwrap()
    };
    for (called, is_it) in [("dns.example", true), ("other.example", false)] {
        let name = host(called);
        let path = "/dns-query".into();
        let upstreams = [
            Upstream::Tls { address: tls_at, name: name.clone() },
            Upstream::Https { name, port: https_at.port(), path, bootstrap: vec![https_at.ip()] },
        ];
        for upstream in upstreams {
            let asked = stream(&upstream).ask(&host("www.example.com"), QType::A).await;
            match asked {
                Ok(answer) => {
                    assert!(is_it, "{upstream:?} answered under another's name");
                    assert_eq!(answer.chain, [host("api.example.com")], "{upstream:?}");
                    assert_eq!(answer.addresses, ["203.0.113.10".parse::<std::net::IpAddr>().unwrap()]);
                }
                Err(error) => {
                    assert!(!is_it, "{upstream:?}: {error:?}");
                    assert!(matches!(error, LookupError::Unreachable | LookupError::Timeout), "{error:?}");
                }
            }
        }
    }
    // By default only the public authorities count.
    let by_default = Stream::new(&Upstream::Tls { address: tls_at, name: host("dns.example") }).unwrap();
    let refused = by_default.ask(&host("www.example.com"), QType::A).await;
    assert!(refused.is_err(), "a certificate that no public authority signed was taken: {refused:?}");
}

#[tokio::test]
async fn the_longest_zone_is_asked() {
    let udp = |last: u8| vec![Upstream::Udp(SocketAddr::from(([192, 0, 2, last], 53)))];
    let zones = [(host("corp.example"), udp(1)), (host("eu.corp.example"), udp(2))];
    let zones = Zones::new(&udp(9), &zones, &metrics()).unwrap();
    for (name, last) in [
        ("api.example.com", 9),
        ("corp.example", 1),
        ("a.corp.example", 1),
        ("notcorp.example", 9),
        ("eu.corp.example", 2),
        ("a.b.eu.corp.example", 2),
    ] {
        let shown = format!("{:?}", zones.for_name(&host(name)));
        assert!(shown.contains(&format!("192.0.2.{last}:53")), "{name}: {shown}");
    }
}

#[test]
fn there_must_be_somebody_to_ask() {
    assert!(matches!(Servers::new(&[], &metrics()), Err(ResolverError::NoUpstream)));
    let https = Upstream::parse("https://dns.example/q", &[]).unwrap();
    assert!(matches!(Servers::new(&[https], &metrics()), Err(ResolverError::NoUpstream)));
}

#[tokio::test]
async fn encrypted_upstreams_that_do_not_listen_are_told_within_the_budget() {
    let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (name, port) = (host("dns.example"), nobody.port());
    let tls = Upstream::Tls { address: nobody, name: name.clone() };
    let https = Upstream::Https { name, port, path: "/dns-query".into(), bootstrap: vec![nobody.ip()] };
    for upstream in [tls, https] {
        let servers = Servers::new(std::slice::from_ref(&upstream), &metrics()).unwrap();
        let asked = tokio::time::timeout(BUDGET + TRY, servers.ask(&host("api.example.com"), QType::A)).await;
        let failed = asked.expect("within the budget").expect_err("nobody listens");
        assert!(
            matches!(failed, LookupError::Unreachable | LookupError::Timeout),
            "{upstream:?}: {failed:?}"
        );
    }
}
