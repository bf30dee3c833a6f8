//! What the first bytes of a tunnel say: TLS by name, retries, and what is no TLS.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::scene;
use crate::scene::rest;

fn hello(name: &str) -> Vec<u8> {
    let vector = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let names = [&[0][..], &vector(name.as_bytes())].concat();
    let extensions = [&[0, 0][..], &vector(&vector(&names))].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &vector(&extensions)].concat();
    record(22, &[&[1, 0][..], &vector(&body)].concat())
}

fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &(payload.len() as u16).to_be_bytes(), payload].concat()
}

/// A HelloRetryRequest, or with another random a ServerHello.
fn server_hello(retry: bool) -> Vec<u8> {
    const RETRY: &str = "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c";
    let random: Vec<u8> =
        (0..32).map(|at| u8::from_str_radix(&RETRY[2 * at..2 * at + 2], 16).unwrap()).collect();
    let random = if retry { random } else { vec![7; 32] };
    record(22, &[&[2, 0, 0, 38, 3, 3][..], &random, &[0, 0x13, 1, 0]].concat())
}

const ALERT: &[u8] = b"\x15\x03\x03\x00\x02\x02\x31<reset>";

/// Ends of real handshakes. The client guesses X25519; a server that wants P-384 asks for another hello.
mod real {
    use rustls::crypto::ring::{default_provider, kx_group};
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    pub(super) fn ends(names: &[&str]) -> (TlsConnector, TlsAcceptor) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let certificate: CertificateDer<'static> = made.cert.der().clone();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let mut provider = default_provider();
        provider.kx_groups = vec![kx_group::SECP384R1];
        let server = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let mut provider = default_provider();
        provider.kx_groups = vec![kx_group::X25519, kx_group::SECP384R1];
        let client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(client).into(), Arc::new(server).into())
    }
}

#[tokio::test]
async fn tls_with_the_allowed_name_passes_byte_for_byte() {
    let scene = scene().await;
    let (mut client, mut origin) = scene.tunnel(443).await;
    let sent = [hello("API.example.test"), record(23, b"early data")].concat();
    for part in sent.chunks(9) {
        client.write_all(part).await.unwrap();
    }
    let mut got = vec![0; sent.len()];
    origin.read_exact(&mut got).await.unwrap();
    assert_eq!(got, sent);
    let answer = [server_hello(false), record(23, b"secret")].concat();
    origin.write_all(&answer).await.unwrap();
    drop(origin);
    let mut got = vec![0; answer.len()];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(got, answer);
    drop(client);
    let close = format!("close - api.example.test {} {}", sent.len(), answer.len());
    scene.records(&["connect allow -", &close]).await;
}

#[tokio::test]
async fn tls_with_another_name_ends_with_an_alert() {
    let scene = scene().await;
    for (port, first, reason, sni) in [
        (443, hello("other.example.test"), "sni_mismatch", "other.example.test"),
        (5432, hello("other.example.test"), "sni_mismatch", "other.example.test"),
        (80, hello("other.example.test"), "sni_mismatch", "other.example.test"),
        (443, record(22, &[1, 0, 0, 1, 0]), "hello_invalid", "-"),
        (443, hello("a.example.test."), "hello_invalid", "-"),
        (5432, hello(""), "hello_invalid", "-"),
    ] {
        scene.recorder.told.lock().unwrap().clear();
        let (mut client, mut origin) = scene.tunnel(port).await;
        client.write_all(&first).await.unwrap();
        assert_eq!(rest(&mut client).await, ALERT, "{reason}");
        assert_eq!(rest(&mut origin).await, b"<reset>", "{reason}");
        let close = format!("close {reason} {sni} {} 0", first.len());
        scene.records(&["connect allow -", &close]).await;
    }
}

#[tokio::test]
async fn port_443_carries_tls_only() {
    let scene = scene().await;
    for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SSH-2.0-x\r\n", &[5, 1, 0], &[0x80, 46, 1, 3, 1]] {
        scene.recorder.told.lock().unwrap().clear();
        let (mut client, mut origin) = scene.tunnel(443).await;
        client.write_all(first).await.unwrap();
        assert_eq!(rest(&mut client).await, b"<reset>");
        assert_eq!(rest(&mut origin).await, b"<reset>");
        scene.records(&["connect allow -", &format!("close tls_required - {} 0", first.len())]).await;
    }
}

