//! A workload that wants out: each attempt works outside, and nothing of it works inside.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::thread;

use super::world::{Input, Who, World, both, text, with};

/// What each attempt came to: `done …` or why not.
fn attempts(output: &[u8]) -> BTreeMap<String, String> {
    let lines = text(output);
    let pairs = lines.lines().filter_map(|line| line.split_once(": "));
    pairs.map(|(name, outcome)| (name.to_owned(), outcome.to_owned())).collect()
}

/// Attempts in Python: `NAME` is tried by a function and its outcome printed.
const PRELUDE: &str = r#"
import ctypes, errno, fcntl, os, socket, struct, sys, termios
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, act):
    try:
        print(f"{name}: done {act()}", flush=True)
    except BaseException as error:
        print(f"{name}: {errno.errorcode.get(getattr(error, 'errno', None), type(error).__name__)}", flush=True)
def call(number, *args):
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "")
def connect(path):
    s = socket.socket(socket.AF_UNIX); s.settimeout(3); s.connect(path); return s.recv(16).decode()
"#;

/// Programs of the user that stand-in sockets belong to, each with its place.
fn sockets(world: &World) -> Vec<(String, std::path::PathBuf)> {
    let (home, work) = (world.home(), world.workspace());
    [
        ("tmux", std::env::temp_dir().join(format!("tidegate-tmux-{}", std::process::id()))),
        ("ssh-mux", home.join(".ssh/mux-host")),
        ("docker", home.join(".docker/run/docker.sock")),
        ("agent", home.join("agent.sock")),
        ("editor", work.join("editor.sock")),
        ("daemon", std::path::PathBuf::from(format!("/var/lib/tidegate-test-{}.sock", std::process::id()))),
        ("bus", std::path::PathBuf::from(format!("/run/tidegate-test-{}.sock", std::process::id()))),
    ]
    .map(|(name, path)| (name.to_owned(), path))
    .into()
}

struct Planted(Vec<std::path::PathBuf>);

