//! Stub resolvers of real C libraries and runtimes against the gateway's DNS, under the search list of a container.
//!
//! A denial must neither stall a resolver nor break the allowed names: musl treats NODATA as final and waits five seconds
//! for REFUSED and SERVFAIL, and asks for every name under each search suffix first.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate::lab::HostFile;

use crate::support::Scene;

const RESOLV_CONF: &str = "nameserver 10.200.0.1\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";

fn scene() -> Option<(Scene, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("resolv.conf"), RESOLV_CONF).unwrap();
    // No file, so that DNS alone answers.
    fs::write(folder.path().join("hosts"), "").unwrap();
    fs::write(folder.path().join("nsswitch.conf"), "hosts: dns\n").unwrap();
    let scene = Scene::new()
        .allow(&["ok.example.test"])
        .resolving("ok.example.test", &["A 203.0.113.10"])
        .resolving("bad.example.test", &["A 203.0.113.66"])
        .configure(|config| config.dns = vec!["10.200.0.1:53".into()])
        .start()?;
    Some((scene, folder))
}

/// Runs a client on the gateway's host as it would run in a container with that resolv.conf.
fn run(scene: &Scene, folder: &Path, mut client: Command) -> Output {
    let files: Vec<_> = ["resolv.conf", "hosts", "nsswitch.conf"]
        .iter()
        .map(|name| HostFile { at: Path::new("/etc").join(name), shows: folder.join(name) })
        .collect();
    client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    scene.lab().gateway().spawn_seeing(&files, &mut client).unwrap().wait_with_output().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "the resolvers under test are programs")]
fn command(program: &str) -> Command {
    Command::new(program)
}

/// Builds the look-up program with a C compiler; `None`, with the reason printed, where there is none.
fn build(folder: &Path, compiler: &str, flags: &[&str]) -> Option<Command> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/getaddrinfo.c");
    let program = folder.join(compiler);
    let mut build = command(compiler);
    build.args(flags).arg("-o").arg(&program).arg(source);
    match build.status() {
        Ok(status) => assert!(status.success(), "{compiler} cannot build the look-up program"),
        Err(error) => {
            eprintln!("skipped: {compiler}: {error}");
            return None;
        }
    }
    Some(command(program.to_str().unwrap()))
}

/// Looks both names up and holds the client to the contract: the allowed name resolves, the denied one fails, and neither
/// waits for a time-out of five seconds.
fn holds(client: &str, scene: &Scene, folder: &Path, mut program: Command) {
    program.args(["ok.example.test", "bad.example.test"]);
    let started = Instant::now();
    let ran = run(scene, folder, program);
    let took = started.elapsed();
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{client}: {text}{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(lines[0], "ok.example.test 203.0.113.10", "{client}");
    assert!(lines[1].starts_with("bad.example.test error "), "{client}: {}", lines[1]);
    // Both C libraries wait five seconds before they ask again.
    assert!(took < Duration::from_millis(4500), "{client} waited for a time-out: {took:?}");
    let asked = scene.dns().asked_under("bad.example.test");
    assert!(asked.is_empty(), "{client}: a denied name was asked upstream: {asked:?}");
    assert!(scene.dns().asked_under("cluster.local").is_empty(), "{client}: the search list leaked");
}

#[test]
fn glibc_resolves_allowed_names_under_a_search_list() {
    let Some((scene, folder)) = scene() else { return };
    let Some(program) = build(folder.path(), "cc", &[]) else { return };
    holds("glibc", &scene, folder.path(), program);
}

#[test]
fn static_musl_resolves_allowed_names_under_a_search_list() {
    let Some((scene, folder)) = scene() else { return };
    let Some(program) = build(folder.path(), "musl-gcc", &["-static"]) else { return };
    holds("musl", &scene, folder.path(), program);
}

#[test]
fn node_resolves_allowed_names_under_a_search_list() {
    let Some((scene, folder)) = scene() else { return };
    let script = "
        const dns = require('node:dns').promises;
        (async () => {
          for (const name of process.argv.slice(1)) {
            const found = await dns.lookup(name).then(({ address }) => address, ({ code }) => `error ${code}`);
            console.log(name, found);
          }
        })();";
    let mut program = command("node");
    if command("node").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: node is not installed");
        return;
    }
    program.args(["-e", script]);
    holds("node", &scene, folder.path(), program);
}
