//! A container that was started with no network reaches listed names through `tidegate attach`, and nothing else.
//!
//! The engine is the test's own: its sockets, images and containers are in a folder of the test, and it stands in the
//! network namespace of the lab's gateway, where it makes no bridge.
#![expect(clippy::disallowed_methods, reason = "these tests run an engine")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use hickory_proto::rr::RecordType;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tidegate::lab::Namespace;

use crate::attach::{Attached, addresses, get, is_shut, look_up, scene};
use crate::support::{Scene, eventually_within};

/// An engine on a machine under load takes a while to come up.
const ENGINE_PATIENCE: Duration = Duration::from_secs(60);

/// A Docker engine with one image, `box`, that holds busybox alone.
struct Engine<'a> {
    scene: &'a Scene,
    process: Child,
    folder: TempDir,
    containers: Vec<String>,
}

fn which(name: &str) -> Option<PathBuf> {
    let places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let found = places.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: there is no {name}");
    }
    found
}

impl Engine<'_> {
    /// `None`, with the reason, where no engine can be had.
    fn start(scene: &Scene) -> Option<Engine<'_>> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: an engine needs root");
            return None;
        }
        let (engine, _, busybox) = (which("dockerd")?, which("docker")?, which("busybox")?);
        let folder = tempfile::Builder::new().prefix("tidegate-docker-").tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let log = fs::File::create(at("log")).unwrap();
        let mut command = Command::new(engine);
        command.arg("--data-root").arg(at("data")).arg("--exec-root").arg(at("exec"));
        command.arg("--pidfile").arg(at("pid")).arg("--host").arg(format!("unix://{}", at("sock").display()));
        command.args([
            "--bridge",
            "none",
            "--iptables=false",
            "--ip6tables=false",
            "--storage-driver",
            "vfs",
        ]);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let process = scene.lab().gateway().spawn(&mut command).unwrap();
        let mut engine = Engine { scene, process, folder, containers: Vec::new() };
        let up = eventually_within(ENGINE_PATIENCE, "the engine is up or has ended", || {
            match engine.process.try_wait().unwrap() {
                Some(_) => Some(false),
                None => engine.docker(&["info"]).status.success().then_some(true),
            }
        });
        let root = engine.folder.path().join("root");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::copy(busybox, root.join("bin/busybox")).unwrap();
        let packed = Command::new("tar").arg("-C").arg(&root).args(["-cf", "-", "."]).output().unwrap();
        fs::write(engine.folder.path().join("root.tar"), packed.stdout).unwrap();
        let tar = engine.folder.path().join("root.tar");
        if !up || !engine.docker(&["import", tar.to_str().unwrap(), "box"]).status.success() {
            let log = fs::read_to_string(engine.folder.path().join("log")).unwrap();
            let last: Vec<_> = log.lines().rev().take(3).collect();
            eprintln!("skipped: the engine does not run here: {last:?}");
            return None;
        }
        Some(engine)
    }

    fn docker(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("docker");
        command.arg("--host").arg(format!("unix://{}", self.folder.path().join("sock").display()));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.scene.lab().gateway().spawn(&mut command).unwrap().wait_with_output().unwrap()
    }

    /// Starts a container with no network, whose resolv.conf names a server that does not exist. Gives its name and the
    /// number of its process; `None`, with the reason, where the machine does not let the engine do it.
    fn container(&mut self) -> Option<(String, String)> {
        let run = [
            "run",
            "--detach",
            "--network",
            "none",
            "--dns",
            "9.9.9.9",
            "box",
            "/bin/busybox",
            "sleep",
            "600",
        ];
        let output = self.docker(&run);
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("skipped: the engine cannot run a container here: {}", why.trim());
            return None;
        }
        let name = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        self.containers.push(name.clone());
        let pid = self.docker(&["inspect", "--format", "{{.State.Pid}}", &name]).stdout;
        Some((name, String::from_utf8(pid).unwrap().trim().to_owned()))
    }

    fn wget(&self, container: &str, url: &str) -> Output {
        self.docker(&["exec", container, "/bin/busybox", "wget", "-q", "-O", "-", url])
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        for container in &self.containers {
            let _ = self.docker(&["rm", "--force", container]);
        }
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}

#[test]
fn a_container_without_a_network_reaches_listed_names_and_nothing_else() {
    let Some(scene) = scene(&["api.example.com:80"]).start() else { return };
    let Some(mut engine) = Engine::start(&scene) else { return };
    let Some((container, pid)) = engine.container() else { return };
    assert!(!engine.wget(&container, "http://api.example.com/").status.success(), "not attached");

    let attached = Attached::start(&scene, "s1", &["--pid", &pid]).unwrap();
    let page = engine.wget(&container, "http://api.example.com/");
    assert!(page.status.success(), "{page:?}");
    assert!(String::from_utf8(page.stdout).unwrap().contains("\"dialled\""));
    for url in ["http://other.example.com/", "http://203.0.113.66/", "http://169.254.169.254/latest/"] {
        assert!(!engine.wget(&container, url).status.success(), "{url}");
    }
    // The engine had switched IPv6 off.
    let inside = Namespace::of_process(pid.parse().unwrap()).unwrap();
    let [bound] = addresses(&look_up(&inside, "[2620:fe::fe]:53", "api.example.com", RecordType::AAAA))[..]
    else {
        panic!("one address")
    };
    assert!(get(&inside, bound, "api.example.com").unwrap().starts_with("HTTP/1.1 200"));
    assert!(scene.contacts().iter().all(|contact| contact.dialled.port() == 80));
    assert!(scene.dns().asked_under("other.example.com").is_empty());

    assert_eq!(attached.detach().code(), Some(0));
    assert!(is_shut(&inside));
    assert!(!engine.wget(&container, "http://api.example.com/").status.success(), "detached");
    let again = Attached::start(&scene, "s1", &["--pid", &pid]).unwrap();
    assert!(engine.wget(&container, "http://api.example.com/").status.success(), "attached again");
    assert_eq!(again.detach().code(), Some(0));
}
