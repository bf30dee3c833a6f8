//! A run that a gateway serves which runs already: its policy, its audit, its summary, and nothing left when any of them
//! ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::life::{children, in_namespace_of, is_gone, only_child, processes_with, until};
use super::world::{Input, UID, Who, World, both, text, with};
use crate::support::{Gateway, GatewayConfig, Scene, eventually};

const ADMIN: &str = "admin = \"unix:{dir}/admin.sock\"\n";

/// A gateway beside the runs, whose sandbox `agent` belongs to both kinds of user.
fn gateway(world: &World, more: &str) -> Gateway {
    let policy = format!(
        "[policy.web]\nallow = [\"listed.example.test:80\"]\n[policy.echo]\nallow = [\"echo.example.test:5432\"]\n\
         [sandbox.agent]\npolicies = [\"web\"]\nowners = [0, {UID}]\nlocal_peers = [\"tools:9000\"]\n\
         [sandbox.other]\npolicies = [\"echo\"]\nowners = [0, {UID}]\n{more}"
    );
    let config = GatewayConfig { policy, listen: ADMIN.into(), ..Scene::new().config().clone() };
    let gateway = Gateway::start(world.lab(), &config).unwrap_or_else(|not| panic!("{}", not.stderr));
    fs::set_permissions(gateway.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(gateway.config_file(), fs::Permissions::from_mode(0o644)).unwrap();
    gateway
}

/// Leaked, as the words of a run are: a test has a handful.
fn socket(gateway: &Gateway) -> &'static str {
    Box::leak(gateway.dir().join("admin.sock").to_str().unwrap().to_owned().into_boxed_str())
}

fn config(gateway: &Gateway) -> &'static str {
    Box::leak(gateway.config_file().to_str().unwrap().to_owned().into_boxed_str())
}

/// The `sandbox` events of one sandbox, each as its change, status and who asked.
fn changes(gateway: &Gateway, sandbox: &str) -> Vec<(String, Option<u64>, Option<u64>)> {
    let all = gateway.audit().into_iter();
    let events = all.filter(|line| line["event"] == "sandbox" && line["sandbox"] == sandbox);
    events
        .map(|line| {
            (line["change"].as_str().unwrap().to_owned(), line["status"].as_u64(), line["by"].as_u64())
        })
        .collect()
}

fn uid(world: &World) -> u64 {
    if world.who() == Who::Root { 0 } else { UID.into() }
}

