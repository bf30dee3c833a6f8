//! The daemon from start to end, and the two plainest things that it does.

use std::{
    fs,
    process::{Command, Stdio},
};

use crate::support::{ClientCertificate, PROXY, Scene, SocksReply, TestAuthority, TlsClient};

#[test]
fn an_unlisted_name_is_refused_at_once_and_nothing_leaves_the_host() {
    let Some(scene) =
        Scene::new().allow(&["api.example.com"]).resolving("other.test", &["A 203.0.113.66"]).start()
    else {
        return;
    };
    let mut client = scene.client();
    client.send(b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n");
    let answer = client.read_to_end();
    assert!(answer.starts_with(b"HTTP/1.1 403 "), "{:?}", String::from_utf8_lossy(&answer));
    assert_eq!(scene.client().socks5("other.test", 443), SocksReply(2));
    assert!(scene.dns().asked().is_empty());
    assert!(scene.dialled().is_empty());
}

#[test]
fn a_tls_client_talks_to_the_origin_itself() {
    let authority = TestAuthority::new();
    let https = authority.https(&["api.example.com"], ClientCertificate::Unasked);
    let scene = Scene::new()
        .allow(&["api.example.com"])
        .resolving("api.example.com", &["A 203.0.113.10"])
        .origins(move |_| https.clone());
    let Some(scene) = scene.start() else { return };

    let tls: TlsClient = authority.client(&["http/1.1"], ClientCertificate::Unasked);
    let mut client = scene.client();
    client.send(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n");
    assert!(client.response().is_tunnel());
    tls.handshake(client.into_stream(), "api.example.com").expect("the origin's own certificate");

    let authority_file = scene.gateway().dir().join("authority.pem");
    fs::write(&authority_file, authority.pem()).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a real client")]
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "10", "-x", &format!("http://{PROXY}"), "--cacert"])
        .arg(authority_file)
        .arg("https://api.example.com/")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    match scene.lab().gateway().spawn(&mut curl) {
        Err(error) => eprintln!("skipped curl: {error}"),
        Ok(curl) => {
            let output = curl.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let names: Vec<_> = scene.contacts().iter().filter_map(|contact| contact.server_name()).collect();
            assert_eq!(names, ["api.example.com", "api.example.com"]);
        }
    }
}

#[test]
fn sigterm_ends_it_cleanly() {
    let Some(mut scene) = Scene::new().start() else { return };
    let status = scene.gateway_mut().stop();
    assert!(status.success(), "{status}");
}