impl Drop for Planted {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

fn plant(world: &World) -> (Vec<(String, std::path::PathBuf)>, Planted) {
    let sockets = sockets(world);
    let mut planted = Planted(Vec::new());
    for (_, path) in &sockets {
        let parent = path.parent().unwrap();
        if !parent.exists() {
            world.write(&parent.join(".keep"), "");
        }
        // In the namespace of the gateway's host, as programs of the user are.
        let bound = path.clone();
        let listener = world.lab().gateway().run(|| UnixListener::bind(bound)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        planted.0.push(path.clone());
        thread::spawn(move || {
            for stream in listener.incoming().take(4).flatten() {
                let _ = std::io::Write::write_all(&mut &stream, b"reached");
            }
        });
    }
    (sockets, planted)
}

#[test]
fn sockets_of_the_users_programs_are_out_of_reach() {
    both(|world| {
        let (sockets, _planted) = plant(world);
        let tries: String = sockets
            .iter()
            .map(|(name, path)| format!("attempt({name:?}, lambda: connect({:?}))\n", path.to_str().unwrap()))
            .collect();
        let script = format!("{PRELUDE}{tries}");
        let outside = attempts(&world.outside(&["/usr/bin/python3", "-c", &script]).stdout);
        let output = world.run(&[], &["/usr/bin/python3", "-c", &script]);
        let inside = attempts(&output.stdout);
        for (name, _) in &sockets {
            assert_eq!(outside[name], "done reached", "{name} outside");
            assert!(!inside[name].starts_with("done"), "{name}: {} {}", inside[name], text(&output.stderr));
        }
        // One of them by name.
        let (_, path) = &sockets[3];
        let script = format!("{PRELUDE}attempt('agent', lambda: connect({:?}))", path.to_str().unwrap());
        let opened = world.run(&["--unix", path.to_str().unwrap()], &["/usr/bin/python3", "-c", &script]);
        match world.who() {
            Who::Ordinary | Who::Root => assert_eq!(attempts(&opened.stdout)["agent"], "done reached"),
        }
    });
}

/// Seen with a socket bound as `app.sock` in /srv: the kernel's table has the path as it was bound, which names nothing
/// elsewhere, and a command could connect.
#[test]
fn sockets_that_were_bound_by_a_path_of_their_programs_own_are_out_of_reach() {
    let serve = r#"
import os, socket, threading
os.mkdir("app"); os.symlink("app", "link"); whole = os.path.abspath("link"); os.chdir("app")
here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
def serve(path):
    s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(8)
    while True:
        c, _ = s.accept(); c.send(b"reached"); c.close()
for path in ["relative.sock", f"/proc/self/fd/{here}/long.sock", f"{whole}/linked.sock"]:
    threading.Thread(target=serve, args=(path,)).start()
while len([name for name in os.listdir(".") if name.endswith(".sock")]) < 3: pass
for name in os.listdir("."): os.chmod(name, 0o666)
print("ready", flush=True)
"#;
    both(|world| {
        let mut command = world.as_user("/usr/bin/python3");
        command.args(["-c", serve]);
        let mut server = world.spawn(command, Input::Null);
        let mut said = [0; 6];
        server.child().stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let names = ["relative", "long", "linked"];
        let tries: String = names
            .iter()
            .map(|name| format!("attempt({name:?}, lambda: connect('app/{name}.sock'))\n"))
            .collect();
        let script = format!("{PRELUDE}{tries}");
        let outside = attempts(&world.outside(&["/usr/bin/python3", "-c", &script]).stdout);
        let output = world.run(&[], &["/usr/bin/python3", "-c", &script]);
        let inside = attempts(&output.stdout);
        for name in names {
            assert_eq!(outside[name], "done reached", "{name} outside");
            assert!(!inside[name].starts_with("done"), "{name}: {} {}", inside[name], text(&output.stderr));
        }
    });
}

/// What a process may ask of the kernel, one attempt a line.
const ASKED: &str = r#"
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM) and 1)
attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW, 3) and 1)
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and 1)
attempt("alg", lambda: socket.socket(38, socket.SOCK_SEQPACKET) and 1)
attempt("netlink route", lambda: socket.socket(16, socket.SOCK_RAW, 0) and 1)
attempt("netlink netfilter", lambda: socket.socket(16, socket.SOCK_RAW, 12) and 1)
attempt("keyctl", lambda: call(250, 0, -4, 1))
attempt("add_key", lambda: call(248, b"user", b"x", b"y", 1, -4))
attempt("bpf", lambda: call(321, 0, 0, 0))
attempt("userfaultfd", lambda: call(323, 1))
attempt("io_uring", lambda: call(425, 1, 0))
attempt("pidfd_getfd", lambda: call(438, 3, 0, 0))
attempt("open_by_handle_at", lambda: call(304, -100, 0, 0))
attempt("userns", lambda: call(272, 0x10000000))
attempt("netns", lambda: call(272, 0x40000000))
attempt("mount", lambda: call(165, b"tmpfs", b"/tmp", b"tmpfs", 0, 0))
attempt("umount", lambda: call(166, b"/tmp", 2))
attempt("setns", lambda: call(308, os.open("/proc/1/ns/net", 0), 0))
attempt("pid 1 descriptors", lambda: os.listdir("/proc/1/fd"))
attempt("pid 1 memory", lambda: open("/proc/1/mem", "rb").read(1))
attempt("pid 1 environment", lambda: open("/proc/1/environ").read(1))
attempt("core_pattern", lambda: open("/proc/sys/kernel/core_pattern", "w").write("|/bin/x"))
attempt("ip_forward", lambda: open("/proc/sys/net/ipv4/ip_forward", "w").write("1"))
attempt("setuid file", lambda: (open("own", "w"), os.chmod("own", 0o4755)))
attempt("made setuid", lambda: os.open("made", os.O_CREAT | os.O_RDWR, 0o4755))
attempt("sysfs", lambda: open("/sys/class/net/lo/mtu", "w").write("1"))
attempt("tiocsti", lambda: fcntl.ioctl(os.open("/dev/tty", 2), termios.TIOCSTI, b"x"))
attempt("resolv.conf", lambda: open("/etc/resolv.conf", "w").write("nameserver 9.9.9.9"))
def rebind(port, reuse):
    s = socket.socket()
    if reuse:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("0.0.0.0", port)); s.listen(); return port