/// The names of the sandboxes that were added.
fn added(world: &World, gateway: &Gateway) -> Vec<String> {
    let list = crate::support::run_tidegate(
        world.lab(),
        ["sandbox", "--json", "--socket", &format!("unix:{}", socket(gateway)), "list"],
    );
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let all = list["sandboxes"].as_array().unwrap().iter();
    all.filter(|one| one["origin"] == "run_time").map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_gateway_that_runs_serves_its_sandbox_and_tells_at_the_end() {
    both(|world| {
        let gateway = gateway(world, "");
        let script = "curl -s -o /dev/null -w '%{http_code} ' http://listed.example.test/; \
                      curl -s -o /dev/null -w '%{http_code} ' http://other.example.test/; \
                      curl -s -o /dev/null -w '%{http_code} ' --noproxy '*' http://listed.example.test/; \
                      echo $TIDEGATE_SANDBOX_ID $NO_PROXY; exit 3";
        // By the config that names the socket, and by the socket alone.
        for how in [["--config", config(&gateway)], ["--admin", socket(&gateway)]] {
            let options = [&how[..], &["--sandbox", "agent", "--summary", "s.json"]].concat();
            let output = world.run_exactly(&options, &["sh", "-c", script]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{said}");
            assert_eq!(text(&output.stdout), "200 403 200 agent localhost,127.0.0.1,::1,tools\n", "{said}");
            for part in [
                "tidegate: contacted 1 destination, denied ",
                "allowed     3  listed.example.test:80",
                "other.example.test:80  not_listed",
                "--allow other.example.test:80",
            ] {
                assert!(said.contains(part), "{part}: {said}");
            }
            let summary = fs::read_to_string(world.workspace().join("s.json")).unwrap();
            let summary: Value = serde_json::from_str(&summary).unwrap();
            assert_eq!((&summary["sandbox"], &summary["status"]), (&"agent".into(), &3.into()));
            fs::remove_file(world.workspace().join("s.json")).unwrap();
        }
        let uid = Some(uid(world));
        let (start, exit) = (("start".to_owned(), None, uid), ("exit".to_owned(), Some(3), uid));
        assert_eq!(changes(&gateway, "agent"), [start.clone(), exit.clone(), start, exit]);
        let audit = gateway.audit();
        let decisions = audit.iter().filter(|line| line["event"] == "decision");
        assert!(decisions.clone().count() > 4);
        assert!(decisions.clone().all(|line| line["sandbox"] == "agent"), "{audit:#?}");
    });
}

#[test]
fn the_gateways_own_files_and_sockets_are_out_of_reach() {
    both(|world| {
        let gateway = gateway(world, "");
        let dir = gateway.dir().to_str().unwrap().to_owned();
        let above = gateway.dir().parent().unwrap().to_str().unwrap();
        let script = format!(
            "ls -A {dir}; echo x > {dir}/tidegate.toml; mv {dir} {dir}.moved; test -d {dir} && echo stays; \
             curl -s -m 5 --unix-socket {dir}/admin.sock http://tidegate/v1/status || echo unreachable"
        );
        let before = fs::read_to_string(gateway.config_file()).unwrap();
        let run = |opened: &str| {
            let options = ["--admin", socket(&gateway), "--sandbox", "agent", "--rw", opened];
            world.run_exactly(&options, &["sh", "-c", &script])
        };
        // No config was named to this run: the gateway tells where its files are.
        let output = run(above);
        assert_eq!(text(&output.stdout), "stays\nunreachable\n", "{}", text(&output.stderr));
        assert_eq!(fs::read_to_string(gateway.config_file()).unwrap(), before);
        // A file that is saved anew in a folder that the command writes would be a new one, which nothing hides.
        let output = run(&dir);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""), "{said}");
        assert!(said.contains("give it a folder of its own"), "{said}");
    });
}

#[test]
fn a_sandbox_that_is_made_for_a_run_ends_with_it() {
    with(Who::Root, |world| {
        let gateway = gateway(world, "");
        let options = ["--config", config(&gateway), "--policy", "web", "--policy", "echo"];
        let script = "curl -s -o /dev/null -w '%{http_code}\\n' http://listed.example.test/; echo ready; exec sleep 81.5";
        for ends_with in [Signal::TERM, Signal::KILL] {
            let words = [&["run"], &options[..], &["--", "sh", "-c", script]].concat();
            let mut command = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
            command.args(words);
            let mut run = world.spawn(command, Input::Null);
            let mut output = BufReader::new(run.child().stdout.take().unwrap());
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, "200\n");
            let there = added(world, &gateway);
            assert!(matches!(&there[..], [name] if name.starts_with("run-")), "{there:?}");
            run.signal(ends_with);
            run.output();
            eventually("the sandbox has gone", || added(world, &gateway).is_empty().then_some(()));
            let expected = match ends_with {
                Signal::TERM => ("exit".to_owned(), Some(143), Some(0)),
                _ => ("exit".to_owned(), None, Some(0)),
            };
            let seen = changes(&gateway, &there[0]);
            let kinds: Vec<&str> = seen.iter().map(|(change, ..)| change.as_str()).collect();
            assert_eq!(kinds, ["add", "start", "exit", "remove"]);
            assert_eq!(seen[2], expected);
        }
        // Nothing of it was to outlive a restart: this gateway has no state at all.
        assert!(!fs::read_to_string(gateway.config_file()).unwrap().contains("[state]"));
    });
}

