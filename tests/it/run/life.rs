//! Processes of a run: signals, orphans, and what is left when one of them is killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::world::{Input, Running, both, text};
use crate::support::eventually;

/// Reads lines of a run's output until one says so. Gives all of them.
pub fn until(run: &mut Running, line: &str) -> String {
    let mut output = BufReader::new(run.child().stdout.take().unwrap());
    let mut all = String::new();
    while all.lines().next_back() != Some(line) {
        assert!(output.read_line(&mut all).unwrap() > 0, "the output ended before {line:?}: {all}");
    }
    run.child().stdout = Some(output.into_inner());
    all
}

#[test]
fn signals_reach_the_command_as_if_it_stood_there() {
    both(|world| {
        for (signal, name) in [
            (Signal::TERM, "TERM"),
            (Signal::INT, "INT"),
            (Signal::HUP, "HUP"),
            (Signal::QUIT, "QUIT"),
            (Signal::USR1, "USR1"),
            (Signal::USR2, "USR2"),
        ] {
            let script =
                format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
            let mut run = world.start(&[], &["sh", "-c", &script], Input::Null);
            until(&mut run, "ready");
            run.signal(signal);
            let output = run.output();
            assert_eq!(output.status.code(), Some(9), "{name}: {}", text(&output.stderr));
            assert_eq!(text(&output.stdout), format!("got {name}\n"));
        }
    });
}

#[test]
fn a_signal_that_ends_the_command_is_its_status() {
    both(|world| {
        for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
            let mut run =
                world.start(&[], &["sh", "-c", "echo ready; while :; do sleep 0.05; done"], Input::Null);
            until(&mut run, "ready");
            run.signal(signal);
            assert_eq!(run.output().status.code(), Some(status));
        }
    });
}

#[test]
fn a_stopped_run_stops_its_command_and_goes_on_with_it() {
    both(|world| {
        let mut run = world.start(&[], &["sh", "-c", "echo ready; read line; echo \"$line\""], Input::Open);
        until(&mut run, "ready");
        run.signal(Signal::TSTP);
        let pid = run.pid();
        eventually("the run is stopped", || (state(pid) == 'T').then_some(()));
        run.signal(Signal::CONT);
        run.child().stdin.take().unwrap().write_all(b"on\n").unwrap();
        let output = run.output();
        assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("on\n", Some(0)));
    });
}

#[test]
fn orphans_are_reaped_and_end_with_the_command() {
    both(|world| {
        let script = "for i in 1 2 3 4 5; do (sh -c 'exec sleep 0.01' &) ; done; (sleep 61.25 &); sleep 0.5; \
                      grep -h '^State' /proc/[0-9]*/status | grep -c Z; true";
        let output = world.run(&[], &["sh", "-c", script]);
        assert_eq!(text(&output.stdout), "0\n", "{}", text(&output.stderr));
        assert_eq!(processes_with("61.25"), Vec::<Pid>::new());
    });
}

#[test]
fn whichever_process_is_killed_nothing_is_left() {
    both(|world| {
        // Each run sleeps for a time of its own, by which its processes are found.
        for (victim, mark) in
            [("gateway", "71.125"), ("helper", "72.125"), ("first", "73.125"), ("command", "74.125")]
        {
            let folder = world.workspace();
            let script = format!("setsid sleep {mark} & echo ready; exec sleep {mark}");
            let mut run = world.start(&[], &["sh", "-c", &script], Input::Null);
            until(&mut run, "ready");
            let gateway = run.pid();
            let helper = only_child(gateway);
            let first = only_child(helper);
            let inside = in_namespace_of(first);
            assert!(!inside.contains(&gateway));
            let command = children(first)[0];
            let pid = match victim {
                "gateway" => gateway,
                "helper" => helper,
                "first" => first,
                _ => command,
            };
            kill_process(pid, Signal::KILL).unwrap();
            let output = run.output();
            let expected = match victim {
                "gateway" => None,
                "helper" => Some(125),
                _ => Some(137),
            };
            assert_eq!(output.status.code(), expected, "{victim}: {}", text(&output.stderr));
            eventually("every process has gone", || {
                let left = processes_with(mark);
                (left.is_empty() && is_gone(helper) && inside.iter().all(|pid| is_gone(*pid))).then_some(())
            });
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
        }
    });
}

