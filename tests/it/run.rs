//! `tidegate run`, as root and as an ordinary user: what a command in the sandbox sees, may do, and cannot.

mod clients;
mod corpus;
mod handed;
mod hostile;
mod life;
mod mcp;
mod place;
mod terminal;
mod world;

use std::fs;

use world::{Who, both, text};

#[test]
fn the_exit_status_is_that_of_the_command() {
    both(|world| {
        for (script, status) in [
            ("true", 0),
            ("exit 7", 7),
            ("exit 255", 255),
            ("kill -TERM $$", 143),
            ("kill -KILL $$", 137),
            ("ulimit -c 0; kill -SEGV $$", 139),
        ] {
            let output = world.run(&[], &["sh", "-c", script]);
            assert_eq!(output.status.code(), Some(status), "{script}: {}", text(&output.stderr));
            assert_eq!(text(&output.stdout), "", "{script}");
        }
    });
}

#[test]
fn a_command_that_cannot_be_executed_is_told_from_one_that_is_not_there() {
    both(|world| {
        fs::write(world.workspace().join("data"), "no program").unwrap();
        for (command, status, said) in [
            ("no-such-command", 127, "cannot execute \"no-such-command\": it is not found"),
            ("/nowhere/at/all", 127, "it is not found"),
            ("./data", 126, "cannot execute \"./data\""),
            (".", 126, "cannot execute"),
        ] {
            let output = world.run(&[], &[command]);
            assert_eq!(output.status.code(), Some(status), "{command}: {}", text(&output.stderr));
            assert!(text(&output.stderr).contains(said), "{command}: {}", text(&output.stderr));
        }
    });
}

#[test]
fn a_failure_of_our_own_is_125_and_nothing_is_run() {
    both(|world| {
        for (options, said) in [
            (&["--allow", "https://a.example/"][..], "--allow https://a.example/: "),
            (&["--deny", ""], "--deny : "),
            (&["--no-such-option"], "--no-such-option"),
            (&["--config", "/nowhere/tidegate.toml"], "/nowhere/tidegate.toml"),
            (&["--policy", "absent"], "there is no [policy.absent]"),
            (&["--sandbox", "absent"], "there is no [sandbox.absent]"),
            (&["--ro", "/nowhere"], "--ro /nowhere"),
            (&["--publish", "80:80"], "ADDRESS:PORT:PORT"),
        ] {
            let needs_file = options.iter().any(|word| word.contains("policy") || word.contains("sandbox"));
            let config = world.config();
            let file = if needs_file { vec!["--config", config.to_str().unwrap()] } else { vec![] };
            let output = world.run_exactly(&[&file[..], options].concat(), &["touch", "started"]);
            assert_eq!(output.status.code(), Some(125), "{options:?}: {}", text(&output.stderr));
            assert!(text(&output.stderr).contains(said), "{options:?}: {}", text(&output.stderr));
            assert!(!world.workspace().join("started").exists());
        }
    });
}

#[test]
fn streams_pass_untouched_and_the_end_of_input_is_seen() {
    both(|world| {
        let sent: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[(n % 4) as usize]).collect();
        let output = world.run_with_input(&[], &["cat"], &sent);
        assert!(output.stdout == sent, "{} bytes of {}", output.stdout.len(), sent.len());
        let output = world.run(&[], &["sh", "-c", "echo out; echo err >&2"]);
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("out\n", "err\n"));
    });
}

#[test]
fn listed_destinations_work_by_name_and_all_others_fail_at_once() {
    both(|world| {
        let script = r#"
for how in "" "--noproxy *"; do
    for url in http://listed.example.test/a http://other.example.test/ http://203.0.113.66/; do
        curl -sS -m 5 -o /dev/null -w "%{http_code}\n" $how $url 2>/dev/null || echo "failed $?"
    done
done
"#;
        let output = world.run(&["--allow", "listed.example.test:80"], &["sh", "-c", script]);
        let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
        assert_eq!(lines[..3], ["200", "403", "403"], "{}", text(&output.stderr));
        assert_eq!(lines[3], "200", "{}", text(&output.stderr));
        // Without a proxy a name that is not listed does not resolve, and an address is refused.
        assert!(lines.contains(&"failed 6".to_owned()), "{lines:?}");
        let said = text(&output.stderr);
        for part in [
            "tidegate: contacted 1 destination,",
            "  listed.example.test:80",
            "other.example.test:80  not_listed",
            "other.example.test (look-up)  not_listed",
            "203.0.113.66:80  address_literal_not_listed",
            "--allow other.example.test:80",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(world.asked_under("other.example.test").is_empty());
    });
}

#[test]
fn what_ignores_proxies_is_captured_whatever_its_port() {
    both(|world| {
        let script = r#"
import socket
for host, port in (("echo.example.test", 5432), ("echo.example.test", 5433), ("203.0.113.66", 5432)):
    try:
        s = socket.create_connection((host, port), 5)
        s.sendall(b"\0hello")
        print(port, s.recv(6)[1:].decode() or "closed")
    except OSError as error:
        print(port, type(error).__name__)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect(("203.0.113.66", 443))
try:
    u.send(b"x"); u.settimeout(5); u.recv(1)
except OSError as error:
    print("udp", type(error).__name__)
"#;
        let output = world.run(&["--allow", "echo.example.test:5432"], &["/usr/bin/python3", "-c", script]);
        let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "5432 hello", "{}", text(&output.stderr));
        for line in &lines[1..3] {
            assert!(line.ends_with("ConnectionResetError") || line.ends_with("closed"), "{lines:?}");
        }
        assert_eq!(lines[3], "udp ConnectionRefusedError");
    });
}

