//! What rules ask a person: attempts are held through every inbound, answered through the admin socket and the command line,
//! and nothing of them is resolved or dialled before.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use hickory_proto::rr::RecordType;
use policy::{Approver, Consent, Term};
use serde_json::{Value, json};
use tidegate::lab::origin::Behaviour;

use crate::admin::{Desk, check_schema};
use crate::support::{
    Client, Inside, PROXY, PROXY_DNS, Scene, SceneBuilder, UNLIMITED, ask, eventually, extended_error,
    run_tidegate, verb,
};

const POLICY: &str = r#"
[policy.case]
allow = ["free.example.com:80"]
ask   = ["web.example.com:80", "*.wild.example.com:80", "echo.example.com:8443"]
[sandbox.s1]
policies = ["case"]
identify = [{ default = true }]
labels = { tenant = "ci" }
"#;

fn scene() -> SceneBuilder {
    let scene = Scene::new().policy(&format!("{POLICY}{UNLIMITED}")).ports([8443]);
    scene
        .resolving("web.example.com", &["A 203.0.113.10"])
        .resolving("echo.example.com", &["A 203.0.113.11"])
        .resolving("private.wild.example.com", &["A 10.0.0.9"])
        .origins(|to| if to.port() == 80 { Behaviour::Http } else { Behaviour::Echo })
}

impl Desk {
    /// The questions, once there are so many.
    fn questions(&self, count: usize) -> Vec<Value> {
        eventually("the questions", || {
            let (status, all) = self.ask("GET", "/v1/approvals", None);
            assert_eq!(status, 200, "{all}");
            check_schema("Approvals", &all);
            let pending = all["pending"].as_array().unwrap().clone();
            (pending.len() == count).then_some(pending)
        })
    }

    fn question(&self) -> Value {
        self.questions(1).remove(0)
    }

    fn approve(&self, question: &Value, body: &Value) -> Value {
        let path = format!("/v1/approvals/{}/approve", question["id"].as_str().unwrap());
        let (status, answer) = self.ask("POST", &path, Some(&body.to_string()));
        assert_eq!(status, 200, "{answer}");
        check_schema("Approval", &answer["approval"]);
        answer["approval"].clone()
    }

    fn revoke(&self, approval: &Value) {
        let path = format!("/v1/approvals/{}", approval["id"].as_str().unwrap());
        assert_eq!(self.ask("DELETE", &path, None).0, 200);
        assert_eq!(self.ask("DELETE", &path, None).0, 404, "it is gone");
    }

    fn approvals(&self) -> usize {
        self.ask("GET", "/v1/approvals", None).1["approvals"].as_array().unwrap().len()
    }

