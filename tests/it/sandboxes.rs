//! Sandboxes that come and go while traffic flows, through the admin socket: added, paused, expired, removed, and still
//! so after a crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

mod streams;

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate::lab::origin::Behaviour;

use crate::admin::{Desk, check_schema};
use crate::identity::connect_by_unix;
use crate::support::{Client, Scene, eventually, run_tidegate};

/// One sandbox of the config, known by a token, so that others may be known by theirs.
const POLICY: &str = "[policy.case]\nallow = [\"198.51.100.9:8443\"]\n[policy.other]\nallow = [\"198.51.100.9:8444\"]\n\
    [sandbox.fixed]\npolicies = [\"case\"]\nlabels = { team = \"a\" }\n\
    identify = [{ token_sha256 = \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

/// Whose SHA-256 stands there.
const FIXED: &str = "test";

fn desk(admin: &str) -> Option<Desk> {
    let scene = Scene::new().policy(POLICY).ports([8443, 8444]).origins(|_| Behaviour::Echo);
    Desk::start_with_state(scene, admin)
}

/// Asks for a tunnel with a token: the status, the reason, and the client.
fn connect(scene: &Scene, token: &str, port: u16) -> (u16, Option<String>, Client) {
    let mut client = scene.client();
    let head = format!("CONNECT 198.51.100.9:{port} HTTP/1.1\r\nProxy-Authorization: Bearer {token}\r\n\r\n");
    client.send(head.as_bytes());
    let response = client.response();
    (response.status, response.reason().map(str::to_owned), client)
}

fn outcome(scene: &Scene, token: &str, port: u16) -> (u16, Option<String>) {
    let (status, reason, _) = connect(scene, token, port);
    (status, reason)
}

fn denied(status: u16, reason: &str) -> (u16, Option<String>) {
    (status, Some(reason.to_owned()))
}

fn echoes(client: &mut Client, text: &[u8]) {
    client.send(text);
    assert_eq!(client.take(text.len()), text);
}

fn add(desk: &Desk, body: &Value) -> (String, String) {
    let (status, added) = desk.ask("POST", "/v1/sandboxes", Some(&body.to_string()));
    assert_eq!(status, 201, "{added}");
    check_schema("Added", &added);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&added["sandbox"]["id"]), text(&added["token"]))
}

/// The reasons with which tunnels of a sandbox were closed.
fn closes(desk: &Desk, sandbox: &str) -> Vec<Value> {
    let audit = desk.scene.gateway().audit();
    let its = audit.into_iter().filter(|line| line["event"] == "close" && line["sandbox"] == sandbox);
    its.map(|line| line["reason"].clone()).collect()
}

/// What happened to a sandbox, and by whom.
fn changes(desk: &Desk, sandbox: &str) -> Vec<(String, Value)> {
    let events = desk.sandbox_events().into_iter().filter(|line| line["sandbox"] == sandbox);
    events.map(|line| (line["change"].as_str().unwrap().to_owned(), line["by"].clone())).collect()
}

fn own_uid() -> Value {
    rustix::process::getuid().as_raw().into()
}

