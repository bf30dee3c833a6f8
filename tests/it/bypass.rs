//! The corpus of bypasses and over-blocks (`tests/corpus/cases.jsonl`), each case in an internet of its own.
//!
//! Cases that cannot pass are in `tests/corpus/pending.txt`, a line each: id and reason. A case there that passes fails the
//! test as a case elsewhere that does not: the list is always true. The reason `tool:NAME` holds only where that tool is not
//! installed.

mod adapter;
mod assertion;
mod case;
mod evidence;
mod facts;
mod input;
mod inside;
mod verdict;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Output,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde::Deserialize;
use serde_json::Value;
use tidegate::lab::{Lab, Zone};

use self::{
    adapter::Unsupported,
    case::{Case, Input, Verdict},
    evidence::{Evidence, Exchange},
    input::{Stage, probes},
    inside::Inside,
};
use crate::support::{Scene, SceneBuilder, TestAuthority, eventually, run_tidegate};

/// The layers that are run; the others need a sandbox round the client or a load machine.
const LAYERS: &[&str] = &["connect", "http", "dns", "policy", "log", "tls", "transparent"];
/// Most of a case is waiting, so there are more workers than processors.
const WORKERS: usize = 8;

/// How a case came out.
#[derive(Debug)]
enum Outcome {
    Passed,
    Failed(String),
    Unsupported(String),
}

#[test]
fn every_case_of_the_corpus_passes_or_is_listed() {
    if let Err(unavailable) = Lab::new() {
        eprintln!("skipped: {unavailable}: {}", unavailable.why);
        return;
    }
    let cases = cases();
    let pending = pending();
    #[expect(clippy::disallowed_methods, reason = "CORPUS_ONLY=id,id is for whoever debugs a case")]
    let only = std::env::var("CORPUS_ONLY").ok();
    let only: Option<BTreeSet<&str>> = only.as_deref().map(|ids| ids.split(',').collect());
    let selected: Vec<&Case> = cases
        .iter()
        .filter(|case| only.as_ref().is_none_or(|only| only.contains(case.id.as_str())))
        .collect();

    let started = Instant::now();
    let outcomes = run_all(&selected);
    let mut faults = Vec::new();
    for (case, (outcome, took)) in selected.iter().zip(&outcomes) {
        match (outcome, pending.get(&case.id)) {
            (Outcome::Passed, None) => {}
            (Outcome::Passed, Some(_)) => {
                faults.push(format!("{} passes: strike it off pending.txt", case.id))
            }
            (Outcome::Failed(_) | Outcome::Unsupported(_), Some(_)) => {}
            (Outcome::Failed(why) | Outcome::Unsupported(why), None) => {
                faults.push(format!(
                    "{} ({}; {took:?}): {why}\n    why: {}",
                    case.id, case.title, case.expect.why
                ));
            }
        }
    }
    let passed = outcomes.iter().filter(|(outcome, _)| matches!(outcome, Outcome::Passed)).count();
    eprintln!(
        "{passed} of {} cases pass, {} are listed, {:?}",
        selected.len(),
        pending.len(),
        started.elapsed()
    );
    assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_pending_list_names_cases_that_exist_and_says_why() {
    let known: BTreeSet<String> = cases().into_iter().map(|case| case.id).collect();
    for (id, reason) in pending() {
        assert!(known.contains(&id), "{id}");
        assert!(reason.len() > 8, "{id}: {reason:?} is no reason");
    }
}

#[test]
fn every_assertion_of_the_corpus_can_be_read() {
    for case in cases() {
        for text in case.expect.assert.iter().chain(case.expect.alt.iter().flat_map(|alt| &alt.assert)) {
            if let Err(error) = assertion::Assertion::parse(text) {
                panic!("{}: {text}: {error}", case.id);
            }
        }
    }
}

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus"))
}

