//! A config with mistakes: one report names them all, and nothing starts.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Output};

use tidegate::lab::Lab;

use crate::support::{Scene, run_tidegate};

const MISTAKES: &str = r#"[policy.base]
alow = ["typo.example.com"]
allow = [
    "https://url.example.com/path",
    "host.example.com:99999",
    "*.com",
    "web.example.com:80",
]

[[policy.base.rule]]
id = "read-only"
host = "web.example.com"
ports = [80]
methods = ["GET"]

[sandbox.s1]
policies = ["base"]
identify = [{ default = true }]
"#;

fn lab() -> Option<Lab> {
    Lab::new().inspect_err(|unavailable| eprintln!("skipped: {unavailable}: {}", unavailable.why)).ok()
}

fn write(dir: &Path, text: &str) -> std::path::PathBuf {
    let file = dir.join("tidegate.toml");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

fn told(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stderr).into_owned() + &String::from_utf8_lossy(&ran.stdout)
}

#[test]
fn one_report_names_every_mistake_and_nothing_starts() {
    let Some(lab) = lab() else { return };
    let dir = tempfile::tempdir().unwrap();
    let listen = "\n[listen]\nproxy = [\"10.200.0.1:3128\"]\n";
    let file = write(dir.path(), &format!("{MISTAKES}{listen}"));
    for (verb, code) in [("check", 1), ("serve", 2)] {
        let ran = run_tidegate(&lab, [verb.as_ref(), "--config".as_ref(), file.as_os_str()]);
        assert_eq!(ran.status.code(), Some(code), "{verb}: {ran:?}");
        let told = told(&ran);
        // the typo, two bad entries, the public suffix, and the plain entry beside a narrowing rule
        for (line, word) in
            [(2, "allow"), (4, "url.example.com"), (5, "99999"), (6, "broad"), (7, "web.example.com")]
        {
            let place = format!("{}:{line}:", file.display());
            let found = told.lines().any(|row| row.contains(&place) && told.contains(word));
            assert!(found, "{verb}: nothing about line {line} ({word}) in:\n{told}");
        }
        assert!(told.contains("rule_shadowed") || told.contains("shadow"), "{verb}:\n{told}");
    }
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    let Some(lab) = lab() else { return };
    let dir = tempfile::tempdir().unwrap();
    let scene = Scene::new().allow(&["api.example.com"]);
    let policy =
        "[policy.base]\nallow = []\n[sandbox.s1]\npolicies = [\"base\"]\nidentify = [{ default = true }]\n";
    let file = write(dir.path(), &scene.config().text(dir.path()).replacen('\n', &format!("\n{policy}"), 1));
    let check = || run_tidegate(&lab, ["check".as_ref(), "--config".as_ref(), file.as_os_str()]);
    assert_eq!(check().status.code(), Some(0), "{:?}", check());
    for mode in [0o620, 0o602] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let ran = check();
        assert_eq!(ran.status.code(), Some(1), "{mode:o}: {ran:?}");
        assert!(told(&ran).contains("others may write"), "{mode:o}: {ran:?}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let ran = check();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(told(&ran).contains("others may write"), "{ran:?}");
}
