use super::*;
use crate::file::{Document, load, read_sandbox};
use crate::identity::{Credentials, Stranger, TokenHash};
use crate::life::Meanwhile;
use crate::sandbox::Peer;
use crate::special::LocalAddresses;
use crate::time::Timestamp;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn document(text: &str) -> Document {
    Document::new("f", text.as_bytes()).expect("text")
}

fn base(sandboxes: &str) -> Policy {
    let text = format!(
        "[policy.p]\nallow = [\"a.example.com:80\"]\n\
         [[policy.narrow.rule]]\nhost = \"a.example.com\"\nports = [80]\nmethods = [\"GET\"]\n{sandboxes}"
    );
    load(&[document(&text)], NOW, &LocalAddresses::default()).expect("a policy")
}

fn table(policy: &Policy, name: &str, keys: &str) -> SandboxSource {
    read_sandbox(&document(&format!("[sandbox.{name}]\n{keys}")), NOW, Some(policy)).expect("a sandbox")
}

fn by_token(byte: u8) -> String {
    format!("identify = [{{ token_sha256 = \"{}\" }}]\n", format!("{byte:02x}").repeat(32))
}

fn with_token(byte: u8) -> Peer {
    let token = Credentials::Token { name: None, hash: TokenHash::new([byte; 32]) };
    Peer::new("127.0.0.1:1".into(), "10.0.0.1:1".parse().ok()).presenting(token)
}

fn who(policy: &Policy, peer: &Peer) -> Result<String, Stranger> {
    policy.identities.identify(peer).map(ToString::to_string)
}

#[test]
fn whoever_joins_is_known_until_it_leaves_and_nobody_else_notices() {
    let mut policy = base(&format!("[sandbox.first]\npolicies = [\"p\"]\n{}", by_token(1)));
    for (byte, name) in [(2, "second"), (3, "third")] {
        policy
            .join(table(&policy, name, &format!("policies = [\"p\"]\n{}", by_token(byte))))
            .expect("joined");
    }
    let known = |policy: &Policy| [1, 2, 3].map(|byte| who(policy, &with_token(byte)).ok());
    assert_eq!(known(&policy), ["first", "second", "third"].map(|name| Some(name.to_owned())));
    let second = policy.sandbox(&SandboxId::parse("second").expect("a name")).expect("joined");
    assert_eq!(second.sets.len(), 1);
    policy.leave(&SandboxId::parse("second").expect("a name"));
    assert_eq!(known(&policy), [Some("first".to_owned()), None, Some("third".to_owned())]);
    policy.join(table(&policy, "fourth", &by_token(2))).expect("its token is free again");
    assert_eq!(who(&policy, &with_token(2)).as_deref(), Ok("fourth"));
}

#[test]
fn each_kind_of_evidence_is_gone_with_its_sandbox() {
    let keep = "[sandbox.keep]\nidentify = [{ source = \"10.9.0.0/16\" }, { listener = \"127.0.0.1:9\" }]\n";
    let fresh = base(keep);
    for keys in [
        by_token(7),
        "identify = [{ source = \"10.1.0.0/16\" }]".to_owned(),
        "identify = [{ listener = \"127.0.0.1:8\" }]".to_owned(),
        "identify = [{ listener = \"127.0.0.1:8\", source = \"10.1.0.0/16\" }]".to_owned(),
        format!("identify = [{{ listener = \"127.0.0.1:8\", token_sha256 = \"{}\" }}]", "07".repeat(32)),
    ] {
        let mut policy = fresh.clone();
        policy.join(table(&policy, "guest", &keys)).expect("joined");
        let peers = ["127.0.0.1:1", "127.0.0.1:8", "127.0.0.1:9"].map(|listener| {
            ["10.1.0.1:1", "10.9.0.1:1"].map(|address| Peer::new(listener.into(), address.parse().ok()))
        });
        let peers: Vec<_> = peers.into_iter().flatten().chain([with_token(7)]).collect();
        assert!(
            peers.iter().chain([&on_eight()]).any(|peer| who(&policy, peer).as_deref() == Ok("guest")),
            "{keys}"
        );
        policy.leave(&SandboxId::parse("guest").expect("a name"));
        for peer in &peers {
            assert_eq!(who(&policy, peer), who(&fresh, peer), "{keys}: {peer:?}");
        }
    }
}

