//! A run on a terminal: the command has one of its own, and everything that a terminal does works on it.

use super::world::{Who, World, both, text, with};

/// Runs `tidegate run` on a terminal, and acts on it by a script of `expect NEEDLE` and `send TEXT` lines.
fn on_a_terminal(world: &World, words: &[&str], acts: &[(&str, &str)]) -> String {
    let driver = r#"
import fcntl, json, os, pty, select, struct, sys, termios, time
acts, words = json.loads(sys.argv[1]), sys.argv[2:]
pid, near = pty.fork()
if pid == 0:
    os.execv(words[0], words)
fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
seen, mark, until = b"", 0, time.monotonic() + 30
def more():
    global seen
    ready, _, _ = select.select([near], [], [], 0.05)
    if ready:
        try:
            got = os.read(near, 65536)
        except OSError:
            return False
        if not got:
            return False
        seen += got
    return time.monotonic() < until
for needle, send in acts:
    while needle.encode() not in seen[mark:]:
        if not more():
            break
    at = seen.find(needle.encode(), mark)
    mark = len(seen) if at < 0 else at + len(needle)
    if send.startswith("size "):
        rows, columns = send.split()[1:]
        fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", int(rows), int(columns), 0, 0))
    else:
        os.write(near, send.encode())
while more():
    pass
if time.monotonic() >= until:
    os.kill(pid, 9)
_, status = os.waitpid(pid, 0)
sys.stdout.write(seen.decode(errors="replace"))
print("status", os.waitstatus_to_exitcode(status))
"#;
    let mut command = world.as_user("/usr/bin/python3");
    let acts = serde_json::to_string(acts).unwrap();
    command.args(["-c", driver, &acts]).args(words).env("TERM", "xterm");
    let output = world.spawn(command, super::world::Input::Null).output();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    said.replace('\r', "")
}

fn run_words<'a>(world: &'a World, words: &[&'a str]) -> Vec<&'a str> {
    [&[env!("CARGO_BIN_EXE_tidegate")][..], &world.words(&[], words)].concat()
}

#[test]
fn the_command_has_a_terminal_of_the_same_size_and_knows_its_name() {
    both(|world| {
        let script = "echo ready; read line; test -t 0 && test -t 1 && test -t 2 && echo tty; stty size; tty; \
                      echo x > /dev/tty";
        let words = run_words(world, &["sh", "-c", script]);
        let seen = on_a_terminal(world, &words, &[("ready", "go\n")]);
        for part in ["tty\n33 111\n/dev/pts/0\nx\n", "status 0"] {
            assert!(seen.contains(part), "{part:?}: {seen}");
        }
    });
}

#[test]
fn keys_that_are_signals_are_the_commands() {
    both(|world| {
        let words = run_words(
            world,
            &["sh", "-c", "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.05; done"],
        );
        let seen = on_a_terminal(world, &words, &[("ready", "\u{3}")]);
        assert!(seen.contains("interrupted\n") && seen.contains("status 5"), "{seen}");
        let words = run_words(world, &["sh", "-c", "echo ready; while :; do sleep 0.05; done"]);
        let seen = on_a_terminal(world, &words, &[("ready", "\u{3}")]);
        assert!(seen.contains("status 130"), "{seen}");
        let words = run_words(world, &["sh", "-c", "echo ready; cat; echo end"]);
        let seen = on_a_terminal(world, &words, &[("ready", "typed\n"), ("typed\r\ntyped", "\u{4}")]);
        assert!(seen.contains("end") && seen.contains("status 0"), "{seen}");
    });
}

#[test]
fn a_change_of_the_terminals_size_is_seen() {
    both(|world| {
        let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done";
        let words = run_words(world, &["sh", "-c", script]);
        let seen = on_a_terminal(world, &words, &[("ready", "size 44 99")]);
        assert!(seen.contains("44 99"), "{seen}");
    });
}

#[test]
fn a_shell_outside_stops_and_continues_the_run() {
    both(|world| {
        let run = run_words(world, &["sh", "-c", "echo ready; read line; echo \"got $line\""]).join(" ");
        let quoted = run.replace(
            "sh -c echo ready; read line; echo \"got $line\"",
            "sh -c 'echo ready; read line; echo \"got $line\"'",
        );
        let script =
            format!("set -m; {quoted}; echo stopped $?; stty -a | grep -c -w icanon; fg; echo finished $?");
        let acts = [("ready", "\u{1a}"), ("sh -c", "on\n")];
        let seen = on_a_terminal(world, &["/bin/bash", "-c", &script], &acts);
        // 128 and SIGTSTP; the terminal was given back meanwhile.
        assert!(seen.contains("stopped 148\n") && seen.contains("\n1\n"), "{seen}");
        assert!(seen.contains("got on") && seen.contains("finished 0"), "{seen}");
    });
}

#[test]
fn an_interactive_shell_controls_its_jobs() {
    both(|world| {
        let words = run_words(world, &["/bin/bash", "--norc", "-i"]);
        let acts = [
            ("$ ", "sh -c 'echo st\"\"arted; exec sleep 30'\n"),
            ("started", "\u{1a}"),
            ("Stopped", "jobs\n"),
            ("Stopped", "exit 6\nexit 6\n"),
        ];
        let seen = on_a_terminal(world, &words, &acts);
        assert!(!seen.contains("no job control") && seen.contains("status 6"), "{seen}");
    });
}

#[test]
fn without_a_sandbox_the_command_has_a_terminal_of_its_own_all_the_same() {
    with(Who::Ordinary, |world| {
        let on_one = |script: &str, acts: &[(&str, &str)]| {
            let words = ["--allow-weak"];
            let run = world.words(&words, &["sh", "-c", script]);
            let refuse = "tty; echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"";
            let start = ["/usr/bin/unshare", "-U", "--map-root-user", "sh", "-c", refuse, "sh"];
            on_a_terminal(world, &[&start[..], &[env!("CARGO_BIN_EXE_tidegate")], &run].concat(), acts)
        };
        let script = "echo ready; read line; test -t 0 && test -t 2 && tty; stty size; grep Seccomp: /proc/self/status";
        let seen = on_one(script, &[("ready", "go\n")]);
        let terminals: Vec<&str> = seen.lines().filter(|line| line.starts_with("/dev/pts/")).collect();
        assert!(matches!(terminals[..], [outer, inner] if outer != inner), "{seen}");
        assert!(seen.contains("33 111\nSeccomp:\t2\n") && seen.contains("status 0"), "{seen}");
        let script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.05; done";
        let seen = on_one(script, &[("ready", "\u{3}")]);
        assert!(seen.contains("interrupted\n") && seen.contains("status 5"), "{seen}");
    });
}
