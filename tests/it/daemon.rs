//! The daemon around the traffic: the host's own addresses, unix sockets, what only a restart changes, draining, and the
//! verbs that ask a running gateway.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::Signal;
use tidegate::lab::origin::Behaviour;

use crate::support::{Scene, SceneBuilder, eventually, run_tidegate};

/// The origin's address, which the gateway's host does not own at first.
const ORIGIN: &str = "198.51.100.9";

fn tunnels() -> SceneBuilder {
    Scene::new().allow(&["198.51.100.9:8443"]).ports([8443]).origins(|_| Behaviour::Echo)
}

fn status_of_connect(scene: &Scene) -> (u16, Option<String>) {
    let mut client = scene.client();
    client.send(format!("CONNECT {ORIGIN}:8443 HTTP/1.1\r\n\r\n").as_bytes());
    let response = client.response();
    (response.status, response.reason().map(str::to_owned))
}

#[test]
fn an_address_that_the_host_gains_is_closed_at_once_open_tunnels_too() {
    let Some(scene) = tunnels().start() else { return };
    let mut open = scene.client();
    open.send(format!("CONNECT {ORIGIN}:8443 HTTP/1.1\r\n\r\nx").as_bytes());
    assert_eq!(open.response().status, 200);
    scene.lab().add_gateway_address(ORIGIN.parse().unwrap()).unwrap();
    eventually("the address is the gateway's", || {
        (status_of_connect(&scene) == (403, Some("gateway_address".to_owned()))).then_some(())
    });
    open.read_to_end();
    let cut = |line: &serde_json::Value| line["event"] == "close" && line["reason"] == "policy_changed";
    eventually("the tunnel was cut", || scene.gateway().audit().iter().any(cut).then_some(()));
}

/// A folder for a unix socket, and a scene whose sandbox is known by it.
fn by_socket(folder: &tempfile::TempDir) -> (PathBuf, SceneBuilder) {
    let socket = folder.path().join("proxy.sock");
    let name = format!("unix:{}", socket.display());
    let policy = format!(
        "[policy.case]\nallow = [\"{ORIGIN}:8443\"]\n[sandbox.s1]\npolicies = [\"case\"]\n\
         identify = [{{ listener = {name:?} }}]\n"
    );
    let scene = Scene::new().policy(&policy).ports([8443]).origins(|_| Behaviour::Echo);
    (socket, scene.configure(|config| config.proxy.push(name)))
}

#[test]
fn a_unix_socket_is_its_sandbox_and_a_stale_one_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, scene) = by_socket(&folder);
    drop(UnixListener::bind(&socket).unwrap());
    let Some(mut scene) = scene.start() else { return };
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);

    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(format!("CONNECT {ORIGIN}:8443 HTTP/1.1\r\n\r\nping").as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ping") {
        let mut part = [0; 256];
        let count = client.read(&mut part).unwrap();
        assert!(count > 0, "{:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&part[..count]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    drop(client);
    // By TCP nobody is that sandbox.
    assert_eq!(status_of_connect(&scene), (403, Some("unknown_sandbox".to_owned())));
    assert!(scene.gateway_mut().stop().success());
    assert!(!socket.exists(), "the socket's file is left behind");
}

#[test]
fn a_socket_that_another_program_serves_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, scene) = by_socket(&folder);
    let _served = UnixListener::bind(&socket).unwrap();
    let Some(started) = scene.try_start() else { return };
    let refused = started.err().expect("the gateway must not start");
    assert!(refused.stderr.contains("another program serves this socket"), "{}", refused.stderr);
}

#[test]
fn a_changed_listener_waits_for_a_restart_and_the_rest_reloads() {
    let Some(scene) = tunnels().start() else { return };
    let file = scene.gateway().config_file();
    let text = fs::read_to_string(&file).unwrap();
    let text =
        text.replace("127.0.0.1:9464", "127.0.0.1:9465").replace("198.51.100.9:8443", "198.51.100.9:8444");
    fs::write(&file, text).unwrap();
    eventually("the new policy is in force", || (status_of_connect(&scene).0 == 403).then_some(()));
    let (code, ready) = scene.gateway().metrics(scene.lab(), "/readyz");
    assert_eq!(code, 200);
    assert!(ready.contains("changed [listen] needs a restart"), "{ready}");
}

#[test]
fn sighup_writes_on_in_a_new_audit_file() {
    let Some(scene) = tunnels().start() else { return };
    assert_eq!(status_of_connect(&scene).0, 200);
    let audit = scene.gateway().dir().join("audit.jsonl");
    let aside = scene.gateway().dir().join("audit.jsonl.aside");
    fs::rename(&audit, &aside).unwrap();
    scene.gateway().signal(Signal::HUP);
    eventually("the new file is written", || {
        let lines = fs::read_to_string(&audit).unwrap_or_default();
        lines.contains("\"event\":\"reload\"").then_some(())
    });
    let before = fs::read_to_string(&aside).unwrap();
    assert!(before.contains("\"decision\":\"allow\""), "{before}");
}

#[test]
fn a_gateway_that_cannot_write_a_required_audit_denies_and_is_not_ready() {
    let scene = tunnels().configure(|config| config.audit = Some("/dev/full".into()));
    let Some(scene) = scene.start() else { return };
    let answered = status_of_connect(&scene);
    assert_eq!(answered.1.as_deref(), Some("audit_unavailable"), "{answered:?}");
    let (code, page) = scene.gateway().metrics(scene.lab(), "/readyz");
    assert_eq!(code, 503);
    assert!(page.starts_with("not ready: the audit log is required and cannot be written"), "{page}");
    assert_eq!(scene.gateway().metrics(scene.lab(), "/healthz").0, 200);
}

