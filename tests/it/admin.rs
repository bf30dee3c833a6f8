//! The admin socket: who is heard, what can be seen and changed, and that sandboxes cannot reach it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;
use tidegate::lab::origin::Behaviour;

use crate::support::{Client, Scene, SceneBuilder, eventually};

/// Where the admin socket is, and what is mounted into nobody.
pub struct Desk {
    pub scene: Scene,
    folder: TempDir,
}

const POLICY: &str = "[policy.case]\nallow = [\"198.51.100.9:8443\"]\n\
    [sandbox.s1]\npolicies = [\"case\"]\nidentify = [{ default = true }]\n";

const TUNNEL: &[u8] = b"CONNECT 198.51.100.9:8443 HTTP/1.1\r\n\r\n";

fn scene(policy: &str) -> SceneBuilder {
    Scene::new().policy(policy).ports([8443]).origins(|_| Behaviour::Echo)
}

impl Desk {
    /// Starts a gateway with an admin socket; `admin` are further tables about it.
    pub fn start(scene: SceneBuilder, admin: &str) -> Option<Desk> {
        Desk::start_in(tempfile::tempdir().unwrap(), scene, admin)
    }

    /// The same, with a state that outlives a restart.
    pub fn start_with_state(scene: SceneBuilder, admin: &str) -> Option<Desk> {
        let folder = tempfile::tempdir().unwrap();
        let state = format!("[state]\npath = {:?}\n{admin}", folder.path().join("state"));
        Desk::start_in(folder, scene, &state)
    }

    fn start_in(folder: TempDir, scene: SceneBuilder, admin: &str) -> Option<Desk> {
        if which("curl").is_none() {
            eprintln!("skipped: curl is not installed");
            return None;
        }
        // Other users reach the socket through it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let socket = folder.path().join("admin.sock");
        let scene = scene.configure(|config| {
            config.listen = format!("admin = {:?}\n", format!("unix:{}", socket.display()));
            config.policy.push_str(admin);
        });
        Some(Desk { scene: scene.start()?, folder })
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Asks as curl does: the status and the body.
    pub fn ask(&self, method: &str, path: &str, body: Option<&str>) -> (u16, Value) {
        answer(&self.run(curl(&self.socket(), method, path, body)))
    }

    /// Asks a gateway that may die meanwhile.
    pub fn try_ask(&self, method: &str, path: &str, body: Option<&str>) -> Option<(u16, Value)> {
        let output = self.run(curl(&self.socket(), method, path, body));
        output.status.success().then(|| answer(&output))
    }

    /// The same as another user.
    pub fn ask_as(&self, uid: u32, method: &str, path: &str, body: Option<&str>) -> (u16, Value) {
        let mut other = command("setpriv");
        let ask = curl(&self.socket(), method, path, body);
        other
            .args(["--reuid", &uid.to_string(), "--clear-groups"])
            .arg(ask.get_program())
            .args(ask.get_args());
        answer(&self.run(other))
    }

    /// Runs a program on the gateway's host, where alone callers are heard.
    fn run(&self, mut program: Command) -> Output {
        program.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.scene.lab().gateway().spawn(&mut program).unwrap().wait_with_output().unwrap()
    }

    pub fn sandbox_events(&self) -> Vec<Value> {
        self.scene.gateway().audit().into_iter().filter(|line| line["event"] == "sandbox").collect()
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests start programs")]
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).env_remove("http_proxy").env_remove("HTTP_PROXY");
    command
}

fn which(program: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];
    folders.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.exists())
}

fn curl(socket: &Path, method: &str, path: &str, body: Option<&str>) -> Command {
    let mut curl = command("curl");
    curl.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", "-X", method, "--unix-socket"]).arg(socket);
    if let Some(body) = body {
        curl.args(["--data-binary", body]);
    }
    curl.arg(format!("http://tidegate{path}"));
    curl
}

fn answer(output: &Output) -> (u16, Value) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{output:?}"));
    let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() };
    (status.parse().unwrap(), body)
}

/// A tunnel that is open and echoes.
fn tunnel(scene: &Scene) -> Client {
    let mut client = scene.client();
    client.send(TUNNEL);
    let response = client.response();
    assert_eq!(response.status, 200, "{response:?}");
    client
}

