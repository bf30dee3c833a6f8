//! What one operation costs, in counts that do not drift with the machine: system calls (strace) and allocations (a
//! preloaded counter). Each bound is what docs/performance.md says, and a little room for what the scheduler makes of it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    net::UdpSocket,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use hickory_proto::rr::RecordType;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Client, PROXY, PROXY_DNS, Scene, eventually, question};

/// Operations of a kind that are counted together.
const ROUNDS: usize = 64;

/// Calls whose number is up to the scheduler, to the allocator, or to the checks of a debug build: no part of a sum.
const LEFT_OUT: [&str; 9] = [
    "clock_nanosleep",
    "epoll_pwait",
    "epoll_wait",
    "fcntl",
    "futex",
    "madvise",
    "mprotect",
    "restart_syscall",
    "sched_yield",
];

/// What an operation may cost at most.
struct Bound {
    what: &'static str,
    calls: f64,
    allocations: f64,
    /// Calls that were saved on purpose, so that none comes back unseen.
    single: &'static [(&'static str, f64)],
}

const fn bound(
    what: &'static str,
    calls: f64,
    allocations: f64,
    single: &'static [(&'static str, f64)],
) -> Bound {
    Bound { what, calls, allocations, single }
}

#[test]
fn an_operation_costs_no_more_than_the_page_says() {
    let Some(counter) = Counter::new() else { return };
    let scene = Scene::new()
        .allow(&["ok.example.test:80,443"])
        .resolving("ok.example.test", &["A 203.0.113.10"])
        .configure(|config| config.environment = counter.environment())
        .start();
    let Some(scene) = scene else { return };
    let get = |mut client: Client| {
        client.send(b"GET / HTTP/1.1\r\nHost: ok.example.test\r\nConnection: close\r\n\r\n");
        assert_eq!(client.response().status, 200);
    };
    let client = || Client::connect(scene.lab(), PROXY.parse().unwrap());
    let tunnel = || {
        let mut client = client();
        client.send(b"CONNECT ok.example.test:80 HTTP/1.1\r\nHost: ok.example.test:80\r\n\r\n");
        assert_eq!(client.response().status, 200);
        get(client);
    };
    let socks5 = || {
        let mut client = client();
        assert_eq!(client.socks5("ok.example.test", 80).0, 0);
        get(client);
    };
    let denial = || {
        let mut client = client();
        client.send(b"CONNECT no.example.test:443 HTTP/1.1\r\nHost: no.example.test:443\r\n\r\n");
        assert_eq!(client.response().status, 403);
    };
    let requests = || {
        let mut client = client();
        for _ in 0..ROUNDS {
            client.send(b"GET http://ok.example.test/ HTTP/1.1\r\nHost: ok.example.test\r\n\r\n");
            assert_eq!(client.response().status, 200);
        }
    };
    let resolver = scene.lab().gateway().udp_bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let queries = |name: &str| ask_together(&resolver, name, ROUNDS);
    let each = |operation: &dyn Fn()| (0..ROUNDS).for_each(|_| operation());
    // The first of each kind fills caches and tables.
    tunnel();
    requests();
    queries("ok.example.test");

    let bounds = [
        bound("tunnel", 30.0, 62.0, &[("setsockopt", 1.2), ("epoll_ctl", 4.3)]),
        bound("tunnel by SOCKS5", 30.0, 62.0, &[("setsockopt", 1.2), ("epoll_ctl", 4.3)]),
        bound("denial", 10.0, 30.0, &[("setsockopt", 0.1)]),
        bound("plain request", 6.5, 22.0, &[("connect", 0.1)]),
        // How many questions share a batch hangs on who runs when: what holds always is one call of a kind each.
        bound("refused query", 3.3, 10.0, &[("sendto", 1.1), ("write", 1.1)]),
        bound("cached query", 3.3, 10.0, &[("sendto", 1.1), ("write", 1.1)]),
        // What leaves a datagram socket must not wake its reader: that was one more wait for each reply.
        // (Of its writes one may wake a worker.)
        bound("lone query", 4.3, 14.0, &[("sendto", 1.1), ("write", 2.1), ("epoll_wait", 1.6)]),
    ];
    let mut over = Vec::new();
    for bound in bounds {
        let closed = |count: usize| {
            let ends = scene.gateway().audit_text().matches("\"event\":\"close\"").count();
            (ends >= count).then_some(())
        };
        let before = scene.gateway().audit_text().matches("\"event\":\"close\"").count();
        let counts = counter.count(scene.gateway().pid(), || match bound.what {
            "tunnel" => {
                each(&tunnel);
                eventually("the tunnels end", || closed(before + ROUNDS));
            }
            "tunnel by SOCKS5" => {
                each(&socks5);
                eventually("the tunnels end", || closed(before + ROUNDS));
            }
            "denial" => each(&denial),
            "plain request" => requests(),
            "refused query" => queries("no.example.test"),
            "lone query" => each(&|| ask_together(&resolver, "ok.example.test", 1)),
            _ => queries("ok.example.test"),
        });
        eprintln!("{}: {counts}", bound.what);
        over.extend(counts.over(&bound));
    }
    assert!(over.is_empty(), "{over:#?}");
}

