//! The admin API over TCP: each role by its certificate, whoever has none, and that no sandbox comes near it.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Output};

use tempfile::TempDir;
use tidegate::lab::origin::Behaviour;

use crate::support::{Client, ClientNames, Scene, TestAuthority, eventually, run_tidegate};

const ADMIN: &str = "10.200.0.1:9443";

const POLICY: &str = "[policy.case]\nallow = [\"198.51.100.9:8443\", \"desk.example.test:9443\"]\n\
     [sandbox.s1]\npolicies = [\"case\"]\nidentify = [{ default = true }]\n\
     [admin]\nreader_certificates = [\"spiffe://example.test/dashboard\"]\noperator_certificates = [\"ops.example.test\"]\n\
     [admin.tenant.ci]\ncertificates = [\"ci.example.test\"]\npolicies = [\"case\"]\n";

/// A gateway whose admin listener takes the clients of an authority.
struct Office {
    scene: Scene,
    authority: TestAuthority,
    folder: TempDir,
}

impl Office {
    fn open() -> Option<Office> {
        let (folder, authority) = (tempfile::tempdir().unwrap(), TestAuthority::new());
        let (certificate, key) = authority.identity_pem(&["10.200.0.1"]);
        let at = |name: &str| folder.path().join(name);
        write(at("gateway.pem"), &certificate);
        write(at("gateway.key"), &key);
        write(at("ca.pem"), &authority.pem());
        write(at("crl.pem"), &authority.revocation_list(&[], 2096));
        let listen = format!(
            "[listen.admin_https]\naddress = {ADMIN:?}\ncert_file = {:?}\nkey_file = {:?}\nclient_ca_file = {:?}\n\
             client_crl_files = [{:?}]\n[state]\npath = {:?}\n",
            at("gateway.pem"),
            at("gateway.key"),
            at("ca.pem"),
            at("crl.pem"),
            at("state"),
        );
        let scene = Scene::new().policy(POLICY).ports([8443]).origins(|_| Behaviour::Echo);
        let scene = scene.resolving("desk.example.test", &["A 10.200.0.1"]);
        let scene = scene.configure(|config| config.listen = listen).start()?;
        Some(Office { scene, authority, folder })
    }

    /// Runs a verb as whoever holds a certificate of these names.
    fn run(&self, serial: u64, names: ClientNames<'_>, verb: &[&str]) -> Output {
        let identity = self.authority.client_identity(serial, names);
        let at = |name: &str| self.folder.path().join(name);
        write(at("own.pem"), &identity.certificate_pem());
        write(at("own.key"), &identity.key_pem());
        let mut args: Vec<String> = verb.iter().map(|&word| word.to_owned()).collect();
        args.insert(1, format!("--admin=https://{ADMIN}"));
        for (option, name) in [("ca", "ca.pem"), ("cert", "own.pem"), ("key", "own.key")] {
            args.insert(1, format!("--{option}={}", at(name).display()));
        }
        run_tidegate(self.scene.lab(), args)
    }
}

fn write(path: PathBuf, text: &str) {
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

const OPERATOR: ClientNames<'static> = ClientNames { uris: &[], dns: &["ops.example.test"], cn: None };
const READER: ClientNames<'static> =
    ClientNames { uris: &["spiffe://example.test/dashboard"], dns: &[], cn: None };

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn each_certificate_may_what_its_name_may() {
    let Some(office) = Office::open() else { return };
    let status = office.run(1, READER, &["status"]);
    assert!(status.status.success() && said(&status).contains("ready"), "{}", said(&status));
    let pause = ["sandbox", "pause", "s1"];
    for (names, told) in [
        (READER, "the certificate of \"spiffe://example.test/dashboard\" has no such role"),
        (ClientNames { uris: &[], dns: &["ci.example.test"], cn: None }, "there is no such sandbox"),
        (
            ClientNames { uris: &[], dns: &["x.example.test"], cn: Some("ops.example.test") },
            "has no such role",
        ),
        (
            ClientNames { uris: &[], dns: &["ci.example.test", "ops.example.test"], cn: None },
            "has no such role",
        ),
    ] {
        let refused = office.run(2, names, &pause);
        assert!(
            refused.status.code() == Some(1) && said(&refused).contains(told),
            "{names:?}: {}",
            said(&refused)
        );
    }
    let done = office.run(3, OPERATOR, &pause);
    assert!(done.status.success(), "{}", said(&done));
    let lines = office.scene.gateway().audit();
    let paused = lines.iter().find(|line| line["event"] == "sandbox" && line["change"] == "pause").unwrap();
    assert_eq!((&paused["by_certificate"], paused.get("by")), (&"ops.example.test".into(), None));
    let added = office.run(3, OPERATOR, &["sandbox", "--json", "add", "late", "--policy", "case"]);
    assert!(said(&added).contains("conflict"), "a default sandbox has room for no other: {}", said(&added));

    // A revoked one ends in its handshake once the list is read.
    write(office.folder.path().join("crl.pem"), &office.authority.revocation_list(&[3], 2096));
    eventually("it is refused in its handshake", || {
        let ran = office.run(3, OPERATOR, &["status"]);
        (!ran.status.success() && said(&ran).contains("cannot ask https://10.200.0.1:9443")).then_some(())
    });
    assert!(office.run(4, OPERATOR, &["status"]).status.success(), "another one of its name is not");
    assert!(office.scene.gateway().stderr().contains("serial=\"03\""));
}

#[test]
fn whoever_shows_nothing_that_is_trusted_is_not_heard() {
    let Some(office) = Office::open() else { return };
    let stranger = TestAuthority::new();
    let identity = stranger.client_identity(1, OPERATOR);
    for identity in [None, Some(&identity)] {
        let stream = Client::connect(office.scene.lab(), ADMIN.parse().unwrap()).into_stream();
        let asked =
            office.authority.client_showing(identity).handshake(stream, "10.200.0.1").and_then(|mut tls| {
                use std::io::{Read as _, Write as _};
                tls.write_all(b"GET /v1/status HTTP/1.1\r\nHost: tidegate\r\n\r\n")?;
                let mut answer = Vec::new();
                tls.read_to_end(&mut answer).map(|_| answer)
            });
        assert!(asked.is_err(), "{asked:?}");
    }
    let mut plain = Client::connect(office.scene.lab(), ADMIN.parse().unwrap());
    plain.send(b"GET /v1/status HTTP/1.1\r\nHost: tidegate\r\n\r\n");
    assert!(
        !String::from_utf8_lossy(&plain.read_to_end()).contains("HTTP/1.1"),
        "nothing is said without TLS"
    );
    let without = run_tidegate(office.scene.lab(), ["status", &format!("--admin=https://{ADMIN}")]);
    assert_eq!(without.status.code(), Some(2), "{}", said(&without));
}

#[test]
fn no_sandbox_comes_to_the_admin_listener() {
    let Some(office) = Office::open() else { return };
    for to in [
        "desk.example.test:9443",
        "10.200.0.1:9443",
        "127.0.0.1:9443",
        "[::ffff:10.200.0.1]:9443",
        "[::1]:9443",
    ] {
        let mut client = office.scene.client();
        client.send(format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes());
        let response = client.response();
        assert_eq!((response.status, response.reason()), (403, Some("gateway_address")), "{to}");
    }
}