for port in (3128, 15001, 15053):
    attempt(f"rebind {port}", lambda: rebind(port, True))
attempt("bind", lambda: rebind(8080, True))
"#;

#[test]
fn what_the_kernel_would_give_is_refused() {
    let script = format!("{PRELUDE}{ASKED}");
    both(|world| {
        let output = world.run(&[], &["/usr/bin/python3", "-c", &script]);
        let inside = attempts(&output.stdout);
        assert!(inside.len() > 28, "{inside:?} {}", text(&output.stderr));
        let works: Vec<&str> = inside
            .iter()
            .filter(|(_, outcome)| outcome.starts_with("done"))
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(works, ["bind", "netlink route"], "{inside:#?}");
        for (name, outcome) in [
            ("vsock", "EAFNOSUPPORT"),
            ("packet", "EAFNOSUPPORT"),
            ("raw", "EPERM"),
            ("netlink netfilter", "EPROTONOSUPPORT"),
            ("io_uring", "ENOSYS"),
            ("keyctl", "EPERM"),
            ("bpf", "EPERM"),
            ("userns", "EPERM"),
            ("setuid file", "EPERM"),
            ("made setuid", "EPERM"),
            ("core_pattern", "EROFS"),
            ("rebind 3128", "EADDRINUSE"),
        ] {
            if cfg!(target_arch = "x86_64") {
                assert_eq!(inside[name], outcome, "{name}");
            }
        }
    });
}

/// Of what is asked above, that which does no harm to a machine in namespaces of its own, and which root gets.
const HARMLESS: [&str; 15] = [
    "packet",
    "raw",
    "netlink netfilter",
    "keyctl",
    "userns",
    "netns",
    "mount",
    "umount",
    "setns",
    "pid 1 descriptors",
    "pid 1 environment",
    "ip_forward",
    "rebind 3128",
    "rebind 15001",
    "rebind 15053",
];

#[test]
fn what_is_refused_inside_comes_to_something_outside() {
    // Each in a process of its own, and nothing but what is named: other attempts would change the machine.
    let apart = format!(
        r#"
def apart(name, act):
    if name not in {HARMLESS:?}:
        return
    child = os.fork()
    if child == 0:
        attempt_here(name, act)
        os._exit(0)
    os.waitpid(child, 0)
attempt_here, attempt = attempt, apart
"#
    );
    with(Who::Root, |world| {
        let script = format!("{PRELUDE}{apart}{ASKED}");
        let namespaces = ["unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--mount-proc"];
        let output = world.outside(&[&namespaces[..], &["/usr/bin/python3", "-c", &script]].concat());
        let outside = attempts(&output.stdout);
        let done = |name: &str| outside.get(name).is_some_and(|outcome| outcome.starts_with("done"));
        assert!(HARMLESS.into_iter().all(done), "{outside:#?} {}", text(&output.stderr));
    });
}

