//! Registries as this machine's clients know them: found, pinned, reached by the clients through the gateway, and nothing
//! else for a project that names another one.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tidegate::lab::HostFile;

use crate::support::{PROXY, Scene, TestAuthority, eventually, verb};

const PYTHON: &str = "/usr/bin/python3";
const MIRROR: &str = "mirror.corp.test";
const FILES: &str = "files.corp.test";
const EVIL: &str = "evil.example.test";

#[expect(clippy::disallowed_methods, reason = "the clients under test are programs")]
fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

fn have(program: &str) -> bool {
    let found = command(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let works = found.is_ok_and(|status| status.success());
    if !works {
        eprintln!("skipped: {program} is not installed");
    }
    works
}

/// The program of each client, and whether it is here.
fn clients() -> Vec<&'static str> {
    let all = [("pip", "pip"), ("npm", "npm"), ("cargo", "cargo"), ("apt", "apt-get")];
    all.into_iter().filter(|(_, program)| have(program)).map(|(client, _)| client).collect()
}

fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?}\n{}{}", output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A person's home and a project beside it, whose files name another host.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let desk = Desk { folder: tempfile::tempdir().unwrap() };
        fs::set_permissions(desk.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(desk.home()).unwrap();
        for (file, text) in [
            ("requirements.txt", format!("--index-url https://{EVIL}/simple\ntidegate-sample\n")),
            (".npmrc", format!("registry=https://{EVIL}/npm/\n")),
            ("package.json", "{\"name\": \"project\", \"version\": \"1.0.0\"}\n".to_owned()),
            (
                ".cargo/config.toml",
                format!(
                    "[source.crates-io]\nreplace-with = \"evil\"\n[source.evil]\nregistry = \"sparse+https://{EVIL}/c/\"\n"
                ),
            ),
            ("Cargo.toml", CARGO_PROJECT.to_owned()),
            ("src/lib.rs", String::new()),
        ] {
            write(&desk.project().join(file), &text);
        }
        desk
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    fn project(&self) -> PathBuf {
        self.path().join("project")
    }

    /// Files of the user's that name the mirror.
    fn configure(&self, authority: &Path) {
        let ca = authority.display();
        for (file, text) in [
            (
                ".config/pip/pip.conf",
                format!("[global]\nindex-url = https://u:secret@{MIRROR}/simple\ncert = {ca}\n"),
            ),
            (
                ".npmrc",
                format!("registry=https://{MIRROR}/files/npm/\ncafile={ca}\n//{MIRROR}/:_authToken=secret\n"),
            ),
            (
                ".cargo/config.toml",
                format!(
                    "[source.crates-io]\nreplace-with = \"corp\"\n[source.corp]\n\
                     registry = \"sparse+https://{MIRROR}/files/cargo/\"\n[http]\ncainfo = \"{ca}\"\n"
                ),
            ),
        ] {
            write(&self.home().join(file), &text);
        }
    }

    /// `tidegate registries discover` as the person runs it, in the project.
    fn discover(&self, args: &[&str]) -> Command {
        let mut discover = verb(["registries", "discover"].iter().chain(args));
        discover.env_clear().current_dir(self.project()).env("HOME", self.home());
        discover.env("PATH", variable("PATH").unwrap());
        // The home of a test has no toolchain.
        if let Some(toolchains) = toolchains() {
            discover.env("RUSTUP_HOME", toolchains);
        }
        discover.env("PIP_INDEX_URL", format!("https://{EVIL}/simple"));
        discover.env("npm_config_registry", format!("https://{EVIL}/npm/"));
        discover.env("CARGO_SOURCE_CRATES_IO_REGISTRY", format!("https://{EVIL}/c/"));
        discover.env("APT_CONFIG", self.project().join("apt.conf"));
        discover.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        discover
    }
}

const CARGO_PROJECT: &str = "[package]\nname = \"project\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\
    [dependencies]\ntidegate-sample = \"1\"\n[workspace]\n";

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A variable of whoever runs the tests: where their programs and toolchains are.
fn variable(name: &str) -> Option<OsString> {
    let all = tidegate::config::variables();
    all.into_iter().find_map(|(known, value)| (known == name).then_some(value))
}

fn toolchains() -> Option<PathBuf> {
    let named = variable("RUSTUP_HOME").map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".rustup"))).filter(|path| path.is_dir())
}

