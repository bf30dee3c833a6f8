//! The built `tidegate serve` as a process in a lab, from its config file to its last audit line.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tidegate::lab::{HostFile, Lab, Volume};

use super::{PATIENCE, eventually};

/// Where `/metrics`, `/healthz` and `/readyz` are.
const METRICS: &str = "127.0.0.1:9464";

/// The folder, beside the config, where the audit has a file system of its own.
const VOLUME: &str = "volume";

/// A debug build with a hundred thousand rules, beside other tests, takes a while.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// What the config file of a test's gateway says besides policies and sandboxes.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// The tables of the test itself, as TOML.
    pub policy: String,
    /// `[listen] proxy`.
    pub proxy: Vec<String>,
    /// `[listen] dns`.
    pub dns: Vec<String>,
    /// Further lines of `[listen]`; `{dir}` in them is the folder of the config.
    pub listen: String,
    /// `[dns] upstreams`.
    pub upstreams: Vec<String>,
    /// `[addresses] own`.
    pub own: Vec<String>,
    /// `[addresses] treat_as_public`.
    pub treat_as_public: Vec<String>,
    /// `[addresses] nat64`.
    pub nat64: Vec<String>,
    /// `[timeouts]`, line by line.
    pub timeouts: Vec<String>,
    /// `[audit] path`; none is a file beside the config.
    pub audit: Option<PathBuf>,
    /// Its environment, besides that of the tests.
    pub environment: Vec<(OsString, OsString)>,
    /// Files of the host that the gateway sees otherwise.
    pub host_files: Vec<HostFile>,
    /// A file system in memory for its audit log alone.
    pub volume: Option<u64>,
}

/// A running gateway; it is killed with this value.
pub struct Gateway {
    child: Option<Child>,
    dir: TempDir,
    /// Where it tells its state, as to a service manager; it would complain if nobody listened.
    notify: UnixDatagram,
    /// What it sees of the host otherwise.
    host_files: Vec<HostFile>,
    volume: Option<Volume>,
    environment: Vec<(OsString, OsString)>,
}

/// A gateway that did not come up: what it said and how it ended.
#[derive(Debug)]
pub struct NotStarted {
    /// Its standard error.
    pub stderr: String,
    /// Its exit status; none where it neither ended nor became ready.
    pub status: Option<ExitStatus>,
}

impl GatewayConfig {
    /// The tables that stand behind the test's own. They come last, so that a byte order mark or a broken first line of
    /// the test stays where it is.
    fn tables(&self, dir: &Path) -> String {
        let folder = if self.volume.is_some() { dir.join(VOLUME) } else { dir.to_owned() };
        let audit = self.audit.clone().unwrap_or_else(|| folder.join("audit.jsonl"));
        let list = |items: &[String]| {
            let quoted: Vec<_> = items.iter().map(|item| format!("{item:?}")).collect();
            format!("[{}]", quoted.join(", "))
        };
        format!(
            "\n[listen]\nproxy = {}\ndns = {}\nmetrics = \"{METRICS}\"\n{}\n[dns]\nupstreams = {}\n\n[audit]\npath = {:?}\n\n\
             [addresses]\nown = {}\ntreat_as_public = {}\nnat64 = {}\n\n[timeouts]\n{}\n",
            list(&self.proxy),
            list(&self.dns),
            self.listen.replace("{dir}", dir.to_str().unwrap()),
            list(&self.upstreams),
            audit,
            list(&self.own),
            list(&self.treat_as_public),
            list(&self.nat64),
            self.timeouts.join("\n"),
        )
    }

    /// The whole file, with the audit log beside it.
    pub fn text(&self, dir: &Path) -> String {
        format!("{}{}", self.policy, self.tables(dir))
    }