#[test]
fn a_sandbox_lives_from_add_to_remove_while_its_tunnel_runs() {
    let Some(desk) = desk("") else { return };
    let scene = &desk.scene;
    let body = json!({ "id": "agent-7", "policies": ["case"], "labels": { "workspace": "w-12" } });
    let (id, token) = add(&desk, &body);
    assert_eq!(id, "agent-7");
    let (status, again) = desk.ask("POST", "/v1/sandboxes", Some(&body.to_string()));
    assert_eq!((status, &again["code"]), (409, &"conflict".into()));
    // The token is nowhere but in that answer.
    let kept = fs::read_to_string(desk.state().join("sandboxes/agent-7.json")).unwrap();
    let (_, shown) = desk.ask("GET", "/v1/sandboxes/agent-7", None);
    check_schema("Sandbox", &shown);
    assert!(!kept.contains(&token) && !shown.to_string().contains(&token));
    assert_eq!(
        (&shown["state"], &shown["created_by"], &shown["labels"]["workspace"]),
        (&"active".into(), &own_uid(), &"w-12".into())
    );

    let (status, _, mut open) = connect(scene, &token, 8443);
    assert_eq!(status, 200);
    echoes(&mut open, b"one");
    assert_eq!(outcome(scene, &token, 8444), denied(403, "port_not_allowed"));
    let (_, denials) = desk.ask("GET", "/v1/sandboxes/agent-7/denials", None);
    check_schema("Denials", &denials);
    assert_eq!(
        (&denials["denials"][0]["reason"], &denials["denials"][0]["port"]),
        (&"port_not_allowed".into(), &8444.into())
    );

    // A wider policy, with the tunnel left alone.
    let (status, updated) =
        desk.ask("PATCH", "/v1/sandboxes/agent-7", Some(r#"{"policies":["case","other"],"labels":null}"#));
    check_schema("Added", &updated);
    assert_eq!((status, &updated["sandbox"]["labels"]), (200, &json!({})));
    assert_eq!(outcome(scene, &token, 8444).0, 200);
    echoes(&mut open, b"two");

    // Kept tunnels stand still.
    assert_eq!(desk.ask("POST", "/v1/sandboxes/agent-7/pause", None).1["state"], "paused");
    assert_eq!(outcome(scene, &token, 8443), denied(403, "sandbox_paused"));
    open.send(b"three");
    assert!(!open.read_more(Duration::from_millis(300)), "a byte passed while paused");
    assert!(!open.ended(), "the tunnel is kept");
    let (_, tunnels) = desk.ask("GET", "/v1/tunnels?sandbox=agent-7", None);
    assert_eq!(tunnels["tunnels"][0]["bytes_up"], 6);
    assert_eq!(desk.ask("POST", "/v1/sandboxes/agent-7/resume", None).1["state"], "active");
    assert_eq!(open.take(5), b"three");

    // Removed: the tunnel is cut, the token opens nothing.
    let (status, removed) = desk.ask("DELETE", "/v1/sandboxes/agent-7", None);
    check_schema("Removed", &removed);
    assert_eq!(status, 200);
    open.read_to_end();
    assert_eq!(outcome(scene, &token, 8443).0, 407);
    eventually("the cut is on record", || {
        closes(&desk, "agent-7").contains(&"policy_changed".into()).then_some(())
    });
    let by = own_uid();
    let expected =
        ["add", "update", "pause", "resume", "remove"].map(|change| (change.to_owned(), by.clone()));
    assert_eq!(changes(&desk, "agent-7"), expected);
    assert_eq!(desk.ask("GET", "/v1/sandboxes/agent-7", None).0, 404);
    assert!(!desk.state().join("sandboxes/agent-7.json").exists());
    assert_eq!(outcome(scene, FIXED, 8443).0, 200, "the one of the config was left alone");
}

#[test]
fn a_sandbox_of_the_config_is_paused_with_its_tunnels_cut_and_stays_so_after_a_restart() {
    let Some(mut desk) = desk("") else { return };
    let (status, _, mut open) = connect(&desk.scene, FIXED, 8443);
    assert_eq!(status, 200);
    let body = Some(r#"{"tunnels":"cut"}"#);
    assert_eq!(desk.ask("POST", "/v1/sandboxes/fixed/pause", body).1["state"], "paused");
    open.read_to_end();
    eventually("the cut is on record", || {
        closes(&desk, "fixed").contains(&"sandbox_paused".into()).then_some(())
    });
    for (method, path) in [("DELETE", "/v1/sandboxes/fixed"), ("PATCH", "/v1/sandboxes/fixed")] {
        assert_eq!(desk.ask(method, path, Some("{}")).1["code"], "conflict", "{method}");
    }
    desk.scene.restart();
    assert_eq!(outcome(&desk.scene, FIXED, 8443), denied(403, "sandbox_paused"));
    // A reload changes nothing of it either.
    assert_eq!(desk.ask("POST", "/v1/reload", None).0, 200);
    assert_eq!(outcome(&desk.scene, FIXED, 8443), denied(403, "sandbox_paused"));
    assert_eq!(desk.ask("POST", "/v1/sandboxes/fixed/resume", None).0, 200);
    assert_eq!(outcome(&desk.scene, FIXED, 8443).0, 200);
    assert_eq!(desk.ask("POST", "/v1/sandboxes/fixed/resume", None).0, 409);
    assert!(!desk.state().join("sandboxes/fixed.json").exists());
}

#[test]
fn time_to_live_and_idle_timeout_end_a_sandbox_and_its_tunnels() {
    let Some(mut desk) = desk("") else { return };
    let started = Instant::now();
    let (brief, its_token) = add(&desk, &json!({ "policies": ["case"], "ttl": "2s" }));
    let (idle, idle_token) = add(&desk, &json!({ "id": "idle", "policies": ["case"], "idle_timeout": "2s" }));
    let (busy, busy_token) = add(&desk, &json!({ "id": "busy", "policies": ["case"], "idle_timeout": "2s" }));
    let (.., mut its) = connect(&desk.scene, &its_token, 8443);
    let (.., mut idles) = connect(&desk.scene, &idle_token, 8443);
    let (.., mut busys) = connect(&desk.scene, &busy_token, 8443);
    echoes(&mut its, b"x");
    // Bytes in an open tunnel are activity as much as a new attempt is.
    let is_over = |id: &str| desk.ask("GET", &format!("/v1/sandboxes/{id}"), None).1["state"] == "expired";
    eventually("the idle one is over", || {
        echoes(&mut busys, b"x");
        is_over(&idle).then_some(())
    });
    its.read_to_end();
    idles.read_to_end();
    assert!(started.elapsed() >= Duration::from_secs(2));
    for (id, token) in [(&brief, &its_token), (&idle, &idle_token)] {
        assert_eq!(outcome(&desk.scene, token, 8443), denied(403, "sandbox_expired"));
        eventually("its end is told", || {
            let told = changes(&desk, id).contains(&("expiry".to_owned(), Value::Null));
            (told && closes(&desk, id).contains(&"sandbox_expired".into())).then_some(())
        });
    }
    echoes(&mut busys, b"y");
    // Over is over, whatever a restart may think of the time.
    desk.scene.restart();
    assert_eq!(outcome(&desk.scene, &idle_token, 8443), denied(403, "sandbox_expired"));
    // More time brings it back, and clean-up takes only what is over.
    let (status, _) = desk.ask("PATCH", "/v1/sandboxes/idle", Some(r#"{"idle_timeout":null,"ttl":"1h"}"#));
    assert_eq!((status, outcome(&desk.scene, &idle_token, 8443).0), (200, 200));
    assert_eq!(desk.ask("DELETE", "/v1/sandboxes", None).0, 400);
    let (_, removed) = desk.ask("DELETE", "/v1/sandboxes?state=expired", None);
    check_schema("Removed", &removed);
    assert_eq!(removed["removed"], json!([brief]));
    assert!(outcome(&desk.scene, &busy_token, 8443).0 == 200 && busy == "busy");
}

#[test]
fn what_cannot_be_added_is_told_with_its_key() {
    let Some(desk) = desk("") else { return };
    for (body, status, code, says) in [
        (json!({ "policies": ["cas"] }), 422, "mistakes", "did you mean"),
        (json!({ "polices": [] }), 422, "mistakes", "polices"),
        (json!({ "identify": [{ "default": true }] }), 422, "mistakes", "\"at\":\"identify[0]\""),
        (json!({ "identify": [{ "listener": "127.0.0.1:9" }] }), 409, "conflict", "no listener"),
        (json!({ "identify": [{ "listener": "unix:/run/x.sock" }] }), 409, "conflict", "as `unix`"),
        (json!({ "identify": [{ "unix": "p.sock" }] }), 422, "mistakes", "an absolute path"),
        (json!({ "id": "fixed" }), 409, "conflict", "fixed"),
        (json!({ "id": "a/b" }), 400, "bad_request", "a/b"),
        (json!({ "ttl": "soon" }), 400, "bad_request", "ttl"),
        (json!([]), 400, "bad_request", ""),
        (json!({ "labels": { "x": "y".repeat(70_000) } }), 413, "too_large", ""),
    ] {
        let (found, problem) = desk.ask("POST", "/v1/sandboxes", Some(&body.to_string()));
        check_schema("Problem", &problem);
        assert_eq!((found, &problem["code"]), (status, &code.into()), "{problem}");
        assert!(problem.to_string().contains(says), "{problem}");
    }
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let twin = json!({ "identify": [{ "token_sha256": hash }] });
    assert_eq!(desk.ask("POST", "/v1/sandboxes", Some(&twin.to_string())).1["code"], "conflict");
    assert_eq!(desk.ask("GET", "/v1/sandboxes", None).1["count"], 1, "nothing was added");
    assert!(fs::read_dir(desk.state().join("sandboxes")).unwrap().next().is_none());
}

#[test]
fn a_reload_keeps_what_was_added_and_the_config_comes_first() {
    let Some(desk) = desk("") else { return };
    let (_, token) = add(&desk, &json!({ "id": "agent", "policies": ["case", "other"] }));
    let (.., mut open) = connect(&desk.scene, &token, 8443);
    let file = desk.scene.gateway().config_file();
    let text = fs::read_to_string(&file).unwrap();
    let reload = |text: &str| {
        fs::write(&file, text).unwrap();
        assert_eq!(desk.ask("POST", "/v1/reload", None).0, 200);
    };
    // A policy that is gone opens nothing; what is left does.
    reload(&text.replace("[policy.other]", "[policy.another]"));
    assert_eq!(desk.ask("GET", "/v1/sandboxes/agent", None).1["missing"], json!(["other"]));
    echoes(&mut open, b"still here");
    assert_eq!(outcome(&desk.scene, &token, 8444), denied(403, "port_not_allowed"));
    // The config takes the name: the one that was added is not served until that is gone.
    reload(&format!("{text}\n[sandbox.agent]\n"));
    let (_, shadowed) = desk.ask("GET", "/v1/sandboxes/agent", None);
    check_schema("Sandbox", &shadowed);
    assert_eq!(shadowed["state"], "shadowed");
    open.read_to_end();
    assert_eq!(outcome(&desk.scene, &token, 8443).0, 407);
    reload(&text);
    assert_eq!(outcome(&desk.scene, &token, 8443).0, 200);
}

#[test]
fn without_a_state_nothing_is_changed_at_run_time() {
    let scene = Scene::new().policy(POLICY).ports([8443]).origins(|_| Behaviour::Echo);
    let Some(desk) = Desk::start(scene, "") else { return };
    for (method, path) in [("POST", "/v1/sandboxes"), ("POST", "/v1/sandboxes/fixed/pause")] {
        let (status, problem) = desk.ask(method, path, Some("{}"));
        assert_eq!((status, &problem["code"]), (409, &"conflict".into()));
        assert!(problem["detail"].as_str().unwrap().contains("[state]"), "{problem}");
    }
    assert_eq!(outcome(&desk.scene, FIXED, 8443).0, 200);
}

#[test]
fn a_tenant_has_its_own_sandboxes_and_its_own_policies() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: other users need root");
        return;
    }
    let Some(desk) = desk("[admin.tenant.ci]\nuids = [61003]\npolicies = [\"case\"]\n") else { return };
    let (other, _) =
        add(&desk, &json!({ "id": "other", "policies": ["case"], "labels": { "tenant": "cd" } }));
    let ask = |method: &str, path: &str, body: Option<&Value>| {
        let body = body.map(Value::to_string);
        desk.ask_as(61003, method, path, body.as_deref())
    };
    let (status, mine) = ask("POST", "/v1/sandboxes", Some(&json!({ "id": "mine", "policies": ["case"] })));
    assert_eq!((status, &mine["sandbox"]["labels"]["tenant"]), (201, &"ci".into()), "{mine}");
    for body in [
        json!({ "policies": ["other"] }),
        json!({ "labels": { "tenant": "cd" } }),
        json!({ "identify": [{ "source": "10.0.0.0/24" }] }),
        json!({ "mode": "learn", "until": "2099-01-01T00:00:00Z" }),
        json!({ "internal": [] }),
        json!({ "identify": [{ "token": true, "unix": "/run/tenant/proxy.sock" }] }),
    ] {
        let (status, refused) = ask("POST", "/v1/sandboxes", Some(&body));
        assert!(matches!(status, 403 | 422), "{body}: {refused}");
    }
    let (status, refused) = ask("PATCH", "/v1/sandboxes/mine", Some(&json!({ "policies": ["other"] })));
    assert_eq!((status, &refused["code"]), (403, &"not_permitted".into()));
    assert_eq!(ask("PATCH", "/v1/sandboxes/mine", Some(&json!({ "labels": { "tenant": "cd" } }))).0, 403);
    let (_, list) = ask("GET", "/v1/sandboxes", None);
    check_schema("Sandboxes", &list);
    assert_eq!((&list["count"], &list["sandboxes"][0]["id"]), (&1.into(), &"mine".into()));
    for name in [&other, "fixed"] {
        for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/denials")] {
            assert_eq!(
                ask(method, &format!("/v1/sandboxes/{name}{path}"), None).0,
                404,
                "{method} {name}{path}"
            );
        }
    }
    assert_eq!(ask("DELETE", "/v1/sandboxes/mine", None).0, 200);
    assert_eq!(changes(&desk, "mine").last().unwrap(), &("remove".to_owned(), 61003.into()));
}

/// Asks a gateway that may die meanwhile.
fn try_ask(desk: &Desk, method: &str, path: &str, body: &str) -> Option<u16> {
    desk.try_ask(method, path, (!body.is_empty()).then_some(body)).map(|(status, _)| status)
}

/// Writers add, pause and remove while the gateway is killed again and again. What stands after each restart is what was
/// acknowledged last, or what was in flight when it died. More by hand: TIDEGATE_ROUNDS=65 makes more than 500 writes.
#[test]
fn after_kill_9_the_state_is_one_that_was_acknowledged() {
    let Some(mut desk) = desk("") else { return };
    let writes = AtomicUsize::new(0);
    // What each sandbox may be: absent, active or paused.
    let mut known: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for round in 0..rounds() {
        let names: Vec<String> = (0..3).map(|writer| format!("w{writer}")).collect();
        let starts: Vec<&str> = names
            .iter()
            .map(|name| *known.get(name).and_then(|states| states.first()).unwrap_or(&"absent"))
            .collect();
        let ended: Vec<BTreeSet<&str>> = thread::scope(|scope| {
            let running: Vec<_> = names
                .iter()
                .zip(starts)
                .map(|(name, start)| {
                    let (desk, writes) = (&desk, &writes);
                    scope.spawn(move || {
                        let mut state = start;
                        loop {
                            let path = format!("/v1/sandboxes/{name}");
                            let body = json!({ "id": name, "policies": ["case"] }).to_string();
                            let (status, next) = match state {
                                "absent" => (try_ask(desk, "POST", "/v1/sandboxes", &body), "active"),
                                "active" => (try_ask(desk, "POST", &format!("{path}/pause"), ""), "paused"),
                                _ => (try_ask(desk, "DELETE", &path, ""), "absent"),
                            };
                            match status {
                                Some(200 | 201) => state = next,
                                // It died: this one was in flight.
                                None => return BTreeSet::from([state, next]),
                                Some(other) => panic!("{name}: {other} from {state} to {next}"),
                            }
                            writes.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            let before = writes.load(Ordering::Relaxed);
            // At another moment of its work each time.
            let wanted = 5 + (round * 7 % 11) as usize;
            eventually("writes", || (writes.load(Ordering::Relaxed) >= before + wanted).then_some(()));
            desk.scene.gateway().signal(Signal::KILL);
            running.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        desk.scene.restart();
        let (_, list) = desk.ask("GET", "/v1/sandboxes", None);
        known.clear();
        for (name, may_be) in names.iter().zip(ended) {
            let listed = list["sandboxes"].as_array().unwrap();
            let found = listed.iter().find(|sandbox| sandbox["id"] == **name);
            let is = found.map_or("absent", |sandbox| sandbox["state"].as_str().unwrap());
            let is =
                *may_be.get(is).unwrap_or_else(|| panic!("round {round}: {name} is {is}, not {may_be:?}"));
            known.insert(name.clone(), BTreeSet::from([is]));
        }
        assert_eq!(
            list["count"].as_u64().unwrap(),
            1 + known.values().filter(|states| !states.contains("absent")).count() as u64
        );
    }
    let writes = writes.into_inner() as u64;
    println!("{writes} writes, {} times killed", rounds());
    assert!(writes > 7 * rounds(), "too few writes to tell: {writes}");
}

/// Add, a tunnel, remove: memory and descriptors return to where they were. More by hand: TIDEGATE_CYCLES=24000.
#[test]
fn many_sandboxes_that_come_and_go_leave_nothing_behind() {
    let Some(desk) = desk("") else { return };
    let cycles = cycles();
    let pid = desk.scene.gateway().pid().as_raw_nonzero();
    let descriptors = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let cycle = |number: usize| {
        let name = format!("s{number}");
        let body = json!({ "id": name, "policies": ["case"], "idle_timeout": "1h" }).to_string();
        let token = format!("{number:064x}");
        let hash = sha256(&token);
        let body = body.replace("\"id\"", &format!("\"identify\":[{{\"token_sha256\":\"{hash}\"}}],\"id\""));
        assert_eq!(try_ask(&desk, "POST", "/v1/sandboxes", &body), Some(201));
        let (status, _, mut client) = connect(&desk.scene, &token, 8443);
        assert_eq!(status, 200);
        echoes(&mut client, b"hello");
        assert_eq!(outcome(&desk.scene, &token, 8444).0, 403);
        assert_eq!(try_ask(&desk, "DELETE", &format!("/v1/sandboxes/{name}"), ""), Some(200));
        client.read_to_end();
    };
    let warm = cycles / 4;
    (0..warm).for_each(cycle);
    let before = (descriptors(), resident());
    (warm..cycles).for_each(cycle);
    eventually("descriptors are back", || (descriptors() <= before.0 + 2).then_some(()));
    let grown = resident().saturating_sub(before.1);
    assert!(grown < 4096, "{grown} kB more after {cycles} cycles");
    assert_eq!(desk.ask("GET", "/v1/sandboxes", None).1["count"], 1);
}

fn cycles() -> usize {
    asked("TIDEGATE_CYCLES").unwrap_or(120) as usize
}

fn rounds() -> u64 {
    asked("TIDEGATE_ROUNDS").unwrap_or(8)
}

#[expect(clippy::disallowed_methods, reason = "how whoever runs it by hand asks for more")]
fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn sha256(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_command_line_adds_shows_pauses_and_removes() {
    let Some(desk) = desk("") else { return };
    let file = desk.scene.gateway().config_file();
    let run = |line: &str| {
        let words = line.split(' ').map(str::to_owned);
        let config = ["--config".to_owned(), file.to_str().unwrap().to_owned()];
        let verb = words.clone().take(1).chain(config).chain(words.skip(1));
        let output = run_tidegate(desk.scene.lab(), verb);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, token, told) = run("sandbox add agent-7 --policy case --label tool=x --ttl 1h");
    assert_eq!(code, 0, "{told}");
    let token = token.trim_end();
    assert_eq!(outcome(&desk.scene, token, 8443).0, 200);
    assert_eq!(outcome(&desk.scene, token, 8444).0, 403);
    let (_, list, _) = run("sandbox list");
    assert!(list.lines().any(|row| row.starts_with("agent-7 ") && row.contains(" active ")), "{list}");
    let (_, denials, _) = run("sandbox show agent-7 --denials");
    assert!(denials.contains("198.51.100.9:8444 port_not_allowed"), "{denials}");
    assert_eq!(run("sandbox pause agent-7 --cut").0, 0);
    assert_eq!(outcome(&desk.scene, token, 8443), denied(403, "sandbox_paused"));
    let (_, status, _) = run("status");
    assert!(status.contains("1 sandboxes of the config, 1 added; 1 paused, 0 expired"), "{status}");
    assert_eq!(run("sandbox resume agent-7").0, 0);
    let (_, other, _) = run("sandbox update agent-7 --new-token");
    assert_eq!(outcome(&desk.scene, token, 8443).0, 407, "the token before opens nothing");
    assert_eq!(outcome(&desk.scene, other.trim_end(), 8443).0, 200);
    let (_, shown, _) = run("sandbox --json show agent-7");
    check_schema("Sandbox", &serde_json::from_str(&shown).unwrap());
    let (code, _, why) = run("sandbox add other --policy cas");
    assert!(code == 1 && why.contains("did you mean") && why.contains("policies[0]"), "{why}");
    assert_eq!(run("sandbox remove agent-7").1, "agent-7\n");
    assert_eq!(run("sandbox remove agent-7").0, 1);
}

#[test]
fn a_socket_comes_and_goes_with_its_sandbox_and_outlives_a_restart() {
    let Some(mut desk) = desk("") else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).join("proxy.sock");
    let own = rustix::process::geteuid().as_raw();
    let add = |desk: &Desk, id: &str, entry: Value| {
        let body = json!({ "id": id, "policies": ["case"], "identify": [entry] });
        let (status, added) = desk.ask("POST", "/v1/sandboxes", Some(&body.to_string()));
        (status, added["detail"].as_str().unwrap_or_default().to_owned())
    };
    let entry = json!({ "unix": at("a"), "uid": own, "mode": "0600", "owner": own.to_string() });
    assert_eq!(add(&desk, "a", entry).0, 201);
    let (_, shown) = desk.ask("GET", "/v1/sandboxes/a", None);
    check_schema("Sandbox", &shown);
    let mode = || fs::metadata(at("a")).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(), connect_by_unix(&at("a"), "198.51.100.9:8443").0), (0o600, 200));
    assert_eq!(connect_by_unix(&at("a"), "198.51.100.9:8444").0, 403);

    // What is refused leaves nothing behind.
    let admin = desk.socket().with_file_name("proxy.sock");
    for (entry, told) in [
        (json!({ "unix": at("a") }), "the same clients are known as sandbox a"),
        (json!({ "unix": at("a"), "uid": own + 1 }), "written otherwise for another sandbox"),
        (json!({ "unix": admin }), "in a folder that holds the admin socket"),
        // What is mounted is the folder, with all that lies below it.
        (
            json!({ "unix": admin.ancestors().nth(2).unwrap().join("x.sock") }),
            "in a folder that holds the admin socket",
        ),
        (json!({ "unix": "/proc/none/proxy.sock" }), "cannot listen on unix:/proc/none/proxy.sock"),
        (json!({ "listener": format!("unix:{}", at("b").display()) }), "write its path as `unix`"),
    ] {
        let (status, detail) = add(&desk, "b", entry);
        assert!(status == 409 && detail.contains(told), "{status} {detail}");
    }
    assert!(!at("b").parent().unwrap().exists() && !admin.exists());

    // A change moves it.
    let moved = json!({ "identify": [{ "unix": at("moved") }] });
    assert_eq!(desk.ask("PATCH", "/v1/sandboxes/a", Some(&moved.to_string())).0, 200);
    assert_eq!(connect_by_unix(&at("moved"), "198.51.100.9:8443").0, 200);
    assert!(!at("a").parent().unwrap().exists(), "the old one is gone with its folder");

    // The config wins where it knows its own sandbox by it, and gives it back.
    let taken =
        format!("[sandbox.taken]\npolicies = [\"other\"]\nidentify = [{{ unix = {:?} }}]\n", at("moved"));
    desk.scene.gateway().rewrite_config(|text| format!("{text}\n{taken}"));
    let knows = |port: u16| {
        eventually("it is known", || {
            (connect_by_unix(&at("moved"), &format!("198.51.100.9:{port}")).0 == 200).then_some(())
        })
    };
    knows(8444);
    assert_eq!(desk.ask("GET", "/v1/sandboxes/a", None).1["state"], "shadowed");
    desk.scene.gateway().rewrite_config(|text| text.replace(&taken, ""));
    knows(8443);

    // Killed and started again, it is there before the gateway is ready.
    desk.scene.gateway().signal(Signal::KILL);
    desk.scene.restart();
    assert_eq!(connect_by_unix(&at("moved"), "198.51.100.9:8443").0, 200);
    let (status, _) = desk.ask("DELETE", "/v1/sandboxes/a", None);
    assert_eq!(status, 200);
    assert!(!at("moved").parent().unwrap().exists(), "the socket is gone with its folder");
    assert_eq!(add(&desk, "a", json!({ "unix": at("a") })).0, 201, "the name is free");
}
