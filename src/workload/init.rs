//! The first process of a sandbox: it builds the file system, starts the command, reaps what that leaves behind, passes
//! signals on, and ends with the command. The kernel then ends everything else in its pid namespace.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::exit;

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, WaitOptions, WaitStatus, kill_process, kill_process_group, set_dumpable_behavior,
    set_parent_process_death_signal, wait,
};
use rustix::thread::UnshareFlags;

use super::identity::Means;
use super::idmap::IdMaps;
use super::launch::Launch;
use super::mounts;
use super::report::{self, Report, Reporter};
use super::start::{self, NotStarted};
use super::step::{At as _, StepError};
use super::terminal::{Shape, Streams};
use crate::error_chain;
use crate::sys::{self, Fork};

/// What the first process asks of the helper: one byte each, one byte back.
pub(super) const MAP: u8 = b'm';
pub(super) const READY: u8 = b'r';
pub(super) const GRANTED: u8 = b'k';

/// The exit statuses of a shell for what could not be run, and ours.
pub(super) const FAILED: i32 = 125;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Lives the whole life of the first process.
pub(super) fn live(launch: &Launch, maps: IdMaps, helper: UnixStream, reporter: Reporter) -> ! {
    match prepare(launch, &maps, &helper, &reporter) {
        Ok(terminal) => {
            drop((maps, helper));
            run(launch, terminal, reporter)
        }
        Err(error) => {
            reporter.tell(&Report::Failed(error_chain(&error)));
            exit(FAILED)
        }
    }
}

/// Does all that the command finds done. Gives the terminal, where it has one.
fn prepare(
    launch: &Launch,
    maps: &IdMaps,
    helper: &UnixStream,
    reporter: &Reporter,
) -> Result<Option<OwnedFd>, StepError> {
    // Whoever ends the helper ends the sandbox.
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).at("follow the helper")?;
    sys::unshare(UnshareFlags::NEWNS).at("make a mount namespace")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let notes = mounts::build(&launch.view, &launch.texts, launch.identity, maps)?;
    for note in notes {
        reporter.tell(&Report::Note(note));
    }
    if launch.identity.means == Means::Root {
        // Last, so that mounts were made with root's rights, and first for whatever comes now: the mount and network
        // namespaces belong to a user namespace in which nobody inside has any right.
        sys::unshare(UnshareFlags::NEWUSER).at("make a user namespace")?;
        ask(helper, MAP).at("map the workload's user")?;
        launch.identity.assume().at("become the workload's user")?;
        // The kernel forgets it where the user changes (prctl(2)).
        set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).at("follow the helper")?;
    }
    let terminal = launch.terminal.as_ref().map(|(shape, _)| {
        rustix::process::setsid().at("start a session")?;
        open_terminal(shape, reporter)
    });
    let terminal = terminal.transpose()?;
    rustix::process::chdir(&launch.directory).at(("enter", launch.directory.as_path()))?;
    // While the gateway looks at the network: what the command may do is what this process may from now on.
    start::confine(launch.identity.means)?;
    // Had the helper gone before this process was to follow it, nobody would answer.
    ask(helper, READY).at("find the helper")?;
    Ok(terminal)
}

