//! The bridge: a container without a network reaches the gateway through a mounted socket, and nothing else.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{PATIENCE, Scene, eventually, run_here};

/// A bridge; it is killed with this value.
struct Bridge(Child);

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bridge {
    fn start(listen: SocketAddr, to: &Path) -> Bridge {
        let to = format!("unix:{}", to.display());
        let mut bridge = command(env!("CARGO_BIN_EXE_tidegate"));
        bridge.args(["bridge", "--listen", &listen.to_string(), "--to", &to]);
        let bridge = Bridge(bridge.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        eventually("the bridge listens", || connect(listen));
        bridge
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests start programs")]
fn command(program: &str) -> Command {
    Command::new(program)
}

#[expect(clippy::disallowed_methods, reason = "the client's side")]
fn connect(to: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(stream)
}

/// A port of loopback that nobody uses.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_container_without_a_network_reaches_what_its_socket_allows_and_no_more() {
    for program in ["unshare", "ip", "curl"] {
        if command(program).arg("--version").output().is_err() && command(program).arg("-V").output().is_err()
        {
            eprintln!("skipped: {program} is not installed");
            return;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("proxy.sock");
    let name = format!("unix:{}", socket.display());
    let policy = format!(
        "[policy.case]\nallow = [\"api.example.com:80\"]\n[sandbox.s1]\npolicies = [\"case\"]\n\
         identify = [{{ listener = {name:?} }}]\n"
    );
    let scene = Scene::new()
        .policy(&policy)
        .configure(|config| config.proxy.push(name.clone()))
        .resolving("api.example.com", &["A 203.0.113.10"])
        .start();
    let Some(scene) = scene else { return };
    // `ip link set lo up` is what a container runtime does for `--network none`.
    let script = "ip link set lo up || exit 77\n\
        \"$0\" bridge --listen 127.0.0.1:3128 --to \"$1\" & bridge=$!\n\
        for host in api.example.com other.example.com; do\n\
          curl -s --retry 20 --retry-delay 1 --retry-connrefused -o /dev/null -w '%{http_code}\\n' \\\n\
            -x http://127.0.0.1:3128 http://$host/\n\
        done\n\
        curl -s --max-time 5 -o /dev/null http://203.0.113.10/; echo \"direct $?\"\n\
        kill $bridge; wait $bridge; echo \"ended $?\"\n";
    let mut inside = command("unshare");
    inside.args(["-n", "sh", "-c", script, env!("CARGO_BIN_EXE_tidegate"), &name]).stdin(Stdio::null());
    let output = inside.output().unwrap();
    if !output.status.success() {
        eprintln!("skipped: no namespace for the container: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    // 7: could not connect (curl(1), exit codes): there is no route at all.
    assert_eq!(lines, ["200", "403", "direct 7", "ended 0"], "{}", String::from_utf8_lossy(&output.stderr));
    let audit = scene.gateway().audit();
    let seen = |line: &serde_json::Value| {
        line["event"] == "decision" && line["sandbox"] == "s1" && line["host"] == "other.example.com"
    };
    assert!(audit.iter().any(seen), "the sandbox is known by its socket");
}

#[test]
fn each_direction_of_a_bridge_ends_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("proxy.sock");
    let gateway = UnixListener::bind(&socket).unwrap();
    let served = thread::spawn(move || {
        // The first is the look of `Bridge::start`.
        drop(gateway.accept().unwrap());
        let (mut stream, _) = gateway.accept().unwrap();
        let mut asked = String::new();
        stream.read_to_string(&mut asked).unwrap();
        // The client has said its last; the answer is more than any buffer on the way.
        stream.write_all(&vec![b'x'; 4 << 20]).unwrap();
        asked
    });
    let listen = free();
    let mut bridge = Bridge::start(listen, &socket);
    let mut client = connect(listen).unwrap();
    client.write_all(b"ping").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    // Told to end while this one is open: it waits for it.
    kill_process(Pid::from_child(&bridge.0), Signal::TERM).unwrap();
    eventually("the bridge takes nothing new", || connect(listen).is_none().then_some(()));
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!((served.join().unwrap().as_str(), answer.len()), ("ping", 4 << 20));
    let status = eventually("the bridge ends", || bridge.0.try_wait().unwrap());
    assert!(status.success());
}

#[test]
fn a_gateway_that_is_gone_is_told_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("proxy.sock");
    let listen = free();
    let mut bridge = Bridge::start(listen, &socket);
    let mut lost = connect(listen).unwrap();
    assert!(!matches!(lost.read(&mut [0; 1]), Ok(1..)), "there is nobody to answer");
    let gateway = UnixListener::bind(&socket).unwrap();
    let served = thread::spawn(move || gateway.accept().unwrap().0.write_all(b"here").unwrap());
    let mut found = String::new();
    connect(listen).unwrap().read_to_string(&mut found).unwrap();
    assert_eq!(found, "here");
    served.join().unwrap();
    bridge.0.kill().unwrap();
    let mut said = String::new();
    bridge.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(
        said.contains("No such file or directory") && said.contains("is the sandbox's folder mounted"),
        "{said}"
    );
    assert_eq!(said.matches("cannot connect").count(), 1, "one outage, one complaint: {said}");
}

#[test]
fn a_bridge_that_others_could_reach_is_refused() {
    let output = run_here(["bridge", "--listen", "0.0.0.0:3128", "--to", "unix:/nowhere.sock"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("0.0.0.0:3128 is not loopback") && said.contains("--open-to-others"), "{said}");
    assert!(!fs::exists("/nowhere.sock").unwrap());
}
