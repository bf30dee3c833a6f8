//! `[registry.X]` and the policies that name it.

use super::*;
use crate::approval::Approved;
use crate::destination::Destination;
use crate::{Ask, decide::View};

const PINNED: &str = r#"
[registry.pip]
hosts = ["index.example", "files.example:8443"]
from = "pip's default"

[registry.apt]
hosts = ["deb.example"]
ports = [80]
methods = ["GET", "HEAD"]

[registry.mirror]
hosts = ["mirror.corp.example", "files.corp.example"]
addresses = ["10.0.3.9/32"]

[policy.base]
allow = ["api.example.com"]
registries = ["pip", "apt", "mirror"]

[policy.more]
registries = ["pip"]

[sandbox.s1]
policies = ["more", "base"]
identify = [{ default = true }]
"#;

#[test]
fn the_hosts_of_a_pinned_registry_are_rules_that_its_table_names() {
    let policy = loaded(PINNED);
    let expected = [
        "Allow api.example.com:443",
        "Allow index.example:443",
        "Allow files.example:8443",
        "Allow deb.example:80",
        "Allow mirror.corp.example:443",
        "Allow files.corp.example:443",
    ];
    assert_eq!(rules(&policy, "s1"), expected);
    let sandbox = SandboxId::parse("s1").expect("name");
    let local = LocalAddresses::new([]);
    let view = View { policy: &policy, local: &local, now: now(), approved: Approved::NONE };
    let told = |authority: &str| {
        let destination = Destination::from_authority(authority.as_bytes()).expect("a destination");
        let told = view.explain(&sandbox, &Ask::Stream(destination));
        (told.rule.map(|rule| rule.to_string()), told.reason, told.known_addresses)
    };
    let rule = |name: &str| Some(name.to_owned());
    assert_eq!(told("files.example:8443"), (rule("registry.pip.hosts[1]"), None, None));
    let missed = told("files.example:443");
    assert_eq!(missed, (rule("registry.pip.hosts[1]"), Some(crate::Reason::PortNotAllowed), None));
    // Two names share the addresses, so each is looked up and held to them.
    assert_eq!(told("mirror.corp.example:443"), (rule("registry.mirror.hosts[0]"), None, None));
}

#[test]
fn the_one_host_of_a_mirror_is_dialled_without_a_look_up() {
    let policy = loaded(&PINNED.replace(", \"files.corp.example\"", ""));
    let sandbox = SandboxId::parse("s1").expect("name");
    let local = LocalAddresses::new([]);
    let view = View { policy: &policy, local: &local, now: now(), approved: Approved::NONE };
    let destination = Destination::from_authority(b"mirror.corp.example:443").expect("a destination");
    let told = view.explain(&sandbox, &Ask::Stream(destination));
    assert_eq!(told.known_addresses, Some(vec!["10.0.3.9".parse().expect("an address")]));
}

#[test]
fn only_registries_held_to_reading_cannot_be_published_to() {
    let policy = loaded(PINNED);
    assert_eq!(
        policy.open_to_publishing().into_iter().collect::<Vec<_>>(),
        ["registry.mirror", "registry.pip"]
    );
    let put = loaded(&PINNED.replace("\"HEAD\"", "\"PUT\""));
    assert!(put.open_to_publishing().contains("registry.apt"));
}

#[test]
fn mistakes_in_registries_come_all_at_once() {
    let told = refused(
        "[registry.pip]\nhosts = [\"https://index.example/simple\", \"*.com\", \"10.0.0.5:80\", \"169.254.169.254\"]\n\
         ports = []\naddresses = [\"10.0.0.0/8\"]\nfrom = \"a\\nb\"\nhots = []\n\
         [registry.none]\n[registry.empty]\nhosts = []\n\
         [policy.p]\nregistries = [\"pip\", \"pipp\", \"pip\"]\n",
    );
    for expected in [
        "t.toml:2:10: `https://index.example/simple`",
        "t.toml:2:42: `*.com` covers every name",
        "t.toml:2:66: `169.254.169.254`: a cloud metadata endpoint is never opened",
        "t.toml:3:9: `ports` is empty",
        "t.toml:4:13: `addresses` is for names",
        "t.toml:4:14: the range is a network, not an API",
        "t.toml:5:8: the note is too long or has control characters",
        "t.toml:6:1: unknown key `hots` (registry.pip.hots) — did you mean `hosts`?",
        "t.toml:7:11: `hosts` is missing (registry.none)",
        "t.toml:9:9: `hosts` is empty",
        "t.toml:11:22: there is no [registry.pipp] (policy.p.registries[1]) — did you mean `pip`?",
        "t.toml:11:30: `pip` is listed twice",
    ] {
        assert!(told.contains(expected), "{expected}\n{told}");
    }
}

#[test]
fn a_registry_beside_a_rule_that_limits_its_methods_is_shadowed() {
    let told = one_mistake(
        "[registry.apt]\nhosts = [\"deb.example:80\"]\n[policy.p]\nregistries = [\"apt\"]\n\
         [[policy.p.rule]]\nid = \"read\"\nhost = \"deb.example\"\nports = [80]\nmethods = [\"GET\"]\n\
         [sandbox.s]\npolicies = [\"p\"]\n",
    );
    assert_eq!((told.line, told.at.as_str()), (2, "registry.apt.hosts[0]"));
    assert!(told.what.starts_with("rule_shadowed"), "{told}");
}
