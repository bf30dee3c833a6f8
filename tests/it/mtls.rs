//! Clients that speak TLS to the gateway and are known by their certificates: what real ones get, each way of forging one,
//! and what becomes of a certificate that is revoked while it is in use.

use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;
use tempfile::TempDir;
use tidegate::lab::origin::Behaviour;

use crate::support::{
    Client, ClientIdentity, ClientNames, PATIENCE, PROXY, Scene, TestAuthority, eventually,
};

/// Where clients speak TLS, and the same for clients of this host alone.
const TLS: &str = "10.200.0.1:3443";
const HOME: &str = "127.0.0.1:3443";

/// `token-of-s1`.
const TOKEN: &str = "3fb44e6c4bef5d50ae1c497f6c17bc61a7aa3a9e919dd27236f6218d8c523dc3";

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// The authority, its files and those of the gateway's listener.
struct Pki {
    folder: TempDir,
    authority: TestAuthority,
}

impl Pki {
    fn new() -> Pki {
        let (folder, authority) = (tempfile::tempdir().unwrap(), TestAuthority::new());
        let (certificate, key) = authority.identity_pem(&["10.200.0.1", "127.0.0.1"]);
        let pki = Pki { folder, authority };
        pki.write("server.pem", &certificate);
        pki.write("server.key", &key);
        pki.write("ca.pem", &pki.authority.pem());
        pki.revoke(&[]);
        pki
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces a file in one step.
    fn write(&self, name: &str, text: &str) {
        let beside = self.path("new");
        fs::write(&beside, text).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(beside, self.path(name)).unwrap();
    }

    fn revoke(&self, serials: &[u64]) {
        self.write("crl.pem", &self.authority.revocation_list(serials, 2096));
    }

    fn identity(&self, serial: u64, names: ClientNames<'_>) -> ClientIdentity {
        self.authority.client_identity(serial, names)
    }

    /// The lines of `[listen]`.
    fn listen(&self) -> String {
        let at = |name| self.path(name).display().to_string();
        format!(
            "[listen.tls]\ncert_file = {:?}\nkey_file = {:?}\nclient_ca_file = {:?}\nclient_crl_files = [{:?}]\n",
            at("server.pem"),
            at("server.key"),
            at("ca.pem"),
            at("crl.pem")
        )
    }

    fn scene(&self, sandboxes: &str) -> Option<Scene> {
        let policy = format!(
            "[policy.one]\nallow = [\"one.example.com:80,443,7000\"]\n[policy.two]\nallow = [\"two.example.com:80,443,7000\"]\n{sandboxes}"
        );
        Scene::new()
            .policy(&policy)
            .configure(|config| {
                config.proxy = vec![PROXY.into(), format!("https://{TLS}"), format!("https://{HOME}")];
                config.listen = self.listen();
                config.timeouts = vec!["head = \"2s\"".to_owned()];
            })
            .resolving("one.example.com", &["A 203.0.113.10"])
            .resolving("two.example.com", &["A 203.0.113.20"])
            .ports([7000])
            .origins(|to| match to.port() {
                80 if to.ip().to_canonical().to_string() == "203.0.113.20" => Behaviour::Reply(large()),
                80 => Behaviour::Http,
                _ => Behaviour::Echo,
            })
            .start()
    }

    /// Shakes hands as whoever holds this certificate. A refusal comes with the first read (RFC 8446 section 4.6.2 has no
    /// answer to a client's certificate).
    fn connect(&self, scene: &Scene, to: &str, identity: Option<&ClientIdentity>) -> io::Result<Tls> {
        let stream = Client::connect(scene.lab(), to.parse().unwrap()).into_stream();
        let host = to.split(':').next().unwrap();
        self.authority.client_showing(identity).handshake(stream, host)
    }

    /// Opens a tunnel.
    fn tunnel(&self, scene: &Scene, identity: &ClientIdentity, to: &str) -> Tls {
        let mut tls = self.connect(scene, TLS, Some(identity)).unwrap();
        let head = ask(&mut tls, to, "").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        tls
    }

    /// The status of a CONNECT and its reason; what TLS says where there is none.
    fn answer(
        &self,
        scene: &Scene,
        listener: &str,
        identity: Option<&ClientIdentity>,
        fields: &str,
    ) -> (u16, String) {
        let asked = self
            .connect(scene, listener, identity)
            .and_then(|mut tls| ask(&mut tls, "one.example.com:443", fields));
        match asked {
            Ok(head) => {
                let reason = head.lines().find_map(|line| line.strip_prefix("Tidegate-Reason: "));
                (head[9..12].parse().unwrap(), reason.unwrap_or_default().to_owned())
            }
            Err(error) => (0, error.to_string()),
        }
    }
}

/// Asks for a tunnel; the head of the answer.
fn ask(tls: &mut Tls, to: &str, fields: &str) -> io::Result<String> {
    tls.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{fields}\r\n").as_bytes())?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        tls.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(String::from_utf8(head).unwrap())
}

fn names<'a>(uris: &'a [&'a str], dns: &'a [&'a str], cn: Option<&'a str>) -> ClientNames<'a> {
    ClientNames { uris, dns, cn }
}

const ONE: ClientNames<'static> =
    ClientNames { uris: &["spiffe://example.test/one"], dns: &[], cn: Some("Agent one") };
const TWO: ClientNames<'static> = ClientNames { uris: &[], dns: &["two.example.test"], cn: None };

/// `s1` by its SPIFFE ID, `s2` by a DNS name.
const SANDBOXES: &str = "[sandbox.s1]\npolicies = [\"one\"]\nidentify = [{ spiffe = \"spiffe://example.test/one\" }]\n\
     [sandbox.s2]\npolicies = [\"two\"]\nidentify = [{ dns = \"two.example.test\" }]\n";

fn decisions(scene: &Scene) -> Vec<Value> {
    scene.gateway().audit().into_iter().filter(|line| line["event"] == "decision").collect()
}

#[expect(clippy::disallowed_methods, reason = "the client under test is a program")]
fn curl(scene: &Scene, pki: &Pki, identity: &ClientIdentity, args: &[&str]) -> Option<Output> {
    pki.write("client.pem", &identity.certificate_pem());
    pki.write("client.key", &identity.key_pem());
    let mut client = Command::new("curl");
    client.env_clear().args(["-sS", "-i", "--max-time", "20", "-x"]).arg(format!("https://{TLS}"));
    for (option, file) in
        [("--proxy-cacert", "ca.pem"), ("--proxy-cert", "client.pem"), ("--proxy-key", "client.key")]
    {
        client.arg(option).arg(pki.path(file));
    }
    client.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match scene.lab().gateway().spawn(&mut client) {
        Ok(child) => Some(child.wait_with_output().unwrap()),
        Err(error) => {
            eprintln!("skipped: curl cannot be started: {error}");
            None
        }
    }
}

#[test]
fn curl_is_known_by_its_certificate_and_refused_once_it_is_revoked() {
    let pki = Pki::new();
    let Some(scene) = pki.scene(SANDBOXES) else { return };
    let (one, two) = (pki.identity(1, ONE), pki.identity(2, TWO));
    let said = |output: &Output| {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        format!("{out}\n{err}")
    };
    let plain = ["http://one.example.com/"];
    let Some(ran) = curl(&scene, &pki, &one, &plain) else { return };
    assert!(ran.status.success() && said(&ran).starts_with("HTTP/1.1 200"), "{}", said(&ran));
    let ran = curl(&scene, &pki, &one, &["-p", "http://one.example.com/"]).unwrap();
    assert!(ran.status.success() && said(&ran).contains("\r\n\r\nHTTP/1.1 200"), "{}", said(&ran));
    let ran = curl(&scene, &pki, &two, &plain).unwrap();
    assert!(said(&ran).contains("Tidegate-Reason: not_listed"), "{}", said(&ran));
    let seen: Vec<_> = decisions(&scene)
        .iter()
        .map(|line| {
            let of = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            [of("inbound"), of("sandbox"), of("identified_by"), of("certificate"), of("decision")].join(" ")
        })
        .collect();
    let one_by = "s1 certificate spiffe://example.test/one allow";
    assert_eq!(
        seen,
        [
            format!("http {one_by}"),
            format!("connect {one_by}"),
            format!("http {one_by}"),
            "http s2 certificate two.example.test deny".to_owned(),
        ]
    );

    pki.revoke(&[1]);
    let ran = eventually("curl is refused", || {
        let ran = curl(&scene, &pki, &one, &plain).unwrap();
        (!ran.status.success()).then_some(ran)
    });
    assert!(said(&ran).contains("revoked"), "the alert tells why: {}", said(&ran));
    let ran = curl(&scene, &pki, &two, &["http://two.example.com/"]).unwrap();
    assert!(said(&ran).starts_with("HTTP/1.1 200"), "{}", said(&ran));
    let denied = decisions(&scene).into_iter().find(|line| line["sandbox"].is_null()).unwrap();
    assert_eq!((&denied["reason"], &denied["certificate"]), (&"unknown_sandbox".into(), &"".into()));
    let log = scene.gateway().stderr();
    let line = log.lines().find(|line| line.contains("a client certificate is refused")).unwrap();
    assert!(line.contains("serial=\"01\"") && line.contains("spiffe://example.test/one"), "{line}");
}

#[test]
fn a_certificate_is_held_to_what_names_it() {
    let pki = Pki::new();
    let s1 = format!(
        "[sandbox.s1]\npolicies = [\"one\"]\nidentify = [{{ spiffe = \"spiffe://example.test/one\" }}, {{ token_sha256 = \"{TOKEN}\" }}]\n"
    );
    let more = "[sandbox.s2]\npolicies = [\"one\"]\nidentify = [{ cn = \"Agent two\" }]\n\
         [sandbox.s3]\npolicies = [\"one\"]\nidentify = [{ dns = \"three.example.test\", source = \"127.0.0.1/32\" }]\n";
    let Some(scene) = pki.scene(&format!("{s1}{more}")) else { return };
    let token = "Proxy-Authorization: Bearer token-of-s1\r\n";
    let (unknown, mismatch) = ("unknown_sandbox", "identity_mismatch");
    let two_uris = &["spiffe://example.test/one", "spiffe://example.test/other"];
    for (names, listener, fields, status, reason) in [
        (ONE, TLS, "", 200, ""),
        (ONE, TLS, token, 200, ""),
        (names(&[], &[], Some("Agent two")), TLS, "", 200, ""),
        // Nobody asked for this one's common name.
        (names(&[], &[], Some("Agent one")), TLS, "", 403, unknown),
        (names(&["spiffe://example.test/one/more"], &[], None), TLS, "", 403, unknown),
        (names(&["https://example.test/one"], &[], None), TLS, "", 403, unknown),
        (names(&[], &["*.example.test"], None), HOME, "", 403, unknown),
        (names(&[], &["three.example.test"], None), HOME, "", 200, ""),
        (names(&[], &["three.example.test"], None), TLS, "", 403, unknown),
        // What disagrees: a token of another, names of two sandboxes.
        (names(&[], &[], Some("Agent two")), TLS, token, 403, mismatch),
        (names(&["spiffe://example.test/one"], &[], Some("Agent two")), TLS, "", 403, mismatch),
        // A wrong token does not become right by a certificate, nor the other way round.
        (ONE, TLS, "Proxy-Authorization: Bearer wrong\r\n", 407, unknown),
        (names(&[], &["nobody.example.test"], None), TLS, token, 403, unknown),
    ] {
        let identity = pki.identity(7, names);
        let answer = pki.answer(&scene, listener, Some(&identity), fields);
        assert_eq!(answer, (status, reason.to_owned()), "{names:?} on {listener} {fields:?}");
    }

    let before = decisions(&scene).len();
    let (status, error) = pki.answer(&scene, TLS, Some(&pki.identity(8, names(two_uris, &[], None))), "");
    assert!(status == 0 && error.contains("AccessDenied"), "{status} {error}");
    let (status, error) = pki.answer(&scene, TLS, None, "");
    assert!(status == 0 && error.contains("CertificateRequired"), "{status} {error}");
    let stranger = TestAuthority::new().client_identity(9, ONE);
    let (status, error) = pki.answer(&scene, TLS, Some(&stranger), "");
    assert!(status == 0 && error.contains("received fatal alert"), "{status} {error}");
    let refused =
        eventually("each is on record", || Some(decisions(&scene)).filter(|lines| lines.len() == before + 3));
    for line in &refused[before..] {
        assert_eq!((&line["sandbox"], &line["reason"]), (&Value::Null, &"unknown_sandbox".into()), "{line}");
    }
    assert!(scene.gateway().stderr().contains("it has two URIs"));
}

#[test]
fn a_list_that_has_run_out_trusts_nobody() {
    let pki = Pki::new();
    pki.write("crl.pem", &pki.authority.revocation_list(&[], 2025));
    let Some(scene) = pki.scene(SANDBOXES) else { return };
    let (status, error) = pki.answer(&scene, TLS, Some(&pki.identity(1, ONE)), "");
    assert!(status == 0 && error.contains("received fatal alert"), "{status} {error}");
}

#[test]
fn what_does_not_speak_tls_is_told_so_and_what_says_nothing_is_closed() {
    let pki = Pki::new();
    let Some(scene) = pki.scene(SANDBOXES) else { return };
    let to_tls = || Client::connect(scene.lab(), TLS.parse().unwrap());
    // One stalls in its handshake and one before it; others are served meanwhile.
    let mut stalled = [to_tls(), to_tls()];
    stalled[0].send(&[0x16, 3, 1]);
    let mut plain = to_tls();
    plain.send(b"CONNECT one.example.com:443 HTTP/1.1\r\n\r\n");
    let response = plain.response();
    assert_eq!((response.status, response.reason()), (400, Some("bad_request")));
    assert!(String::from_utf8_lossy(&response.body).contains("this listener speaks TLS"));
    let mut socks = to_tls();
    socks.send(&[5, 1, 0]);
    assert_eq!(socks.take(2), [5, 0xff]);
    let seen: Vec<_> = decisions(&scene).iter().map(|line| line["inbound"].clone()).collect();
    assert_eq!(seen, ["http", "socks5"]);
    assert_eq!(pki.answer(&scene, TLS, Some(&pki.identity(1, ONE)), "").0, 200);
    for client in &mut stalled {
        client.read_to_end();
        assert!(client.ended());
    }
    assert_eq!(decisions(&scene).len(), 3, "nothing was attempted");
}

/// Reads until the end or a fault, or until nothing comes for a moment; whether it is the end.
fn has_ended(tls: &mut Tls) -> bool {
    tls.sock.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    match tls.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}

#[test]
fn a_revoked_certificate_closes_its_tunnels_and_no_others() {
    let pki = Pki::new();
    let Some(scene) = pki.scene(SANDBOXES) else { return };
    let (one, two) = (pki.identity(1, ONE), pki.identity(2, TWO));
    let mut revoked = pki.tunnel(&scene, &one, "one.example.com:7000");
    // The same sandbox by another certificate: what is revoked is the certificate.
    let mut renewed = pki.tunnel(&scene, &pki.identity(3, ONE), "one.example.com:7000");
    let mut kept = pki.tunnel(&scene, &two, "two.example.com:7000");

    pki.write("crl.pem", "what an editor has half written");
    let reloads =
        || scene.gateway().audit().into_iter().filter(|line| line["event"] == "reload").collect::<Vec<_>>();
    let refused =
        eventually("the bad list is refused", || reloads().into_iter().find(|line| line["ok"] == false));
    assert!(refused["detail"].as_str().unwrap().contains("crl.pem"), "{refused}");
    assert_eq!(pki.answer(&scene, TLS, Some(&one), "").0, 200, "what was trusted stays so");
    assert!(!has_ended(&mut revoked));

    pki.revoke(&[1]);
    eventually("the tunnel is cut", || has_ended(&mut revoked).then_some(()));
    let closed = eventually("the close is on record", || {
        scene.gateway().audit().into_iter().find(|line| line["event"] == "close" && !line["reason"].is_null())
    });
    assert_eq!((&closed["sandbox"], &closed["reason"]), (&"s1".into(), &"policy_changed".into()));
    for tls in [&mut renewed, &mut kept] {
        tls.sock.set_read_timeout(Some(PATIENCE)).unwrap();
        tls.write_all(&[1]).unwrap();
        tls.read_exact(&mut [0]).unwrap();
    }

    // Another certificate for the listener comes into use without a pause.
    let (certificate, key) = pki.authority.identity_pem(&["10.200.0.1", "other.example.test"]);
    pki.write("server.pem", &certificate);
    pki.write("server.key", &key);
    eventually("the new certificate is shown", || {
        let stream = Client::connect(scene.lab(), TLS.parse().unwrap()).into_stream();
        pki.authority.client_showing(Some(&two)).handshake(stream, "other.example.test").ok()
    });
    assert!(!has_ended(&mut kept));
}

#[test]
fn a_stream_in_tls_carries_everything_and_ends_as_its_sides_end() {
    let pki = Pki::new();
    let Some(mut scene) = pki.scene(SANDBOXES) else { return };
    let (one, two) = (pki.identity(1, ONE), pki.identity(2, TWO));
    // Half-closed by the client: what it sent comes back, and then the other half.
    let mut tls = pki.tunnel(&scene, &one, "one.example.com:7000");
    tls.write_all(b"both ways").unwrap();
    tls.conn.send_close_notify();
    let mut echoed = Vec::new();
    // The end is told by close_notify: rustls gives an error where a connection ends without it.
    tls.read_to_end(&mut echoed).unwrap();
    assert_eq!(echoed, b"both ways");

    // More than all buffers on the way hold, so that the relay meets a side that does not take more.
    let mut tls = pki.connect(&scene, TLS, Some(&one)).unwrap();
    let sent: Vec<u8> = (0..8_000_000_u32).map(|n| b'a' + (n % 23) as u8).collect();
    let head = format!(
        "POST http://one.example.com/ HTTP/1.1\r\nHost: one.example.com\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        sent.len()
    );
    tls.write_all(head.as_bytes()).unwrap();
    tls.write_all(&sent).unwrap();
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer).unwrap();
    let at = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    let told: Value = serde_json::from_slice(&answer[at..]).unwrap();
    assert!(told["body"].as_str().is_some_and(|body| body.as_bytes() == sent), "what was sent came");
    let mut tls = pki.tunnel(&scene, &two, "two.example.com:80");
    tls.write_all(b"GET / HTTP/1.1\r\nHost: two.example.com\r\nConnection: close\r\n\r\n").unwrap();
    let mut received = Vec::new();
    tls.read_to_end(&mut received).unwrap();
    assert!(received.ends_with(&body()[..]), "{} bytes", received.len());