fn on_eight() -> Peer {
    let token = Credentials::Token { name: None, hash: TokenHash::new([7; 32]) };
    Peer::new("127.0.0.1:8".into(), "10.1.0.1:1".parse().ok()).presenting(token)
}

#[test]
fn what_stands_in_the_way_is_told_and_nothing_is_changed() {
    let mut policy = base(&format!(
        "[sandbox.first]\n{}[sandbox.net]\nidentify = [{{ source = \"10.1.0.0/16\" }}]\n",
        by_token(1)
    ));
    let id = |name: &str| SandboxId::parse(name).expect("a name");
    for (name, keys, clash) in [
        ("first", by_token(9), Clash::Named),
        ("other", by_token(1), Clash::Known(id("first"))),
        ("other", "identify = [{ source = \"10.1.2.0/24\" }]".to_owned(), Clash::Known(id("net"))),
        ("other", "identify = [{ source = \"10.0.0.0/8\" }]".to_owned(), Clash::Known(id("net"))),
    ] {
        let joined = policy.join(table(&policy, name, &keys));
        assert_eq!(joined, Err(clash), "{keys}");
    }
    let joined = policy.join(table(&policy, "both", "policies = [\"p\", \"narrow\"]"));
    assert!(matches!(joined, Err(Clash::Shadowed(_))), "{joined:?}");
    assert_eq!(policy.sandboxes.len(), 2);
    // Beside a default sandbox a stranger would pass for it.
    let mut alone = base("[sandbox.all]\nidentify = [{ default = true }]\n");
    assert_eq!(alone.join(table(&alone, "other", &by_token(2))), Err(Clash::Known(id("all"))));
}

#[test]
fn names_that_do_not_exist_are_mistakes_or_open_nothing() {
    let policy = base("");
    let text = document("[sandbox.a]\npolicies = [\"gone\", \"p\"]\n");
    assert!(read_sandbox(&text, NOW, Some(&policy)).is_err());
    let remembered = read_sandbox(&text, NOW, None).expect("names are taken as they are");
    let mut policy = policy;
    policy.join(remembered).expect("joined");
    assert_eq!(policy.sandbox(&SandboxId::parse("a").expect("a name")).expect("joined").sets.len(), 1);
    let default = document("[sandbox.a]\nidentify = [{ default = true }]\n");
    assert!(read_sandbox(&default, NOW, Some(&policy)).is_err(), "the default sandbox is the config's");
}

#[test]
fn an_end_wakes_whoever_waits_for_it() {
    let mut policy = base(&format!("[sandbox.first]\n{}", by_token(1)));
    assert_eq!(policy.next_expiry(NOW), None);
    let end = Timestamp::from_secs(1_800_000_100);
    let id = SandboxId::parse("first").expect("a name");
    policy.set_life(&id, Life { ends: Some(end), paused: Some(Meanwhile::Hold), over: false });
    assert_eq!(policy.next_expiry(NOW), Some(end));
    assert_eq!(policy.next_expiry(end), None);
}

#[test]
fn what_there_is_and_why_a_sandbox_cannot_join_is_told() {
    let mut policy = base(&format!("[sandbox.first]\n{}", by_token(1)));
    assert!(policy.tables().has_policy("p") && !policy.tables().has_policy("q"));
    assert!(!policy.tables().has_internal("p"));
    let mut clash = |name, keys: &str| {
        policy.join(table(&policy, name, keys)).map_err(|clash| clash.to_string()).expect_err(name)
    };
    assert_eq!(clash("first", &by_token(2)), "the config has a sandbox of this name");
    assert_eq!(clash("second", &by_token(1)), "the same clients are known as sandbox first");
    let shadowed = clash("third", &format!("policies = [\"p\", \"narrow\"]\n{}", by_token(3)));
    assert!(shadowed.starts_with("rule_shadowed: ") && shadowed.contains("p.allow[0]"), "{shadowed}");
}
