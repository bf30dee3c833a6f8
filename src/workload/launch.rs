//! The helper: makes the namespaces, hands the gateway its sockets, and stays as the parent of the sandbox's first process.
//!
//! ```text
//!  gateway ──fork──▶ helper ──fork──▶ first process (pid 1) ──fork──▶ workload
//!     │  ◀─ sockets ───┘  └─ a socket inside, whenever one is published ─▶ gateway
//!     └── each follows its parent's death; the kernel ends the namespace with pid 1
//! ```

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::exit;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    DumpableBehavior, Pid, WaitOptions, getpid, getppid, kill_process, set_dumpable_behavior,
    set_parent_process_death_signal, waitpid,
};
use rustix::thread::UnshareFlags;

use super::door;
use super::identity::{Identity, Means};
use super::idmap::IdMaps;
use super::init::{self, FAILED, GRANTED, MAP, READY, exit_code};
use super::mounts::Text;
use super::report::{self, Report, Reporter, Reports};
use super::start::{self, Program};
use super::step::{At as _, StepError};
use super::terminal::{Shape, Streams};
use super::view::View;
use crate::error_chain;
use crate::netns::{self, Plan, UserNamespaces, handover};
use crate::sys::{self, Fork};

/// Everything that is decided before the first process is made.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) identity: Identity,
    pub(crate) view: View,
    pub(crate) texts: Vec<Text>,
    pub(crate) directory: PathBuf,
    pub(crate) program: Program,
    /// Where the command is to have a terminal: what it looks like, and which of its streams are on it.
    pub(crate) terminal: Option<(Shape, Streams)>,
}

/// The helper, as the gateway knows it.
#[derive(Debug)]
pub(crate) struct Helper {
    pub(super) pid: Pid,
    pub(super) reports: Reports,
    /// Where the sockets of the namespace arrive.
    pub(crate) sockets: UnixStream,
    /// Where sockets inside are asked for.
    pub(super) doors: UnixStream,
}

/// The helper's ends of what joins it to the gateway.
struct Ends {
    parent: Pid,
    sockets: UnixStream,
    doors: UnixStream,
    reporter: Reporter,
}

/// Starts the helper, which does `work` and ends with its answer.
fn fork_helper(work: impl FnOnce(Ends) -> i32) -> io::Result<Helper> {
    let (reporter, reports) = report::pair()?;
    let (sockets, theirs) = UnixStream::pair()?;
    let (doors, their_doors) = UnixStream::pair()?;
    let parent = getpid();
    match sys::fork()? {
        Fork::Parent(pid) => Ok(Helper { pid, reports, sockets, doors }),
        Fork::Child => {
            drop((reports, sockets, doors));
            exit(work(Ends { parent, sockets: theirs, doors: their_doors, reporter }))
        }
    }
}

impl Launch {
    /// Starts the helper. To be called while this process has one thread.
    pub(crate) fn start(&self) -> io::Result<Helper> {
        fork_helper(|Ends { parent, sockets, doors, reporter }| self.help(parent, sockets, doors, reporter))
    }

    fn help(&self, parent: Pid, sockets: UnixStream, doors: UnixStream, reporter: Reporter) -> i32 {
        match self.make_sandbox(parent, sockets, &reporter) {
            Ok(Sandbox { first, signals }) => {
                drop(reporter);
                match release_streams() {
                    Ok(()) => keep(&Kept::First(first), &signals, doors),
                    Err(_) => FAILED,
                }
            }
            Err(error) => {
                reporter.tell(&Report::Failed(error_chain(&error)));
                FAILED
            }
        }
    }

