//! The audit log of real traffic, and the verbs that read it.

use std::{fs, path::Path};

use hickory_proto::rr::RecordType;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{PROXY_DNS, Scene, ask, eventually, run_tidegate};

/// A scene in which one thing was allowed and one denied, each through every inbound.
fn contacted() -> Option<Scene> {
    let scene = Scene::new()
        .allow(&["api.example.com:80,443"])
        .resolving("api.example.com", &["A 203.0.113.10"])
        .start()?;
    for (host, status) in [("api.example.com", 200), ("attacker.test", 403)] {
        let mut client = scene.client();
        client.send(format!("CONNECT {host}:443 HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(client.response().status, status);
        let mut client = scene.client();
        client.send(format!("GET http://{host}/p?secret=1 HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        assert_eq!(client.response().status, status);
        let _ = scene.client().socks5(host, 443);
        ask(scene.lab(), PROXY_DNS.parse().unwrap(), host, RecordType::A).unwrap();
    }
    eventually("every stream has ended", || {
        let closed = scene.gateway().audit().iter().filter(|line| line["event"] == "close").count();
        (closed == 3).then_some(())
    });
    Some(scene)
}

fn printed(scene: &Scene, args: &[&str]) -> String {
    let config = scene.gateway().config_file();
    let output =
        run_tidegate(scene.lab(), args.iter().copied().chain(["--config", config.to_str().unwrap()]));
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_line_of_real_traffic_fits_the_published_schema() {
    let Some(scene) = contacted() else { return };
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/audit.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let lines = scene.gateway().audit();
    for line in &lines {
        let errors: Vec<_> = schema.iter_errors(line).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{line}: {errors:?}");
    }
    let count: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
    assert_eq!(count, 8, "one for each attempt: {lines:#?}");
    assert!(!scene.gateway().audit_text().contains("secret"));
}

#[test]
fn log_shows_the_denials_of_one_sandbox() {
    let Some(scene) = contacted() else { return };
    let rows = printed(&scene, &["log", "--denied", "--sandbox", "s1"]);
    let inbounds: Vec<_> = rows.lines().map(|row| row.split_whitespace().nth(3).unwrap()).collect();
    assert_eq!(inbounds, ["connect", "http", "socks5", "dns"], "{rows}");
    assert!(rows.lines().all(|row| row.contains("attacker.test") && row.contains("not_listed")), "{rows}");
    assert_eq!(printed(&scene, &["log", "--sandbox", "another"]), "");
    let lines = printed(&scene, &["log", "--json"]);
    assert_eq!(lines, scene.gateway().audit_text(), "as they were written");
}

#[test]
fn domains_shows_one_row_a_destination() {
    let Some(scene) = contacted() else { return };
    let rows: Value = serde_json::from_str(&printed(&scene, &["domains", "--json"])).unwrap();
    let short =
        |row: &Value| json!([row["host"], row["port"], row["allowed"], row["denied"], row["reasons"]]);
    let rows: Vec<Value> = rows.as_array().unwrap().iter().map(short).collect();
    let one = json!({"not_listed": 1});
    assert_eq!(
        rows,
        [
            json!(["api.example.com", null, 1, 0, {}]),
            json!(["api.example.com", 80, 1, 0, {}]),
            json!(["api.example.com", 443, 2, 0, {}]),
            json!(["attacker.test", null, 0, 1, one]),
            json!(["attacker.test", 80, 0, 1, one]),
            json!(["attacker.test", 443, 0, 2, {"not_listed": 2}]),
        ]
    );
}

#[test]
fn after_sighup_lines_go_to_a_new_file() {
    let Some(scene) = Scene::new().start() else { return };
    let deny = |host: &str| {
        let mut client = scene.client();
        client.send(format!("CONNECT {host}:443 HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(client.response().status, 403);
    };
    let log = scene.gateway().dir().join("audit.jsonl");
    let moved = scene.gateway().dir().join("moved.jsonl");
    deny("before.test");
    fs::rename(&log, &moved).unwrap();
    deny("between.test");
    scene.gateway().signal(Signal::HUP);
    eventually("a new file", || log.exists().then_some(()));
    deny("after.test");
    let hosts = |path: &Path| -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|line| line["host"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(hosts(&moved), ["before.test", "between.test"]);
    assert_eq!(hosts(&log), ["after.test"]);
}
