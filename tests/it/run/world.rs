//! A stand-in internet with a user and a workspace on its gateway's host, for runs that start there.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tidegate::lab::{
    Lab, Zone,
    dns::DnsServer,
    origin::{Behaviour, Origin},
};

use crate::support::eventually;

/// Who starts the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Root,
    /// A user without any right, whom nobody else is.
    Ordinary,
}

/// The ordinary user's number.
pub const UID: u32 = 54_321;

/// Where what a run reads comes from.
pub enum Input<'a> {
    Null,
    Bytes(&'a [u8]),
    Open,
}

pub struct World {
    lab: Lab,
    dns: DnsServer,
    _origins: Vec<Origin>,
    folder: TempDir,
    who: Who,
}

/// A run under way.
pub struct Running {
    child: Option<Child>,
}

/// Calls the test once for each kind of user; says why not, where this machine cannot hold it.
pub fn both(test: impl Fn(&World)) {
    for who in [Who::Root, Who::Ordinary] {
        with(who, &test);
    }
}

pub fn with(who: Who, test: impl Fn(&World)) {
    if let Some(world) = World::new(who) {
        eprintln!("--- as {who:?}");
        test(&world);
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[expect(clippy::disallowed_methods, reason = "the runs under test are programs")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

impl World {
    fn new(who: Who) -> Option<World> {
        let lab = match Lab::new() {
            Ok(lab) => lab,
            Err(unavailable) => {
                eprintln!("skipped: {unavailable}: {}", unavailable.why);
                return None;
            }
        };
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: runs of two users need root to start them");
            return None;
        }
        let zone = [
            "listed.example.test",
            "other.example.test",
            "echo.example.test",
            "learned.example.com",
            "api.example.com",
            "*.many.example.test",
        ]
        .iter()
        .fold(Zone::new(), |zone, name| zone.with(name, &["A 203.0.113.10"]).unwrap());
        // For tests of many sandboxes, each with a name of its own.
        let zone = (0..200)
            .fold(zone, |zone, n| zone.with(&format!("n{n}.example.test"), &["A 203.0.113.10"]).unwrap());
        let dns = DnsServer::serve(lab.world(), "198.51.100.53:53".parse().unwrap(), zone).unwrap();
        let origins = [80, 443, 5432, 5433].map(|port| {
            let behave = |to: std::net::SocketAddr| {
                if to.port() == 80 { Behaviour::Http } else { Behaviour::Echo }
            };
            Origin::serve(lab.world(), format!("[::]:{port}").parse().unwrap(), behave).unwrap()
        });
        let folder = tempfile::Builder::new().prefix("tidegate-run-").tempdir().unwrap();
        let world = World { lab, dns, _origins: origins.into(), folder, who };
        fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["home", "work", "config"] {
            fs::create_dir(world.folder.path().join(name)).unwrap();
        }
        let config = world.config();
        let text = "[policy.web]\nallow = [\"listed.example.test:80\"]\n[policy.none]\n\
                    [sandbox.agent]\npolicies = [\"web\"]\n";
        fs::write(&config, format!("{text}{}", TABLES)).unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
        if who == Who::Ordinary {
            for path in ["", "home", "work", "config", "config/tidegate.toml"] {
                world.give(&world.folder.path().join(path));
            }
        }
        Some(world)
    }

    pub fn who(&self) -> Who {
        self.who
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config/tidegate.toml")
    }

    pub fn asked_under(&self, name: &str) -> Vec<String> {
        self.dns.asked_under(name).iter().map(|asked| format!("{asked:?}")).collect()
    }

    /// Makes a path the user's.
    pub fn give(&self, path: &Path) {
        if self.who == Who::Ordinary {
            chown(path, Some(UID), Some(UID)).unwrap();
        }
    }

    /// Writes a file of the user's, with the folders above it.
    pub fn write(&self, path: &Path, text: &str) {
        let parent = path.parent().unwrap();
        if !parent.is_dir() {
            fs::create_dir_all(parent).unwrap();
            for above in parent.ancestors().take_while(|above| *above != self.folder.path()) {
                self.give(above);
            }
        }
        fs::write(path, text).unwrap();
        self.give(path);
    }

    /// `tidegate run` with the lab's DNS server, by the config's tables alone.
    pub fn run(&self, options: &[&str], words: &[&str]) -> Output {
        self.run_with_input(options, words, b"")
    }

    pub fn run_with_input(&self, options: &[&str], words: &[&str], input: &[u8]) -> Output {
        self.start(options, words, Input::Bytes(input)).output()
    }

    /// `tidegate run` with these options and no others.
    pub fn run_exactly(&self, options: &[&str], words: &[&str]) -> Output {
        let run = [&["run"][..], options, &["--"], words].concat();
        self.spawn(self.tidegate(&run), Input::Null).output()
    }

    pub fn start(&self, options: &[&str], words: &[&str], input: Input<'_>) -> Running {
        self.spawn(self.tidegate(&self.words(options, words)), input)
    }

    /// The words of a run that has the lab's DNS server.
    pub fn words<'a>(&'a self, options: &[&'a str], words: &[&'a str]) -> Vec<&'a str> {
        let config: &'a str = self.base();
        [&["run", "--config", config][..], options, &["--"], words].concat()
    }

    /// A config without policies.
    fn base(&self) -> &str {
        let path = self.folder.path().join("config/base.toml");
        if !path.exists() {
            fs::write(&path, TABLES).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            self.give(&path);
        }
        Box::leak(path.to_str().unwrap().to_owned().into_boxed_str())
    }

    /// As [`World::run`], where the user may make no user namespace.
    pub fn run_without_namespaces(&self, options: &[&str], words: &[&str]) -> Output {
        let run = self.words(options, words);
        let script = "echo 0 > /proc/sys/user/max_user_namespaces; shift; exec \"$@\"";
        let tidegate = env!("CARGO_BIN_EXE_tidegate");
        let mut command = command("setpriv");
        command.args(["--reuid", &UID.to_string(), "--regid", &UID.to_string(), "--clear-groups", "--"]);
        command
            .args(["unshare", "-U", "--map-root-user", "sh", "-c", script, "sh", "--", tidegate])
            .args(run);
        self.surround(&mut command);
        self.spawn(command, Input::Null).output()
    }

    /// Runs a program of the user's on the gateway's host, with no sandbox round it.
    pub fn outside(&self, words: &[&str]) -> Output {
        let mut command = self.as_user(words[0]);
        command.args(&words[1..]);
        self.spawn(command, Input::Null).output()
    }

    fn tidegate(&self, words: &[&str]) -> Command {
        let mut command = self.as_user(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words);
        command
    }

    /// A program as the user, in the user's workspace and environment.
    pub fn as_user(&self, program: &str) -> Command {
        let mut made = match self.who {
            Who::Root => command(program),
            Who::Ordinary => {
                let mut made = command("setpriv");
                let uid = UID.to_string();
                made.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--", program]);
                made
            }
        };
        self.surround(&mut made);
        made
    }

    fn surround(&self, command: &mut Command) {
        command
            .current_dir(self.workspace())
            .env_clear()
            .env("HOME", self.home())
            .env("PATH", "/usr/bin:/bin");
    }

    pub fn spawn(&self, mut command: Command, input: Input<'_>) -> Running {
        let stdin = if matches!(input, Input::Null) { Stdio::null() } else { Stdio::piped() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.lab.gateway().spawn(&mut command).unwrap();
        if let Input::Bytes(bytes) = input {
            let (mut stdin, bytes) = (child.stdin.take().unwrap(), bytes.to_vec());
            // Whoever reads nothing is no fault of the writer.
            thread::spawn(move || drop(stdin.write_all(&bytes)));
        }
        Running { child: Some(child) }
    }
}

const TABLES: &str = "[dns]\nupstreams = [\"udp://198.51.100.53\"]\n[addresses]\n\
                      treat_as_public = [\"203.0.113.0/24\"]\n";

impl Running {
    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub fn output(mut self) -> Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }

    /// Ends it as a person would, and waits.
    pub fn end(&mut self) {
        self.signal(Signal::TERM);
        eventually("the run ends after SIGTERM", || self.child.as_mut().unwrap().try_wait().unwrap());
        self.child = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