    fn make_sandbox(
        &self,
        parent: Pid,
        sockets: UnixStream,
        reporter: &Reporter,
    ) -> Result<Sandbox, StepError> {
        let signals = follow(parent)?;
        // They are made while the other namespaces are.
        let maps = IdMaps::begin(&self.view, self.identity).at("prepare the maps of file owners")?;
        self.make_namespaces()?;
        let maps = maps.finish(self.identity).at("prepare the maps of file owners")?;
        let (near, far) = UnixStream::pair().at("make a pair of sockets")?;
        match sys::fork().at("start the first process")? {
            Fork::Child => {
                drop((near, signals, sockets));
                let reporter = reporter.as_descriptor().try_clone_to_owned();
                match reporter {
                    Ok(reporter) => init::live(self, maps, far, reporter.into()),
                    Err(_) => exit(FAILED),
                }
            }
            Fork::Parent(first) => {
                drop((far, maps));
                // Meanwhile the first process builds its file system. It starts nothing before it is told to.
                let opened =
                    open_network(&sockets).and_then(|()| grant(first, &near, self.identity, &sockets));
                match opened {
                    Ok(()) => Ok(Sandbox { first, signals }),
                    Err(error) => {
                        // Before it can tell that nobody answers it any more: why is what counts.
                        let _ = kill_process(first, rustix::process::Signal::KILL);
                        let _ = waitpid(Some(first), WaitOptions::empty());
                        Err(error)
                    }
                }
            }
        }
    }

    fn make_namespaces(&self) -> Result<(), StepError> {
        let kinds = UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWPID;
        let Identity { means, .. } = self.identity;
        if means == Means::Root {
            return sys::unshare(kinds).map_err(with_remedy).at("make network, pid and ipc namespaces");
        }
        if means == Means::Lowered {
            self.identity.assume().at("become the workload's user")?;
            // Changing the user takes this process' own /proc away from it (proc(5)).
            set_dumpable_behavior(DumpableBehavior::Dumpable).at("keep /proc/self")?;
            set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).at("follow the gateway")?;
        }
        sys::unshare(UnshareFlags::NEWUSER).map_err(with_remedy).at("make a user namespace")?;
        self.identity.map_self().map_err(with_remedy).at("map the user of the user namespace")?;
        sys::unshare(kinds).map_err(with_remedy).at("make network, pid and ipc namespaces")
    }

    /// Whether this machine gives all that a sandbox needs, tried in processes that end at once.
    pub(crate) fn try_out(&self) -> io::Result<Result<(), String>> {
        let (reporter, reports) = report::pair()?;
        let parent = getpid();
        let pid = match sys::fork()? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                drop(reports);
                let tried = follow(parent).and_then(|_| self.make_namespaces()).and_then(|()| {
                    netns::open_here(&Plan::for_this_kernel())
                        .map_err(io::Error::other)
                        .at("set up the network namespace")
                });
                if let Err(error) = tried {
                    reporter.tell(&Report::Failed(error_chain(&error)));
                }
                exit(0)
            }
        };
        drop(reporter);
        let said = reports.next();
        let _ = waitpid(Some(pid), WaitOptions::empty())?;
        Ok(match said {
            Some(Report::Failed(why)) => Err(why),
            _ => Ok(()),
        })
    }

    /// Starts the command without a sandbox: the helper is then its parent and nothing else.
    pub(crate) fn start_bare(&self) -> io::Result<Helper> {
        fork_helper(|Ends { parent, mut sockets, doors, reporter }| {
            let signals = follow(parent);
            // The gateway serves.
            let told = sockets.read_exact(&mut [0]);
            let (Ok(signals), Ok(())) = (signals, told) else { return FAILED };
            match self.begin_bare(&reporter) {
                Ok(command) => {
                    let _ = release_streams();
                    let has_terminal = self.terminal.is_some();
                    keep(&Kept::Command { command, has_terminal, reporter }, &signals, doors)
                }
                Err(error) => {
                    reporter.tell(&Report::Failed(error_chain(&error)));
                    FAILED
                }
            }
        })
    }

    fn begin_bare(&self, reporter: &Reporter) -> Result<Pid, StepError> {
        let terminal = match &self.terminal {
            Some((shape, streams)) => Some((init::open_terminal(shape, reporter)?, *streams)),
            None => None,
        };
        match sys::fork().at("start the command")? {
            Fork::Child => exit(init::not_started(
                start::become_bare_command(&self.program, self.identity.means, terminal),
                reporter,
            )),
            Fork::Parent(command) => Ok(command),
        }
    }
}

/// Whose parent the helper is.
enum Kept {
    /// The first process of a sandbox, which passes signals on and tells of its command.
    First(Pid),
    /// The command itself.
    Command { command: Pid, has_terminal: bool, reporter: Reporter },
}

struct Sandbox {
    first: Pid,
    signals: SignalFd,
}