/// Whether every part of an answer is what the published document says of it.
pub fn check_schema(schema: &str, value: &Value) {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/admin.openapi.json")).unwrap();
    let document: Value = serde_json::from_str(&page).unwrap();
    let rooted = serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": format!("#/components/schemas/{schema}"),
        "components": document["components"],
    });
    let validator = jsonschema::validator_for(&rooted).unwrap();
    let mistakes: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(mistakes.is_empty(), "{schema}: {mistakes:#?} in {value:#}");
}

#[test]
fn status_tunnels_and_reload_are_had_through_the_socket() {
    let Some(desk) = Desk::start(scene(POLICY), "") else { return };
    assert_eq!(fs::metadata(desk.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, status) = desk.ask("GET", "/v1/status", None);
    check_schema("Status", &status);
    assert_eq!((code, &status["ready"], &status["tunnels"]), (200, &Value::Bool(true), &0.into()));
    assert_eq!(desk.ask("GET", "/v1/ready", None).0, 200);
    let (_, document) = desk.ask("GET", "/v1/openapi.json", None);
    assert_eq!(document["openapi"], "3.1.0");

    let mut open = tunnel(&desk.scene);
    open.send(b"12345");
    assert_eq!(open.take(5), b"12345");
    let (_, tunnels) = desk.ask("GET", "/v1/tunnels?sandbox=s1", None);
    check_schema("Tunnels", &tunnels);
    let one = &tunnels["tunnels"][0];
    assert_eq!((&one["sandbox"], &one["bytes_up"], &one["bytes_down"]), (&"s1".into(), &5.into(), &5.into()));
    assert_eq!(desk.ask("GET", "/v1/tunnels?sandbox=s2", None).1["count"], 0);
    let id = one["id"].as_str().unwrap().to_owned();
    assert_eq!(desk.ask("DELETE", &format!("/v1/tunnels/{id}"), None).0, 200);
    open.read_to_end();
    let close = |line: &Value| line["event"] == "close" && line["reason"] == "ended_by_operator";
    eventually("its end is on record", || desk.scene.gateway().audit().iter().any(close).then_some(()));
    let events = desk.sandbox_events();
    let by = rustix::process::getuid().as_raw();
    assert_eq!(
        (&events[0]["change"], &events[0]["tunnel"], &events[0]["by"]),
        (&"end_tunnel".into(), &id.into(), &by.into())
    );
    let (code, gone) = desk.ask("DELETE", "/v1/tunnels/0-0-0", None);
    check_schema("Problem", &gone);
    assert_eq!((code, &gone["code"]), (404, &"not_found".into()));

    let (code, reloaded) = desk.ask("POST", "/v1/reload", None);
    check_schema("Reloaded", &reloaded);
    assert_eq!((code, &reloaded["policy_generation"]), (200, &2.into()));
    let file = desk.scene.gateway().config_file();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("allow =", "alow =")).unwrap();
    let (code, refused) = desk.ask("POST", "/v1/reload", None);
    check_schema("Problem", &refused);
    assert_eq!((code, &refused["code"]), (422, &"mistakes".into()));
    assert!(refused["mistakes"][0]["what"].as_str().unwrap().contains("alow"), "{refused}");
    let refusal = |line: &Value| line["event"] == "reload" && line["ok"] == false && line["by"] == by;
    eventually("it is on record", || desk.scene.gateway().audit().iter().any(refusal).then_some(()));
}

#[test]
fn what_is_not_there_is_told_as_a_problem() {
    let Some(desk) = Desk::start(scene(POLICY), "") else { return };
    for (method, path, status, code) in [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/status/", 404, "not_found"),
        ("POST", "/v1/status", 405, "method_not_allowed"),
        ("GET", "/v1/reload", 405, "method_not_allowed"),
        ("GET", "/v1/tunnels?sandbox=a%20b", 404, "not_found"),
    ] {
        let (found, problem) = desk.ask(method, path, None);
        check_schema("Problem", &problem);
        assert_eq!((found, &problem["code"]), (status, &code.into()), "{method} {path}");
    }
}