#[test]
fn tidegates_files_are_neither_seen_nor_changed_and_a_planted_config_is_nothing() {
    both(|world| {
        // The worst place for a config: where the command may write.
        let folder = world.workspace().join("conf/deep");
        let config = folder.join("tidegate.toml");
        world.write(&config, "[policy.base]\nallow = [\"listed.example.test:80\"]\n[dns]\nupstreams = [\"udp://198.51.100.53\"]\n[addresses]\ntreat_as_public = [\"203.0.113.0/24\"]\n");
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
        let before = fs::read_to_string(&config).unwrap();
        let script = r#"
cat conf/deep/tidegate.toml
for act in "echo x > conf/deep/tidegate.toml" "rm -f conf/deep/tidegate.toml" "mv conf/deep/tidegate.toml conf/deep/x" \
    "mv conf/deep conf/moved" "mv conf moved" "rm -rf conf" "ln conf/deep/tidegate.toml linked" "chmod 666 conf/deep/tidegate.toml"; do
    sh -c "$act" 2>/dev/null && echo "did $act"
done
echo '[policy.base]
allow = ["other.example.test:80"]' > tidegate.toml
mkdir -p .tidegate ~/.config/tidegate && cp tidegate.toml .tidegate/ && cp tidegate.toml ~/.config/tidegate/
cat a.jsonl 2>/dev/null
sh -c "echo x >> a.jsonl" 2>/dev/null && echo audit
cat s.json; sh -c "echo x > s.json || rm -f s.json" 2>/dev/null && echo summary
curl -s -o /dev/null -w '%{http_code}\n' http://listed.example.test/
"#;
        let output = world.run_exactly(
            &[
                "--config",
                config.to_str().unwrap(),
                "--policy",
                "base",
                "--audit",
                "a.jsonl",
                "--summary",
                "s.json",
            ],
            &["sh", "-c", script],
        );
        assert_eq!(text(&output.stdout), "200\n", "{}", text(&output.stderr));
        assert_eq!(fs::read_to_string(&config).unwrap(), before);
        assert!(!world.workspace().join("moved").exists() && !world.workspace().join("linked").exists());
        let audit = fs::read_to_string(world.workspace().join("a.jsonl")).unwrap();
        assert!(audit.lines().all(|line| line.starts_with('{')) && audit.lines().count() >= 3, "{audit}");
        // Seen in the workspace: a command wrote the summary of its own run.
        let summary = fs::read_to_string(world.workspace().join("s.json")).unwrap();
        assert!(summary.contains("listed.example.test") && summary.starts_with('{'), "{summary}");
        // The next run reads what it is told to, not what lies about.
        let output = world.run_exactly(
            &["--config", config.to_str().unwrap(), "--policy", "base"],
            &["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://other.example.test/"],
        );
        assert_eq!(text(&output.stdout), "403");
        assert!(!world.home().join(".config/tidegate").exists());
    });
}

#[test]
fn what_a_config_names_is_hidden_with_it() {
    both(|world| {
        let folder = world.workspace();
        let list = folder.join("lists/block.txt");
        world.write(&list, "blocked.example\n");
        let config = world.config();
        let written = format!(
            "[policy.base]\nlists = [\"file:{}\"]\n[dns]\nupstreams = [\"udp://198.51.100.53\"]\n",
            list.canonicalize().unwrap().display()
        );
        fs::write(&config, written).unwrap();
        for path in [list.parent().unwrap(), &list] {
            fs::set_permissions(path, fs::Permissions::from_mode(if path.is_dir() { 0o755 } else { 0o644 }))
                .unwrap();
        }
        let script = "cat lists/block.txt; echo x 2>/dev/null > lists/block.txt; rm -f lists/block.txt 2>/dev/null; \
                      mv lists moved 2>/dev/null && echo moved; true";
        let output = world
            .run_exactly(&["--config", config.to_str().unwrap(), "--policy", "base"], &["sh", "-c", script]);
        assert_eq!(text(&output.stdout), "", "{}", text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(fs::read_to_string(&list).unwrap(), "blocked.example\n");
    });
}

#[test]
fn a_foreign_abi_ends_the_process() {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("skipped: the foreign system calls are those of x86-64");
        return;
    }
    both(|world| {
        // x32's getpid, by the 64-bit entry.
        let script = format!("{PRELUDE}libc.syscall(0x40000000 | 39); print('alive')");
        let output = world.run(&[], &["/usr/bin/python3", "-c", &script]);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(159), ""),
            "{}",
            text(&output.stderr)
        );
    });
}