/// The cases of the layers that are run.
fn cases() -> Vec<Case> {
    let text = fs::read_to_string(corpus().join("cases.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_layer = lines.filter(|case| LAYERS.contains(&case["layer"].as_str().unwrap()));
    of_layer.map(|case| Case::deserialize(&case).unwrap_or_else(|error| panic!("{error}: {case}"))).collect()
}

fn pending() -> BTreeMap<String, String> {
    let text = fs::read_to_string(corpus().join("pending.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entries = lines.map(|line| line.split_once(' ').unwrap_or_else(|| panic!("no reason: {line}")));
    let lacking = |reason: &str| reason.strip_prefix("tool:").is_none_or(|tool| !input::installed(tool));
    entries
        .filter(|(_, reason)| lacking(reason))
        .map(|(id, reason)| (id.to_owned(), reason.trim().to_owned()))
        .collect()
}

fn run_all(cases: &[&Case]) -> Vec<(Outcome, Duration)> {
    let authority = Arc::new(TestAuthority::new());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.load(Ordering::Relaxed)).and_then(|_| {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(index).map(|case| (index, case))
                }) {
                    let (index, case) = case;
                    let started = Instant::now();
                    let outcome = run_guarded(case, &authority);
                    done.lock().unwrap().insert(index, (outcome, started.elapsed()));
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}

/// A panic in one case is that case's failure.
fn run_guarded(case: &Case, authority: &Arc<TestAuthority>) -> Outcome {
    let run = std::panic::AssertUnwindSafe(|| run(case, authority));
    match std::panic::catch_unwind(run) {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(Fault::Failed(why))) => Outcome::Failed(why),
        Ok(Err(Fault::Unsupported(what))) => Outcome::Unsupported(format!("the harness has not: {what}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Outcome::Failed(
                text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned())).unwrap_or_default(),
            )
        }
    }
}

enum Fault {
    Failed(String),
    Unsupported(String),
}

impl From<Unsupported> for Fault {
    fn from(Unsupported(what): Unsupported) -> Fault {
        Fault::Unsupported(what)
    }
}

fn run(case: &Case, authority: &Arc<TestAuthority>) -> Result<(), Fault> {
    let dir = tempfile::tempdir().unwrap();
    let mut scene = adapter::scene(case, authority, dir.path())?;
    match &case.input {
        Input::Policy { text, then } => {
            return run_policy(case, authority, scene, &generated(text), then.as_deref());
        }
        Input::PolicyWrite { chunks, pause_ms, then } => {
            return run_policy_write(case, authority, scene, chunks, Duration::from_millis(*pause_ms), then);
        }
        Input::Classify(ranges) => {
            let mut zone = Zone::new();
            for (name, address, _) in probes(ranges)? {
                let kind = if address.is_ipv4() { "A" } else { "AAAA" };
                zone = zone.with(&name, &[&format!("{kind} {address}")]).unwrap();
            }
            // The ranges themselves are in question, so no test network counts as public.
            scene = scene.zone(zone).configure(|config| config.treat_as_public.clear());
        }
        _ => {}
    }
    let mut scene = start(scene)?;
    act_and_judge(case, authority, &mut scene, &case.input)
}

/// Has another policy loaded by the running gateway; what the case says beside allow and deny stays.
fn reload(
    case: &Case,
    authority: &Arc<TestAuthority>,
    scene: &Scene,
    policy: &Value,
) -> Result<(), Unsupported> {
    let mut changed = case.clone();
    for (key, value) in policy.as_object().into_iter().flatten() {
        changed.policy[key] = value.clone();
    }
    let dir = tempfile::tempdir().unwrap();
    adapter::scene(&changed, authority, dir.path())?.config().write(scene.gateway().dir());
    scene.gateway().signal(Signal::HUP);
    Ok(())
}

fn start(scene: SceneBuilder) -> Result<Scene, Fault> {
    let policy: String = scene.policy_text().chars().take(2000).collect();
    match scene.try_start().expect("namespaces were there a moment ago") {
        Ok(scene) => Ok(scene),
        Err(not) => Err(Fault::Failed(format!(
            "the gateway did not start ({:?}): {}\n{policy}",
            not.status, not.stderr
        ))),
    }
}

fn act_and_judge(
    case: &Case,
    authority: &Arc<TestAuthority>,
    scene: &mut Scene,
    input: &Input,
) -> Result<(), Fault> {
    let sandboxes = if inside::is_needed(case) { Inside::all(case, scene) } else { Vec::new() };
    scene.sent();
    let dir = tempfile::tempdir().unwrap();
    let exchanges = {
        let scene = &*scene;
        let stage = Stage {
            lab: scene.lab(),
            authority,
            contacts: &|| scene.contacts(),
            inside: sandboxes.first(),
            reload: &|policy| reload(case, authority, scene, policy),
            dir: dir.path(),
        };
        stage.run(input)?
    };
    let mut evidence = gather(scene, exchanges);
    verdict::judge(&case.expect, &mut evidence, &case.layer).map_err(Fault::Failed)?;
    if evidence.scene.gateway_mut().alive() { Ok(()) } else { Err(Fault::Failed("the gateway died".into())) }
}

fn gather(scene: &mut Scene, exchanges: Vec<Exchange>) -> Evidence<'_> {
    let verdicts = exchanges.iter().map(verdict::verdict_of).collect();
    Evidence {
        sent: scene.sent(),
        contacts: scene.contacts(),
        asked: scene.dns_if_any().map(|dns| dns.asked()).unwrap_or_default(),
        log: scene.gateway().audit_text(),
        exchanges,
        verdicts,
        scene,
    }
}

