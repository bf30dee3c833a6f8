//! Deny lists: what they hold is denied on every way, by the list's name, from the moment that their file has changed.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use hickory_proto::{op::ResponseCode, rr::RecordType};
use serde_json::Value;

use crate::support::{PROXY_DNS, Scene, UNLIMITED, ask, eventually, run_here};

fn write(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(beside, path).unwrap();
}

fn policy(list: &Path) -> String {
    format!(
        "[policy.case]\nallow = [\"*.example.com:80,443\"]\nlists = [\"file:{}\"]\n\
         [sandbox.s1]\npolicies = [\"case\"]\nidentify = [{{ default = true }}]\n{UNLIMITED}",
        list.display()
    )
}

fn status(scene: &Scene, host: &str) -> (u16, Option<String>) {
    let mut client = scene.client();
    client.send(format!("CONNECT {host}:443 HTTP/1.1\r\n\r\n").as_bytes());
    let response = client.response();
    (response.status, response.reason().map(str::to_owned))
}

#[test]
fn a_listed_name_is_denied_on_every_way_and_never_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("ads.txt");
    write(&list, "# ads\nads.example.com\n0.0.0.0 tracker.example.com\n||deep.example.com^\n");
    let scene = Scene::new()
        .policy(&policy(&list))
        .resolving("*.example.com", &["A 203.0.113.10"])
        // An allowed name that is an alias of a listed one: lists judge the first name only.
        .resolving("shop.example.com", &["CNAME ads.example.com."])
        .resolving("ads.example.com", &["A 203.0.113.10"])
        .start();
    let Some(scene) = scene else { return };
    let denied = (403, Some("denied_by_rule".to_owned()));
    let dns = |name: &str| {
        let answer = ask(scene.lab(), PROXY_DNS.parse().unwrap(), name, RecordType::A).unwrap();
        answer.metadata.response_code
    };
    for name in ["tracker.example.com", "deep.example.com", "x.deep.example.com"] {
        assert_eq!(status(&scene, name), denied, "{name}");
        assert_eq!(dns(name), ResponseCode::NXDomain, "{name}");
        assert_eq!(scene.client().socks5(name, 443).0, 2, "{name}");
        assert!(scene.dns().asked_under(name).is_empty(), "{name} was resolved");
    }
    assert_eq!(status(&scene, "ads.example.com"), denied);
    assert_eq!(status(&scene, "shop.example.com"), (200, None));
    assert_eq!(status(&scene, "api.example.com"), (200, None));
    let rule = format!("case.lists[{}]", list.display());
    let lines = scene.gateway().audit();
    let denials = lines.iter().filter(|line| line["event"] == "decision" && line["decision"] == "deny");
    assert!(denials.clone().all(|line| line["rule"].as_str() == Some(&rule)), "{lines:#?}");
    assert_eq!(denials.count(), 10);
}

fn reloads(scene: &Scene) -> Vec<Value> {
    scene.gateway().audit().into_iter().filter(|line| line["event"] == "reload").collect()
}

#[test]
fn a_changed_list_is_in_force_after_a_moment_and_a_broken_one_never() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("ads.txt");
    write(&list, "ads.example.com\n");
    let scene = Scene::new().policy(&policy(&list)).resolving("*.example.com", &["A 203.0.113.10"]).start();
    let Some(scene) = scene else { return };
    let mut tunnel = scene.client();
    tunnel.send(b"CONNECT late.example.com:80 HTTP/1.1\r\n\r\n");
    assert_eq!(tunnel.response().status, 200);
    write(&list, "ads.example.com\nlate.example.com\n");
    eventually("the name is denied", || (status(&scene, "late.example.com").0 == 403).then_some(()));
    eventually("its tunnel is cut", || {
        tunnel.read_more(std::time::Duration::from_millis(20));
        tunnel.ended().then_some(())
    });
    // In force before it is told.
    eventually("the reload is told", || (reloads(&scene).len() == 1).then_some(()));
    write(&list, "ads.example.com\n@@||late.example.com^\n");
    let told = eventually("the list is refused", || reloads(&scene).get(1).cloned());
    assert!(told["detail"].as_str().unwrap().contains("ads.txt:2:1: an exception"), "{told}");
    assert_eq!(status(&scene, "late.example.com").0, 403, "the list before it stays");
}

#[test]
fn check_names_the_line_of_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let (list, config) = (folder.path().join("ads.txt"), folder.path().join("tidegate.toml"));
    write(&list, "ads.example.com\n||ads.example.com/banner\n");
    write(&config, &policy(&list));
    let checked = run_here(["check", "--config", config.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(!checked.status.success() && said.contains("ads.txt:2:1: an adblock rule"), "{said}");
    fs::set_permissions(&list, fs::Permissions::from_mode(0o666)).unwrap();
    let checked = run_here(["check", "--config", config.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(!checked.status.success() && said.contains("others may write the file"), "{said}");
}
