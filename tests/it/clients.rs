//! Real clients through the gateway: what the policy lists works for each of them, and a refusal reaches its user.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::support::{PROXY, Scene, TestAuthority};

/// A scene with a Python web host in its world: git, a package index and echoes under `*.example.test`.
struct Web {
    scene: Scene,
    folder: TempDir,
    hosts: Vec<Child>,
}

impl Drop for Web {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            let _ = host.kill();
            let _ = host.wait();
        }
    }
}

/// Debian's own Python, because its packages are the ones that the test command's docs name.
const PYTHON: &str = "/usr/bin/python3";

#[expect(clippy::disallowed_methods, reason = "the clients under test are programs")]
fn command(program: &str) -> Command {
    Command::new(program)
}

fn have(program: &str) -> bool {
    let found = command(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("skipped: {program} is not installed");
    }
    found.is_ok()
}

fn client_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

fn web() -> Option<Web> {
    if !have(PYTHON) {
        return None;
    }
    let names = ["git.example.test", "index.example.test", "web.example.test", "other.example.test"];
    let listed = ["git.example.test", "index.example.test", "web.example.test:80,443"];
    let scene = Scene::new().allow(&listed).only_listening_on([]);
    let scene = names.iter().fold(scene, |scene, name| scene.resolving(name, &["A 203.0.113.10"])).start()?;
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let (certificate, key) = authority.identity_pem(&names);
    for (name, text) in [("ca.pem", authority.pem()), ("cert.pem", certificate), ("key.pem", key)] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    fill(folder.path());
    let mut web = Web { scene, folder, hosts: Vec::new() };
    let path = |name: &str| web.folder.path().join(name).into_os_string();
    for (port, certificate, key) in
        [("443", path("cert.pem"), path("key.pem")), ("80", "-".into(), "-".into())]
    {
        let mut host = command(PYTHON);
        host.arg(client_file("origin.py")).arg(port).arg(certificate).arg(key).arg(web.folder.path());
        host.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut host = web.scene.lab().world().spawn(&mut host).unwrap();
        let mut line = String::new();
        BufReader::new(host.stdout.take().unwrap()).read_line(&mut line).unwrap();
        web.hosts.push(host);
        assert_eq!(line, "ready\n");
    }
    Some(web)
}

/// A bare repository with one commit, and a package index with one wheel.
fn fill(folder: &Path) {
    let work = folder.join("work");
    let git = |args: &[&str], at: &Path| {
        let identity =
            ["-c", "user.name=t", "-c", "user.email=t@example.test", "-c", "init.defaultBranch=main"];
        let ran = command("git").args(identity).args(args).current_dir(at).output().unwrap();
        assert!(ran.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    };
    fs::create_dir_all(&work).unwrap();
    fs::create_dir_all(folder.join("git")).unwrap();
    fs::write(work.join("hello.txt"), "hello\n").unwrap();
    git(&["init", "-q"], &work);
    git(&["add", "."], &work);
    git(&["commit", "-q", "-m", "one"], &work);
    git(&["clone", "-q", "--bare", "work", "git/hello.git"], folder);

    let wheel = "tidegate_sample-1.0-py3-none-any.whl";
    fs::create_dir_all(folder.join("files")).unwrap();
    fs::create_dir_all(folder.join("simple/tidegate-sample")).unwrap();
    let pack = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    info = "tidegate_sample-1.0.dist-info"
    wheel.writestr("tidegate_sample.py", "")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tidegate-sample\nVersion: 1.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
"#;
    let ran = command(PYTHON).args(["-c", pack]).arg(folder.join("files").join(wheel)).status().unwrap();
    assert!(ran.success());
    let index = format!("<a href=\"/files/{wheel}\">{wheel}</a>\n");
    fs::write(folder.join("simple/tidegate-sample/index.html"), index).unwrap();
}

impl Web {
    /// Runs a client on the gateway's host with nothing in its environment but the proxy and the test authority.
    fn run(&self, program: &str, args: &[&str]) -> Output {
        let proxy = format!("http://{PROXY}");
        let authority = self.folder.path().join("ca.pem");
        let mut client = command(program);
        client.args(args).env_clear().current_dir(self.folder.path());
        client.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.folder.path());
        for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"] {
            client.env(name, &proxy);
        }
        for name in
            ["SSL_CERT_FILE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"]
        {
            client.env(name, &authority);
        }
        client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.scene.lab().gateway().spawn(&mut client).unwrap().wait_with_output().unwrap()
    }

    fn script(&self, program: &str, script: &str, args: &[&str]) -> Output {
        let path = client_file(script);
        let all: Vec<&str> = std::iter::once(path.to_str().unwrap()).chain(args.iter().copied()).collect();
        self.run(program, &all)
    }

    /// The reasons of the audited decisions for a host; `allow` where it was let through.
    fn decisions(&self, host: &str) -> Vec<String> {
        let lines = self.scene.gateway().audit();
        let of_host = lines.iter().filter(|line| line["event"] == "decision" && line["host"] == host);
        of_host.map(|line| line["reason"].as_str().unwrap_or("allow").to_owned()).collect()
    }
}

fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?}\n{}{}", output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn curl_reaches_what_is_listed_by_every_inbound_and_shows_the_refusal() {
    let Some(web) = web() else { return };
    let socks = format!("socks5h://{PROXY}");
    let proxy = format!("http://{PROXY}");
    let listed: [&[&str]; 4] = [
        &["-sS", "--fail", "https://web.example.test/a"],
        &["-sS", "--fail", "http://web.example.test/a"],
        &["-sS", "--fail", "-x", &socks, "https://web.example.test/a"],
        &["-sS", "--fail", "-p", "-x", &proxy, "http://web.example.test/a"],
    ];
    for args in listed {
        let ran = web.run("curl", args);
        assert!(ran.status.success(), "{args:?}: {}", told(&ran));
        assert!(told(&ran).contains("web.example.test"), "{args:?}: {}", told(&ran));
    }
    let plain = web.run("curl", &["-sS", "-i", "http://other.example.test/a"]);
    let answer = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains("not_listed"), "{answer}");
    let tunnel = web.run("curl", &["-sS", "-v", "https://other.example.test/a"]);
    // 56: CONNECT tunnel failed
    assert_eq!(tunnel.status.code(), Some(56), "{}", told(&tunnel));
    assert!(told(&tunnel).contains("Tidegate-Reason: not_listed"), "{}", told(&tunnel));
    let by_socks = web.run("curl", &["-sS", "-x", &socks, "https://other.example.test/a"]);
    // 97: the SOCKS5 server said no, with reply 2
    assert_eq!(by_socks.status.code(), Some(97), "{}", told(&by_socks));
    assert!(told(&by_socks).contains("(2)"), "{}", told(&by_socks));
    assert_eq!(web.decisions("other.example.test"), ["not_listed", "not_listed", "not_listed"]);
}

#[test]
fn git_clones_over_https_and_is_refused_elsewhere() {
    let Some(web) = web() else { return };
    let clone = web.run("git", &["clone", "-q", "https://git.example.test/git/hello.git", "cloned"]);
    assert!(clone.status.success(), "{}", told(&clone));
    assert_eq!(fs::read_to_string(web.folder.path().join("cloned/hello.txt")).unwrap(), "hello\n");
    let refused = web.run("git", &["ls-remote", "https://other.example.test/git/hello.git"]);
    assert!(!refused.status.success() && told(&refused).contains("403"), "{}", told(&refused));
    assert_eq!(web.decisions("other.example.test"), ["not_listed"]);
}

#[test]
fn pip_downloads_from_a_listed_index_and_nowhere_else() {
    let Some(web) = web() else { return };
    let pip = |index: &str| {
        let quiet = ["--disable-pip-version-check", "--no-cache-dir", "--retries", "1"];
        let args =
            ["-m", "pip", "download", "--no-deps", "-d", "got", "--index-url", index, "tidegate-sample"];
        web.run(PYTHON, &[&args[..], &quiet[..]].concat())
    };
    let ran = pip("https://index.example.test/simple/");
    if told(&ran).contains("No module named pip") {
        eprintln!("skipped: pip is not installed for {PYTHON}");
        return;
    }
    assert!(ran.status.success(), "{}", told(&ran));
    assert!(web.folder.path().join("got/tidegate_sample-1.0-py3-none-any.whl").exists());
    let refused = pip("https://other.example.test/simple/");
    assert!(!refused.status.success() && told(&refused).contains("403"), "{}", told(&refused));
    assert!(web.decisions("other.example.test").iter().all(|reason| reason == "not_listed"));
}

#[test]
fn python_libraries_reach_what_is_listed_and_tell_the_refusal() {
    let Some(web) = web() else { return };
    let mut refused = 0;
    for library in ["urllib", "requests", "httpx", "aiohttp"] {
        for url in ["https://web.example.test/a", "http://web.example.test/a"] {
            let ran = web.script(PYTHON, "fetch.py", &[library, url]);
            if ran.status.code() == Some(77) {
                eprintln!("skipped: {library}: {}", told(&ran));
                break;
            }
            assert!(ran.status.success(), "{library} {url}: {}", told(&ran));
            let other = url.replace("web.", "other.");
            let ran = web.script(PYTHON, "fetch.py", &[library, &other]);
            refused += 1;
            assert!(
                ran.status.code() == Some(1) && told(&ran).contains("403"),
                "{library} {other}: {}",
                told(&ran)
            );
        }
    }
    let decisions = web.decisions("other.example.test");
    // requests asks once more by itself after a refused tunnel
    assert!(
        decisions.len() >= refused && decisions.iter().all(|reason| reason == "not_listed"),
        "{decisions:?}"
    );
}

#[test]
fn undici_reaches_what_is_listed_through_connect_on_both_ports() {
    let Some(web) = web() else { return };
    let Some(modules) = node_modules() else { return };
    let run = |url: &str| web.script("node", "fetch.mjs", &[modules.to_str().unwrap(), url]);
    for url in ["https://web.example.test/a", "http://web.example.test/a"] {
        let ran = run(url);
        assert!(ran.status.success(), "{url}: {}", told(&ran));
    }
    let refused = run("https://other.example.test/a");
    assert_eq!(refused.status.code(), Some(1), "{}", told(&refused));
    assert_eq!(web.decisions("other.example.test"), ["not_listed"]);
}

/// Where `npm install undici` was run for the tests: `target/clients`.
fn node_modules() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients");
    if folder.join("node_modules/undici").is_dir() && have("node") {
        return Some(folder);
    }
    eprintln!("skipped: undici is not installed (npm install --prefix target/clients undici@6)");
    None
}

#[test]
fn tidegate_connect_is_a_proxy_command() {
    let Some(web) = web() else { return };
    let connect = |host: &str| {
        let args = ["connect", "--proxy", &format!("http://{PROXY}"), host, "80"];
        web.run(env!("CARGO_BIN_EXE_tidegate"), &args)
    };
    let refused = connect("other.example.test");
    assert!(!refused.status.success() && told(&refused).contains("not_listed"), "{}", told(&refused));
    // Standard input is at its end: the half-close reaches the origin, and nothing comes back.
    let opened = connect("web.example.test");
    assert!(opened.status.success() && opened.stdout.is_empty(), "{}", told(&opened));
}