/// TIDEGATE_RUNS=200 starts as many as the promise names.
#[test]
fn runs_that_are_there_at_once_have_each_their_own_policy_and_log() {
    #[expect(clippy::disallowed_methods, reason = "how whoever runs it by hand asks for more")]
    let count = std::env::var("TIDEGATE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(16_usize);
    let host = |number: usize| format!("n{}.many.example.test", number % count);
    both(|world| {
        let mut runs: Vec<Running> = (0..count)
            .map(|number| {
                let (own, other) = (host(number), host(number + 1));
                let script = format!(
                    "for host in {own} {other}; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://$host/; done; \
                     curl -s --noproxy '*' -o /dev/null http://{other}/ || echo refused; echo ready; read line"
                );
                let (allow, audit) = (format!("{own}:80"), format!("{number}.jsonl"));
                world.start(&["--allow", &allow, "--audit", &audit], &["sh", "-c", &script], Input::Open)
            })
            .collect();
        for run in &mut runs {
            assert_eq!(until(run, "ready"), "200\n403\nrefused\nready\n");
        }
        // All are there. Each ends with its input.
        for (number, mut run) in runs.into_iter().enumerate() {
            drop(run.child().stdin.take());
            let output = run.output();
            assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
            let audit = fs::read_to_string(world.workspace().join(format!("{number}.jsonl"))).unwrap();
            let lines = audit.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            for line in lines.filter(|line| line["event"] == "decision") {
                let expected = if line["decision"] == "allow" { host(number) } else { host(number + 1) };
                assert_eq!(line["host"], *expected, "{line}");
            }
        }
    });
}

#[test]
fn the_first_process_has_three_descriptors_no_right_and_no_memory_to_read() {
    both(|world| {
        // Descriptors that the caller leaves open do not come along.
        let mut shell = world.as_user("sh");
        let words = world
            .words(&[], &["sh", "-c", "ls /proc/self/fd | tr '\\n' ' '; echo; echo ready; exec sleep 60"]);
        shell
            .args(["-c", "exec 7</etc/hostname 9>&1; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tidegate")])
            .args(words);
        let mut run = world.spawn(shell, Input::Null);
        let mut output = BufReader::new(run.child().stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        // ls has its directory open too.
        assert_eq!(line.trim_end(), "0 1 2 3");
        line.clear();
        output.read_line(&mut line).unwrap();
        let first = only_child(only_child(run.pid()));
        let mut held: Vec<String> = fs::read_dir(proc(first, "fd"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        held.sort();
        assert_eq!(held, ["0", "1", "2"]);
        let status = fs::read_to_string(proc(first, "status")).unwrap();
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{name}:\t0000000000000000")), "{status}");
        }
        // A process that may be dumped owns its own folder; this one's is root's (proc(5)).
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(fs::metadata(proc(first, "environ")).unwrap().uid(), 0);
        assert_ne!(status_field(first, "Uid"), "0");
    });
}

#[test]
fn an_mcp_server_over_stdio_works_unchanged() {
    let server = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "notifications/initialized":
        continue
    result = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "echo", "version": "1"}},
              "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
              "tools/call": {"content": [{"type": "text", "text": asked.get("params", {}).get("arguments", {}).get("say")}]},
              }[asked["method"]]
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
print("bye", file=sys.stderr)
"#;
    both(|world| {
        let mut run = world.start(&[], &["/usr/bin/python3", "-c", server], Input::Open);
        let mut input = run.child().stdin.take().unwrap();
        let mut output = BufReader::new(run.child().stdout.take().unwrap());
        let mut ask = |message: serde_json::Value| {
            input.write_all(format!("{message}\n").as_bytes()).unwrap();
            if message.get("id").is_none() {
                return serde_json::Value::Null;
            }
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            serde_json::from_str::<serde_json::Value>(&line).unwrap_or_else(|_| panic!("{line:?}"))
        };
        let initialized =
            ask(serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}));
        assert_eq!(initialized["result"]["serverInfo"]["name"], "echo");
        ask(serde_json::json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(
            ask(serde_json::json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}))["result"]["tools"][0]
                ["name"],
            "echo"
        );
        let said = ask(serde_json::json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call",
            "params": {"name": "echo", "arguments": {"say": "tide\u{301}"}}}));
        assert_eq!(said["result"]["content"][0]["text"], "tide\u{301}");
        // The end of its input is how a client ends a server.
        drop(input);
        run.child().stdout = Some(output.into_inner());
        let output = run.output();
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), ""));
        assert_eq!(text(&output.stderr), "bye\n");
    });
}

fn proc(pid: Pid, name: &str) -> std::path::PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join(name)
}

fn status_field(pid: Pid, name: &str) -> String {
    let status = fs::read_to_string(proc(pid, "status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or_default().to_owned()
}

fn state(pid: Pid) -> char {
    status_field(pid, "State").chars().next().unwrap_or('?')
}

fn all() -> Vec<Pid> {
    let names =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    names.filter_map(|name| Pid::from_raw(name.parse().ok()?)).collect()
}

pub fn children(pid: Pid) -> Vec<Pid> {
    let parent = pid.as_raw_nonzero().to_string();
    all().into_iter().filter(|pid| status_field(*pid, "PPid") == parent).collect()
}

pub fn only_child(pid: Pid) -> Pid {
    eventually("it has one child", || match children(pid).as_slice() {
        [child] => Some(*child),
        _ => None,
    })
}

/// Processes with this word in their command line, which only tests of this kind have.
pub fn processes_with(mark: &str) -> Vec<Pid> {
    let has = |pid: &Pid| {
        let line = fs::read(proc(*pid, "cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    };
    all().into_iter().filter(has).collect()
}

/// The processes in the network namespace of a process. A namespace that has gone gives its number to another, so that it is
/// by them that its end is seen.
pub fn in_namespace_of(pid: Pid) -> Vec<Pid> {
    let namespace = fs::read_link(proc(pid, "ns/net")).unwrap();
    let is_inside = |pid: &Pid| fs::read_link(proc(*pid, "ns/net")).is_ok_and(|found| found == namespace);
    all().into_iter().filter(is_inside).collect()
}

pub fn is_gone(pid: Pid) -> bool {
    !proc(pid, "").exists()
}
