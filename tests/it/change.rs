//! Policy under change: while files are saved, rules flip and symlinks move, nothing is ever wider than the old policy and
//! the new one.

use std::{
    collections::VecDeque,
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::process::Signal;
use serde_json::Value;
use tidegate::lab::origin::Behaviour;

use crate::support::{EndsClients, Scene, eventually};

const SANDBOX: &str = "[sandbox.s1]\npolicies = [\"case\"]\nidentify = [{ default = true }]\n[sandbox.s1.limits]\n\
    connections = \"unlimited\"\nnew_connections_per_second = \"unlimited\"\ndns_per_second = \"unlimited\"\n";

fn policy(allow: &[&str], deny: &[&str]) -> String {
    format!("{SANDBOX}[policy.case]\nallow = {allow:?}\ndeny = {deny:?}\n")
}

/// Puts a file in place in one step, as an editor that saves atomically does.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(beside, path).unwrap();
}

fn reloads(scene: &Scene) -> Vec<Value> {
    scene.gateway().audit().into_iter().filter(|line| line["event"] == "reload").collect()
}

fn status(scene: &Scene, to: &str) -> u16 {
    let mut client = scene.client();
    client.send(format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes());
    client.response().status
}

fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// 16 clients open tunnels as fast as they can while the resolver takes up to two seconds and the rule flips 50 times a
/// second. After the last deny is in force, no byte reaches the origin once 100 ms are over.
#[test]
fn after_the_last_deny_no_byte_flows() {
    let last_byte = Arc::new(AtomicU64::new(0));
    let received = Arc::new(AtomicU64::new(0));
    let (last, total) = (Arc::clone(&last_byte), Arc::clone(&received));
    let echo = Behaviour::Custom(Arc::new(move |mut stream: TcpStream, _| {
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            total.fetch_add(length as u64, Ordering::Relaxed);
            last.fetch_max(unix_millis(), Ordering::Relaxed);
            stream.write_all(&buffer[..length])?;
        }
    }));
    let scene = Scene::new()
        .policy(&policy(&["api.example.com:8443"], &[]))
        .resolving("api.example.com", &["A 203.0.113.10"])
        .ports([8443])
        .origins(move |_| echo.clone())
        .start();
    let Some(scene) = scene else { return };
    let file = scene.gateway().config_file();
    let text = fs::read_to_string(&file).unwrap();
    let open = text.clone();
    let shut = text.replace("deny = []", "deny = [\"api.example.com\"]");
    assert_ne!(open, shut);

    let running = AtomicBool::new(true);
    let opened = AtomicUsize::new(0);
    let tunnels: Mutex<VecDeque<TcpStream>> = Mutex::default();
    let flips = 150;
    thread::scope(|scope| {
        // A failed assertion must end the clients too.
        let _end = EndsClients(&running);
        for _ in 0..16 {
            scope.spawn(|| {
                while running.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    let mut client = scene.client();
                    client.send(b"CONNECT api.example.com:8443 HTTP/1.1\r\n\r\n");
                    if client.response().is_tunnel() {
                        opened.fetch_add(1, Ordering::Relaxed);
                        let stream = client.into_stream();
                        stream.set_nonblocking(true).unwrap();
                        let mut tunnels = tunnels.lock().unwrap();
                        tunnels.push_back(stream);
                        if tunnels.len() > 200 {
                            tunnels.pop_front();
                        }
                    }
                    // A thousand connects a second from all clients together.
                    thread::sleep(Duration::from_millis(16).saturating_sub(started.elapsed()));
                }
            });
        }
        // The open tunnels send all the time.
        scope.spawn(|| {
            while running.load(Ordering::Relaxed) {
                let alive = |stream: &mut TcpStream| match stream.write(b"x") {
                    Ok(_) => true,
                    Err(error) => error.kind() == ErrorKind::WouldBlock,
                };
                tunnels.lock().unwrap().retain_mut(alive);
                thread::sleep(Duration::from_millis(5));
            }
        });
        for flip in 0..flips {
            scene.dns().set_delay(Duration::from_millis([0, 0, 20, 300, 2000][flip % 5]));
            replace(&file, if flip % 2 == 0 { &shut } else { &open });
            scene.gateway().signal(Signal::HUP);
            thread::sleep(Duration::from_millis(20));
        }
        scene.dns().set_delay(Duration::ZERO);
        replace(&file, &open);
        scene.gateway().signal(Signal::HUP);
        eventually("tunnels are open before the last deny", || {
            let before = opened.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(50));
            (opened.load(Ordering::Relaxed) > before + 5).then_some(())
        });
        let before = reloads(&scene).len();
        replace(&file, &shut);
        scene.gateway().signal(Signal::HUP);
        eventually("the last deny is in force", || (reloads(&scene).len() > before).then_some(()));
        let in_force = unix_millis();
        // Clients go on trying for a while.
        thread::sleep(Duration::from_millis(600));
        running.store(false, Ordering::Relaxed);
        let late = last_byte.load(Ordering::Relaxed).saturating_sub(in_force);
        assert!(late <= 100, "a byte reached the origin {late} ms after the last deny was in force");
    });
    assert!(opened.load(Ordering::Relaxed) > 50, "too few tunnels to tell: {opened:?}");
    assert!(received.load(Ordering::Relaxed) > 100, "too few bytes to tell: {received:?}");
    assert_eq!(status(&scene, "api.example.com:8443"), 403);
}