/// Ends with the gateway from now on, and hears of signals instead of being ended by them.
fn follow(parent: Pid) -> Result<SignalFd, StepError> {
    // A session of its own: what the terminal sends goes to the gateway, which passes it on once.
    rustix::process::setsid().at("leave the terminal")?;
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).at("follow the gateway")?;
    if getppid() != Some(parent) {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe)).at("find the gateway");
    }
    // Whoever ignores this signal has no children to wait for (waitpid(2)).
    sys::restore_default(Signal::SIGCHLD).at("see children end")?;
    let all = SigSet::all();
    all.thread_block().at("block signals")?;
    SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC).at("hear of signals")
}

/// Sets the network namespace up, and gives its sockets to the gateway.
fn open_network(gateway: &UnixStream) -> Result<(), StepError> {
    let opened = netns::open_here(&Plan::for_this_kernel()).map_err(io::Error::other);
    let opened = opened.at("set up the network namespace")?;
    handover::offer(gateway, opened).map_err(io::Error::other).at("hand the namespace over")
}

/// Answers the first process until it needs nothing more. Where that process fails it tells why itself, and its end is
/// seen.
fn grant(
    first: Pid,
    mut near: &UnixStream,
    identity: Identity,
    gateway: &UnixStream,
) -> Result<(), StepError> {
    let mut asked = [0];
    while near.read_exact(&mut asked).is_ok() {
        match asked {
            [MAP] => identity.map_child(first).at("map the workload's user")?,
            // The command starts when the gateway serves, and not before.
            _ => handover::answer(gateway).map_err(io::Error::other).at("hand the namespace over")?,
        }
        if near.write_all(&[GRANTED]).is_err() || asked == [READY] {
            break;
        }
    }
    Ok(())
}

/// Lets go of the command's streams: whoever reads or writes their other ends must see when the command closes them.
fn release_streams() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Waits for the child's end; passes signals on, and makes sockets inside for whoever publishes a port.
fn keep(child: &Kept, signals: &SignalFd, doors: UnixStream) -> i32 {
    let mut doors = Some(doors);
    loop {
        let mut waited = vec![PollFd::new(signals, PollFlags::IN)];
        waited.extend(doors.as_ref().map(|doors| PollFd::new(doors, PollFlags::IN)));
        if poll(&mut waited, None).is_err() {
            continue;
        }
        let ready: Vec<bool> = waited.iter().map(|one| !one.revents().is_empty()).collect();
        drop(waited);
        if ready.first() == Some(&true)
            && let Some(code) = child.heard(signals)
        {
            return code;
        }
        if ready.get(1) == Some(&true)
            && doors.as_ref().is_some_and(|doors| door::make(doors.as_fd()).is_err())
        {
            doors = None;
        }
    }
}

impl Kept {
    /// Reads one signal; the exit status where it tells of the child's end.
    fn heard(&self, signals: &SignalFd) -> Option<i32> {
        let signal = signals.read_signal().ok().flatten()?;
        let signal = i32::try_from(signal.ssi_signo).ok()?;
        if signal == Signal::SIGCHLD as i32 {
            return self.looked_at();
        }
        match self {
            Self::First(first) => {
                if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
                    let _ = kill_process(*first, signal);
                }
            }
            Self::Command { command, has_terminal, .. } => {
                if let Ok(signal) = Signal::try_from(signal) {
                    init::pass_on(signal, *command, *has_terminal);
                }
            }
        }
        None
    }

    fn looked_at(&self) -> Option<i32> {
        let (pid, options) = match self {
            Self::First(first) => (*first, WaitOptions::NOHANG),
            Self::Command { command, .. } => (*command, WaitOptions::NOHANG | WaitOptions::UNTRACED),
        };
        match waitpid(Some(pid), options) {
            Ok(Some((_, status))) => {
                if let Self::Command { has_terminal: true, reporter, .. } = self
                    && status.stopped()
                {
                    reporter.tell(&Report::Stopped);
                }
                exit_code(status)
            }
            Ok(None) => None,
            Err(_) => Some(FAILED),
        }
    }
}

fn with_remedy(error: io::Error) -> io::Error {
    let remedy = UserNamespaces::of_this_kernel().remedy(&error);
    io::Error::new(error.kind(), format!("{error} ({remedy})"))
}
