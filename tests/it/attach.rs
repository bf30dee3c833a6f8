//! `tidegate attach`: an existing namespace reaches what its sandbox may and nothing else, for as long as it is attached.
#![expect(clippy::disallowed_methods, reason = "these tests run real tools, and workloads inside")]

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::{
        fd::AsRawFd,
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{RData, RecordType},
};
use rustix::process::{Pid, Signal, kill_process};
use tidegate::lab::{Namespace, tap::Tap};

use crate::support::{PATIENCE, Scene, SceneBuilder, eventually, question, run_tidegate};

/// A namespace as a container engine leaves it: `lo` alone, IPv6 off.
fn namespace() -> Option<Namespace> {
    let made = Namespace::new().and_then(|namespace| {
        namespace.run(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))?;
        Ok(namespace)
    });
    made.inspect_err(|error| eprintln!("skipped: no network namespaces here: {error}")).ok()
}

/// An admin socket beside the config.
const ADMIN: &str = "admin = \"unix:{dir}/admin.sock\"\n";

/// The file that stands for a namespace of this process.
pub fn file_of(namespace: &Namespace) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.descriptor().as_raw_fd()).into()
}

/// A gateway with an admin socket, whose sandbox `s1` belongs to the user of this test.
pub fn scene(allow: &[&str]) -> SceneBuilder {
    let uid = rustix::process::geteuid().as_raw();
    Scene::new()
        .policy(&format!(
            "[policy.case]\nallow = {allow:?}\n\n[sandbox.s1]\npolicies = [\"case\"]\nowners = [{uid}]\n\n[sandbox.s2]\nowners = [{uid}]\n"
        ))
        .configure(|config| config.listen = ADMIN.into())
        .resolving("api.example.com", &["A 203.0.113.10", "AAAA 2001:db8:cafe::10"])
        .resolving("other.example.com", &["A 203.0.113.66"])
}

/// A running `tidegate attach`.
pub struct Attached {
    child: Child,
    stderr: PathBuf,
}

