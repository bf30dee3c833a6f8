//! The last steps of the process that becomes the workload: every right given up, then the command.
#![expect(clippy::disallowed_methods, reason = "the command that the sandbox is for is started here")]

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::identity::Means;
use super::seccomp::{self, Becoming};
use super::step::{At as _, StepError};
use super::terminal::Streams;
use crate::sys;

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) words: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// What the caller's own files are made with.
    pub(crate) umask: Mode,
}

/// Why the command does not run.
#[derive(Debug)]
pub(super) enum NotStarted {
    Step(StepError),
    /// execve(2) refused it.
    Command(io::Error),
}

impl From<StepError> for NotStarted {
    fn from(error: StepError) -> Self {
        Self::Step(error)
    }
}

/// Gives up every right that this process could pass on to the command: the first process does, ahead of it.
pub(super) fn confine(means: Means) -> Result<(), StepError> {
    give_up_capabilities().at("give up all capabilities")?;
    restrain(means)
}

/// Keeps whatever is executed from gaining rights, and from the calls that no command needs.
fn restrain(means: Means) -> Result<(), StepError> {
    rustix::thread::set_no_new_privs(true).at("give up gaining privileges")?;
    let becoming = match means {
        Means::Root => Becoming::Nobody,
        Means::Anybody | Means::Lowered => Becoming::Group,
    };
    seccomp::install(becoming).at("install the seccomp filter")
}

/// Becomes the command, on a terminal of its own or with the streams that there are, in a process that came of one that is
/// confined. Returns only where that fails.
pub(super) fn become_command(program: &Program, terminal: Option<(OwnedFd, Streams)>) -> NotStarted {
    let apart = set_apart(terminal);
    match apart.and_then(|()| sys::close_on_exec_from(3).at("close inherited descriptors")) {
        Ok(()) => execute(program),
        Err(error) => error.into(),
    }
}

fn set_apart(terminal: Option<(OwnedFd, Streams)>) -> Result<(), StepError> {
    let Some((terminal, streams)) = terminal else {
        return rustix::process::setsid().map(drop).at("start a session");
    };
    // A group of its own in the session of the first process: its parent is in that session, so that the terminal can
    // stop it (setpgid(2), orphaned process groups).
    rustix::process::setpgid(None, None).at("make a process group")?;
    let own = rustix::process::getpid();
    rustix::termios::tcsetpgrp(&terminal, own).at("take the terminal")?;
    streams.join(&terminal).at("put the command on its terminal")
}

/// The same without a sandbox round it: what needs no namespace is done all the same.
pub(super) fn become_bare_command(
    program: &Program,
    means: Means,
    terminal: Option<(OwnedFd, Streams)>,
) -> NotStarted {
    let apart = set_apart(terminal).and_then(|()| restrain(means));
    match apart.and_then(|()| sys::close_on_exec_from(3).at("close inherited descriptors")) {
        Ok(()) => execute(program),
        Err(error) => error.into(),
    }
}

fn execute(program: &Program) -> NotStarted {
    let Some((name, arguments)) = program.words.split_first() else {
        return NotStarted::Command(io::ErrorKind::NotFound.into());
    };
    rustix::process::umask(program.umask);
    // This process was made by one that waits for signals instead of being ended by them.
    if let Err(error) = SigSet::all().thread_unblock() {
        return NotStarted::Command(error.into());
    }
    // It also gives SIGPIPE its default action back.
    let error =
        Command::new(name).args(arguments).env_clear().envs(program.environment.iter().cloned()).exec();
    NotStarted::Command(error)
}

/// Empties all five sets, so that nothing that is executed later gets any back (capabilities(7)).
fn give_up_capabilities() -> io::Result<()> {
    for capability in 0..64 {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
            1 << capability,
        )) {
            Ok(()) => {}
            // Beyond the last one that this kernel knows.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