#[test]
fn a_gateway_that_refuses_is_quoted_and_nothing_is_run() {
    both(|world| {
        let gateway = gateway(world, "[sandbox.foreign]\nowners = [4711]\n");
        let uid = uid(world);
        let by_config = ["--config", config(&gateway)];
        let mut cases = vec![
            (
                vec!["--sandbox", "foreign"],
                format!("uid {uid} may not: write owners = [{uid}] in [sandbox.foreign]"),
            ),
            (vec!["--sandbox", "nobody"], "there is no [sandbox.nobody] in the policy in force".to_owned()),
        ];
        if world.who() == Who::Ordinary {
            cases.push((
                vec!["--policy", "web"],
                format!("uid {uid} has no such role; [admin] of the config gives"),
            ));
        } else {
            cases.push((vec!["--policy", "absent"], "absent".to_owned()));
        }
        for (options, why) in cases {
            let output = world.run_exactly(&[&by_config, &options[..]].concat(), &["touch", "started"]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{options:?}: {said}");
            assert!(said.contains(&why), "{options:?}: {said}");
            assert!(!world.workspace().join("started").exists());
        }
        // One live namespace a sandbox.
        let mut first = world.spawn(
            {
                let mut command = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
                command.args(["run", "--admin", socket(&gateway), "--sandbox", "agent", "--"]);
                command.args(["sh", "-c", "echo ready; exec sleep 82.5"]);
                command
            },
            Input::Null,
        );
        until(&mut first, "ready");
        let second =
            world.run_exactly(&["--admin", socket(&gateway), "--sandbox", "agent"], &["touch", "started"]);
        let said = text(&second.stderr);
        assert_eq!(second.status.code(), Some(125), "{said}");
        assert!(said.contains("sandbox agent has a namespace already"), "{said}");
        assert!(!world.workspace().join("started").exists());
        first.end();
        let missing = world.run_exactly(&["--admin", "/nowhere/admin.sock", "--sandbox", "agent"], &["true"]);
        assert!(text(&missing.stderr).contains("is the gateway running?"), "{}", text(&missing.stderr));
        assert_eq!(missing.status.code(), Some(125));
    });
}

#[test]
fn whichever_ends_the_command_has_no_network_and_nothing_is_left() {
    both(|world| {
        let mut gateway = gateway(world, "");
        for (victim, mark) in [
            ("run", "91.125"),
            ("helper", "92.125"),
            ("command", "93.125"),
            ("disowned", "94.125"),
            ("gateway", "95.125"),
        ] {
            let script = format!("setsid sleep {mark} & echo ready; exec sleep {mark}");
            let mut command = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
            command.args([
                "run",
                "--admin",
                socket(&gateway),
                "--sandbox",
                "agent",
                "--",
                "sh",
                "-c",
                &script,
            ]);
            let mut run = world.spawn(command, Input::Null);
            until(&mut run, "ready");
            let helper = only_child(run.pid());
            let first = only_child(helper);
            let inside = in_namespace_of(first);
            let held = |pid: rustix::process::Pid| {
                // Streams of the handed-over kind are held by the gateway alone.
                fs::read_to_string(format!("/proc/{}/net/tcp", pid.as_raw_nonzero())).unwrap()
            };
            assert!(held(first).contains(":0C38 "), "the proxy listens: {}", held(first));
            match victim {
                "run" => run.signal(Signal::KILL),
                "helper" => kill_process(helper, Signal::KILL).unwrap(),
                "command" => kill_process(children(first)[0], Signal::KILL).unwrap(),
                "disowned" => {
                    gateway.rewrite_config(|text| {
                        text.replacen(&format!("owners = [0, {UID}]"), "owners = [4711]", 1)
                    });
                    gateway.signal(Signal::HUP);
                }
                _ => gateway.signal(Signal::KILL),
            }
            let output = run.output();
            let said = text(&output.stderr);
            let (status, words) = match victim {
                "run" => (None, ""),
                "command" => (Some(137), ""),
                "helper" => (Some(125), "was ended by signal 9"),
                "disowned" => (Some(125), "is not in `owners` of its sandbox any more"),
                _ => (Some(125), "the gateway has gone, and the command was ended with its network"),
            };
            assert_eq!(output.status.code(), status, "{victim}: {said}");
            assert!(said.contains(words), "{victim}: {said}");
            eventually("every process has gone", || {
                (processes_with(mark).is_empty() && inside.iter().all(|pid| is_gone(*pid))).then_some(())
            });
            if victim == "disowned" {
                gateway.rewrite_config(|text| {
                    text.replacen("owners = [4711]", &format!("owners = [0, {UID}]"), 1)
                });
                gateway.signal(Signal::HUP);
                eventually("the owner is back", || {
                    let again =
                        world.run_exactly(&["--admin", socket(&gateway), "--sandbox", "agent"], &["true"]);
                    again.status.success().then_some(())
                });
            }
        }
        // A gateway that starts anew knows nothing of the run, and serves the next.
        gateway.restart(world.lab());
        fs::set_permissions(gateway.dir(), fs::Permissions::from_mode(0o755)).unwrap();
        eventually("it serves", || {
            let next = world.run_exactly(&["--admin", socket(&gateway), "--sandbox", "agent"], &["true"]);
            next.status.success().then_some(())
        });
    });
}

#[test]
fn the_probe_finds_no_way_out_of_what_a_gateway_serves() {
    both(|world| {
        let gateway = gateway(world, "");
        let mut command = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["run", "--admin", socket(&gateway), "--sandbox", "agent", "--probe"]);
        let output = world.spawn(command, Input::Null).output();
        let (found, said) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{found}{said}");
        assert!(found.contains("0 escaped, 0 unproven"), "{found}");
        assert!(said.contains("tidegate-probe.example") && !said.contains("--allow"), "{said}");
    });
}

