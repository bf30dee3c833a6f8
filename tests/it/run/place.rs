//! What a command finds: files, variables, devices, and itself.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::world::{Input, UID, Who, World, both, text};

/// Runs a script and gives its output by lines.
fn lines(world: &World, options: &[&str], script: &str) -> Vec<String> {
    let output = world.run(options, &["sh", "-c", script]);
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn only_the_workspace_is_written_and_its_files_are_their_owners() {
    both(|world| {
        world.write(&world.home().join(".profile"), "mine\n");
        let script = r#"
echo new > made
echo changed > ~/.profile && cat ~/.profile
mkdir ~/fresh && ls -d ~/fresh >/dev/null && echo home
for at in /etc /usr /var /opt /; do touch $at/x 2>/dev/null && echo wrote $at; done
touch /tmp/tidegate-x /run/tidegate-x /var/tmp/tidegate-x /dev/shm/tidegate-x && echo private
true
"#;
        assert_eq!(lines(world, &[], script), ["changed", "home", "private"]);
        let made = fs::metadata(world.workspace().join("made")).unwrap();
        let expected = if world.who() == Who::Root { 0 } else { UID };
        assert_eq!((made.uid(), made.gid()), (expected, expected));
        assert_eq!(fs::read_to_string(world.home().join(".profile")).unwrap(), "mine\n");
        assert!(!world.home().join("fresh").exists());
        for path in ["/tmp/tidegate-x", "/run/tidegate-x", "/var/tmp/tidegate-x", "/dev/shm/tidegate-x"] {
            assert!(fs::symlink_metadata(path).is_err(), "{path}");
        }
    });
}

#[test]
fn credentials_are_not_there_unless_they_are_named() {
    both(|world| {
        let home = world.home();
        for name in
            [".ssh/id_ed25519", ".aws/credentials", ".config/gh/hosts.yml", ".netrc", ".npmrc", ".kept"]
        {
            world.write(&home.join(name), "secret\n");
        }
        let script = "cat ~/.ssh/id_ed25519 ~/.aws/credentials ~/.config/gh/hosts.yml ~/.netrc ~/.npmrc ~/.kept 2>/dev/null; \
                      ls -A ~; mkdir ~/.ssh && echo own";
        assert_eq!(lines(world, &[], script), ["secret", ".config", ".kept", "own"]);
        let npmrc = home.join(".npmrc");
        let script = "cat ~/.npmrc; echo x >> ~/.npmrc || echo read-only; cat ~/.netrc || echo none";
        let read = lines(world, &["--ro", npmrc.to_str().unwrap()], &format!("({script}) 2>/dev/null"));
        assert_eq!(read, ["secret", "read-only", "none"]);
    });
}

#[test]
fn paths_are_opened_and_hidden_by_options() {
    both(|world| {
        let (data, keys) = (world.home().join("data"), world.home().join("data/keys"));
        world.write(&keys.join("one"), "key\n");
        world.write(&data.join("list"), "list\n");
        let script = format!("cd {}; echo more >> list; cat list keys/one 2>/dev/null; true", data.display());
        let options = ["--rw", data.to_str().unwrap(), "--hide", keys.to_str().unwrap()];
        assert_eq!(lines(world, &options, &script), ["list", "more"]);
        assert_eq!(fs::read_to_string(data.join("list")).unwrap(), "list\nmore\n");
    });
}

#[test]
fn every_right_is_given_up_and_the_user_is_not_the_gateways_root() {
    both(|world| {
        let script = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -s '\\t ' ' '; id -u; \
                      cat /proc/sys/kernel/pid_max >/dev/null; echo x 2>/dev/null > /proc/sys/kernel/hostname || echo sys";
        let found = lines(world, &[], script);
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(found.contains(&format!("{name}: 0000000000000000")), "{found:?}");
        }
        for line in ["NoNewPrivs: 1", "Seccomp: 2", "sys"] {
            assert!(found.contains(&line.to_owned()), "{found:?}");
        }
        let uid: u32 = found[found.len() - 2].parse().unwrap();
        match world.who() {
            Who::Root => {
                assert!(uid >= 0x7000_0000, "{uid}");
                assert_eq!(lines(world, &[], "whoami"), ["tidegate"]);
            }
            Who::Ordinary => assert_eq!(uid, UID),
        }
    });
}