    /// A plain request that is sent; its answer is waited for later.
    fn sends(&self, method: &str, url: &str) -> Client {
        let mut client = self.scene.client();
        client.send(
            format!("{method} http://{url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
        );
        client
    }

    fn connects(&self, to: &str) -> Client {
        let mut client = self.scene.client();
        client.send(format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes());
        client
    }

    fn approval_events(&self) -> Vec<Value> {
        self.scene.gateway().audit().into_iter().filter(|line| line["event"] == "approval").collect()
    }

    /// The reasons of the decisions so far, `-` for none.
    fn reasons(&self) -> Vec<String> {
        let lines = self.scene.gateway().audit();
        let decisions = lines.iter().filter(|line| line["event"] == "decision");
        decisions.map(|line| line["reason"].as_str().unwrap_or("-").to_owned()).collect()
    }

    fn explains(&self, what: &str) -> (Option<i32>, Value) {
        let config = self.scene.gateway().config_file();
        let config = config.to_str().unwrap();
        let args = ["explain", "--config", config, "--sandbox", "s1", "--resolve", "--json", what];
        let output = run_tidegate(self.scene.lab(), args);
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
    }

    fn reload(&self, from: &str, to: &str) {
        self.scene.gateway().rewrite_config(|text| text.replace(from, to));
        assert_eq!(self.ask("POST", "/v1/reload", None).0, 200);
    }
}

/// Status and reason of the answer to a client.
fn told(client: &mut Client) -> (u16, Option<String>) {
    let response = client.response();
    (response.status, response.reason().map(str::to_owned))
}

fn denied(reason: &str) -> (u16, Option<String>) {
    (403, Some(reason.to_owned()))
}

/// curl on the gateway's host, on its way to `web.example.com` by these options.
fn curl(desk: &Desk, options: &[&str]) -> Child {
    #[expect(clippy::disallowed_methods, reason = "a real client")]
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"]).args(options);
    curl.arg("http://web.example.com/a?b=c").stdin(Stdio::null()).stdout(Stdio::piped());
    curl.env_remove("http_proxy").env_remove("no_proxy").env_remove("NO_PROXY");
    desk.scene.lab().gateway().spawn(&mut curl).unwrap()
}

#[test]
fn curl_is_held_until_somebody_approves_by_every_inbound() {
    let Some(desk) = Desk::start(scene(), "") else { return };
    let (http, socks) = (format!("http://{PROXY}"), format!("socks5h://{PROXY}"));
    let by = rustix::process::getuid().as_raw();
    for (inbound, options, method) in [
        ("http", &["-x", &*http][..], Some("GET")),
        ("connect", &["-p", "-x", &*http], None),
        ("socks5", &["-x", &*socks], None),
    ] {
        let mut client = curl(&desk, options);
        let question = desk.question();
        assert_eq!(
            (&question["sandbox"], &question["host"], &question["port"], &question["inbound"]),
            (&"s1".into(), &"web.example.com".into(), &80.into(), &inbound.into())
        );
        assert_eq!((question["method"].as_str(), &question["rule"]), (method, &"case.ask[0]".into()));
        assert_eq!(question["path"].as_str(), method.map(|_| "/a"), "without its query");
        assert!(client.try_wait().unwrap().is_none(), "it is held");
        let approval = desk.approve(&question, &json!({ "for": "once" }));
        let output = client.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "200", "{inbound}");
        let event = desk.approval_events().pop().unwrap();
        assert_eq!(
            (&event["change"], &event["sandbox"], &event["host"], &event["term"], &event["by"]),
            (&"approve".into(), &"s1".into(), &"web.example.com".into(), &"once".into(), &by.into())
        );
        let of_it = |line: &Value| line["event"] == "decision" && line["approval"] == approval["id"];
        let lines = desk.scene.gateway().audit();
        assert!(
            lines.iter().any(|line| of_it(line) && line["rule"] == "case.ask[0]"),
            "{inbound}: {lines:#?}"
        );
        eventually("it is used up", || (desk.approvals() == 0).then_some(()));
    }
    // Once means once.
    let mut again = desk.sends("GET", "web.example.com/a");
    desk.question();
    again.half_close();
    assert_eq!(told(&mut again), denied("approval_pending"), "a client that ends its side is not held");
    assert!(desk.questions(0).is_empty());
}