#[test]
fn what_only_the_command_line_says_is_served_by_a_gateway_of_the_runs_own() {
    both(|world| {
        let mut gateway = gateway(world, "");
        fs::set_permissions(gateway.config_file(), fs::Permissions::from_mode(0o600)).unwrap();
        if world.who() == Who::Ordinary {
            std::os::unix::fs::chown(gateway.config_file(), Some(UID), Some(UID)).unwrap();
        }
        let config = ["--config", config(&gateway), "--sandbox", "agent"];
        let get = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://other.example.test/"];
        let log = world.workspace().join("own.jsonl");
        let log = log.to_str().unwrap();
        for (options, note) in [
            (&["--allow", "other.example.test:80", "--audit", log][..], "--allow is this run's alone"),
            (&["--own-gateway", "--allow", "other.example.test:80", "--audit", log], ""),
        ] {
            let output = world.run_exactly(&[&config[..], options].concat(), &get);
            let said = text(&output.stderr);
            assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("200", Some(0)), "{said}");
            assert!(said.contains(note), "{said}");
        }
        let refused = world.run_exactly(&["--admin", socket(&gateway), "--allow", "a.example"], &get);
        assert_eq!(refused.status.code(), Some(125));
        assert!(text(&refused.stderr).contains("--allow"), "{}", text(&refused.stderr));
        assert!(gateway.audit().iter().all(|line| line["sandbox"] != "agent"));
        gateway.stop();
        if world.who() == Who::Ordinary {
            std::os::unix::fs::chown(gateway.dir(), Some(UID), Some(UID)).unwrap();
            std::os::unix::fs::chown(gateway.dir().join("audit.jsonl"), Some(UID), Some(UID)).unwrap();
        }
        let output = world.run_exactly(&config, &["true"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("no gateway runs at unix:"), "{said}");
    });
}

/// How many runs start at once: each is four processes, and a debug build takes a while to begin.
const AT_ONCE: usize = 8;