/// The one generator line of the corpus: a policy with many entries.
fn generated(text: &str) -> String {
    let Some(rest) = text.strip_prefix("GENERATE ") else { return text.to_owned() };
    let (count, pattern) = rest.split_once(" entries ").expect("a generator line");
    let entries: Vec<String> = (0..count.parse::<u64>().unwrap())
        .map(|n| format!("{:?}", pattern.replace("{i}", &n.to_string())))
        .collect();
    format!(
        "[policy.case]\nallow = [{}]\n\n[sandbox.s1]\npolicies = [\"case\"]\nidentify = [{{ default = true }}]\n",
        entries.join(",\n")
    )
}

/// Runs the loader over the text; where the case goes on, starts a gateway with it, or hands it to a running one.
fn run_policy(
    case: &Case,
    authority: &Arc<TestAuthority>,
    scene: SceneBuilder,
    text: &str,
    then: Option<&Input>,
) -> Result<(), Fault> {
    let scene = scene.policy(text);
    let check = check(&scene);
    let stderr = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
    let after_reload = case.expect.assert.iter().any(|assert| assert.starts_with("verdict_after"));
    match check.status.code() {
        Some(1) if !after_reload => {
            let right = |expect: &case::Expect| expect.verdict == Verdict::Error;
            let expected = right(&case.expect) || case.expect.alt.as_deref().is_some_and(right);
            // A refusal for what is not built says nothing about the case; a mistake that is named by place does.
            let named =
                stderr.lines().any(|line| line.contains("tidegate.toml:") && !line.contains("not built yet"));
            return match (expected, named) {
                (false, _) => Err(Fault::Failed(format!("the loader refused it: {stderr}"))),
                (true, false) => Err(Fault::Failed(format!("the refusal names no mistake: {stderr}"))),
                (true, true) => Ok(()),
            };
        }
        Some(1) | Some(0) => {}
        other => return Err(Fault::Failed(format!("check ended with {other:?}: {stderr}"))),
    }
    let Some(then) = then else {
        let right = |expect: &case::Expect| expect.verdict == Verdict::Allow;
        let expected = right(&case.expect) || case.expect.alt.as_deref().is_some_and(right);
        return if expected { Ok(()) } else { Err(Fault::Failed("the loader took it".into())) };
    };
    if !after_reload {
        let mut scene = start(scene)?;
        return act_and_judge(case, authority, &mut scene, then);
    }
    let broken = scene.config().clone();
    let mut scene = start(scene.policy(EMPTY))?;
    broken.write(scene.gateway().dir());
    scene.gateway().signal(Signal::HUP);
    eventually("the failed reload is logged", || {
        scene.gateway().audit().into_iter().find(|event| event["event"] == "reload")
    });
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage {
        lab: scene.lab(),
        authority,
        contacts: &|| scene.contacts(),
        inside: None,
        reload: &|policy| reload(case, authority, &scene, policy),
        dir: dir.path(),
    };
    let exchanges = stage.run(then)?;
    let mut evidence = gather(&mut scene, exchanges);
    // The verdict "error" is the loader's; what the gateway then does is the assertion's.
    for text in &case.expect.assert {
        let assertion = assertion::Assertion::parse(text).map_err(Fault::Failed)?;
        assertion.check(&mut evidence).map_err(|error| Fault::Failed(format!("{text}: {error}")))?;
    }
    Ok(())
}

/// A policy that allows nothing.
const EMPTY: &str = "[policy.case]\n\n[sandbox.s1]\npolicies = [\"case\"]\nidentify = [{ default = true }]\n";

/// A config file that is written in pieces under a running gateway: at no moment may more be allowed than by the whole.
fn run_policy_write(
    case: &Case,
    authority: &Arc<TestAuthority>,
    scene: SceneBuilder,
    chunks: &[String],
    between: Duration,
    then: &Input,
) -> Result<(), Fault> {
    let mut whole = scene.config().clone();
    whole.policy = String::new();
    let mut scene = start(scene.policy(EMPTY))?;
    // The pieces are the end of the file: what stands before them is the rest of the config.
    let mut text = whole.text(scene.gateway().dir());
    for chunk in chunks {
        text += chunk;
        fs::write(scene.gateway().config_file(), &text).unwrap();
        let until = Instant::now() + between;
        while Instant::now() < until {
            act_and_judge(case, authority, &mut scene, then)?;
            input::pause(Duration::from_millis(100));
        }
    }
    eventually("the whole file is loaded", || {
        scene.gateway().audit().into_iter().find(|event| event["event"] == "reload")
    });
    act_and_judge(case, authority, &mut scene, then)
}

fn check(scene: &SceneBuilder) -> Output {
    let dir = tempfile::Builder::new().prefix("tidegate-check-").tempdir().unwrap();
    let file = scene.config().write(dir.path());
    let lab = Lab::new().expect("namespaces were there a moment ago");
    run_tidegate(&lab, ["check".as_ref(), "--config".as_ref(), file.as_os_str()])
}