    /// Writes the file into `dir` as the gateway wants it: nobody else may write it.
    pub fn write(&self, dir: &Path) -> PathBuf {
        let path = dir.join("tidegate.toml");
        fs::write(&path, self.text(dir)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Gateway {
    /// Starts a gateway on the lab's gateway host and waits until it says that it is ready.
    pub fn start(lab: &Lab, config: &GatewayConfig) -> Result<Gateway, NotStarted> {
        let dir = tempfile::Builder::new().prefix("tidegate-test-").tempdir().unwrap();
        config.write(dir.path());
        let volume = config.volume.map(|bytes| Volume { at: dir.path().join(VOLUME), bytes });
        volume.iter().for_each(|volume| fs::create_dir(&volume.at).unwrap());
        let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut gateway = Gateway {
            child: None,
            dir,
            notify,
            host_files: config.host_files.clone(),
            volume,
            environment: config.environment.clone(),
        };
        gateway.spawn(lab).map(|()| gateway)
    }

    /// Kills it, unless it is dead already, and starts it anew with what stands on the disk.
    pub fn restart(&mut self, lab: &Lab) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // What the one before said, of a reload perhaps, is not said by this one.
        while self.notify.recv(&mut [0; 256]).is_ok() {}
        self.spawn(lab).unwrap_or_else(|not| panic!("no restart ({:?}):\n{}", not.status, not.stderr));
    }

    fn spawn(&mut self, lab: &Lab) -> Result<(), NotStarted> {
        let stderr = fs::File::create(self.dir.path().join("stderr")).unwrap();
        let mut command = verb(["serve".as_ref(), "--config".as_ref(), self.config_file().as_os_str()]);
        command
            .env("NOTIFY_SOCKET", self.dir.path().join("notify"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let host = lab.gateway();
        let child = match &self.volume {
            Some(volume) => host.spawn_on(volume, &self.host_files, &mut command),
            None => host.spawn_seeing(&self.host_files, &mut command),
        };
        self.child = Some(child.unwrap());
        let until = Instant::now() + START_PATIENCE;
        let mut message = [0; 256];
        while Instant::now() < until {
            if let Ok(length) = self.notify.recv(&mut message)
                && message[..length].split(|&byte| byte == b'\n').any(|line| line == b"READY=1")
            {
                return Ok(());
            }
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                self.child = None;
                return Err(NotStarted { stderr: self.stderr(), status: Some(status) });
            }
        }
        Err(NotStarted { stderr: self.stderr(), status: None })
    }

    /// The folder of its config, audit log and standard error.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The config file.
    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("tidegate.toml")
    }

    /// Changes the config file in one step, as an editor that saves atomically does.
    pub fn rewrite_config(&self, change: impl FnOnce(String) -> String) {
        let (file, beside) = (self.config_file(), self.dir.path().join("new"));
        fs::write(&beside, change(fs::read_to_string(&file).unwrap())).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(beside, file).unwrap();
    }

    /// Where the test reads the audit log.
    fn audit_file(&self) -> PathBuf {
        match (&self.volume, &self.child) {
            // The root as that process sees it (proc_pid_root(5)).
            (Some(volume), Some(child)) => {
                let root = PathBuf::from(format!("/proc/{}/root", child.id()));
                root.join(volume.at.strip_prefix("/").unwrap()).join("audit.jsonl")
            }
            (Some(_), None) | (None, _) => self.dir.path().join("audit.jsonl"),
        }
    }

    /// The audit log as text.
    pub fn audit_text(&self) -> String {
        fs::read_to_string(self.audit_file()).unwrap_or_default()
    }

    /// The audit log, each line read as JSON.
    pub fn audit(&self) -> Vec<Value> {
        let text = self.audit_text();
        let whole = text.lines().filter(|line| !line.is_empty());
        whole
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    /// What it said on standard error so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }

    /// Whether the process runs.
    pub fn alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("the gateway runs"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Ends it with SIGTERM and waits.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let child = self.child.as_mut().unwrap();
        let status = eventually("the gateway ends after SIGTERM", || child.try_wait().unwrap());
        self.child = None;
        status
    }

    /// GETs a path of the metrics listener: the status and the body.
    pub fn metrics(&self, lab: &Lab, path: &str) -> (u16, String) {
        let mut stream = lab.gateway().tcp_connect(METRICS.parse().unwrap(), PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {METRICS}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            eprintln!(
                "--- the gateway's standard error\n{}--- its audit log\n{}",
                self.stderr(),
                self.audit_text()
            );
        }
    }
}

/// Runs `tidegate` with these arguments on the lab's gateway host and waits for its end.
pub fn run_tidegate<S: AsRef<OsStr>>(lab: &Lab, args: impl IntoIterator<Item = S>) -> Output {
    let mut command = verb(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    lab.gateway().spawn(&mut command).unwrap().wait_with_output().unwrap()
}

/// Runs a verb of the program outside any lab, to its end.
pub fn run_here<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    verb(args).stdin(Stdio::null()).output().unwrap()
}

/// The program with these arguments, to be started by the test.
pub fn verb<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "the tests start the program that they test, or another build of it"
    )]
    let mut command = Command::new(
        std::env::var_os("TIDEGATE_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_tidegate").into()),
    );
    command.args(args);
    command
}