#[test]
fn a_summary_and_an_audit_can_be_kept() {
    both(|world| {
        let output = world.run(
            &["--allow", "listed.example.test:80", "--summary", "s.json", "--audit", "a.jsonl"],
            &[
                "sh",
                "-c",
                "curl -s http://listed.example.test/ >&2; curl -s http://other.example.test/ >&2; exit 3",
            ],
        );
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        let read = |name: &str| fs::read_to_string(world.workspace().join(name)).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&read("s.json")).unwrap();
        assert_eq!(summary["status"], 3);
        assert_eq!(summary["allow"], serde_json::json!(["other.example.test:80"]));
        let events: Vec<serde_json::Value> =
            read("a.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
        assert_eq!((kinds.first(), kinds.last()), (Some(&"sandbox"), Some(&"sandbox")), "{kinds:?}");
        assert_eq!(events.last().unwrap()["status"], 3);
    });
}

#[test]
fn policies_of_a_config_are_used_by_name() {
    both(|world| {
        let config = world.config();
        let config = ["--config", config.to_str().unwrap()];
        let get = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://listed.example.test/"];
        for (options, status) in [
            (&["--sandbox", "agent"][..], "200"),
            (&["--policy", "web"], "200"),
            (&["--policy", "none"], "403"),
            (&["--sandbox", "agent", "--deny", "listed.example.test"], "403"),
        ] {
            let output = world.run_exactly(&[&config[..], options].concat(), &get);
            assert_eq!(text(&output.stdout), status, "{options:?}: {}", text(&output.stderr));
        }
    });
}

#[test]
fn learning_lets_through_and_tells_what_to_list() {
    both(|world| {
        let output =
            world.run(&["--learn"], &["curl", "-s", "-o", "/dev/null", "http://learned.example.com/"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("1 would be denied without --learn"), "{said}");
        assert!(said.contains("--allow learned.example.com:80"), "{said}");
    });
}

#[test]
fn a_published_port_leads_to_the_commands_loopback() {
    both(|world| {
        let serve = "import http.server\nhttp.server.HTTPServer(('127.0.0.1', 8000), \
                     http.server.SimpleHTTPRequestHandler).serve_forever()";
        fs::write(world.workspace().join("index.html"), "from inside").unwrap();
        let mut run = world.start(
            &["--publish", "127.0.0.1:18080:8000"],
            &["/usr/bin/python3", "-c", serve],
            world::Input::Null,
        );
        let got = crate::support::eventually("the published server answers", || {
            let got = world.outside(&["curl", "-s", "-m", "2", "http://127.0.0.1:18080/"]);
            got.status.success().then(|| text(&got.stdout))
        });
        assert_eq!(got, "from inside");
        // Nothing else of it is there.
        let other = world.outside(&["curl", "-s", "-m", "2", "http://127.0.0.1:8000/"]);
        assert!(!other.status.success());
        run.end();
        let gone = world.outside(&["curl", "-s", "-m", "2", "http://127.0.0.1:18080/"]);
        assert!(!gone.status.success());
    });
}

#[test]
fn without_namespaces_it_is_refused_and_the_weak_way_is_loud() {
    // A user namespace in which there may be no further ones.
    world::with(Who::Ordinary, |world| {
        let refused = world.run_without_namespaces(&[], &["touch", "started"]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(125), "{said}");
        assert!(
            said.contains("cannot make a user namespace") && said.contains("max_user_namespaces"),
            "{said}"
        );
        assert!(!world.workspace().join("started").exists());
        let script = "curl -s -o /dev/null -w '%{http_code} ' http://listed.example.test/; \
                      curl -s -o /dev/null -w '%{http_code}' http://other.example.test/";
        let weak = world.run_without_namespaces(
            &["--allow-weak", "--allow", "listed.example.test:80"],
            &["sh", "-c", script],
        );
        let said = text(&weak.stderr);
        assert_eq!(text(&weak.stdout), "200 403", "{said}");
        assert!(said.contains("NO SANDBOX: cannot make a user namespace"), "{said}");
        // What needs no namespace is done all the same.
        let script = "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; exec 3<>/dev/null; ls /proc/self/fd | wc -l; \
                      python3 -c 'import socket; socket.socket(17, 3)' 2>&1 | tail -1";
        let weak = world.run_without_namespaces(&["--allow-weak"], &["sh", "-c", script]);
        let found = text(&weak.stdout);
        for part in ["Seccomp:\t2\n", "NoNewPrivs:\t1\n", "Errno 97"] {
            assert!(found.contains(part), "{part:?}: {found}{}", text(&weak.stderr));
        }
    });
}