fn hosts(client: &Value) -> Vec<String> {
    let tables = client["tables"].as_array().unwrap();
    let hosts = tables.iter().flat_map(|table| table["hosts"].as_array().unwrap());
    hosts.map(|host| host.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_users_mirror_is_found_and_a_projects_index_is_seen_and_not_used() {
    let desk = Desk::new();
    desk.configure(Path::new("/etc/ssl/certs/ca.pem"));
    let clients: Vec<_> = clients().into_iter().filter(|client| *client != "apt").collect();
    let args: Vec<_> = ["--offline", "--json"].iter().chain(&clients).copied().collect();
    let ran = desk.discover(&args).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", told(&ran));
    assert!(!told(&ran).contains("secret"), "{}", told(&ran));
    let answer: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let answers = answer["clients"].as_array().unwrap();
    assert_eq!(answers.len(), clients.len());
    for client in answers {
        assert_eq!(hosts(client), [MIRROR], "{client:#}");
        let from = client["tables"][0]["from"].as_str().unwrap();
        assert!(from.contains(desk.home().to_str().unwrap()), "{from}");
        let seen = client["seen_not_used"].as_array().unwrap();
        let places: Vec<_> = seen.iter().map(|seen| seen["place"].as_str().unwrap()).collect();
        let project = desk.project().canonicalize().unwrap();
        assert!(places.iter().any(|place| place.starts_with('$')), "{places:?}");
        assert!(places.iter().any(|place| place.starts_with(project.to_str().unwrap())), "{places:?}");
        assert!(seen.iter().all(|seen| seen["host"] == format!("{EVIL}:443")), "{seen:?}");
    }
}

/// What a client uses when nobody tells it anything is asked of the client, whatever it is.
#[test]
fn the_default_of_each_client_is_found_and_pins_a_config_that_is_right() {
    let desk = Desk::new();
    for client in clients() {
        let ran = desk.discover(&["--offline", client]).output().unwrap();
        assert_eq!(ran.status.code(), Some(0), "{}", told(&ran));
        let tables = String::from_utf8(ran.stdout).unwrap();
        assert!(tables.contains(&format!("[registry.{client}]\nhosts = [\"")), "{tables}");
        assert!(!tables.contains(&format!("\"{EVIL}")), "{tables}");
        let config = desk.path().join("tidegate.toml");
        fs::write(
            &config,
            format!("{tables}\n[policy.p]\nregistries = [\"{client}\"]\n[sandbox.s]\npolicies = [\"p\"]\n"),
        )
        .unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
        let checked = verb(["check", "--config", config.to_str().unwrap()]).output().unwrap();
        assert!(checked.status.success(), "{tables}{}", told(&checked));
        // Over TLS the gateway cannot tell a download from a publication; over plain HTTP it is held to reading.
        let plain = tables.contains("methods");
        assert_eq!(told(&checked).contains("publishing possible"), !plain, "{tables}{}", told(&checked));
    }
}

#[test]
fn a_home_in_the_working_directory_is_no_source() {
    let desk = Desk::new();
    desk.configure(Path::new("/etc/ssl/certs/ca.pem"));
    let clients: Vec<_> = clients().into_iter().filter(|client| *client != "apt").collect();
    let args: Vec<_> = ["--offline"].iter().chain(&clients).copied().collect();
    let ran = desk.discover(&args).current_dir(desk.path()).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", told(&ran));
    assert!(!told(&ran).contains(&format!("hosts = [\"{MIRROR}")), "{}", told(&ran));
    assert!(told(&ran).contains("the home folder lies in the working directory"), "{}", told(&ran));
}

/// The root of the machine is nobody's project: what lies below it is everything.
#[test]
fn from_the_root_everything_counts() {
    let desk = Desk::new();
    desk.configure(Path::new("/etc/ssl/certs/ca.pem"));
    let Some(client) = clients().into_iter().find(|client| *client != "apt") else { return };
    let ran = desk.discover(&["--offline", client]).current_dir("/").output().unwrap();
    assert!(told(&ran).contains(&format!("hosts = [\"{MIRROR}\"]")), "{}", told(&ran));
}

#[test]
fn unknown_and_missing_clients_are_told() {
    let desk = Desk::new();
    let unknown = desk.discover(&["gem"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{}", told(&unknown));
    assert!(told(&unknown).contains("pip, npm, cargo, apt"), "{}", told(&unknown));
    let missing = desk.discover(&["npm"]).env("PATH", desk.home()).output().unwrap();
    assert_eq!(missing.status.code(), Some(1), "{}", told(&missing));
    assert!(told(&missing).contains("no npm in PATH"), "{}", told(&missing));
}

/// A company's mirror with a private address, and the host of its files.
struct Corp {
    scene: Scene,
    desk: Desk,
    hosts: Vec<Child>,
    sees: Vec<HostFile>,
}

impl Drop for Corp {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            let _ = host.kill();
            let _ = host.wait();
        }
    }
}

const ADDRESS: &str = "10.66.0.9";

fn corp() -> Option<Corp> {
    if !have(PYTHON) || !have("curl") {
        return None;
    }
    let scene = Scene::new().only_listening_on([]);
    let scene =
        [MIRROR, FILES].iter().fold(scene, |scene, name| scene.resolving(name, &[&format!("A {ADDRESS}")]));
    let scene = scene.resolving(EVIL, &["A 203.0.113.66"]).start()?;
    let desk = Desk::new();
    let authority = TestAuthority::new();
    let (certificate, key) = authority.identity_pem(&[MIRROR, FILES, EVIL]);
    for (name, text) in [("ca.pem", authority.pem()), ("cert.pem", certificate), ("key.pem", key)] {
        fs::write(desk.path().join(name), text).unwrap();
    }
    desk.configure(&desk.path().join("ca.pem"));
    let client_file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
    let web = desk.path().join("web");
    let filled = command(PYTHON).arg(client_file("mirror.py")).arg(&web).arg(FILES).output().unwrap();
    assert!(filled.status.success(), "{}", told(&filled));
    let mut hosts = Vec::new();
    let path = |name: &str| desk.path().join(name).into_os_string();
    for (port, certificate, key) in
        [("443", path("cert.pem"), path("key.pem")), ("80", "-".into(), "-".into())]
    {
        let mut host = command(PYTHON);
        host.arg(client_file("origin.py")).arg(port).arg(certificate).arg(key).arg(&web);
        host.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut host = scene.lab().world().spawn(&mut host).unwrap();
        let mut line = String::new();
        BufReader::new(host.stdout.take().unwrap()).read_line(&mut line).unwrap();
        hosts.push(host);
        assert_eq!(line, "ready\n");
    }
    let sees = sees(&desk);
    Some(Corp { scene, desk, hosts, sees })
}

/// The files of the machine: its resolver is the lab's, its source lists name the mirror.
fn sees(desk: &Desk) -> Vec<HostFile> {
    write(&desk.path().join("resolv.conf"), "nameserver 198.51.100.53\n");
    let list = format!("deb [trusted=yes] http://{MIRROR}/files/apt ./\n");
    write(&desk.path().join("sources.list.d/corp.list"), &list);
    write(&desk.path().join("sources.list"), "");
    let replaced = [
        ("/etc/resolv.conf", "resolv.conf"),
        ("/etc/apt/sources.list", "sources.list"),
        ("/etc/apt/sources.list.d", "sources.list.d"),
    ];
    let there = replaced.into_iter().filter(|(at, _)| Path::new(at).exists());
    there.map(|(at, shows)| HostFile { at: at.into(), shows: desk.path().join(shows) }).collect()
}

impl Corp {
    fn spawn(&self, command: &mut Command) -> Output {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.scene.lab().gateway().spawn_seeing(&self.sees, command).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Puts the tables into the config of the running gateway, with a policy that opens the registries and nothing else.
    fn pin(&self, tables: &str, clients: &[&str]) {
        let file = self.scene.gateway().config_file();
        let config = fs::read_to_string(&file).unwrap();
        let opened =
            config.replacen("[policy.case]\n", &format!("[policy.case]\nregistries = {clients:?}\n"), 1);
        fs::write(&file, format!("{opened}\n{tables}")).unwrap();
        self.scene.gateway().signal(Signal::HUP);
        eventually("the registries are pinned", || {
            let lines = self.scene.gateway().audit();
            lines.into_iter().rfind(|line| line["event"] == "reload" && line["ok"] == true)
        });
    }

    /// Runs a client in a folder, with nothing in its environment but the proxy.
    fn run(&self, folder: &Path, program: &str, args: &[&str]) -> Output {
        let mut client = command(program);
        client.args(args).env_clear().current_dir(folder).env("HOME", self.desk.home());
        client.env("PATH", variable("PATH").unwrap());
        if let Some(toolchains) = toolchains() {
            client.env("RUSTUP_HOME", toolchains);
        }
        for name in ["http_proxy", "https_proxy", "HTTPS_PROXY"] {
            client.env(name, format!("http://{PROXY}"));
        }
        self.spawn(&mut client)
    }

    fn decisions(&self, host: &str) -> Vec<Value> {
        let lines = self.scene.gateway().audit();
        lines.into_iter().filter(|line| line["event"] == "decision" && line["host"] == host).collect()
    }
}

#[test]
fn pinned_mirrors_serve_their_clients_and_a_project_cannot_name_another() {
    let Some(corp) = corp() else { return };
    let clients = clients();
    let found = corp.spawn(&mut corp.desk.discover(&clients));
    assert_eq!(found.status.code(), Some(0), "{}", told(&found));
    let tables = String::from_utf8(found.stdout.clone()).unwrap();
    assert!(tables.contains(&format!("addresses = [\"{ADDRESS}/32\"]")), "{tables}");
    assert!(!tables.contains("secret"), "{tables}");
    corp.pin(&tables, &clients);
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("Cargo.toml"), CARGO_PROJECT);
    write(&outside.path().join("src/lib.rs"), "");
    write(&outside.path().join("package.json"), "{\"name\": \"other\", \"version\": \"1.0.0\"}\n");
    let project = corp.desk.project();
    for client in clients {
        let Some((program, args)) = download(client, Place::Elsewhere) else {
            apt(&corp, outside.path());
            continue;
        };
        let ran = corp.run(outside.path(), program, &args);
        assert!(ran.status.success(), "{client}: {}", told(&ran));
        // The same in the project, whose own config names another host.
        let before = corp.decisions(EVIL).len();
        let refused =
            download(client, Place::Project).map(|(program, args)| corp.run(&project, program, &args));
        let refused = refused.unwrap();
        assert!(!refused.status.success() && told(&refused).contains("403"), "{client}: {}", told(&refused));
        let after = corp.decisions(EVIL);
        assert!(after.len() > before && after.iter().all(|line| line["reason"] == "not_listed"), "{after:?}");
    }
    assert!(corp.scene.dns().asked_under(EVIL).is_empty(), "a denied name was looked up");
    for host in [MIRROR, FILES] {
        let decisions = corp.decisions(host);
        let by_registry =
            |line: &Value| line["rule"].as_str().is_some_and(|rule| rule.starts_with("registry."));
        assert!(!decisions.is_empty() && decisions.iter().all(by_registry), "{decisions:?}");
    }
}

/// Where a client is started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a project whose own files name another registry.
    Project,
    Elsewhere,
}

/// What downloads the sample by a client, but apt, which needs folders of its own.
fn download(client: &str, place: Place) -> Option<(&'static str, Vec<&'static str>)> {
    const PIP: [&str; 6] =
        ["download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--retries", "1"];
    Some(match client {
        "pip" if place == Place::Project => ("pip", [&PIP[..], &["-r", "requirements.txt"]].concat()),
        "pip" => ("pip", [&PIP[..], &["tidegate-sample"]].concat()),
        "npm" => {
            ("npm", vec!["install", "tidegate-sample", "--no-audit", "--no-fund", "--fetch-retries", "0"])
        }
        "cargo" => ("cargo", vec!["fetch"]),
        _ => return None,
    })
}

/// Options that make apt use folders in this one, as anybody.
fn apt_options(folder: &Path) -> Vec<String> {
    fs::create_dir_all(folder.join("lists/partial")).unwrap();
    let own = |key: &str, name: &str| format!("{key}={}", folder.join(name).display());
    let all = [own("Dir::State::lists", "lists"), own("Dir::Cache", "cache")];
    let fixed = ["APT::Sandbox::User=root".to_owned(), "Acquire::Retries=0".to_owned()];
    all.into_iter().chain(fixed).flat_map(|option| ["-o".to_owned(), option]).collect()
}

/// apt in folders of its own: the repository of the mirror, over plain HTTP, which is held to reading.
fn apt(corp: &Corp, folder: &Path) {
    let options = apt_options(folder);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let run = |verb: &[&str]| corp.run(folder, "apt-get", &[&options[..], verb].concat());
    let updated = run(&["update"]);
    assert!(updated.status.success(), "{}", told(&updated));
    let downloaded = run(&["download", "tidegate-sample"]);
    assert!(downloaded.status.success(), "{}", told(&downloaded));
    assert!(folder.join("tidegate-sample_1.0_all.deb").exists(), "{}", told(&downloaded));
    let put = format!("http://{MIRROR}/files/apt/x");
    let refused = corp.run(folder, "curl", &["-sS", "-i", "-X", "PUT", "-d", "x", &put]);
    assert!(told(&refused).contains("method_not_allowed"), "{}", told(&refused));
}

/// A run reaches what `--registry` names, by the tables that a person has pinned, and nothing else: not what the project
/// in which it works names, and not the registry of another client.
#[test]
fn a_run_opens_the_registries_that_it_names() {
    let Some(corp) = corp() else { return };
    let clients = clients();
    let found = corp.spawn(&mut corp.desk.discover(&clients));
    assert_eq!(found.status.code(), Some(0), "{}", told(&found));
    let tables = String::from_utf8(found.stdout.clone()).unwrap();
    let config = corp.desk.path().join("run.toml");
    fs::write(&config, format!("[dns]\nupstreams = [\"udp://198.51.100.53\"]\n{tables}")).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let (outside, project) = (corp.desk.path().join("outside"), corp.desk.project());
    write(&outside.join("Cargo.toml"), CARGO_PROJECT);
    write(&outside.join("src/lib.rs"), "");
    write(&outside.join("package.json"), "{\"name\": \"other\", \"version\": \"1.0.0\"}\n");
    for client in clients {
        let audit = corp.desk.path().join(format!("{client}.jsonl"));
        let run = |folder: &Path, registry: &[&str], words: &[&str]| {
            let mut tidegate = verb(["run", "--config"]);
            tidegate.arg(&config).args(registry).arg("--audit").arg(&audit);
            // In /tmp, which a run sees empty; and the user's npm settings are hidden, because they hold a token.
            tidegate.arg("--ro").arg(corp.desk.path().join("ca.pem"));
            tidegate.arg("--ro").arg(corp.desk.home().join(".npmrc"));
            tidegate.arg("--").args(words).env_clear().current_dir(folder).env("HOME", corp.desk.home());
            tidegate.env("PATH", "/usr/local/bin:/usr/bin:/bin");
            corp.spawn(&mut tidegate)
        };
        let apt = apt_options(&outside);
        let apt = |verb: &[&'static str]| -> Vec<String> {
            let words = ["apt-get".to_owned()].into_iter().chain(apt.iter().cloned());
            words.chain(verb.iter().map(|word| (*word).to_owned())).collect()
        };
        let downloads: Vec<Vec<String>> = match download(client, Place::Elsewhere) {
            None => vec![apt(&["update"]), apt(&["download", "tidegate-sample"])],
            Some((program, args)) => vec![words_of(program, &args)],
        };
        let program = &downloads[0][0];
        if !run(&outside, &[], &[program, "--version"]).status.success() {
            // A workload of root is nobody whom root's own folders let in.
            eprintln!("skipped: a run here cannot start {program}");
            continue;
        }
        for words in &downloads {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let ran = run(&outside, &["--registry", client], &words);
            assert!(ran.status.success(), "{words:?}: {}", told(&ran));
        }
        let first: Vec<&str> = downloads[0].iter().map(String::as_str).collect();
        let refused = run(&outside, &[], &first);
        assert!(!told(&refused).contains("contacted 1"), "{}", told(&refused));
        if let Some((program, args)) = download(client, Place::Project) {
            let words = words_of(program, &args);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let refused = run(&project, &["--registry", client], &words);
            assert!(
                !refused.status.success() && told(&refused).contains("403"),
                "{client}: {}",
                told(&refused)
            );
            assert!(told(&refused).contains(&format!("{EVIL}:443  not_listed")), "{}", told(&refused));
        }
        let audit = fs::read_to_string(&audit).unwrap();
        let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        for line in lines.filter(|line| line["event"] == "decision") {
            let rule = line["rule"].as_str().unwrap_or_default();
            let expected = match line["decision"] == "allow" {
                true => line["host"] != EVIL && rule.starts_with(&format!("registry.{client}")),
                false => line["reason"] == "not_listed",
            };
            assert!(expected, "{line}");
        }
    }
    assert!(corp.scene.dns().asked_under(EVIL).is_empty(), "a denied name was looked up");
}

fn words_of(program: &str, args: &[&str]) -> Vec<String> {
    // Debian's own, which whoever runs the command may read.
    let program: &[&str] = if program == "pip" { &[PYTHON, "-m", "pip"] } else { &[program] };
    program.iter().chain(args).map(|word| (*word).to_owned()).collect()
}