#[test]
fn a_drain_refuses_what_is_new_and_lets_an_open_tunnel_end() {
    let scene = tunnels().configure(|config| config.timeouts = vec!["drain = \"20s\"".to_owned()]);
    let Some(mut scene) = scene.start() else { return };
    let mut open = scene.client();
    open.send(format!("CONNECT {ORIGIN}:8443 HTTP/1.1\r\n\r\n").as_bytes());
    assert_eq!(open.response().status, 200);
    scene.gateway().signal(Signal::TERM);
    eventually("it says that it drains", || {
        let (code, page) = scene.gateway().metrics(scene.lab(), "/readyz");
        (code == 503 && page.starts_with("not ready: draining")).then_some(())
    });
    let from = open.received().len();
    open.send(b"still here");
    assert!(open.wait_for(from, b"still here").is_some());
    open.half_close();
    open.read_to_end();
    assert!(scene.gateway_mut().stop().success());
}

#[test]
fn status_and_healthcheck_ask_the_running_gateway() {
    let Some(mut scene) = tunnels().start() else { return };
    let config = scene.gateway().config_file();
    let config = config.to_str().unwrap().to_owned();
    let run = |scene: &Scene, verb: &str, more: &[&str]| {
        let output = run_tidegate(scene.lab(), [&[verb, "--config", &config], more].concat());
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(run(&scene, "healthcheck", &[]), (Some(0), String::new(), String::new()));
    let (code, shown, _) = run(&scene, "status", &[]);
    assert_eq!((code, shown.lines().next()), (Some(0), Some("ready")));
    let (_, json, _) = run(&scene, "status", &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["ready"], &report["policy_generation"]), (&true.into(), &1.into()));

    // A half-done edit does not make a gateway look dead that serves the policy before it.
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n[policy.case")).unwrap();
    assert_eq!(run(&scene, "healthcheck", &[]).0, Some(0));
    fs::write(&config, text).unwrap();

    assert!(scene.gateway_mut().stop().success());
    let (code, _, complaint) = run(&scene, "healthcheck", &[]);
    assert_eq!(code, Some(1));
    assert!(complaint.contains("is the gateway running?"), "{complaint}");
}

/// A proxy on the way out: it notes the line of each CONNECT, says yes, and sends back what comes.
fn upstream_proxy(asked: Arc<Mutex<Vec<String>>>) -> Behaviour {
    Behaviour::Custom(Arc::new(move |mut stream: TcpStream, _| {
        let (mut head, mut byte) = (Vec::new(), [0; 1]);
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? > 0 {
            head.push(byte[0]);
        }
        let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
        asked.lock().unwrap().push(line);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        let mut buffer = [0; 1024];
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                count => stream.write_all(&buffer[..count])?,
            }
        }
    }))
}

#[test]
fn an_upstream_proxy_is_found_by_name_and_asked_for_vetted_addresses_only() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let proxy = upstream_proxy(Arc::clone(&asked));
    let policy = "[policy.case]\nallow = [\"api.example.com:8443\", \"inside.example.com:8443\", \"direct.example.com:8443\"]\n\
                  [sandbox.s1]\npolicies = [\"case\"]\nidentify = [{ default = true }]\n\
                  [upstream]\nproxy = \"http://proxy.corp.example:3128\"\nexcept = [\"direct.example.com\"]\n";
    let scene = Scene::new()
        .policy(policy)
        .resolving("proxy.corp.example", &["A 203.0.113.50"])
        .resolving("api.example.com", &["A 203.0.113.10"])
        .resolving("inside.example.com", &["A 10.0.0.1"])
        .resolving("direct.example.com", &["A 203.0.113.11"])
        .ports([3128, 8443])
        .origins(move |to| if to.port() == 3128 { proxy.clone() } else { Behaviour::Echo });
    let Some(scene) = scene.start() else { return };
    let status = |to: &str| {
        let mut client = scene.client();
        client.send(format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes());
        let response = client.response();
        (response.status, response.reason().map(str::to_owned))
    };
    assert_eq!(status("api.example.com:8443").0, 200);
    assert_eq!(status("inside.example.com:8443"), (403, Some("address_not_public".to_owned())));
    assert_eq!(status("other.example.com:8443"), (403, Some("not_listed".to_owned())));
    assert_eq!(status("direct.example.com:8443").0, 200);
    assert_eq!(*asked.lock().unwrap(), ["CONNECT 203.0.113.10:8443 HTTP/1.1"]);
    assert!(scene.dns().asked_under("other.example.com").is_empty());
}

#[test]
fn a_gateway_whose_upstream_proxy_has_no_address_does_not_start() {
    let policy = "[policy.case]\nallow = [\"api.example.com\"]\n[sandbox.s1]\npolicies = [\"case\"]\n\
                  identify = [{ default = true }]\n[upstream]\nproxy = \"http://gone.corp.example:3128\"\n";
    let Some(started) = Scene::new().policy(policy).try_start() else { return };
    let refused = started.err().expect("the gateway must not start");
    assert!(
        refused.stderr.contains("cannot resolve the upstream proxy gone.corp.example:3128"),
        "{}",
        refused.stderr
    );
}