    // A drain ends a client that rests, in TLS as well.
    let mut resting = pki.connect(&scene, TLS, Some(&one)).unwrap();
    resting.write_all(b"GET http://one.example.com/ HTTP/1.1\r\nHost: one.example.com\r\n\r\n").unwrap();
    resting.read_exact(&mut [0]).unwrap();
    assert!(scene.gateway_mut().stop().success());
    resting.read_to_end(&mut Vec::new()).unwrap();
}

fn body() -> Vec<u8> {
    (0..8_000_000_u32).map(|n| (n % 253) as u8).collect()
}

fn large() -> Vec<u8> {
    [&b"HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\nConnection: close\r\n\r\n"[..], &body()].concat()
}

/// What is written of TLS and does not hold is a mistake, and all of it is told at once.
#[test]
fn every_mistake_in_the_files_is_told_with_its_file() {
    let pki = Pki::new();
    let other = TestAuthority::new().identity_pem(&["10.200.0.1"]).1;
    let check = |change: &dyn Fn(&Path)| {
        let pki = Pki::new();
        change(pki.folder.path());
        let config = pki.path("tidegate.toml");
        let text = format!("[listen]\nproxy = [\"https://{TLS}\"]\n{}\n{SANDBOXES}", pki.listen());
        fs::write(&config, text.replace("policies = [\"one\"]\n", "").replace("policies = [\"two\"]\n", ""))
            .unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
        let output = crate::support::run_here(["check", "--config", config.to_str().unwrap()]);
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let mode = |name: &'static str, mode| {
        move |folder: &Path| fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap()
    };
    let put =
        |name: &'static str, text: String| move |folder: &Path| fs::write(folder.join(name), &text).unwrap();
    let gone = |name: &'static str| move |folder: &Path| fs::remove_file(folder.join(name)).unwrap();
    for (change, told) in [
        (&mode("server.key", 0o604) as &dyn Fn(&Path), "everybody may read the key (mode 0604)"),
        (&mode("ca.pem", 0o666), "others may write the file (mode 0666)"),
        (&put("server.key", other), "the key is not that of the certificate"),
        (&put("server.key", "x".into()), "the file holds no private key in PEM form"),
        (&put("ca.pem", "x".into()), "the file holds no certificate in PEM form"),
        (&put("crl.pem", pki.authority.pem()), "the file holds no revocation list in PEM form"),
        (&gone("server.pem"), "cannot be read"),
    ] {
        let said = check(change);
        assert!(said.contains(told), "{told}: {said}");
    }
    let both = check(&|folder: &Path| {
        gone("server.pem")(folder);
        gone("crl.pem")(folder);
    });
    assert!(both.contains("server.pem") && both.contains("crl.pem"), "{both}");
}