/// An editor truncates the file and writes it in place, here byte by byte. The deny rule stands at the end, so that most
/// prefixes parse as a policy without it (seen in watchers that read after the first write).
#[test]
fn no_prefix_of_a_save_is_ever_in_force() {
    let names = ["old.example.com", "new.example.com", "secret.example.com"];
    let scene = Scene::new().policy(&policy(&["old.example.com"], &["secret.example.com"]));
    let scene = names.iter().fold(scene, |scene, name| scene.resolving(name, &["A 203.0.113.10"])).start();
    let Some(scene) = scene else { return };
    let file = scene.gateway().config_file();
    let rest = fs::read_to_string(&file).unwrap();
    let rest = rest.split_once("[listen]").unwrap().1;
    let wanted = format!(
        "{SANDBOX}[listen]{rest}\n[policy.case]\nallow = [\"*.example.com\"]\ndeny = [\"secret.example.com\", \"old.example.com\"]\n"
    );
    let from = wanted.find("[policy.case]").unwrap() - 4;
    for end in from..wanted.len() {
        fs::write(&file, &wanted[..end]).unwrap();
        assert_eq!(status(&scene, "secret.example.com:443"), 403, "at byte {end}");
        assert_eq!(status(&scene, "new.example.com:443"), 403, "at byte {end}");
    }
    fs::write(&file, &wanted).unwrap();
    eventually("the new policy is in force", || (status(&scene, "new.example.com:443") == 200).then_some(()));
    assert_eq!(status(&scene, "old.example.com:443"), 403);
    assert_eq!(status(&scene, "secret.example.com:443"), 403);
}

/// A mounted config map is a folder behind a symlink that is swapped in one step.
#[test]
fn a_symlink_swap_puts_the_new_policy_in_force() {
    let names = ["old.example.com", "new.example.com"];
    let scene = Scene::new().policy(&policy(&["old.example.com"], &[]));
    let scene = names.iter().fold(scene, |scene, name| scene.resolving(name, &["A 203.0.113.10"])).start();
    let Some(scene) = scene else { return };
    let file = scene.gateway().config_file();
    let text = fs::read_to_string(&file).unwrap();
    let folder = |name: &str, text: &str| {
        let folder = scene.gateway().dir().join(name);
        fs::create_dir(&folder).unwrap();
        replace(&folder.join("tidegate.toml"), text);
    };
    folder("one", &text);
    folder("two", &text.replace("old.example.com", "new.example.com"));
    let data = scene.gateway().dir().join("..data");
    symlink("one", &data).unwrap();
    fs::remove_file(&file).unwrap();
    symlink("..data/tidegate.toml", &file).unwrap();
    symlink("two", scene.gateway().dir().join("..data_tmp")).unwrap();
    fs::rename(scene.gateway().dir().join("..data_tmp"), &data).unwrap();
    eventually("the new policy is in force", || (status(&scene, "new.example.com:443") == 200).then_some(()));
    assert_eq!(status(&scene, "old.example.com:443"), 403);
}

#[test]
fn a_broken_or_vanished_file_keeps_the_old_policy_and_says_so() {
    let scene = Scene::new()
        .policy(&policy(&["api.example.com"], &[]))
        .resolving("api.example.com", &["A 203.0.113.10"])
        .start();
    let Some(scene) = scene else { return };
    let file = scene.gateway().config_file();
    let text = fs::read_to_string(&file).unwrap();
    let failed = || {
        let failed = |line: &Value| line["ok"] == false && line["detail"].is_string();
        reloads(&scene).into_iter().filter(failed).count()
    };
    let keeps = |before: usize| {
        eventually("the failed reload is in the log", || (failed() > before).then_some(()));
        let (_, metrics) = scene.gateway().metrics(scene.lab(), "/metrics");
        assert!(metrics.contains("tidegate_policy_generation 1\n"), "{metrics}");
        assert_eq!(status(&scene, "api.example.com:443"), 200);
        scene.gateway().metrics(scene.lab(), "/readyz").1
    };
    replace(&file, &text.replace("allow =", "alow ="));
    scene.gateway().signal(Signal::HUP);
    let said = keeps(0);
    assert!(said.contains("alow"), "{said}");
    let before = failed();
    fs::remove_file(&file).unwrap();
    scene.gateway().signal(Signal::HUP);
    keeps(before);
    let started = Instant::now();
    replace(&file, &text.replace("api.example.com", "other.example.com"));
    eventually("the mended file is in force", || {
        (status(&scene, "api.example.com:443") == 403).then_some(())
    });
    assert!(
        started.elapsed() > Duration::from_millis(900),
        "a file is read once it was unchanged for a second"
    );
}
