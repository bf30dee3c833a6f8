//! The workload's own terminal, and the relay between it and the one that the gateway was started on.
//!
//! The workload never holds a descriptor of the real one: what it could type there, it cannot.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};

use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

/// Which of its streams the command has on the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    input: bool,
    output: bool,
    errors: bool,
}

/// What a terminal looks like.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    modes: Termios,
    size: Winsize,
}

/// The terminal that this process was started on, where the command is to have one of its own.
pub(crate) fn of_this_process() -> Option<(Shape, Streams)> {
    let streams = Streams {
        input: io::stdin().is_terminal(),
        output: io::stdout().is_terminal(),
        errors: io::stderr().is_terminal(),
    };
    // Without both of them nobody talks to the command there; what is a terminal of the two is passed as it is.
    if !(streams.input && streams.output) {
        return None;
    }
    let stdin = io::stdin();
    let modes = tcgetattr(&stdin).ok()?;
    let size = tcgetwinsize(&stdin).ok()?;
    Some((Shape { modes, size }, streams))
}

impl Shape {
    pub(super) fn give_to(&self, terminal: impl AsFd) -> io::Result<()> {
        tcsetattr(&terminal, OptionalActions::Now, &self.modes)?;
        Ok(tcsetwinsize(&terminal, self.size)?)
    }
}

impl Streams {
    pub(super) const fn none() -> Self {
        Self { input: false, output: false, errors: false }
    }

    /// Puts this process' streams on the terminal, those that were on one.
    pub(super) fn join(self, terminal: impl AsFd) -> io::Result<()> {
        if self.input {
            rustix::stdio::dup2_stdin(&terminal)?;
        }
        if self.output {
            rustix::stdio::dup2_stdout(&terminal)?;
        }
        if self.errors {
            rustix::stdio::dup2_stderr(&terminal)?;
        }
        Ok(())
    }
}

/// Carries bytes between the two terminals, and gives the real one its modes back when dropped.
#[derive(Debug)]
pub(super) struct Relay {
    before: Termios,
    near: OwnedFd,
    output: Option<JoinHandle<()>>,
}

impl Relay {
    /// Begins: `near` is the gateway's end of the command's terminal.
    pub(super) fn begin(near: OwnedFd, shape: &Shape) -> io::Result<Self> {
        let mut relay = Self { before: shape.modes.clone(), near, output: None };
        relay.resume()?;
        let (mut from, mut to) = (File::from(relay.near.try_clone()?), io::stdout());
        relay.output = Some(thread::Builder::new().name("output".into()).spawn(move || {
            carry(&mut from, &mut to);
        })?);
        let mut to = File::from(relay.near.try_clone()?);
        // It waits for a person for as long as the program lives, and ends with it.
        thread::Builder::new().name("input".into()).spawn(move || {
            carry(&mut io::stdin().lock(), &mut to);
        })?;
        Ok(relay)
    }

    /// Passes every key on as it is: the command's terminal makes of it what the command wants.
    pub(super) fn resume(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        self.resize();
        Ok(())
    }

    /// Gives the terminal back, as before a stop.
    pub(super) fn suspend(&self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }

    /// The command's terminal is as large as the real one; the kernel tells the command.
    pub(super) fn resize(&self) {
        if let Ok(size) = tcgetwinsize(io::stdin()) {
            let _ = tcsetwinsize(&self.near, size);
        }
    }

    /// Waits until all that the command has written is shown. All who could write have ended.
    pub(super) fn finish(mut self) {
        if let Some(output) = self.output.take() {
            let _ = output.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.suspend();
    }
}

/// Copies until either end is gone: EIO is how the near end of a terminal tells that nobody has the far one.
fn carry(from: &mut impl io::Read, to: &mut impl io::Write) {
    let mut bytes = [0; 16 * 1024];
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let Some(read) = bytes.get(..count) else { return };
        if to.write_all(read).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}