fn ask(mut helper: &UnixStream, what: u8) -> io::Result<()> {
    helper.write_all(&[what])?;
    let mut answer = [0];
    helper.read_exact(&mut answer)?;
    if answer == [GRANTED] { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// A terminal of the /dev/pts that is there, for the session that this process leads. The near end goes to the gateway,
/// the far one is what the session has.
pub(super) fn open_terminal(shape: &Shape, reporter: &Reporter) -> Result<OwnedFd, StepError> {
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let near = openpt(flags).at("open a terminal")?;
    unlockpt(&near).at("unlock the terminal")?;
    let far = ioctl_tiocgptpeer(&near, flags).at("open the terminal's far end")?;
    shape.give_to(&far).at("shape the terminal")?;
    rustix::process::ioctl_tiocsctty(&far).at("take the terminal")?;
    reporter.tell(&Report::Terminal(near));
    Ok(far)
}

fn run(launch: &Launch, terminal: Option<OwnedFd>, reporter: Reporter) -> ! {
    let has_terminal = terminal.is_some();
    // Before the command is there: it runs as the same user, and until this process has given up its rights, its
    // descriptors and its memory could be had (ptrace(2)). What is executed is dumpable again (prctl(2)).
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        reporter.tell(&Report::Failed(format!("cannot shut the first process: {error}")));
        exit(FAILED)
    }
    let command = match sys::fork() {
        Ok(Fork::Child) => {
            let streams = launch.terminal.as_ref().map_or_else(Streams::none, |(_, streams)| *streams);
            let terminal = terminal.map(|terminal| (terminal, streams));
            let why = start::become_command(&launch.program, terminal);
            exit(not_started(why, &reporter))
        }
        Ok(Fork::Parent(command)) => command,
        Err(error) => {
            reporter.tell(&Report::Failed(format!("cannot start a process: {error}")));
            exit(FAILED)
        }
    };
    drop(terminal);
    match retire(reporter) {
        Ok(()) => watch(command, has_terminal),
        Err(_) => exit(FAILED),
    }
}

/// Tells why the command does not run, and gives the exit status for it.
pub(super) fn not_started(why: NotStarted, reporter: &Reporter) -> i32 {
    match why {
        NotStarted::Step(error) => {
            reporter.tell(&Report::Failed(error_chain(&error)));
            FAILED
        }
        NotStarted::Command(error) => {
            reporter.tell(&Report::NotExecuted(error.raw_os_error().unwrap_or(0)));
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            if is_missing { NOT_FOUND } else { NOT_EXECUTABLE }
        }
    }
}

/// Keeps nothing that the command could want: no right, no descriptor but three. Its memory cannot be read already.
fn retire(reporter: Reporter) -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(reporter.as_descriptor())?;
    rustix::stdio::dup2_stderr(&null)?;
    drop((null, reporter));
    sys::close_from(3)
}

/// Waits for the command's end, whatever else happens.
fn watch(command: Pid, has_terminal: bool) -> ! {
    // All signals are blocked; those without a name (signal(7), real-time signals) stay so.
    let named: SigSet = Signal::iterator().collect();
    loop {
        match named.wait() {
            Ok(Signal::SIGCHLD) => reap(command, has_terminal),
            Ok(signal) => pass_on(signal, command, has_terminal),
            Err(_) => {}
        }
    }
}

/// Every process that has lost its parent is a child of this one.
fn reap(command: Pid, has_terminal: bool) {
    // Signals of one kind are not counted: whoever changed until now is looked at.
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
    loop {
        match wait(options) {
            Ok(Some((pid, status))) if pid == command => {
                if let Some(code) = exit_code(status) {
                    exit(code);
                }
                if has_terminal && status.stopped() {
                    report::tell(rustix::stdio::stdout(), &Report::Stopped);
                }
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

/// What a shell would say of it: the status, or 128 and the signal.
pub(super) fn exit_code(status: WaitStatus) -> Option<i32> {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal))
}

/// What a terminal sends goes to the command's whole group, as from a terminal; the rest to the command.
pub(super) fn pass_on(signal: Signal, command: Pid, has_terminal: bool) {
    use rustix::process::Signal as To;
    let group = |signal| kill_process_group(command, signal);
    let _ = match signal {
        Signal::SIGINT => group(To::INT),
        Signal::SIGQUIT => group(To::QUIT),
        Signal::SIGHUP => group(To::HUP),
        Signal::SIGCONT => group(To::CONT),
        // A session without a terminal has nobody who could continue it: the kernel would not stop it by SIGTSTP.
        Signal::SIGTSTP if !has_terminal => group(To::STOP),
        Signal::SIGTSTP => group(To::TSTP),
        Signal::SIGTERM => kill_process(command, To::TERM),
        Signal::SIGUSR1 => kill_process(command, To::USR1),
        Signal::SIGUSR2 => kill_process(command, To::USR2),
        Signal::SIGALRM => kill_process(command, To::ALARM),
        _ => Ok(()),
    };
}
