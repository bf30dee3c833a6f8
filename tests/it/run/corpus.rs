//! The corpus' cases of the layer `netns` that are one command in a sandbox, each as root and as an ordinary user.
//!
//! The command of a case that is to be denied succeeds where it got out, or sends what the wire then shows.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tidegate::lab::tap::{Sent, Tap};

use super::world::{Input, both, text};
use crate::support::eventually;

/// Cases that this cannot run, or whose command succeeds where nothing got out, each with its reason.
const LISTED: &[(&str, &str)] = &[
    ("ns-024", "several steps: life::whichever_process_is_killed_nothing_is_left kills the gateway"),
    ("ns-025", "several steps: a run reads its policy once"),
    (
        "ns-026",
        "the helper hands the namespace over before the command exists; 200 starts take minutes in a debug build",
    ),
    ("ns-027", "its tool is built by nobody: hostile::what_the_kernel_would_give_is_refused tries io_uring"),
    ("ns-028", "its tools are built by nobody: hostile::a_foreign_abi_ends_the_process makes such a call"),
    ("ns-050", "its static client is built by nobody: tests/it/run.rs connects from plain sockets"),
    ("ns-051", "setuid programs of the host are seen; no_new_privs takes their effect, as place.rs shows"),
    ("ns-053", "reads the whole disk: hostile.rs names the files that must not be seen"),
    ("ns-047", "bash lists its descriptors through one, the third; life.rs counts those of a command"),
    ("ns-048", "a run has no unix socket to the gateway"),
    ("ns-049", "needs a colluding process outside: docs/run.md says what of it remains"),
    ("ns-059", "needs origins with certificates: tests/it/clients.rs"),
    ("ns-060", "needs a Java client and an origin with a certificate: tests/it/run/clients.rs"),
];

/// Programs without which a case proves nothing.
const TOOLS: &[(&str, &str)] =
    &[("ns-006", "nft"), ("ns-014", "dhclient"), ("ns-017", "ip"), ("ns-023", "pkill"), ("ns-033", "ping")];

fn is_installed(tool: &str) -> bool {
    ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].iter().any(|folder| Path::new(folder).join(tool).exists())
}

fn cases() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/cases.jsonl");
    let text = fs::read_to_string(path).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|case| case["layer"] == "netns").collect()
}

#[test]
fn every_listed_case_exists() {
    let all = cases();
    for (id, reason) in LISTED {
        assert!(all.iter().any(|case| case["id"] == *id) && reason.len() > 20, "{id}");
    }
}

#[test]
fn no_command_of_the_corpus_gets_out() {
    both(|world| {
        let tap = Tap::open(world.lab().world()).unwrap();
        let mut faults = Vec::new();
        for case in cases() {
            let id = case["id"].as_str().unwrap();
            if LISTED.iter().any(|(listed, _)| *listed == id) {
                continue;
            }
            if let Some((_, tool)) = TOOLS.iter().find(|(case, tool)| *case == id && !is_installed(tool)) {
                eprintln!("skipped: {id}: {tool} is not installed");
                continue;
            }
            let script = case["input"]["cmd"].as_str().unwrap_or_else(|| panic!("{id} is no single command"));
            tap.sent().unwrap();
            let mut run = world.start(&["--allow", "api.example.com"], &["bash", "-c", script], Input::Null);
            let status = eventually(id, || run.child().try_wait().unwrap());
            let output = run.output();
            let escaped: Vec<Sent> = tap
                .sent()
                .unwrap()
                .into_iter()
                .filter(|sent| !format!("{sent:?}").contains("198.51.100.53"))
                .collect();
            let denied = case["expect"]["verdict"] == "deny";
            let watched = case["expect"]["assert"].as_array().is_some_and(|all| {
                all.iter().any(|one| one.as_str().is_some_and(|one| one.starts_with("no_packet")))
            });
            // What only sends cannot tell whether it arrived: the wire does.
            let held = if denied { !status.success() || watched } else { status.success() };
            if !held || !escaped.is_empty() {
                faults.push(format!("{id} {status:?} {escaped:?}: {}", text(&output.stderr)));
            }
        }
        assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
    });
}
