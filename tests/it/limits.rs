//! Limits of a sandbox and of a rule: what is over one is refused at once with its reason, and a neighbour notices
//! nothing.

use std::time::Duration;

use hickory_proto::{op::ResponseCode, rr::RecordType};
use serde_json::Value;
use tidegate::lab::origin::Behaviour;

use crate::support::{Client, PROXY, PROXY_DNS, Response, Scene, ask, eventually};

/// The listener of the sandbox beside.
const BESIDE: &str = "10.200.0.1:3129";

/// A sandbox `s1` with these limits, and one beside it with the usual ones.
fn scene(limits: &str) -> Option<Scene> {
    scene_with(limits, "")
}

/// The same, with limits of a rule that both sandboxes use.
fn scene_with(limits: &str, of_rule: &str) -> Option<Scene> {
    let policy = format!(
        "[policy.case]\nallow = [\"api.example.com:80,443,8443,9000\", \"*.w.example.com:443\"]\n\
         [[policy.case.rule]]\nid = \"narrow\"\nhost = \"*.rule.example.com\"\nports = [80, 443, 8443, 9000]\n\
         limits = {{ {of_rule} }}\n\
         [sandbox.s1]\npolicies = [\"case\"]\nidentify = [{{ listener = \"{PROXY}\" }}, {{ listener = \"{PROXY_DNS}\" }}]\n\
         [sandbox.s1.limits]\n{limits}\n\
         [sandbox.beside]\npolicies = [\"case\"]\nidentify = [{{ listener = \"{BESIDE}\" }}]\n"
    );
    Scene::new()
        .policy(&policy)
        .configure(|config| config.proxy = vec![PROXY.into(), BESIDE.into()])
        .resolving("api.example.com", &["A 203.0.113.10"])
        .resolving("*.w.example.com", &["A 203.0.113.11"])
        .resolving("*.rule.example.com", &["A 203.0.113.12"])
        .ports([8443, 9000])
        .origins(|to| match to.port() {
            80 => Behaviour::Http,
            8443 => Behaviour::Silent,
            _ => Behaviour::Echo,
        })
        .start()
}

/// Opens a tunnel, or is refused.
fn open(scene: &Scene, listener: &str, to: &str) -> (Client, Response) {
    let mut client = Client::connect(scene.lab(), listener.parse().unwrap());
    client.send(format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes());
    let response = client.response();
    (client, response)
}

fn told(response: &Response) -> (u16, Option<&str>) {
    (response.status, response.reason())
}

fn is_open_beside(scene: &Scene) {
    assert_eq!(open(scene, BESIDE, "api.example.com:443").1.status, 200, "a neighbour is refused");
}

fn close_of(scene: &Scene, reason: &str) -> Value {
    eventually("the close is on record", || {
        let lines = scene.gateway().audit();
        lines.into_iter().find(|line| line["event"] == "close" && line["reason"] == reason)
    })
}

fn hits(scene: &Scene, limit: &str) -> bool {
    let (_, metrics) = scene.gateway().metrics(scene.lab(), "/metrics");
    metrics.contains(&format!("tidegate_limits_hit_total{{limit=\"{limit}\"}}"))
}

