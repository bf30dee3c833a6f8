//! `[sandbox.X.limits]`, and the limits of rules.

use std::time::Duration;

use super::*;
use crate::limits::{Limits, Quota};

fn limits(text: &str) -> Limits {
    let policy = loaded(&format!("[sandbox.s]\n{text}"));
    policy.sandboxes.values().next().expect("a sandbox").limits.clone()
}

#[test]
fn what_is_not_written_has_its_default() {
    let defaults = Limits::default();
    assert_eq!(limits(""), defaults);
    assert_eq!(limits("limits = {}"), defaults);
    assert!(defaults.connections.is_some() && defaults.upload.is_some());
    let connections = Limits { connections: Some(5), ..defaults };
    assert_eq!(limits("limits = { connections = 5 }"), connections);
}

#[test]
fn unlimited_is_written() {
    let all = "connections = \"unlimited\"\nnew_connections_per_second = \"unlimited\"\n\
        requests_per_second = \"unlimited\"\ndns_per_second = \"unlimited\"\nnew_names_per_minute = \"unlimited\"\n\
        upload = \"unlimited\"\ndownload = \"unlimited\"\nlifetime = \"unlimited\"\n";
    assert_eq!(limits(&format!("[sandbox.s.limits]\n{all}")), Limits::NONE);
}

#[test]
fn sizes_and_times_have_units() {
    let read = limits(
        "[sandbox.s.limits]\nupload = \"200KiB/m\"\ndownload = \"3GiB/d\"\nlifetime = \"1h30m\"\nidle = \"90s\"",
    );
    let quota = |bytes, seconds| Some(Quota { bytes, window: Duration::from_secs(seconds) });
    assert_eq!((read.upload, read.download), (quota(200 << 10, 60), quota(3 << 30, 86_400)));
    assert_eq!((read.lifetime, read.idle), (Some(Duration::from_secs(5400)), Some(Duration::from_secs(90))));
}

#[test]
fn limits_that_mean_nothing_are_refused() {
    for (text, what) in [
        ("connections = 0", "a whole number from 1 to 1000000 is expected"),
        ("connections = \"many\"", "a whole number is expected"),
        ("dns_per_second = 1.5", "a whole number is expected"),
        ("upload = 200", "a string is expected, this is a whole number"),
        ("upload = \"200MiB\"", "`200MiB` is no size for a time"),
        ("upload = \"200MB/h\"", "`200MB/h` is no size for a time"),
        ("upload = \"0B/h\"", "`0B/h` is no size for a time"),
        ("download = \"1GiB/week\"", "`1GiB/week` is no size for a time"),
        ("idle = \"unlimited\"", "`unlimited` is no duration"),
        ("lifetime = \"1ms\"", "a duration from 1s to 364d is expected"),
        ("conections = 5", "unknown key `conections`"),
    ] {
        let mistake = one_mistake(&format!("[sandbox.s.limits]\n{text}"));
        assert_eq!(mistake.what, what, "{text}");
    }
}

/// The limits of the one rule of a policy.
fn of_rule(text: &str) -> Option<Limits> {
    let rule = format!("[[policy.case.rule]]\nhost = \"a.example.com\"\n{text}\n{SANDBOX}");
    let policy = loaded(&rule);
    let sandbox = policy.sandbox(&SandboxId::parse("s1").expect("a name")).expect("the sandbox");
    let rule = sandbox.sets.first().and_then(|set| set.rule(0)).expect("the rule");
    rule.limits().cloned()
}

#[test]
fn a_rule_is_limited_by_what_is_written_alone() {
    for none in ["", "limits = {}", "limits = { upload = \"unlimited\" }"] {
        assert_eq!(of_rule(none), None, "{none}");
    }
    let limits =
        of_rule("limits = { connections = 2, download = \"1MiB/m\", idle = \"90s\" }").expect("limits");
    let download = Some(Quota { bytes: 1 << 20, window: Duration::from_secs(60) });
    let idle = Some(Duration::from_secs(90));
    assert_eq!(limits, Limits { connections: Some(2), download, idle, ..Limits::NONE });
    assert_eq!(limits.to_string(), "connections = 2, download = 1MiB/m, idle = 90s");
    assert_eq!(
        of_rule("[policy.case.rule.limits]\ndns_per_second = 1").map(|it| it.dns_per_second),
        Some(Some(1))
    );
}

#[test]
fn limits_of_rules_are_checked_as_those_of_sandboxes() {
    for (text, what) in [
        ("limits = { connections = 0 }", "a whole number from 1 to 1000000 is expected"),
        ("limits = { conections = 5 }", "unknown key `conections`"),
        ("limits = 5", "a table is expected, this is a whole number"),
        (
            "action = \"deny\"\nlimits = { connections = 5 }",
            "a deny rule has no `limits`: it closes the whole host and port",
        ),
    ] {
        let mistake = one_mistake(&format!("[[policy.p.rule]]\nhost = \"a.example.com\"\n{text}"));
        assert_eq!(mistake.what, what, "{text}");
    }
}

#[test]
fn limits_are_shown_as_they_are_written() {
    let shown = Limits::default().to_string();
    assert_eq!(shown, limits(&format!("limits = {{ {} }}", quoted_quotas(&shown))).to_string());
    assert_eq!(Limits::NONE.to_string(), "none");
}

/// `upload = 200MiB/h` with the quotes that TOML wants.
fn quoted_quotas(shown: &str) -> String {
    let quoted = shown.split(", ").map(|entry| match entry.split_once(" = ") {
        Some((key, value)) if value.contains('/') => format!("{key} = \"{value}\""),
        _ => entry.to_owned(),
    });
    quoted.collect::<Vec<_>>().join(", ")
}