#[test]
fn invariant_4_nothing_is_resolved_or_dialled_before_somebody_approves() {
    let Some(desk) = Desk::start(scene(), "") else { return };
    let mut held = [desk.connects("web.example.com:80"), desk.sends("GET", "new.wild.example.com/")];
    desk.questions(2);
    for name in ["web.example.com", "new.wild.example.com"] {
        for kind in [RecordType::A, RecordType::AAAA, RecordType::HTTPS, RecordType::ANY] {
            let reply = ask(desk.scene.lab(), PROXY_DNS.parse().unwrap(), name, kind).unwrap();
            assert!(reply.answers.is_empty());
            assert_eq!(format!("{:?}", reply.metadata.response_code), "NXDomain", "{name} {kind}");
            assert_eq!(extended_error(&reply).unwrap().1, "approval_pending");
        }
    }
    let explain = |what: &str| {
        let (code, said) = desk.explains(what);
        (code, said["decision"].clone(), said["rule"].clone())
    };
    assert_eq!(explain("http://web.example.com/"), (Some(3), "ask".into(), "case.ask[0]".into()));
    assert_eq!(explain("new.wild.example.com"), (Some(3), "ask".into(), "case.ask[1]".into()));
    assert_eq!(explain("free.example.com").0, Some(0));
    for id in desk.questions(2).iter().map(|question| question["id"].as_str().unwrap().to_owned()) {
        let (status, answer) = desk.ask("POST", &format!("/v1/approvals/{id}/deny"), None);
        assert_eq!(status, 200, "{answer}");
        check_schema("Question", &answer["denied"]);
    }
    for client in &mut held {
        assert_eq!(told(client), denied("approval_denied"));
    }
    assert_eq!(desk.scene.client().socks5("web.example.com", 443).0, 2);
    assert!(desk.scene.dns().asked_under("example.com").iter().all(|asked| asked.name.starts_with("free")));
    assert!(desk.scene.contacts().is_empty() && desk.scene.dialled().is_empty());
    let events = desk.approval_events();
    assert_eq!(events.iter().map(|event| &event["change"]).collect::<Vec<_>>(), ["deny", "deny"]);
}

#[test]
fn nobody_answers_in_time() {
    let scene = scene().configure(|config| config.timeouts.push("approval = \"1s\"".into()));
    let Some(desk) = Desk::start(scene, "") else { return };
    assert_eq!(told(&mut desk.sends("GET", "web.example.com/")), denied("approval_timeout"));
    assert_eq!(told(&mut desk.connects("web.example.com:80")), denied("approval_timeout"));
    assert_eq!(desk.scene.client().socks5("web.example.com", 80).0, 2);
    assert_eq!(desk.reasons(), ["approval_timeout"; 3]);
    let (_, page) = desk.scene.gateway().metrics(desk.scene.lab(), "/metrics");
    assert!(page.contains("tidegate_approvals_total{outcome=\"timed_out\"} 3"), "{page}");
    assert!(page.contains("tidegate_approvals_pending 0"), "{page}");
}

#[test]
fn the_ninth_question_is_not_held_and_equal_ones_are_one() {
    let Some(desk) = Desk::start(scene(), "") else { return };
    let mut held: Vec<_> = (0..8).map(|n| desk.sends("GET", &format!("n{n}.wild.example.com/"))).collect();
    desk.questions(8);
    assert_eq!(told(&mut desk.sends("GET", "n8.wild.example.com/")), denied("approval_pending"));
    let mut second = desk.sends("GET", "n0.wild.example.com/");
    let waiting = |count: u64| {
        eventually("they wait", || {
            let all = desk.questions(8);
            let one = all.into_iter().find(|question| question["host"] == "n0.wild.example.com")?;
            (one["waiting"] == count).then_some(one)
        })
    };
    let question = waiting(2);
    // Approved once, it is approved for the one that has waited longest.
    desk.approve(&question, &json!({}));
    assert_eq!(told(&mut held[0]).0, 502, "the world does not know it");
    let rest = waiting(1);
    assert_ne!(rest["id"], question["id"]);
    desk.approve(&rest, &json!({ "for": "session" }));
    assert_eq!(told(&mut second).0, 502);
    drop(held);
    assert!(desk.questions(0).is_empty(), "whoever leaves takes its question along");
    eventually("each is on record", || (desk.reasons().len() == 10).then_some(()));
}