#[test]
fn one_connection_too_many_is_refused_until_another_ends() {
    let Some(scene) = scene("connections = 2") else { return };
    let (first, _) = open(&scene, PROXY, "api.example.com:443");
    let mut second = scene.client();
    second.send(b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    assert_eq!(second.response().status, 200);
    let (_, refused) = open(&scene, PROXY, "api.example.com:443");
    assert_eq!(told(&refused), (429, Some("limit_connections")));
    assert!(refused.header("retry-after").is_some_and(|after| after.parse::<u32>().is_ok()));
    assert_eq!(scene.client().socks5("api.example.com", 443).0, 2);
    // A client counts once, whatever it asks for.
    second.send(b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    assert_eq!(second.response().status, 200);
    is_open_beside(&scene);
    drop(first);
    eventually("there is room again", || {
        (open(&scene, PROXY, "api.example.com:443").1.status == 200).then_some(())
    });
    assert!(hits(&scene, "limit_connections"));
}

#[test]
fn attempts_over_the_rate_are_refused_at_once_denied_ones_too() {
    let Some(scene) = scene("new_connections_per_second = 5\nrequests_per_second = 3") else { return };
    let asked: Vec<_> =
        (0..20).map(|_| open(&scene, PROXY, "other.example.com:443").1).map(|no| no.status).collect();
    assert_eq!(asked[..5], [403; 5]);
    assert!(asked.contains(&429), "{asked:?}");
    is_open_beside(&scene);
    let mut client = scene.client();
    let plain: Vec<_> = (0..10)
        .map(|_| {
            client.send(b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
            let response = client.response();
            (response.status, response.reason().map(str::to_owned))
        })
        .collect();
    assert_eq!(plain[..3], [(200, None), (200, None), (200, None)], "the rates are two");
    assert!(plain.contains(&(429, Some("limit_rate".to_owned()))), "{plain:?}");
    eventually("the rate is granted again", || {
        (open(&scene, PROXY, "api.example.com:443").1.status == 200).then_some(())
    });
}

#[test]
fn questions_over_the_rate_are_refused_at_once() {
    let Some(scene) = scene("dns_per_second = 4") else { return };
    let dns = PROXY_DNS.parse().unwrap();
    let codes: Vec<_> = (0..12)
        .map(|_| ask(scene.lab(), dns, "api.example.com", RecordType::A).unwrap().metadata.response_code)
        .collect();
    assert_eq!(codes[..4], [ResponseCode::NoError; 4]);
    assert!(codes.contains(&ResponseCode::Refused), "{codes:?}");
    assert!(hits(&scene, "limit_rate"));
}

#[test]
fn new_names_under_a_wildcard_count_over_all_inbounds() {
    let Some(scene) = scene("new_names_per_minute = 3") else { return };
    let dns = PROXY_DNS.parse().unwrap();
    let look_up = |name: &str| {
        let answer = ask(scene.lab(), dns, name, RecordType::A).unwrap();
        answer.metadata.response_code
    };
    assert_eq!(look_up("a.w.example.com"), ResponseCode::NoError);
    assert_eq!(open(&scene, PROXY, "b.w.example.com:443").1.status, 200);
    assert_eq!(scene.client().socks5("c.w.example.com", 443).0, 0);
    assert_eq!(told(&open(&scene, PROXY, "d.w.example.com:443").1), (429, Some("limit_names")));
    assert_eq!(look_up("e.w.example.com"), ResponseCode::Refused);
    assert!(scene.dns().asked_under("e.w.example.com").is_empty(), "a refused name is asked for");
    // Those that are known and those that a rule lists are not new.
    for name in ["a.w.example.com", "b.w.example.com", "api.example.com"] {
        assert_eq!(open(&scene, PROXY, &format!("{name}:443")).1.status, 200, "{name}");
        assert_eq!(look_up(name), ResponseCode::NoError, "{name}");
    }
    assert_eq!(open(&scene, BESIDE, "d.w.example.com:443").1.status, 200);
}

#[test]
fn an_upload_is_cut_at_the_byte() {
    let Some(scene) = scene("upload = \"100KiB/h\"") else { return };
    let (mut client, response) = open(&scene, PROXY, "api.example.com:8443");
    assert_eq!(response.status, 200);
    for _ in 0..30 {
        client.send(&[b'x'; 10 * 1024]);
    }
    let close = close_of(&scene, "limit_upload");
    assert_eq!(close["bytes_up"], 100 * 1024);
    let received: u64 = scene.contacts().iter().map(|contact| contact.total()).sum();
    assert!(received <= 100 * 1024, "{received} bytes have left");
    let (_, refused) = open(&scene, PROXY, "api.example.com:443");
    assert_eq!(told(&refused), (429, Some("limit_upload")));
    let after: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((3500..=3600).contains(&after), "{after}");
    is_open_beside(&scene);
    // A reload gives nothing back that was used, and a wider limit holds at once.
    scene.gateway().rewrite_config(|text| text.replace("100KiB/h", "200KiB/h"));
    eventually("the new limit is in force", || {
        (open(&scene, PROXY, "api.example.com:443").1.status == 200).then_some(())
    });
}

#[test]
fn a_download_is_cut_at_the_byte_in_a_tunnel_and_in_a_response() {
    let Some(scene) = scene("download = \"64KiB/h\"") else { return };
    let (mut client, response) = open(&scene, PROXY, "api.example.com:9000");
    assert_eq!(response.status, 200);
    let head = client.received().len();
    for _ in 0..200 {
        client.send(&[b'x'; 1024]);
        client.read_more(Duration::from_millis(1));
    }
    while client.read_more(Duration::from_secs(5)) {}
    assert_eq!(close_of(&scene, "limit_download")["bytes_down"], 64 * 1024);
    assert!(client.received().len() - head <= 64 * 1024);
    let mut plain = scene.client();
    plain.send(b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    assert_eq!(told(&plain.response()), (429, Some("limit_download")));
}

#[test]
fn a_stream_ends_with_its_life_and_after_its_rest() {
    let Some(scene) = scene("lifetime = \"1s\"") else { return };
    let (mut client, response) = open(&scene, PROXY, "api.example.com:9000");
    assert_eq!(response.status, 200);
    eventually("the tunnel is cut, though it is busy", || {
        client.send(b"x");
        client.read_more(Duration::from_millis(20));
        client.ended().then_some(())
    });
    assert_eq!(close_of(&scene, "limit_lifetime")["sandbox"], "s1");
    scene.gateway().rewrite_config(|text| text.replace("lifetime = \"1s\"", "idle = \"1s\""));
    eventually("the new limit is in force", || {
        scene.gateway().audit().into_iter().find(|line| line["event"] == "reload")
    });
    let (mut client, response) = open(&scene, PROXY, "api.example.com:9000");
    assert_eq!(response.status, 200);
    eventually("the tunnel is closed", || {
        client.read_more(Duration::from_millis(50));
        client.ended().then_some(())
    });
}

/// What a client of a sandbox gets that asks for a stream.
fn asks(scene: &Scene, listener: &str, to: &str) -> (u16, Option<String>) {
    let (_, response) = open(scene, listener, to);
    (response.status, response.reason().map(str::to_owned))
}

fn over(limit: &str) -> (u16, Option<String>) {
    (429, Some(limit.to_owned()))
}

const RULED: &str = "a.rule.example.com:443";

#[test]
fn a_rule_limits_each_sandbox_by_itself_and_nothing_beside_it() {
    let of_rule = "connections = 1, new_connections_per_second = 2";
    let Some(scene) = scene_with("", of_rule) else { return };
    let (first, response) = open(&scene, PROXY, RULED);
    assert_eq!(response.status, 200);
    assert_eq!(asks(&scene, PROXY, "b.rule.example.com:443"), over("limit_connections"));
    let (mut plain, get) =
        (scene.client(), "GET http://a.rule.example.com/ HTTP/1.1\r\nHost: a.rule.example.com\r\n\r\n");
    plain.send(get.as_bytes());
    assert_eq!(told(&plain.response()), (429, Some("limit_connections")), "its plain clients are as many");
    assert_eq!(asks(&scene, PROXY, "api.example.com:443").0, 200, "another rule");
    assert_eq!(asks(&scene, BESIDE, RULED).0, 200, "another sandbox");
    drop(first);
    eventually("there is room again", || (asks(&scene, PROXY, RULED).0 == 200).then_some(()));
    let seen = eventually("its rate is spent", || {
        Some(asks(&scene, PROXY, RULED)).filter(|it| *it == over("limit_rate"))
    });
    assert_eq!(seen, over("limit_rate"));
    is_open_beside(&scene);
    let audit = scene.gateway().audit();
    let refused = audit.iter().find(|line| line["reason"] == "limit_rate").expect("it is on record");
    assert_eq!((&refused["rule"], &refused["sandbox"]), (&"case.narrow".into(), &"s1".into()));
    assert!(hits(&scene, "limit_connections") && hits(&scene, "limit_rate"));
}

#[test]
fn a_client_that_asks_for_something_else_makes_room_under_the_rule() {
    let Some(scene) = scene_with("", "connections = 1, requests_per_second = 3") else { return };
    let (mut first, mut second) = (scene.client(), scene.client());
    let mut get = |which: u8, host: &str| {
        let client = if which == 1 { &mut first } else { &mut second };
        client.send(format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        let response = client.response();
        (response.status, response.reason().map(str::to_owned))
    };
    assert_eq!(get(1, "a.rule.example.com").0, 200);
    assert_eq!(get(2, "a.rule.example.com"), over("limit_connections"));
    assert_eq!(get(1, "api.example.com").0, 200);
    assert_eq!(get(2, "a.rule.example.com").0, 200);
    assert_eq!(get(1, "a.rule.example.com"), over("limit_connections"));
    let more: Vec<_> = (0..12).map(|_| get(2, "a.rule.example.com")).collect();
    assert!(more.contains(&over("limit_rate")), "{more:?}");
}

/// How many bytes a tunnel carries up before it is cut, as its record says.
fn carried(scene: &Scene, to: &str) -> Value {
    let closes = |scene: &Scene| {
        let lines = scene.gateway().audit().into_iter();
        lines.filter(|line| line["event"] == "close" && line["reason"] == "limit_upload").collect::<Vec<_>>()
    };
    let before = closes(scene).len();
    let (mut client, response) = open(scene, PROXY, to);
    assert_eq!(response.status, 200);
    for _ in 0..30 {
        client.send(&[b'x'; 10 * 1024]);
    }
    eventually("the close is on record", || closes(scene).get(before).cloned())["bytes_up"].clone()
}

#[test]
fn the_narrower_quota_cuts_and_a_reload_gives_nothing_back() {
    let Some(scene) = scene_with("upload = \"150KiB/h\"", "upload = \"60KiB/h\"") else { return };
    assert_eq!(carried(&scene, "a.rule.example.com:8443"), 60 * 1024);
    assert_eq!(asks(&scene, PROXY, RULED), over("limit_upload"));
    assert_eq!(asks(&scene, PROXY, "api.example.com:443").0, 200);
    scene.gateway().rewrite_config(|text| text.replace("60KiB/h", "80KiB/h"));
    eventually("the wider limit is in force", || (asks(&scene, PROXY, RULED).0 == 200).then_some(()));
    assert_eq!(carried(&scene, "a.rule.example.com:8443"), 20 * 1024, "what was used stays used");
    // What the rule has used counts for the sandbox too, which is now the narrower.
    scene.gateway().rewrite_config(|text| text.replace("80KiB/h", "800KiB/h"));
    eventually("the wider limit is in force", || (asks(&scene, PROXY, RULED).0 == 200).then_some(()));
    assert_eq!(carried(&scene, "a.rule.example.com:8443"), 70 * 1024);
    assert_eq!(asks(&scene, PROXY, "api.example.com:443"), over("limit_upload"));
    is_open_beside(&scene);
}

#[test]
fn a_stream_ends_with_the_shorter_life() {
    let Some(scene) = scene_with("lifetime = \"1h\"\nidle = \"1h\"", "lifetime = \"1s\", idle = \"1m\"")
    else {
        return;
    };
    let (mut client, response) = open(&scene, PROXY, "a.rule.example.com:9000");
    assert_eq!(response.status, 200);
    eventually("the tunnel is cut, though it is busy", || {
        client.send(b"x");
        client.read_more(Duration::from_millis(20));
        client.ended().then_some(())
    });
    assert_eq!(close_of(&scene, "limit_lifetime")["rule"], "case.narrow");
}

#[test]
fn questions_and_new_names_count_for_the_rule_too() {
    let Some(scene) = scene_with("", "dns_per_second = 4, new_names_per_minute = 2") else { return };
    let dns = PROXY_DNS.parse().unwrap();
    let look_up = |name: &str| ask(scene.lab(), dns, name, RecordType::A).unwrap().metadata.response_code;
    assert_eq!(look_up("a.rule.example.com"), ResponseCode::NoError);
    assert_eq!(asks(&scene, PROXY, "b.rule.example.com:443").0, 200);
    assert_eq!(asks(&scene, PROXY, "c.rule.example.com:443"), over("limit_names"));
    assert_eq!(look_up("d.rule.example.com"), ResponseCode::Refused);
    assert_eq!(look_up("d.w.example.com"), ResponseCode::NoError, "another wildcard has its own count");
    let codes: Vec<_> = (0..12).map(|_| look_up("a.rule.example.com")).collect();
    assert!(codes.contains(&ResponseCode::Refused), "{codes:?}");
    assert_eq!(look_up("api.example.com"), ResponseCode::NoError);
    assert!(hits(&scene, "limit_names") && hits(&scene, "limit_rate"));
}