/// Sends as many questions as are counted before the first answer is read, as a busy sandbox does.
fn ask_together(socket: &UdpSocket, name: &str, count: usize) {
    let query = question(name, RecordType::A).to_vec().unwrap();
    socket.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    for _ in 0..count {
        socket.send_to(&query, PROXY_DNS).unwrap();
    }
    for _ in 0..count {
        socket.recv(&mut [0; 512]).unwrap();
    }
}

/// Counts the system calls and allocations of a running gateway.
struct Counter {
    folder: TempDir,
}

/// Calls and allocations of one operation.
struct Counts {
    calls: BTreeMap<String, f64>,
    allocations: f64,
}

impl Counter {
    /// Builds the preloaded counter; `None`, with the reason printed, where something is missing.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/allocations.c");
        let mut build = program("cc");
        build.args(["-O2", "-shared", "-fPIC", "-o"]).arg(folder.path().join("allocations.so")).arg(source);
        match build.status() {
            Ok(status) => assert!(status.success(), "cc cannot build the counter"),
            Err(error) => return skipped("cc", &error),
        }
        if let Err(error) = program("strace").arg("-V").stdout(Stdio::null()).status() {
            return skipped("strace", &error);
        }
        fs::write(folder.path().join("allocations"), [0; 8]).unwrap();
        Some(Self { folder })
    }

    /// What the gateway must be started with.
    fn environment(&self) -> Vec<(OsString, OsString)> {
        let path = |name: &str| self.folder.path().join(name).into_os_string();
        vec![("LD_PRELOAD".into(), path("allocations.so")), ("COUNTED".into(), path("allocations"))]
    }

    fn allocations(&self) -> u64 {
        let bytes = fs::read(self.folder.path().join("allocations")).unwrap();
        u64::from_ne_bytes(bytes.try_into().unwrap())
    }

    /// Counts what the gateway does while `work` runs, and divides it by the number of its operations.
    fn count(&self, gateway: Pid, work: impl FnOnce()) -> Counts {
        let out = self.folder.path().join("calls");
        let mut strace = program("strace");
        strace.args(["-c", "-f", "-U", "calls,name", "-o"]).arg(&out);
        let pid = gateway.as_raw_nonzero().to_string();
        let mut strace = strace.args(["-p", &pid]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(strace.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("attached"), "{said}");
        eventually("strace follows every thread", || {
            threads(gateway).iter().all(|task| is_traced(task)).then_some(())
        });
        let before = self.allocations();
        work();
        let allocations = self.allocations() - before;
        kill_process(Pid::from_child(&strace), Signal::INT).unwrap();
        strace.wait().unwrap();
        let per_operation = |count: u64| count as f64 / ROUNDS as f64;
        let text = fs::read_to_string(out).unwrap();
        let rows = text.lines().filter_map(|line| {
            let (count, name) = line.trim().split_once(char::is_whitespace)?;
            Some((name.trim().to_owned(), per_operation(count.parse().ok()?)))
        });
        let calls = rows.filter(|(name, _)| name != "total").collect();
        Counts { calls, allocations: per_operation(allocations) }
    }
}

impl Counts {
    fn sum(&self) -> f64 {
        self.calls.iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str())).map(|(_, count)| count).sum()
    }

    fn over(&self, bound: &Bound) -> Vec<String> {
        let what = bound.what;
        let calls = self.sum();
        let mut over = Vec::new();
        if calls > bound.calls {
            over.push(format!("{what}: {calls:.2} calls, {} at most: {self}", bound.calls));
        }
        if self.allocations > bound.allocations {
            over.push(format!("{what}: {:.1} allocations, {} at most", self.allocations, bound.allocations));
        }
        for (name, most) in bound.single {
            let count = self.calls.get(*name).copied().unwrap_or_default();
            if count > *most {
                over.push(format!("{what}: {count:.2} of {name}, {most} at most"));
            }
        }
        over
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} allocations, {:.2} calls:", self.allocations, self.sum())?;
        for (name, count) in self.calls.iter().filter(|(_, count)| **count >= 0.02) {
            write!(f, " {name} {count:.2}")?;
        }
        Ok(())
    }
}

fn threads(process: Pid) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
    tasks.map(|task| task.unwrap().path()).collect()
}

fn is_traced(task: &Path) -> bool {
    let status = fs::read_to_string(task.join("status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
}

fn skipped<T>(program: &str, error: &std::io::Error) -> Option<T> {
    eprintln!("skipped: {program}: {error}");
    None
}

#[expect(clippy::disallowed_methods, reason = "what counts are programs")]
fn program(name: &str) -> Command {
    Command::new(name)
}