#[test]
fn an_approval_opens_what_it_binds_and_nothing_beside_it() {
    let Some(desk) = Desk::start(scene(), "") else { return };
    let mut first = desk.sends("GET", "web.example.com/v1/items");
    let question = desk.question();
    for (body, status) in [
        (json!({ "for": "session", "path": "/v2" }), 400),
        (json!({ "for": "for ever" }), 400),
        (json!({ "for": "60d" }), 400),
        (json!({ "until": "1h" }), 400),
    ] {
        let path = format!("/v1/approvals/{}/approve", question["id"].as_str().unwrap());
        let (found, problem) = desk.ask("POST", &path, Some(&body.to_string()));
        check_schema("Problem", &problem);
        assert_eq!(found, status, "{body}: {problem}");
    }
    let approval = desk.approve(&question, &json!({ "for": "session", "path": "/v1" }));
    assert_eq!(told(&mut first).0, 200);
    assert_eq!(told(&mut desk.sends("GET", "web.example.com/v1/other")).0, 200, "below the same path");
    for (url, decision, code) in [("v1/x", "allow", 0), ("v2", "ask", 3)] {
        let said = desk.explains(&format!("http://web.example.com/{url}"));
        assert_eq!((said.0, &said.1["decision"]), (Some(code), &decision.into()), "{}", said.1);
        let by = if code == 0 { approval["id"].clone() } else { Value::Null };
        assert_eq!(said.1["approval"], by);
    }
    for (method, to, what) in [
        ("GET", "web.example.com/v2", "another path"),
        ("GET", "web.example.com/v1/../v2", "a path that is read in two ways"),
        ("POST", "web.example.com/v1", "another method"),
        ("CONNECT", "web.example.com:80", "a stream"),
        ("GET", "a.wild.example.com/v1", "another host"),
    ] {
        let mut other = if method == "CONNECT" { desk.connects(to) } else { desk.sends(method, to) };
        desk.question();
        other.half_close();
        assert_eq!(told(&mut other), denied("approval_pending"), "{what}");
        desk.questions(0);
    }
    assert_eq!(told(&mut desk.connects("web.example.com:443")), denied("port_not_allowed"));
    // What a person approves is a name, not where it leads.
    let mut private = desk.sends("GET", "private.wild.example.com/");
    desk.approve(&desk.question(), &json!({ "for": "session" }));
    assert_eq!(told(&mut private), denied("address_not_public"));
    desk.revoke(&approval);
    let _held = desk.sends("GET", "web.example.com/v1/items");
    desk.question();
}

#[test]
fn a_tunnel_is_cut_when_its_approval_is_revoked_or_ends() {
    let Some(desk) = Desk::start(scene(), "") else { return };
    let open = |term: &str| {
        let mut tunnel = desk.connects("echo.example.com:8443");
        let approval = desk.approve(&desk.question(), &json!({ "for": term }));
        assert_eq!(tunnel.response().status, 200);
        tunnel.send(b"hello");
        assert_eq!(tunnel.take(5), b"hello");
        (tunnel, approval)
    };
    let closes = |count: usize| {
        eventually("its end is on record", || {
            let lines = desk.scene.gateway().audit();
            let cut = |line: &&Value| line["event"] == "close" && line["reason"] == "policy_changed";
            (lines.iter().filter(cut).count() == count).then_some(())
        });
    };
    let (_, status) = desk.ask("GET", "/v1/status", None);
    check_schema("Status", &status);
    for (count, term) in [(1, "session"), (2, "once")] {
        let (mut tunnel, approval) = open(term);
        assert_eq!(desk.ask("GET", "/v1/status", None).1["approvals"], 1);
        desk.revoke(&approval);
        tunnel.read_to_end();
        closes(count);
    }
    let started = Instant::now();
    let (mut tunnel, approval) = open("1s");
    assert_eq!(approval["term"], "until");
    tunnel.read_to_end();
    assert!(started.elapsed() >= Duration::from_secs(1), "not before its time");
    closes(3);
    let changes: Vec<_> = desk.approval_events().iter().map(|event| event["change"].clone()).collect();
    assert_eq!(changes, ["approve", "revoke", "approve", "revoke", "approve"]);
}

