//! `[sandbox.X.limits]`.

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