#[test]
fn callers_from_another_namespace_are_refused_whatever_their_uid() {
    let Some(desk) = Desk::start(scene(POLICY), "[admin]\noperators = [65534]\n") else { return };
    assert_eq!(fs::metadata(desk.socket()).unwrap().permissions().mode() & 0o777, 0o666);
    for namespace in [&["-n"][..], &["-U", "-r"], &["-U", "-r", "-n"]] {
        // From the lab's host, where the gateway is, and one step further.
        let mut inside = command("unshare");
        let ask = curl(&desk.socket(), "GET", "/v1/status", None);
        inside.args(namespace).arg(ask.get_program()).args(ask.get_args());
        let output = desk.run(inside);
        if output.stdout.is_empty() {
            eprintln!("skipped: unshare {namespace:?}: {}", String::from_utf8_lossy(&output.stderr));
            continue;
        }
        let (status, problem) = answer(&output);
        check_schema("Problem", &problem);
        assert_eq!((status, &problem["code"]), (403, &"wrong_namespace".into()), "{namespace:?}");
    }
}

#[test]
fn a_uid_may_do_what_its_role_says() {
    if !rustix::process::getuid().is_root() || which("setpriv").is_none() {
        eprintln!("skipped: other users need root and setpriv");
        return;
    }
    let admin = "[admin]\nreaders = [61001]\noperators = [61002]\n[admin.tenant.ci]\nuids = [61003]\n";
    let Some(desk) = Desk::start(scene(POLICY), admin) else { return };
    let _open = tunnel(&desk.scene);
    let ask = |uid: u32, method: &str, path: &str| desk.ask_as(uid, method, path, None);
    for (uid, see, operate) in [(61001, 200, 403), (61002, 200, 200), (61003, 200, 403), (61004, 403, 403)] {
        assert_eq!(ask(uid, "GET", "/v1/status").0, see, "uid {uid}");
        assert_eq!(ask(uid, "POST", "/v1/reload").0, operate, "uid {uid}");
        assert_eq!(ask(uid, "GET", "/v1/openapi.json").0, 200, "uid {uid}");
    }
    assert_eq!(ask(61001, "GET", "/v1/tunnels").1["count"], 1);
    assert_eq!(ask(61003, "GET", "/v1/tunnels").1["count"], 0, "a tenant sees its own");
    let id = ask(61001, "GET", "/v1/tunnels").1["tunnels"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(ask(61001, "DELETE", &format!("/v1/tunnels/{id}")).0, 403);
    assert_eq!(ask(61003, "DELETE", &format!("/v1/tunnels/{id}")).0, 404, "a tenant ends its own");
}

/// Nothing that a client of the proxy may write names a unix socket, nor the listener of the metrics.
#[test]
fn the_controls_are_reached_by_no_spelling() {
    let Some(desk) = Desk::start(scene(POLICY), "") else { return };
    let socket = desk.socket();
    let socket = socket.to_str().unwrap();
    let escaped = socket.replace('/', "%2F");
    let mut targets = Vec::new();
    for host in [
        format!("unix:{socket}"),
        format!("unix:{socket}:80"),
        format!("[unix:{socket}]:80"),
        format!("{escaped}:80"),
        format!("{socket}:80"),
        "localhost:9464".to_owned(),
        "127.0.0.1:9464".to_owned(),
        "127.1:9464".to_owned(),
        "2130706433:9464".to_owned(),
        "0x7f000001:9464".to_owned(),
        "0:9464".to_owned(),
        "[::1]:9464".to_owned(),
        "[::ffff:127.0.0.1]:9464".to_owned(),
        "[::]:9464".to_owned(),
        "0.0.0.0:9464".to_owned(),
        "10.200.0.1:9464".to_owned(),
        "203.0.113.1:9464".to_owned(),
        "[64:ff9b::7f00:1]:9464".to_owned(),
    ] {
        targets.push(format!("CONNECT {host} HTTP/1.1\r\n\r\n"));
        targets.push(format!("GET http://{host}/v1/status HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
    for scheme in ["unix", "http+unix", "file", "unix:http"] {
        targets.push(format!("GET {scheme}://{socket}/v1/status HTTP/1.1\r\nHost: a\r\n\r\n"));
        targets.push(format!("GET {scheme}://{escaped}/v1/status HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    for target in targets {
        let mut client = desk.scene.client();
        client.send(target.as_bytes());
        let status = client.response().status;
        assert!((400..500).contains(&status), "{status}: {target}");
    }
    assert_eq!(desk.ask("GET", "/v1/status", None).1["tunnels"], 0);
}
