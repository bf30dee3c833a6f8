//! Servers and clients of MCP by its own Python package: over stdio, through the gateway, and through a published port.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate::lab::Namespace;

use super::world::{Input, World, both, command, text};
use crate::support::eventually_within;

const PYTHON: &str = "/usr/bin/python3";

/// Ends a server with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where `pip install --target target/clients/python mcp` has put the package, if somebody has.
fn package() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients/python");
    let tried =
        command(PYTHON).args(["-c", "import mcp.server.mcpserver"]).env("PYTHONPATH", &folder).output();
    if tried.is_ok_and(|ran| ran.status.success()) {
        return Some(folder);
    }
    eprintln!("skipped: {PYTHON} -m pip install --target target/clients/python 'mcp>=2,<3' has not been run");
    None
}

/// Puts the programs into the workspace.
fn fill(world: &World) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    for name in ["mcp_server.py", "mcp_client.py"] {
        world.write(&world.workspace().join(name), &fs::read_to_string(sources.join(name)).unwrap());
    }
}

/// How long Python may take to read the package, on a machine that is busy.
const START: Duration = Duration::from_secs(60);

/// Waits until something listens.
fn listens(at: &Namespace, port: u16) {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    eventually_within(START, "the server listens", || at.tcp_connect(address, Duration::from_secs(1)).ok());
}

#[test]
fn a_server_over_stdio_works_unchanged() {
    let Some(package) = package() else { return };
    let python = format!("PYTHONPATH={}", package.display());
    both(|world| {
        fill(world);
        let options = ["--ro", package.to_str().unwrap()];
        let run = world.words(&options, &["env", &python, PYTHON, "mcp_server.py"]);
        let mut client = world.as_user(PYTHON);
        client.args(["mcp_client.py", "stdio", env!("CARGO_BIN_EXE_tidegate")]).args(run);
        client.env("PYTHONPATH", &package);
        let output = world.spawn(client, Input::Null).output();
        assert_eq!(text(&output.stdout), "['add', 'count'] 5 counted 5 True\n", "{}", text(&output.stderr));
    });
}

#[test]
fn streams_of_events_pass_the_gateway() {
    let Some(package) = package() else { return };
    let python = format!("PYTHONPATH={}", package.display());
    both(|world| {
        fill(world);
        let mut server = command(PYTHON);
        server.args(["mcp_server.py", "0.0.0.0", "8000"]).current_dir(world.workspace());
        server.env("PYTHONPATH", &package).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _server = Server(world.lab().world().spawn(&mut server).unwrap());
        listens(world.lab().world(), 8000);
        let run = |host: &str| {
            let url = format!("http://{host}:8000/mcp");
            let options = [
                "--ro",
                package.to_str().unwrap(),
                "--allow",
                "listed.example.test:8000",
                "--audit",
                "a.jsonl",
            ];
            world.run(&options, &["env", &python, PYTHON, "mcp_client.py", "http", &url, "4"])
        };
        let output = run("listed.example.test");
        assert_eq!(text(&output.stdout), "['add', 'count'] 5 counted 20 True\n", "{}", text(&output.stderr));
        let output = run("other.example.test");
        assert!(!output.status.success() && text(&output.stdout).is_empty(), "{}", text(&output.stderr));
        let audit = fs::read_to_string(world.workspace().join("a.jsonl")).unwrap();
        let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let denied = lines.filter(|line| line["event"] == "decision" && line["host"] == "other.example.test");
        let reasons: Vec<Value> = denied.map(|line| line["reason"].clone()).collect();
        assert!(!reasons.is_empty() && reasons.iter().all(|reason| reason == "not_listed"), "{reasons:?}");
    });
}

#[test]
fn streams_of_events_pass_a_published_port_and_no_other_is_there() {
    let Some(package) = package() else { return };
    let python = format!("PYTHONPATH={}", package.display());
    both(|world| {
        fill(world);
        let options = ["--ro", package.to_str().unwrap(), "--publish", "127.0.0.1:8001:8000"];
        let words = ["env", &python, PYTHON, "mcp_server.py", "127.0.0.1", "8000"];
        let mut run = world.start(&options, &words, Input::Null);
        let host = world.lab().gateway();
        let mut client = world.as_user(PYTHON);
        client.args(["mcp_client.py", "http", "http://127.0.0.1:8001/mcp", "4"]).env("PYTHONPATH", &package);
        // The port is there before the server, and then leads to nobody.
        eventually_within(START, "the server answers", || {
            let mut probe = world.as_user(PYTHON);
            probe.args(["-c", "import urllib.request as u, urllib.error as e\ntry: u.urlopen('http://127.0.0.1:8001/')\nexcept e.HTTPError: pass"]);
            world.spawn(probe, Input::Null).output().status.success().then_some(())
        });
        let output = world.spawn(client, Input::Null).output();
        assert_eq!(text(&output.stdout), "['add', 'count'] 5 counted 20 True\n", "{}", text(&output.stderr));
        let other = host.tcp_connect(SocketAddr::from(([127, 0, 0, 1], 8000)), Duration::from_secs(1));
        assert!(other.is_err(), "the server's own port is on the host");
        run.end();
    });
}
