//! The probe: it tells a sandbox from what only looks like one, and sends to nobody.

use std::{
    net::IpAddr,
    process::{Child, Stdio},
};

use serde_json::Value;
use tidegate::{
    lab::{
        Lab, Namespace,
        tap::{Sent, Tap},
    },
    netns::{self, Plan},
    probe::Controls,
};

use crate::attach::{self, Attached, file_of};
use crate::support::{eventually, verb};

/// What `tidegate probe --json` says, started so.
fn probe(
    start: impl FnOnce(&mut std::process::Command) -> std::io::Result<Child>,
    controls: Option<&Controls>,
) -> Told {
    let mut command = verb(["probe", "--json"]);
    if let Some(controls) = controls {
        command.arg("--controls").arg(controls.known().to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let ended = start(&mut command).unwrap().wait_with_output().unwrap();
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    Told { status: ended.status.code(), told }
}

struct Told {
    status: Option<i32>,
    told: Value,
}

impl Told {
    /// The verdict about one way.
    fn of(&self, way: &str) -> &str {
        self.line(way)["verdict"].as_str().unwrap()
    }

    fn evidence(&self, way: &str) -> &str {
        self.line(way)["evidence"].as_str().unwrap()
    }

    fn line(&self, way: &str) -> &Value {
        let mut lines = self.told["lines"].as_array().unwrap().iter();
        lines.find(|line| line["way"] == way).unwrap_or_else(|| panic!("{way} is not in {:#}", self.told))
    }
}

/// Ways that packets take.
const PACKETS: [&str; 8] = [
    "links of the network namespace",
    "tcp to a public address",
    "tcp to the metadata endpoint",
    "QUIC",
    "DNS over UDP to another server",
    "DNS over TLS",
    "raw socket",
    "packet socket",
];

/// The deliberately broken set-up: a veth is left in.
#[test]
fn a_link_that_leads_out_is_escaped_and_only_nobody_is_sent_to() {
    let Ok(lab) = Lab::new().inspect_err(|error| eprintln!("skipped: {error}: {}", error.why)) else {
        return;
    };
    let tap = Tap::open(lab.world()).unwrap();
    let told = probe(|command| lab.gateway().spawn(command), None);
    assert_eq!((told.status, &told.told["verdict"]), (Some(1), &Value::from("escaped")), "{:#}", told.told);
    for way in [
        "links of the network namespace",
        "tcp to a public address",
        "QUIC",
        "DNS over UDP to another server",
    ] {
        assert_eq!(told.of(way), "escaped", "{way}: {:#}", told.told);
    }
    // Whom the address belongs to is not asked for an answer.
    assert_eq!(told.of("tcp to the metadata endpoint"), "unproven");
    let sent = tap.sent().unwrap();
    assert!(!sent.is_empty());
    for packet in sent {
        let (Sent::Dial { to, .. } | Sent::Datagram { to }) = packet else { continue };
        assert!(is_documentation(to.ip()), "{packet:?}");
    }
}

fn is_documentation(address: IpAddr) -> bool {
    let text = address.to_string();
    ["192.0.2.", "198.51.100.", "203.0.113.", "233.252.0.", "2001:db8:"]
        .iter()
        .any(|start| text.starts_with(start))
}

#[test]
fn a_namespace_whose_only_link_is_lo_holds_every_packet() {
    let Ok(namespace) =
        Namespace::new().inspect_err(|error| eprintln!("skipped: no namespaces here: {error}"))
    else {
        return;
    };
    let sockets =
        namespace.run(|| netns::open_here(&Plan::for_this_kernel()).map_err(std::io::Error::other)).unwrap();
    let told = probe(|command| namespace.spawn(command), None);
    for way in PACKETS {
        assert_eq!(told.of(way), "contained", "{way}: {:#}", told.told);
    }
    // Nobody answers at the gateway's port, which proves nothing of the gateway.
    assert_eq!(told.of("metadata through the gateway"), "unproven", "{:#}", told.told);
    drop(sockets);
}

#[test]
fn controls_outside_are_reached_from_outside_only() {
    let Ok(lab) = Lab::new().inspect_err(|error| eprintln!("skipped: {error}: {}", error.why)) else {
        return;
    };
    let namespace = Namespace::new().unwrap();
    let controls = lab.gateway().run(Controls::start).unwrap();
    let ways = [
        "tcp to the loopback of the host",
        "abstract unix sockets of the host",
        "links of the network namespace",
    ];
    let inside = probe(|command| namespace.spawn(command), Some(&controls));
    for way in ways {
        assert_eq!(inside.of(way), "contained", "{way}: {:#}", inside.told);
    }
    // The network namespace hides no path: this is no sandbox, and the probe says so.
    assert_eq!(inside.of("a unix socket of the host by its path"), "escaped");
    assert_eq!((inside.status, controls.contacts()), (Some(1), 1));
    let outside = probe(|command| lab.gateway().spawn(command), Some(&controls));
    for way in ways {
        assert_eq!(outside.of(way), "escaped", "{way}: {:#}", outside.told);
    }
    assert_eq!((outside.status, controls.contacts()), (Some(1), 4));
}

/// Inside an attached namespace each attempt is seen by the gateway, and a wire that comes later is told.
#[test]
fn what_the_gateway_refuses_is_seen_by_it_and_a_late_wire_is_told() {
    let Some(scene) = attach::scene(&["api.example.com:80"]).start() else { return };
    let namespace = Namespace::new().unwrap();
    let attached =
        Attached::start(&scene, "s1", &["--netns", file_of(&namespace).to_str().unwrap()]).unwrap();
    let told = probe(|command| namespace.spawn(command), None);
    for way in PACKETS.into_iter().chain([
        "metadata through the gateway",
        "the gateway's own metrics through the gateway",
        "the gateway's own loopback, as a number",
        "listeners on loopback",
    ]) {
        assert_eq!(told.of(way), "contained", "{way}: {:#}", told.told);
    }
    assert!(told.evidence("tcp to a public address").contains("the gateway took it and said 403 not_listed"));
    let audit = scene.gateway().audit();
    for (inbound, host, reason) in [
        ("tcp", "169.254.169.254", "metadata_endpoint"),
        ("connect", "169.254.169.254", "metadata_endpoint"),
        ("connect", "127.0.0.1", "gateway_address"),
        ("dns", "tidegate-probe.example", "not_listed"),
    ] {
        let seen =
            |line: &Value| line["inbound"] == inbound && line["host"] == host && line["reason"] == reason;
        assert!(audit.iter().any(seen), "{inbound} {host}: {audit:#?}");
    }
    assert!(scene.dialled().is_empty(), "nothing was dialled");
    // Somebody with power over the host moves a wire in.
    let wired = namespace.run(|| {
        let mut ip = tool("ip");
        ip.args(["link", "add", "late0", "type", "veth", "peer", "name", "late1"]).status()
    });
    let Ok(wired) = wired.inspect_err(|error| eprintln!("skipped: ip: {error}")) else { return };
    assert!(wired.success());
    eventually("the wire is told", || attached.said().contains("is shut").then_some(()));
    let told = probe(|command| namespace.spawn(command), None);
    assert_ne!(told.of("links of the network namespace"), "contained", "{:#}", told.told);
    assert_ne!(told.status, Some(0));
    drop(attached);
}

/// The whole sandbox, with controls outside: nothing is left unproven.
#[test]
fn run_proves_every_way_contained() {
    let workspace = tempfile::tempdir().unwrap();
    let mut run = verb(["run", "--allow", "api.example", "--probe"]);
    let ran = run.current_dir(workspace.path()).stdin(Stdio::null()).output().unwrap();
    let (told, said) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if ran.status.code() == Some(125) {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(ran.status.code(), Some(0), "{told}{said}");
    assert!(told.contains(" 0 escaped, 0 unproven"), "{told}");
    assert_eq!(told.matches("works outside, and here:").count(), 2, "{told}");
}

#[expect(clippy::disallowed_methods, reason = "a wire is made by a tool")]
fn tool(name: &str) -> std::process::Command {
    std::process::Command::new(name)
}