#[test]
fn a_user_who_called_sudo_is_the_workload_and_owns_what_it_writes() {
    super::world::with(Who::Root, |world| {
        let owner = UID + 1;
        for path in [world.workspace(), world.home()] {
            std::os::unix::fs::chown(path, Some(owner), Some(owner)).unwrap();
        }
        let mut command = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
        command.env("SUDO_UID", owner.to_string()).env("SUDO_GID", owner.to_string());
        command.args(world.words(&[], &["sh", "-c", "id -u; echo x > made; env | grep -c ^SUDO_"]));
        let output = world.spawn(command, Input::Null).output();
        assert_eq!(text(&output.stdout), format!("{owner}\n0\n"), "{}", text(&output.stderr));
        assert_eq!(fs::metadata(world.workspace().join("made")).unwrap().uid(), owner);
    });
}

#[test]
fn the_environment_leads_to_the_gateway_and_to_nothing_that_is_hidden() {
    both(|world| {
        let mut command = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
        for (name, value) in [
            ("http_proxy", "http://corp.example:1"),
            ("ALL_PROXY", "socks5h://corp.example:1"),
            ("SSH_AUTH_SOCK", "/tmp/agent"),
            ("TIDEGATE_CONFIG", "/nowhere"),
            ("JAVA_TOOL_OPTIONS", "-Xmx1g"),
            ("KEPT", "a b"),
        ] {
            command.env(name, value);
        }
        command.args(world.words(&[], &["env", "-0"]));
        let output = world.spawn(command, Input::Null).output();
        let all: BTreeMap<String, String> = text(&output.stdout)
            .split_terminator('\0')
            .map(|pair| {
                pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap()
            })
            .collect();
        for name in
            ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "grpc_proxy", "npm_config_proxy"]
        {
            assert_eq!(all[name], "http://127.0.0.1:3128", "{name}");
        }
        assert_eq!(
            (all["no_proxy"].as_str(), all["NO_PROXY"].as_str()),
            ("localhost,127.0.0.1,::1", "localhost,127.0.0.1,::1")
        );
        for name in ["ALL_PROXY", "all_proxy", "SSH_AUTH_SOCK", "TIDEGATE_CONFIG"] {
            assert!(!all.contains_key(name), "{name}");
        }
        assert!(all["JAVA_TOOL_OPTIONS"].starts_with("-Xmx1g -Dhttp.proxyHost=127.0.0.1"));
        assert_eq!((all["KEPT"].as_str(), all["TIDEGATE_ACTIVE"].as_str()), ("a b", "1"));
        assert_eq!((all["TIDEGATE_SANDBOX_ID"].as_str(), all["NODE_USE_ENV_PROXY"].as_str()), ("run", "1"));
        assert_eq!(all["PWD"], world.workspace().canonicalize().unwrap().to_str().unwrap());
    });
}

#[test]
fn only_lo_and_its_own_processes_are_there() {
    both(|world| {
        let script = "ls /sys/class/net | tr '\\n' ' '; echo; ls -d /proc/[0-9]* | wc -l; ls /dev | tr '\\n' ' '; echo; \
                      cat /etc/resolv.conf; ls -A /run | wc -l";
        let found = lines(world, &[], script);
        assert_eq!(found[0], "lo ");
        // The first process, the shell, ls and wc.
        assert!(found[1].parse::<u32>().unwrap() <= 4, "{found:?}");
        assert_eq!(found[2], "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ");
        assert_eq!(found[3..], ["nameserver 127.0.0.1".to_owned(), "0".to_owned()]);
    });
}

