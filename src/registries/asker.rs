//! Starts package clients where nothing of the working directory or of the environment tells them anything.
#![expect(clippy::disallowed_methods, reason = "clients are programs, and are asked by starting them")]

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// A client starts an interpreter and reads its files; npm takes a second on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client may say at most; the rest is cut off.
const OUTPUT_LIMIT: u64 = 32 * 1024 * 1024;

/// Variables that say in which folder a client is installed or has its user's files. They name no host.
const FOLDERS: [&str; 3] = ["CARGO_HOME", "RUSTUP_HOME", "XDG_CONFIG_HOME"];

/// Where clients are asked from: the environment and the working directory of the person who asks.
#[derive(Debug)]
pub struct Surroundings {
    variables: Vec<(OsString, OsString)>,
    working: PathBuf,
}

/// Why a client says nothing.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It is in no folder of PATH that may be used.
    #[error(
        "no {0} in PATH (folders at or below the working directory, and those that everybody may write, do not count)"
    )]
    Missing(&'static str),
    /// It did not start or could not be waited for.
    #[error("cannot run {program}")]
    Run {
        /// The program.
        program: String,
        /// What failed.
        source: io::Error,
    },
    /// It did not end in time.
    #[error("{0} did not answer in time")]
    Late(String),
    /// It said that it failed, or what it said is not understood.
    #[error("{program} gave no answer that is understood: {said}")]
    Odd {
        /// The program.
        program: String,
        /// What it said, in part.
        said: String,
    },
}

impl Surroundings {
    /// What this process has around it.
    pub fn new(variables: Vec<(OsString, OsString)>, working: PathBuf) -> Self {
        Self { variables, working: working.canonicalize().unwrap_or(working) }
    }

    /// The working directory: what it holds is reported, never used.
    pub(super) fn working(&self) -> &Path {
        &self.working
    }

    /// The variables: what they hold is reported, and but for folders never used.
    pub(super) fn variables(&self) -> &[(OsString, OsString)] {
        &self.variables
    }

    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
    }

    /// Whether a workload cannot have written what stands there: an absolute path, neither in the working directory nor
    /// led there by a link, nor in a folder that everybody may write.
    fn trusts(&self, path: &Path) -> bool {
        let Ok(real) = path.canonicalize() else { return false };
        let open = rustix::fs::stat(&real).is_ok_and(|stat| stat.st_mode & 0o002 != 0);
        path.is_absolute() && !self.is_project(&real) && !open
    }

    /// Whether a workload may have written there: everywhere below the working directory. The root of the machine is no
    /// project.
    fn is_project(&self, real: &Path) -> bool {
        self.working != Path::new("/") && real.starts_with(&self.working)
    }

    /// Whether there is a home folder whose files must not be used.
    pub(super) fn distrusts_home(&self) -> bool {
        self.variable("HOME").is_some_and(|home| !self.trusts(Path::new(home)))
    }

    /// Finds a program.
    pub(super) fn find(&self, names: &'static [&'static str]) -> Result<Asker<'_>, AskError> {
        let path = self.variable("PATH").unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
        let folders = std::env::split_paths(path).filter(|folder| self.trusts(folder));
        let folders: Vec<_> = folders.collect();
        let candidates = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let mut found = candidates.filter(|program| {
            program.is_file() && access(program, Access::EXEC_OK).is_ok() && self.trusts(program)
        });
        let program = found.next().ok_or(AskError::Missing(names.first().copied().unwrap_or_default()))?;
        let path = std::env::join_paths(&folders).unwrap_or_default();
        Ok(Asker { program, environment: self.environment(path) })
    }

    /// The environment of clients. A home in the working directory is none: what is there may be a workload's.
    fn environment(&self, path: OsString) -> Vec<(&'static str, OsString)> {
        let folder = |name: &'static str| {
            let value = self.variable(name).filter(|value| self.trusts(Path::new(value)))?;
            Some((name, value.to_owned()))
        };
        let home = folder("HOME").unwrap_or(("HOME", "/nonexistent".into()));
        // pip wraps its help to the width of the terminal.
        let fixed = [("PATH", path), ("LC_ALL", "C".into()), ("COLUMNS", "10000".into())];
        fixed.into_iter().chain([home]).chain(FOLDERS.into_iter().filter_map(folder)).collect()
    }
}

/// A program that can be asked.
#[derive(Debug)]
pub(super) struct Asker<'a> {
    program: PathBuf,
    environment: Vec<(&'a str, OsString)>,
}

/// What a program said.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl Asker<'_> {
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// A program that stands beside this one.
    pub(super) fn beside(&self, name: &str) -> Option<Asker<'_>> {
        let program = self.program.with_file_name(name);
        program.is_file().then(|| Asker { program, environment: self.environment.clone() })
    }

    /// Runs it with these arguments and variables besides, and gives what it says whether it fails or not.
    pub(super) fn run(&self, args: &[&str], also: &[(&str, &OsStr)], input: &[u8]) -> Result<Said, AskError> {
        let failed = |source: io::Error| AskError::Run { program: self.shown(), source };
        let mut command = Command::new(&self.program);
        command.args(args).env_clear().current_dir("/").process_group(0);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.envs(also.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let until = Instant::now() + PATIENCE;
        let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read its input says why itself.
            let _ = stdin.write_all(input);
        }
        let status = match wait(&mut child, until) {
            Ok(status) => status,
            Err(error) => {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = child.wait();
                return Err(match error.kind() {
                    io::ErrorKind::TimedOut => AskError::Late(self.shown()),
                    _ => failed(error),
                });
            }
        };
        // What it left running may hold the pipes open; it is not waited for.
        let all =
            |from: &Receiver<Vec<u8>>| from.recv_timeout(until.saturating_duration_since(Instant::now()));
        let (Ok(stdout), Ok(stderr)) = (all(&stdout), all(&stderr)) else {
            return Err(AskError::Late(self.shown()));
        };
        Ok(Said { status, stdout, stderr })
    }

    /// What it prints when it succeeds.
    pub(super) fn ask(&self, args: &[&str]) -> Result<String, AskError> {
        self.ask_with(args, &[])
    }

    /// The same, with variables besides.
    pub(super) fn ask_with(&self, args: &[&str], also: &[(&str, &OsStr)]) -> Result<String, AskError> {
        let said = self.run(args, also, &[])?;
        if !said.status.success() {
            return Err(self.odd(&said.stderr));
        }
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    /// An answer that is not understood.
    pub(super) fn odd(&self, said: &[u8]) -> AskError {
        let text = String::from_utf8_lossy(said);
        let said = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
        AskError::Odd { program: self.shown(), said: said.chars().take(200).collect() }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(self.program.as_os_str().as_bytes()).into_owned()
    }
}

/// Reads a pipe to its end on a thread of its own, so that a program that fills one of two never waits for us.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // What was read before an error counts.
            let _ = pipe.take(OUTPUT_LIMIT).read_to_end(&mut bytes);
        }
        // Nobody waits for it any more when it took too long.
        let _ = sender.send(bytes);
    });
    receiver
}

fn wait(child: &mut Child, until: Instant) -> io::Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let ends = pidfd_open(pid, PidfdFlags::empty())?;
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&left))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => child.wait(),
    }
}