#[test]
fn the_policy_of_the_moment_decides_what_waits() {
    let Some(desk) = Desk::start(scene(), "") else { return };
    let mut held = desk.connects("web.example.com:80");
    let question = desk.question();
    desk.reload("[policy.case]", "[policy.case]\ndeny = [\"web.example.com\"]");
    assert_eq!(told(&mut held), denied("denied_by_rule"), "nobody has to answer any more");
    let path = format!("/v1/approvals/{}/approve", question["id"].as_str().unwrap());
    assert_eq!(desk.ask("POST", &path, None).0, 404);
    desk.reload("deny = [\"web.example.com\"]", "");
    let mut held = desk.sends("GET", "web.example.com/");
    desk.question();
    desk.reload("\"free.example.com:80\"", "\"free.example.com:80\", \"web.example.com:80\"");
    assert_eq!(told(&mut held).0, 200);
    assert!(desk.approval_events().is_empty());
}

#[test]
fn after_a_restart_everything_is_asked_for_again() {
    let Some(mut desk) = Desk::start(scene(), "") else { return };
    let mut first = desk.sends("GET", "web.example.com/");
    desk.approve(&desk.question(), &json!({ "for": "session" }));
    assert_eq!(told(&mut first).0, 200);
    let mut held = desk.sends("GET", "a.wild.example.com/");
    desk.question();
    desk.scene.restart();
    assert!(held.read_to_end().is_empty(), "it was not let through");
    assert_eq!((desk.questions(0).len(), desk.approvals()), (0, 0));
    let _again = desk.sends("GET", "web.example.com/");
    desk.question();
}

#[test]
fn a_caller_answers_what_its_role_lets_it() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: other users need root");
        return;
    }
    let admin = "[admin]\nreaders = [61001]\n[admin.tenant.ci]\nuids = [61003]\n[admin.tenant.other]\nuids = [61005]\n";
    let Some(desk) = Desk::start(scene(), admin) else { return };
    let mut held = desk.sends("GET", "web.example.com/");
    let id = desk.question()["id"].as_str().unwrap().to_owned();
    let (approve, deny) = (format!("/v1/approvals/{id}/approve"), format!("/v1/approvals/{id}/deny"));
    for (uid, sees, may) in [(61001, 1, 403), (61005, 0, 404)] {
        let (_, list) = desk.ask_as(uid, "GET", "/v1/approvals", None);
        assert_eq!(list["pending"].as_array().unwrap().len(), sees, "uid {uid}");
        assert_eq!(desk.ask_as(uid, "POST", &approve, None).0, may, "uid {uid}");
        assert_eq!(desk.ask_as(uid, "POST", &deny, None).0, may, "uid {uid}");
    }
    assert_eq!(desk.ask_as(61004, "GET", "/v1/approvals", None).0, 403);
    let (status, given) = desk.ask_as(61003, "POST", &approve, Some("{\"for\":\"session\"}"));
    assert_eq!((status, &given["approval"]["by"]), (200, &61003.into()));
    assert_eq!(told(&mut held).0, 200);
    let revoke = format!("/v1/approvals/{}", given["approval"]["id"].as_str().unwrap());
    for (uid, may) in [(61001, 403), (61005, 404), (61003, 200)] {
        assert_eq!(desk.ask_as(uid, "DELETE", &revoke, None).0, may, "uid {uid}");
    }
}