#[test]
fn the_working_directory_may_be_a_link_and_the_home_directory_is_thrown_away() {
    both(|world| {
        let link = world.home().join("link");
        std::os::unix::fs::symlink(world.workspace(), &link).unwrap();
        let run = |at: &std::path::Path, script: &str| {
            let mut command = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
            command.current_dir(at).args(world.words(&[], &["sh", "-c", script]));
            world.spawn(command, Input::Null).output()
        };
        let output = run(&link, "echo x > by-link && pwd");
        assert_eq!(
            text(&output.stdout),
            format!("{}\n", world.workspace().canonicalize().unwrap().display())
        );
        assert!(world.workspace().join("by-link").exists());
        let output = run(&world.home(), "echo x > gone && cat gone");
        assert_eq!(text(&output.stdout), "x\n");
        assert!(text(&output.stderr).contains("changes are thrown away"), "{}", text(&output.stderr));
        assert!(!world.home().join("gone").exists());
        let output = run(std::path::Path::new("/"), "touch x 2>/dev/null || echo no");
        assert_eq!(text(&output.stdout), "no\n");
    });
}

#[test]
fn the_hosts_file_system_is_loud_and_tidegates_files_stay_hidden() {
    both(|world| {
        let config = world.config();
        world.write(&world.home().join(".ssh/id"), "secret\n");
        let script = format!("cat ~/.ssh/id; echo x > ~/kept; cat {}; true", config.display());
        let output = world.run_exactly(
            &["--config", config.to_str().unwrap(), "--policy", "none", "--fs", "host"],
            &["sh", "-c", &script],
        );
        let said = text(&output.stderr);
        assert!(said.contains("--fs host: the command sees and writes every file"), "{said}");
        match world.who() {
            // The workload of root is not root: another's home is not its own.
            Who::Root => {}
            Who::Ordinary => {
                assert_eq!(text(&output.stdout), "secret\n");
                assert!(world.home().join("kept").exists());
            }
        }
        assert!(!text(&output.stdout).contains("policy"));
    });
}

#[test]
fn an_audit_that_is_put_aside_in_the_workspace_is_hidden_with_its_folder_or_refused() {
    both(|world| {
        let run = |folder: &str, script: &str| {
            let log = world.workspace().join(folder).join("audit.jsonl");
            let config = world.home().join("../config/rotating.toml");
            let base = fs::read_to_string(world.config()).unwrap();
            world.write(&config, &format!("{base}[audit]\npath = {log:?}\nmax_size = \"64KiB\"\n"));
            fs::set_permissions(&config, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            let options = ["--config", config.to_str().unwrap(), "--sandbox", "agent"];
            world.run_exactly(&options, &["/usr/bin/python3", "-c", script])
        };
        world.write(&world.workspace().join("logs/kept"), "");
        let script = r#"
import os, socket, urllib.request
for n in range(400):
    with socket.create_connection(("127.0.0.1", 3128)) as s:
        s.sendall(b"CONNECT a%d.example.test:443 HTTP/1.1\r\nHost: x\r\n\r\n" % n)
        s.recv(4096)
print(os.listdir("logs"))
for name in ("logs/audit.jsonl", "logs/audit.jsonl.1"):
    try:
        open(name, "a").write("forged"); print("wrote")
    except OSError:
        print("refused")
try:
    os.rename("logs", "moved"); print("moved")
except OSError:
    print("stays")
"#;
        let output = run("logs", script);
        let found = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(found.starts_with("[]\n") && found.ends_with("stays\n"), "{found}");
        for name in ["audit.jsonl", "audit.jsonl.1"] {
            let log = fs::read_to_string(world.workspace().join("logs").join(name)).unwrap();
            assert!(log.contains("not_listed") && !log.contains("forged"), "{name}");
        }
        let output = run("", "print('started')");
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""), "{said}");
        assert!(said.contains("give it a folder of its own"), "{said}");
    });
}