#[test]
fn two_hundred_runs_on_one_gateway_see_each_only_what_is_theirs() {
    const COUNT: usize = 200;
    with(Who::Ordinary, |world| {
        let tables = (0..COUNT).map(|n| {
            format!(
                "[policy.p{n}]\nallow = [\"n{n}.example.test:80\"]\n\
                 [sandbox.s{n}]\npolicies = [\"p{n}\"]\nowners = [{UID}]\n"
            )
        });
        let gateway = gateway(world, &tables.collect::<String>());
        let socket = socket(&gateway);
        // Its own name, by the address that stands for it and by the proxy; its neighbour's; then, once all are there, the
        // address that its neighbour was given.
        let script = "get() { curl -s -m 30 -o /dev/null -w '%{http_code} %{remote_ip}\\n' \"$@\" || echo failed; }\n\
                      get --noproxy '*' http://$OWN/; get http://$OWN/; get --noproxy '*' http://$OTHER/; get http://$OTHER/\n\
                      read there; get --noproxy '*' http://$there/; read end";
        let name = |n: usize| format!("n{}.example.test", n % COUNT);
        let start = |n: usize| {
            let mut command = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
            command.args(["run", "--admin", socket, "--sandbox", &format!("s{n}"), "--", "sh", "-c", script]);
            command.env("OWN", name(n)).env("OTHER", name(n + 1));
            let mut run = world.spawn(command, Input::Open);
            let input = run.child().stdin.take().unwrap();
            let output = BufReader::new(run.child().stdout.take().unwrap()).lines();
            (run, input, output)
        };
        let mut all = Vec::with_capacity(COUNT);
        let mut given = Vec::with_capacity(COUNT);
        for first in (0..COUNT).step_by(AT_ONCE) {
            let mut begun: Vec<_> = (first..COUNT.min(first + AT_ONCE)).map(&start).collect();
            for (run, _, output) in &mut begun {
                let lines: Vec<String> = output.by_ref().take(5).map(Result::unwrap).collect();
                let mut said = || format!("{lines:?} {:?}", run.child().try_wait());
                let bound = lines
                    .first()
                    .and_then(|line| line.strip_prefix("200 "))
                    .unwrap_or_else(|| panic!("{}", said()));
                assert!(bound.starts_with("198.18.") || bound.starts_with("198.19."), "{lines:?}");
                // Without a proxy the neighbour's name is none; curl tells before it fails.
                assert_eq!(lines[1..], ["200 127.0.0.1", "000 ", "failed", "403 127.0.0.1"], "{lines:?}");
                given.push(bound.to_owned());
            }
            all.extend(begun);
        }
        for (n, (_, input, _)) in all.iter_mut().enumerate() {
            writeln!(input, "{}", given[(n + 1) % COUNT]).unwrap();
        }
        for (n, (_, input, output)) in all.iter_mut().enumerate() {
            let answer = output.next().unwrap().unwrap();
            // Two sandboxes may have one address; it stands for one name in each.
            if given[n] != given[(n + 1) % COUNT] {
                assert!(answer.starts_with("000") || answer.starts_with("403"), "{n}: {answer}");
            }
            writeln!(input).unwrap();
        }
        for (n, (run, input, output)) in all.into_iter().enumerate() {
            drop((input, output));
            let ended = run.output();
            let said = text(&ended.stderr);
            assert!(
                said.contains("contacted 1 destination,") && said.contains(&format!("{}:80", name(n))),
                "{said}"
            );
            assert!(said.contains(&format!("{}:80  not_listed", name(n + 1))), "{said}");
        }
        let audit = gateway.audit();
        for n in 0..COUNT {
            let mine = audit.iter().filter(|line| line["sandbox"] == format!("s{n}").as_str());
            let hosts: BTreeSet<&str> = mine
                .filter(|line| line["decision"] == "allow")
                .map(|line| line["host"].as_str().unwrap())
                .collect();
            assert_eq!(hosts, BTreeSet::from([&*name(n)]));
        }
    });
}