/// A verb that is ended by its id with this value.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_command_line_follows_and_answers() {
    let Some(desk) = Desk::start(scene(), "") else { return };
    let socket = format!("unix:{}", desk.socket().display());
    let mut held = desk.sends("GET", "web.example.com/");
    desk.question();
    let mut watch = verb(["approvals", "--admin", &socket, "--json", "watch"]);
    watch.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut watch = Watching(desk.scene.lab().gateway().spawn(&mut watch).unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    check_schema("Question", &first["data"]);
    assert_eq!((&first["event"], &first["data"]["host"]), (&"pending".into(), &"web.example.com".into()));
    let says = |args: &[&str]| {
        let args = [&["approvals", "--admin", &*socket][..], args].concat();
        let output = run_tidegate(desk.scene.lab(), args);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let id = first["data"]["id"].as_str().unwrap();
    let (code, listed) = says(&["list"]);
    assert_eq!(code, Some(0));
    assert!(listed.starts_with("waits") && listed.contains(id), "{listed}");
    assert!(listed.contains("GET web.example.com:80/"), "{listed}");
    let (code, approved) = says(&["approve", id, "--for", "1h"]);
    assert_eq!(code, Some(0));
    assert!(approved.starts_with("approved") && approved.contains("until"), "{approved}");
    assert_eq!(told(&mut held).0, 200);
    let second = next();
    check_schema("Decided", &second["data"]);
    assert_eq!((&second["event"], &second["data"]["outcome"]), (&"decided".into(), &"approved".into()));
    assert_eq!(says(&["approve", id]).0, Some(1), "it was answered");
    assert_eq!(says(&["deny", "x"]).0, Some(2));
    assert_eq!(says(&["revoke", id]).0, Some(0));
    let mut other = desk.connects("a.wild.example.com:80");
    assert_eq!(next()["event"], "pending");
    let id = desk.question()["id"].as_str().unwrap().to_owned();
    assert_eq!(says(&["deny", &id]).0, Some(0));
    assert_eq!(told(&mut other), denied("approval_denied"));
    assert_eq!(next()["data"]["outcome"], "denied");
}

/// Where nobody could answer nobody is held.
#[test]
fn without_an_admin_socket_it_is_denied_at_once() {
    let Some(scene) = scene().start() else { return };
    let mut client = scene.client();
    client.send(b"CONNECT web.example.com:80 HTTP/1.1\r\n\r\n");
    assert_eq!(told(&mut client), denied("approval_pending"));
}

#[test]
fn a_captured_connection_is_held_until_somebody_approves() {
    let inside = Inside::new(POLICY)
        .resolving("web.example.com", &["A 203.0.113.10"])
        .configure(|config| config.approvers = proxy::Approvers::Somebody)
        .origins(&[80], |_| Behaviour::Http);
    let Some(inside) = inside.start() else { return };
    let address = inside.address_of("web.example.com", RecordType::A);
    inside.takes_events(&["dns ask approval_pending web.example.com A 0"]);
    let mut client = inside.connect(SocketAddr::new(address, 80));
    client.send(b"GET /a HTTP/1.1\r\nHost: web.example.com\r\nConnection: close\r\n\r\n");
    let question = eventually("a question", || inside.gateway.desk().questions_now().pop());
    assert_eq!(question.binding.host.to_string(), "web.example.com");
    assert!(inside.asked().is_empty() && inside.dialled().is_empty() && inside.events().is_empty());
    let consent = Consent { term: Term::Once, path: None, at: dns::clock::now(), by: Approver::Uid(0) };
    inside.gateway.desk().approve(question.id, consent, |_| true).unwrap();
    inside.gateway.policy_changed();
    assert_eq!(client.response().status, 200, "what it sent ahead was kept");
    assert_eq!(inside.asked(), ["web.example.com"; 2], "both families, once somebody had approved it");

    // One that is declined is reset, and told so in its own protocol where it has spoken.
    let mut other = inside.to_name("x.wild.example.com", 80);
    other.send(b"GET / HTTP/1.1\r\nHost: x.wild.example.com\r\n\r\n");
    let question = eventually("a question", || inside.gateway.desk().questions_now().pop());
    inside.gateway.desk().deny(question.id, |_| true).unwrap();
    assert_eq!(told(&mut other), denied("approval_denied"));
    assert!(!inside.asked().iter().any(|name| name.contains("wild")), "{:?}", inside.asked());
}