#[tokio::test]
async fn a_server_on_443_cannot_speak_before_the_hello() {
    let scene = scene().await;
    let (mut client, mut origin) = scene.tunnel(443).await;
    origin.write_all(b"220 hello\r\n").await.unwrap();
    client.write_all(b"EHLO").await.unwrap();
    assert_eq!(rest(&mut client).await, b"<reset>");
}

#[tokio::test]
async fn a_second_hello_is_judged_as_the_first() {
    let scene = scene().await;
    for (second, passes) in [("api.example.test", true), ("other.example.test", false)] {
        let (mut client, mut origin) = scene.tunnel(443).await;
        let first = hello("api.example.test");
        client.write_all(&first).await.unwrap();
        origin.read_exact(&mut vec![0; first.len()]).await.unwrap();
        let retry = server_hello(true);
        origin.write_all(&retry[..44]).await.unwrap();
        client.read_exact(&mut [0; 44]).await.unwrap();
        origin.write_all(&retry[44..]).await.unwrap();
        client.read_exact(&mut vec![0; retry.len() - 44]).await.unwrap();
        client.write_all(&[record(20, &[1]), hello(second)].concat()).await.unwrap();
        if passes {
            let mut got = vec![0; record(20, &[1]).len() + hello(second).len()];
            origin.read_exact(&mut got).await.unwrap();
            assert_eq!(got, [record(20, &[1]), hello(second)].concat());
        } else {
            assert_eq!(rest(&mut client).await, ALERT);
            assert_eq!(rest(&mut origin).await, [&record(20, &[1])[..], b"<reset>"].concat());
        }
    }
}

#[tokio::test]
async fn a_second_hello_that_comes_too_early_is_held_until_the_server_has_answered() {
    let scene = scene().await;
    for retry in [true, false] {
        let (mut client, mut origin) = scene.tunnel(443).await;
        let (first, second) = (hello("api.example.test"), hello("other.example.test"));
        client.write_all(&[&first[..], &second].concat()).await.unwrap();
        let mut got = vec![0; first.len()];
        origin.read_exact(&mut got).await.unwrap();
        assert_eq!(got, first);
        origin.write_all(&server_hello(retry)).await.unwrap();
        if retry {
            let answer = [&server_hello(true)[..], ALERT].concat();
            assert_eq!(rest(&mut client).await, answer);
            assert_eq!(rest(&mut origin).await, b"<reset>");
        } else {
            let mut got = vec![0; second.len()];
            origin.read_exact(&mut got).await.unwrap();
            assert_eq!(got, second, "not a hello to this server: it goes its way");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_on_443_is_closed() {
    let scene = scene().await;
    let (mut client, _origin) = scene.tunnel(443).await;
    let mut rest = Vec::new();
    assert!(client.read_to_end(&mut rest).await.is_err());
    assert_eq!(rest, b"");
    scene.records(&["connect allow -", "close hello_invalid - 0 0"]).await;
}

#[tokio::test]
async fn a_real_handshake_with_a_retry_passes_and_carries_bulk() {
    let scene = scene().await;
    let (connector, acceptor) = real::ends(&["api.example.test"]);
    let (client, origin) = scene.tunnel(443).await;
    let origin = tokio::spawn(async move {
        let mut tls = acceptor.accept(origin).await.unwrap();
        let retried = rustls::HandshakeKind::FullWithHelloRetryRequest;
        assert_eq!(tls.get_ref().1.handshake_kind(), Some(retried));
        let mut asked = vec![0; 3 << 20];
        tls.read_exact(&mut asked).await.unwrap();
        tls.write_all(&asked).await.unwrap();
        tls.shutdown().await.unwrap();
    });
    let mut tls = connector.connect("api.example.test".try_into().unwrap(), client).await.unwrap();
    let sent: Vec<u8> = (0..3_u32 << 20).map(|at| (at ^ (at >> 9)) as u8).collect();
    let (mut read, mut write) = tokio::io::split(&mut tls);
    let mut got = Vec::new();
    let (wrote, all) = tokio::join!(write.write_all(&sent), read.read_to_end(&mut got));
    wrote.unwrap();
    all.unwrap();
    assert!(got == sent, "other bytes came back");
    origin.await.unwrap();
}

#[tokio::test]
async fn a_real_handshake_for_another_name_fails_with_an_alert() {
    let scene = scene().await;
    let (connector, _) = real::ends(&["other.example.test"]);
    let (client, mut origin) = scene.tunnel(443).await;
    let error = connector.connect("other.example.test".try_into().unwrap(), client).await.unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    assert_eq!(rest(&mut origin).await, b"<reset>");
}