impl Attached {
    pub fn start(scene: &Scene, sandbox: &str, target: &[&str]) -> Result<Attached, String> {
        let config = scene.gateway().config_file();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["attach", "--sandbox", sandbox, "--config"]).arg(config).args(target);
        Attached::spawn(scene, command, &scene.gateway().dir().join(format!("attach-{sandbox}")))
    }

    fn spawn(scene: &Scene, mut command: Command, stderr: &Path) -> Result<Attached, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(stderr).unwrap());
        let child = scene.lab().gateway().spawn(&mut command).unwrap();
        let mut attached = Attached { child, stderr: stderr.to_owned() };
        let up = eventually("attach is up or has ended", || {
            let said = attached.said();
            match attached.child.try_wait().unwrap() {
                Some(_) => Some(Err(attached.said())),
                None => said.contains("is served").then_some(Ok(())),
            }
        });
        up.map(|()| attached)
    }

    /// Attaches a namespace of this test.
    fn to(scene: &Scene, sandbox: &str, namespace: &Namespace) -> Result<Attached, String> {
        Attached::start(scene, sandbox, &["--netns", file_of(namespace).to_str().unwrap()])
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("attach ends", || child.try_wait().unwrap())
    }

    pub fn detach(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.end()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Asks a name server, any, from inside a namespace.
pub fn look_up(namespace: &Namespace, server: &str, name: &str, kind: RecordType) -> Message {
    let answer = namespace.run(|| {
        let server = addr(server);
        let socket = UdpSocket::bind(if server.is_ipv4() { addr("0.0.0.0:0") } else { addr("[::]:0") })?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send_to(&question(name, kind).to_vec().unwrap(), server)?;
        let mut answer = [0; 1500];
        let (length, from) = socket.recv_from(&mut answer)?;
        assert_eq!(from, server, "the answer comes from whom was asked");
        Ok(answer[..length].to_vec())
    });
    Message::from_vec(&answer.unwrap()).unwrap()
}

pub fn addresses(answer: &Message) -> Vec<IpAddr> {
    let address = |data: &RData| match data {
        RData::A(a) => Some(IpAddr::V4(a.0)),
        RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
        _ => None,
    };
    answer.answers.iter().filter_map(|record| address(&record.data)).collect()
}

/// GETs a page from an address inside a namespace, as a client that knows of no proxy.
pub fn get(namespace: &Namespace, address: IpAddr, host: &str) -> io::Result<String> {
    let mut stream = namespace.tcp_connect(SocketAddr::new(address, 80), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Runs a tool in a namespace to its end; `None`, with the reason, where it is not here.
fn run(namespace: &Namespace, tool: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(tool);
    command.args(arguments).env_clear().env("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match namespace.spawn(&mut command) {
        Ok(child) => Some(child.wait_with_output().unwrap()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("skipped: there is no {tool}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn ip(namespace: &Namespace, arguments: &[&str]) -> Option<String> {
    let output = run(namespace, "ip", arguments)?;
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// What nobody serves is refused at once.
pub fn is_shut(namespace: &Namespace) -> bool {
    let refused = |to: &str| {
        let kind = namespace.tcp_connect(addr(to), PATIENCE).map_err(|error| error.kind());
        kind.is_err_and(|kind| kind == io::ErrorKind::ConnectionRefused)
    };
    ["203.0.113.10:80", "127.0.0.1:3128", "127.0.0.1:15001", "8.8.8.8:53"].into_iter().all(refused)
}

#[test]
fn an_attached_namespace_reaches_what_is_listed_and_nothing_else() {
    let Some(scene) = scene(&["api.example.com:80"]).start() else { return };
    let Some(inside) = namespace() else { return };
    let attached = Attached::to(&scene, "s1", &inside).unwrap();

    for (server, kind) in [("9.9.9.9:53", RecordType::A), ("[2620:fe::fe]:53", RecordType::AAAA)] {
        let bound = addresses(&look_up(&inside, server, "api.example.com", kind));
        let [bound] = bound[..] else { panic!("{bound:?}") };
        assert!(get(&inside, bound, "api.example.com").unwrap().starts_with("HTTP/1.1 200"), "{bound}");
        let denied = look_up(&inside, server, "other.example.com", kind);
        assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
    }
    let hosts: Vec<_> = scene.contacts().iter().map(|contact| contact.dialled.ip().to_canonical()).collect();
    assert_eq!(hosts.len(), 2, "{hosts:?}");
    for literal in ["203.0.113.66", "10.200.0.1", "169.254.169.254", "2001:db8:cafe::10"] {
        let literal: IpAddr = literal.parse().unwrap();
        let answer = get(&inside, literal, "other.example.com");
        assert!(!answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")), "{literal}");
    }
    assert_eq!(scene.contacts().len(), 2, "nothing else was dialled");
    assert!(scene.dns().asked_under("other.example.com").is_empty());
    let audit = scene.gateway().audit();
    let named = |host: &str, decision: &str, inbound: &str| {
        audit.iter().any(|line| {
            line["host"] == host
                && line["decision"] == decision
                && line["inbound"] == inbound
                && line["sandbox"] == "s1"
        })
    };
    assert!(named("api.example.com", "allow", "tcp"), "{audit:#?}");
    assert!(named("other.example.com", "deny", "dns"), "{audit:#?}");
    assert!(named("169.254.169.254", "deny", "tcp"), "{audit:#?}");

    assert_eq!(attached.detach().code(), Some(0));
    assert!(is_shut(&inside));
    drop(Attached::to(&scene, "s1", &inside).unwrap());
    // Each beginning and each end is on record, with who held the namespace.
    let uid = u64::from(rustix::process::geteuid().as_raw());
    eventually("both ends are on record", || {
        let audit = scene.gateway().audit();
        let events = audit.iter().filter(|line| line["event"] == "sandbox" && line["sandbox"] == "s1");
        let told: Vec<_> = events.map(|line| (line["change"].as_str(), line["by"].as_u64())).collect();
        let expected = ["start", "exit", "start", "exit"].map(|change| (Some(change), Some(uid)));
        (told == expected).then_some(())
    });
}

#[test]
fn a_user_who_is_no_owner_any_more_loses_what_it_holds() {
    let Some(scene) = scene(&["api.example.com:80"]).start() else { return };
    let (Some(inside), Some(other)) = (namespace(), namespace()) else { return };
    let mut attached = Attached::to(&scene, "s1", &inside).unwrap();
    let untouched = Attached::to(&scene, "s2", &other).unwrap();
    let owners = format!("owners = [{}]", rustix::process::geteuid().as_raw());
    scene.gateway().rewrite_config(|text| text.replacen(&owners, "owners = [4711]", 1));
    scene.gateway().signal(Signal::HUP);
    let said = eventually("attach tells", || Some(attached.said()).filter(|said| said.contains("is shut")));
    assert!(said.contains("is not in `owners` of its sandbox any more"), "{said}");
    assert!(is_shut(&inside) && !is_shut(&other));
    attached.signal(Signal::TERM);
    assert_eq!(attached.end().code(), Some(1));
    assert_eq!(untouched.detach().code(), Some(0));
}

#[test]
fn real_clients_without_proxy_variables_are_captured() {
    let Some(scene) = scene(&["api.example.com:80"]).start() else { return };
    let Some(inside) = namespace() else { return };
    let _attached = Attached::to(&scene, "s1", &inside).unwrap();
    // curl asks the name servers of this machine's resolv.conf: whoever they are, the gateway answers.
    let curl = |arguments: &[&str]| {
        let always = ["-sS", "--max-time", "10", "-o", "/dev/null", "-w", "%{http_code}"];
        let output = run(&inside, "curl", &[&always, arguments].concat())?;
        Some((output.status.code(), String::from_utf8(output.stdout).unwrap()))
    };
    let Some(direct) = curl(&["http://api.example.com/"]) else { return };
    assert_eq!(direct, (Some(0), "200".into()));
    assert_eq!(curl(&["-6", "http://api.example.com/"]).unwrap(), (Some(0), "200".into()));
    assert_eq!(curl(&["--noproxy", "*", "http://api.example.com/"]).unwrap(), (Some(0), "200".into()));
    let by_proxy = curl(&["-x", "http://127.0.0.1:3128", "http://api.example.com/"]).unwrap();
    assert_eq!(by_proxy, (Some(0), "200".into()));
    let begun = Instant::now();
    // 6: could not resolve.
    assert_eq!(curl(&["http://other.example.com/"]).unwrap().0, Some(6));
    let refused = curl(&["-x", "http://127.0.0.1:3128", "http://other.example.com/"]).unwrap();
    assert_eq!(refused, (Some(0), "403".into()));
    assert!(begun.elapsed() < Duration::from_secs(5), "a refusal is no time-out");
    if let Some(output) = run(&inside, "nc", &["-w", "5", "-z", "203.0.113.66", "22"]) {
        // nc takes an accepted connection for success: what it may not do is reach anybody.
        drop(output);
        assert!(!scene.contacts().iter().any(|contact| contact.dialled.ip() == addr("203.0.113.66:1").ip()));
    }
}

#[test]
fn a_gateway_that_dies_leaves_the_namespace_with_nothing() {
    let Some(mut scene) = scene(&["api.example.com:80"]).start() else { return };
    let Some(inside) = namespace() else { return };
    let mut attached = Attached::to(&scene, "s1", &inside).unwrap();
    assert!(!is_shut(&inside));
    scene.gateway().signal(Signal::KILL);
    eventually("the gateway is gone", || (!scene.gateway_mut().alive()).then_some(()));
    assert!(is_shut(&inside));
    assert_eq!(attached.end().code(), Some(1));
    assert!(attached.said().contains("the gateway is gone"), "{}", attached.said());
}

#[test]
fn a_killed_attach_ends_its_guard_and_its_registration() {
    let Some(scene) = scene(&["api.example.com:80"]).start() else { return };
    let Some(inside) = namespace() else { return };
    let attached = Attached::to(&scene, "s1", &inside).unwrap();
    let me = attached.child.id().to_string();
    let children = fs::read_to_string(format!("/proc/{me}/task/{me}/children")).unwrap();
    let guard: u32 = children.trim().parse().unwrap();
    attached.signal(Signal::KILL);
    eventually("nothing is served", || is_shut(&inside).then_some(()));
    eventually("the guard has ended", || {
        let stat = fs::read_to_string(format!("/proc/{guard}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
    drop(attached);
    let again = eventually("the place is free", || Attached::to(&scene, "s1", &inside).ok());
    assert_eq!(again.detach().code(), Some(0));
}

#[test]
fn one_live_namespace_a_sandbox_and_one_sandbox_a_namespace() {
    let Some(scene) = scene(&["api.example.com:80"]).start() else { return };
    let (Some(one), Some(other)) = (namespace(), namespace()) else { return };
    let _attached = Attached::to(&scene, "s1", &one).unwrap();
    let refused = Attached::to(&scene, "s1", &other).map(drop).unwrap_err();
    assert!(refused.contains("sandbox s1 has a namespace already"), "{refused}");
    assert!(is_shut(&other));
    // The gateway's ports in it are taken: a second sandbox is not even offered.
    let refused = Attached::to(&scene, "s2", &one).map(drop).unwrap_err();
    assert!(refused.contains("cannot listen on tcp 127.0.0.1:3128"), "{refused}");
}

#[test]
fn a_removed_sandbox_loses_its_namespace_and_a_later_one_of_its_name_does_not_get_it() {
    let Some(scene) = scene(&["api.example.com:80"]).start() else { return };
    let Some(inside) = namespace() else { return };
    let mut attached = Attached::to(&scene, "s1", &inside).unwrap();
    let config = scene.gateway().config_file();
    let with = fs::read_to_string(&config).unwrap();
    fs::write(&config, with.replace("[sandbox.s1]", "[sandbox.s3]")).unwrap();
    scene.gateway().signal(Signal::HUP);
    eventually("attach tells", || attached.said().contains("is shut: its sandbox was removed").then_some(()));
    fs::write(&config, with).unwrap();
    scene.gateway().signal(Signal::HUP);
    let again = eventually("the sandbox is back", || {
        assert!(is_shut(&inside), "the old namespace is not the new sandbox's");
        let other = namespace()?;
        Attached::to(&scene, "s1", &other).ok()
    });
    assert!(is_shut(&inside));
    assert_eq!(again.detach().code(), Some(0));
    attached.signal(Signal::TERM);
    assert_eq!(attached.end().code(), Some(1));
}

#[test]
fn what_cannot_be_attached_is_named() {
    let Some(scene) = scene(&[]).start() else { return };
    let Some(inside) = namespace() else { return };
    let said = |sandbox: &str, target: &[&str]| {
        let config = scene.gateway().config_file();
        let always = ["attach", "--config", config.to_str().unwrap(), "--sandbox", sandbox];
        let output = run_tidegate(scene.lab(), [&always, target].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let file = file_of(&inside);
    let (code, text) = said("nobody", &["--netns", file.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(text.contains("there is no [sandbox.nobody]"), "{text}");
    // The gateway's own: by the process that it is.
    let gateway = scene.gateway().pid().as_raw_nonzero().to_string();
    let (code, text) = said("s1", &["--pid", &gateway]);
    assert_eq!(code, 1);
    assert!(text.contains("is in the network namespace of the gateway itself"), "{text}");
    let (code, text) = said("s1", &["--netns", "/dev/null"]);
    assert_eq!(code, 1);
    assert!(text.contains("this is no namespace"), "{text}");
    let (code, text) = said("s1", &["--netns", file.with_extension("gone").to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(text.contains("there is no network namespace at"), "{text}");
    assert_eq!(said("s1", &[]).0, 2);
    assert_eq!(said("not a name", &["--pid", "1"]).0, 2);
    // A link that is there already.
    if ip(&inside, &["link", "add", "way0", "type", "veth", "peer", "way1"]).is_none() {
        return;
    }
    let (code, text) = said("s1", &["--netns", file.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(text.contains("other links, which could lead out: way1, way0"), "{text}");
    assert!(text.contains("--network none"), "{text}");
}

/// A request to the admin socket from a process inside `namespace`.
fn ask_admin(scene: &Scene, namespace: &Namespace, wrapper: &[&str]) -> Option<String> {
    let socket = scene.gateway().dir().join("admin.sock");
    let curl = ["curl", "-sS", "--max-time", "10", "-X", "POST", "--unix-socket"];
    let all = [wrapper, &curl, &[socket.to_str().unwrap(), "http://tidegate/v1/namespaces/s1"]].concat();
    let output = run(namespace, all[0], &all[1..])?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_admin_socket_hears_only_who_stands_where_the_gateway_stands() {
    let Some(scene) = scene(&[]).start() else { return };
    let Some(inside) = namespace() else { return };
    let mode = fs::metadata(scene.gateway().dir().join("admin.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let Some(text) = ask_admin(&scene, scene.lab().gateway(), &[]) else { return };
    assert!(text.contains("upgrade_required"), "{text}");
    let text = ask_admin(&scene, &inside, &[]).unwrap();
    assert!(
        text.contains("the client stands in another network or user namespace than the gateway"),
        "{text}"
    );
    // Root in a user namespace of its own has the uid of whoever made it.
    let text = ask_admin(&scene, scene.lab().gateway(), &["unshare", "-U", "-r"]).unwrap();
    assert!(
        text.contains("the client stands in another network or user namespace than the gateway"),
        "{text}"
    );
    // A socket that was made beside the gateway, in the hands of a process elsewhere.
    let mut stream =
        scene.lab().gateway().run(|| UnixStream::connect(scene.gateway().dir().join("admin.sock"))).unwrap();
    stream.write_all(b"POST /v1/namespaces/s1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(
        text.contains("the client stands in another network or user namespace than the gateway"),
        "{text}"
    );
}

#[test]
fn only_an_owner_hands_a_namespace_over() {
    let uid = rustix::process::geteuid().as_raw();
    let Some(scene) = Scene::new()
        .policy(&format!("[sandbox.s1]\nowners = [{}]\n", uid + 4711))
        .configure(|config| config.listen = ADMIN.into())
        .start()
    else {
        return;
    };
    let Some(inside) = namespace() else { return };
    let socket = scene.gateway().dir().join("admin.sock");
    // Somebody else may come, so that the file is open; who is heard is decided by what the kernel tells.
    assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o666);
    let refused = Attached::to(&scene, "s1", &inside).map(drop).unwrap_err();
    assert!(refused.contains(&format!("uid {uid} may not")), "{refused}");
}

#[test]
fn an_ordinary_user_attaches_a_container_of_its_own() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: another user can be had only by root");
        return;
    }
    let user = ["--reuid", "48001", "--regid", "48001", "--clear-groups", "--inh-caps=-all"];
    let Some(scene) = Scene::new()
        .policy("[policy.case]\nallow = [\"api.example.com:80\"]\n[sandbox.s1]\npolicies = [\"case\"]\nowners = [48001]\n")
        .configure(|config| config.listen = ADMIN.into())
        .resolving("api.example.com", &["A 203.0.113.10"])
        .start()
    else {
        return;
    };
    let folder = scene.gateway().dir();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(scene.gateway().config_file(), fs::Permissions::from_mode(0o644)).unwrap();
    let gateway = scene.lab().gateway();
    let is_reachable =
        run(gateway, "setpriv", &[&user[..], &[env!("CARGO_BIN_EXE_tidegate"), "--version"]].concat());
    if !is_reachable.is_some_and(|output| output.status.success()) {
        eprintln!("skipped: another user cannot run the program that is tested, or there is no setpriv");
        return;
    }
    let mut container = Command::new("setpriv");
    container.args(user).args(["unshare", "-U", "-r", "-n", "sleep", "600"]).stdout(Stdio::null());
    let mut container = gateway.spawn(&mut container).unwrap();
    let pid = container.id();
    let moved = |what: &str| {
        fs::read_link(format!("/proc/{pid}/ns/{what}")).ok()
            != fs::read_link(format!("/proc/self/ns/{what}")).ok()
    };
    let own_net = fs::read_link(format!("/proc/{}/ns/net", scene.gateway().pid().as_raw_nonzero())).unwrap();
    eventually("the container is up", || {
        let is_in = fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|net| net != own_net);
        (moved("user")
            && is_in
            && fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n"))
        .then_some(())
    });
    let mut command = Command::new("setpriv");
    command.args(user).args([env!("CARGO_BIN_EXE_tidegate"), "attach", "--sandbox", "s1", "--config"]);
    command.arg(scene.gateway().config_file()).arg("--pid").arg(pid.to_string());
    let attached = Attached::spawn(&scene, command, &folder.join("attach-user"));
    let fetched = attached.as_ref().ok().and_then(|_| {
        let enter =
            ["-t", &pid.to_string(), "-U", "-n", "--preserve-credentials", "curl", "-sS", "--max-time", "10"];
        run(gateway, "nsenter", &[&enter[..], &["http://api.example.com/"]].concat())
    });
    let _ = container.kill();
    let _ = container.wait();
    let attached = attached.map_err(|said| panic!("{said}")).unwrap();
    if let Some(output) = fetched {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(attached.detach().code(), Some(0));
}

#[test]
fn a_link_that_appears_is_shut_and_told_and_nothing_passes_it() {
    let Some(scene) = scene(&["api.example.com:80"]).start() else { return };
    let (Some(inside), Some(outside)) = (namespace(), namespace()) else { return };
    let opened = Instant::now();
    let mut attached = Attached::to(&scene, "s1", &inside).unwrap();
    assert!(scene.gateway().metrics(scene.lab(), "/metrics").1.contains("tidegate_enforcement_ok 1"));
    let tap = Tap::open(&outside).unwrap();
    let file = file_of(&inside);
    let Some(_) = ip(&outside, &["link", "add", "way0", "type", "veth", "peer", "name", "way1"]) else {
        return;
    };
    ip(&outside, &["link", "set", "way1", "up"]);
    let begun = Instant::now();
    // Moved in and switched on in one step.
    let moved = ip(&outside, &["link", "set", "way0", "netns", file.to_str().unwrap(), "up"]);
    if moved.is_none() {
        return;
    }
    let gone = eventually("the metric tells", || {
        let page = scene.gateway().metrics(scene.lab(), "/metrics").1;
        page.contains("tidegate_enforcement_ok 0").then(|| begun.elapsed())
    });
    eprintln!("told after {gone:?}, one scrape included");
    // The gateway looks every ten seconds from the opening on: what is told before that was told by the kernel's notice.
    assert!(opened.elapsed() < Duration::from_secs(10), "{:?}", opened.elapsed());
    eventually("attach tells", || attached.said().contains("is shut: link way0 appeared").then_some(()));
    assert!(is_shut(&inside));
    let told: Vec<_> =
        scene.gateway().audit().into_iter().filter(|line| line["event"] == "enforcement").collect();
    let [told] = &told[..] else { panic!("{told:?}") };
    assert_eq!(
        (&told["sandbox"], &told["check"], &told["ok"], &told["reason"], &told["detail"]),
        (
            &"s1".into(),
            &"links".into(),
            &false.into(),
            &"link_appeared".into(),
            &"link way0 appeared in the namespace".into()
        )
    );
    // Root inside switches it on again and again.
    for _ in 0..20 {
        let _ = run(&inside, "ip", &["link", "set", "way0", "up"]);
        let _ = run(&inside, "ip", &["address", "add", "192.0.2.1/24", "dev", "way0"]);
        let _ = inside.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket2::SockRef::from(&socket).bind_device(Some(b"way0"))?;
            socket.send_to(b"out", "192.0.2.2:4711")
        });
        let packets = "import socket\ns = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\ns.bind(('way0', 0))\ns.send(b'\\xff' * 6 + b'\\x02' * 6 + b'\\x88\\xb5' + b'out' * 20)";
        let _ = run(&inside, "python3", &["-c", packets]);
    }
    eventually("the guard has switched it off", || {
        (!ip(&inside, &["-o", "link", "show", "way0"])?.contains(",UP")).then_some(())
    });
    assert_eq!(tap.frames().unwrap(), 0, "no frame has reached the other end");
    attached.signal(Signal::TERM);
    assert_eq!(attached.end().code(), Some(1));
    let refused = Attached::to(&scene, "s1", &inside).map(drop).unwrap_err();
    assert!(refused.contains("way0"), "{refused}");
    ip(&inside, &["link", "delete", "way0"]);
    let again = Attached::to(&scene, "s1", &inside).unwrap();
    assert!(scene.gateway().metrics(scene.lab(), "/metrics").1.contains("tidegate_enforcement_ok 1"));
    assert_eq!(again.detach().code(), Some(0));
}

#[test]
fn without_an_admin_socket_attach_is_the_gateway() {
    let Some(scene) = scene(&["api.example.com:80"]).configure(|config| config.listen.clear()).start() else {
        return;
    };
    let Some(inside) = namespace() else { return };
    // A config of its own, which lists no listener, on the gateway's host.
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tidegate.toml");
    let audit = folder.path().join("audit.jsonl");
    let text = format!(
        "[dns]\nupstreams = [\"udp://198.51.100.53\"]\n[audit]\npath = {audit:?}\n[addresses]\ntreat_as_public = [\"203.0.113.0/24\"]\n\
         [policy.p]\nallow = [\"api.example.com:80\"]\n[sandbox.s1]\npolicies = [\"p\"]\n"
    );
    fs::write(&config, text).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["attach", "--sandbox", "s1", "--config"]).arg(&config).arg("--netns").arg(file_of(&inside));
    let attached = Attached::spawn(&scene, command, &folder.path().join("stderr")).unwrap();
    let bound = addresses(&look_up(&inside, "9.9.9.9:53", "api.example.com", RecordType::A));
    assert!(get(&inside, bound[0], "api.example.com").unwrap().starts_with("HTTP/1.1 200"));
    assert_eq!(attached.detach().code(), Some(0));
    assert!(is_shut(&inside));
    let audit = fs::read_to_string(audit).unwrap();
    for part in ["\"host\":\"api.example.com\"", "\"change\":\"start\"", "\"change\":\"exit\""] {
        assert!(audit.contains(part), "{part}: {audit}");
    }
}

#[test]
fn two_hundred_namespaces_see_each_only_what_is_theirs() {
    const COUNT: usize = 200;
    let uid = rustix::process::geteuid().as_raw();
    let tables = (0..COUNT).map(|n| {
        format!(
            "[policy.p{n}]\nallow = [\"n{n}.example.com:80\"]\n[sandbox.s{n}]\npolicies = [\"p{n}\"]\nowners = [{uid}]\n"
        )
    });
    let mut builder =
        Scene::new().policy(&tables.collect::<String>()).configure(|config| config.listen = ADMIN.into());
    for n in 0..COUNT {
        builder = builder.resolving(&format!("n{n}.example.com"), &["A 203.0.113.10"]);
    }
    let Some(scene) = builder.start() else { return };
    let mut all = Vec::with_capacity(COUNT);
    for n in 0..COUNT {
        let Some(inside) = namespace() else { return };
        let attached = Attached::to(&scene, &format!("s{n}"), &inside).unwrap();
        all.push((inside, attached));
    }
    for (n, (inside, _)) in all.iter().enumerate() {
        let own = format!("n{n}.example.com");
        let other = format!("n{}.example.com", (n + 1) % COUNT);
        let bound = addresses(&look_up(inside, "9.9.9.9:53", &own, RecordType::A));
        assert!(get(inside, bound[0], &own).unwrap().starts_with("HTTP/1.1 200"), "{own}");
        let denied = look_up(inside, "9.9.9.9:53", &other, RecordType::A);
        assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
    }
    let audit = scene.gateway().audit();
    for (n, _) in all.iter().enumerate() {
        let own = format!("n{n}.example.com");
        let allowed: BTreeSet<_> = audit
            .iter()
            .filter(|line| line["sandbox"] == format!("s{n}").as_str() && line["decision"] == "allow")
            .map(|line| (line["inbound"].as_str().unwrap(), line["host"].as_str().unwrap()))
            .collect();
        assert_eq!(allowed, BTreeSet::from([("dns", &*own), ("http", &own), ("tcp", &own)]));
    }
    for (_, attached) in &all {
        attached.signal(Signal::TERM);
    }
    for (_, mut attached) in all {
        assert_eq!(attached.end().code(), Some(0));
    }
}
