//! One run from the gateway's side: it serves the sandbox, passes signals and the terminal on, and ends with the command.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::signal::{Signal as Raised, raise};
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::mpsc;

use super::init::exit_code;
use super::launch::Helper;
use super::publish::Published;
use super::report::Report;
use super::terminal::{Relay, Shape};
use crate::netns::handover::{self, Offered};

/// How a run ended without its command having its say.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The sandbox could not be made, in words of its own.
    #[error("{0}")]
    NotMade(String),
    /// The namespace was not as it must be.
    #[error("the sandbox's namespace is refused")]
    Refused(#[from] handover::HandoverRefused),
    /// The gateway that was to serve it did not take it.
    #[error("{0}")]
    NotTaken(String),
    /// The gateway that served it has gone, and what it served with it.
    #[error(
        "the gateway has gone, and the command was ended with its network; start it again once the gateway runs"
    )]
    GatewayGone,
    /// The gateway broke, and the sandbox ended with it.
    #[error("the gateway has failed")]
    Broken(#[source] io::Error),
    /// The namespace could not be served on, and the sandbox ended with it.
    #[error("the sandbox's namespace was shut: {0}")]
    Shut(String),
    /// The helper was ended by somebody, and the sandbox with it.
    #[error("the process that holds the sandbox was ended by signal {0}")]
    HelperEnded(i32),
    /// Something of the operating system.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: u8,
    /// Why it was not executed, where it was not.
    pub(crate) not_executed: Option<io::Error>,
}

/// What the helper's thread hears.
enum Heard {
    Said(Report),
    /// The helper has ended: with a status of its own, or by a signal.
    Ended(Result<i32, i32>),
}

/// A run under way.
pub(crate) struct Session {
    helper: rustix::process::Pid,
    heard: mpsc::UnboundedReceiver<Heard>,
    signals: Forwarded,
    shape: Option<Shape>,
    relay: Option<Relay>,
    doors: Arc<Mutex<std::os::unix::net::UnixStream>>,
    sockets: std::os::unix::net::UnixStream,
    ended: bool,
}

impl Session {
    /// Begins to listen to the helper. Needs a tokio runtime.
    pub(crate) fn new(helper: Helper, shape: Option<Shape>) -> io::Result<Self> {
        let Helper { pid, reports, sockets, doors } = helper;
        // Before the command can be there that they are for.
        let signals = Forwarded::new(shape.is_some())?;
        let (tell, heard) = mpsc::unbounded_channel();
        thread::Builder::new().name("helper".into()).spawn(move || {
            while let Some(report) = reports.next() {
                let _ = tell.send(Heard::Said(report));
            }
            let ended = loop {
                match waitpid(Some(pid), WaitOptions::empty()) {
                    Ok(Some((_, status))) => {
                        if let Some(signal) = status.terminating_signal() {
                            break Err(signal);
                        }
                        if let Some(code) = exit_code(status) {
                            break Ok(code);
                        }
                    }
                    Ok(None) | Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break Ok(super::init::FAILED),
                }
            };
            let _ = tell.send(Heard::Ended(ended));
        })?;
        let doors = Arc::new(Mutex::new(doors));
        Ok(Self { helper: pid, heard, signals, shape, relay: None, doors, sockets, ended: false })
    }

    /// Waits for the sandbox's sockets, and has them taken. Nobody is served before: the thread may wait.
    pub(crate) async fn receive<T>(
        &mut self,
        take: impl FnOnce(Offered) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        match handover::receive(&self.sockets) {
            Ok(offered) => take(offered),
            Err(refused) => {
                let _ = handover::acknowledge(&self.sockets, Some(&refused));
                // Where the helper failed, its own words say more.
                Err(self.failure().await.unwrap_or(RunError::Refused(refused)))
            }
        }
    }

    /// Lets the helper go on: everything serves.
    pub(crate) fn release(&self) -> io::Result<()> {
        handover::acknowledge(&self.sockets, None)
    }

    /// Publishes ports of the workload for as long as the run lasts.
    pub(crate) async fn publish(&self, ports: &[Published]) -> io::Result<()> {
        for port in ports {
            let listener = port.listen().await?;
            tokio::spawn(port.serve(listener, Arc::clone(&self.doors)));
        }
        Ok(())
    }

    /// Waits for the command's end. Where its namespace cannot be served on, that is the end: `broken` tells.
    pub(crate) async fn wait(&mut self, broken: impl Future<Output = RunError>) -> Result<Outcome, RunError> {
        let mut broken = std::pin::pin!(broken);
        let (mut failed, mut not_executed) = (None, None);
        let code = loop {
            let said = tokio::select! {
                heard = self.heard.recv() => match heard {
                    Some(Heard::Said(report)) => report,
                    Some(Heard::Ended(Ok(code))) => break code,
                    Some(Heard::Ended(Err(signal))) => {
                        self.ended = true;
                        return Err(RunError::HelperEnded(signal));
                    }
                    None => break super::init::FAILED,
                },
                signal = self.signals.next() => {
                    self.pass_on(signal)?;
                    continue;
                }
                why = &mut broken => return Err(why),
            };
            match said {
                Report::Failed(why) => failed = Some(why),
                Report::Note(note) => eprint(&note),
                Report::NotExecuted(number) => not_executed = Some(io::Error::from_raw_os_error(number)),
                Report::Stopped => self.stop()?,
                Report::Terminal(near) => {
                    if let Some(shape) = &self.shape {
                        self.relay = Some(Relay::begin(near, shape)?);
                    }
                }
            }
        };
        self.ended = true;
        if let Some(relay) = self.relay.take() {
            tokio::task::spawn_blocking(|| relay.finish()).await.map_err(io::Error::other)?;
        }
        match failed {
            Some(why) => Err(RunError::NotMade(why)),
            None => Ok(Outcome { code: u8::try_from(code).unwrap_or(u8::MAX), not_executed }),
        }
    }

    /// What the helper said when it failed, once it has ended.
    async fn failure(&mut self) -> Option<RunError> {
        let mut found = None;
        while let Some(heard) = self.heard.recv().await {
            match heard {
                Heard::Said(Report::Failed(why)) => found = Some(RunError::NotMade(why)),
                Heard::Said(_) => {}
                Heard::Ended(ended) => {
                    self.ended = true;
                    return found.or(ended.err().map(RunError::HelperEnded));
                }
            }
        }
        found
    }

    fn pass_on(&self, signal: Signal) -> io::Result<()> {
        match signal {
            Signal::WINCH => {
                if let Some(relay) = &self.relay {
                    relay.resize();
                }
                return Ok(());
            }
            Signal::CONT => {
                if let Some(relay) = &self.relay {
                    relay.resume()?;
                }
            }
            _ => {}
        }
        self.send(signal);
        if signal == Signal::TSTP {
            // The command is stopped; this process is the job that the shell knows.
            raise(Raised::SIGSTOP)?;
        }
        Ok(())
    }

    fn send(&self, signal: Signal) {
        if !self.ended {
            let _ = kill_process(self.helper, signal);
        }
    }

    /// The command was stopped by a key on its terminal: so is this process, until the shell continues it.
    fn stop(&self) -> io::Result<()> {
        let Some(relay) = &self.relay else { return Ok(()) };
        relay.suspend();
        // With nobody there who could continue it, the kernel does not stop it; then the command goes on at once.
        raise(Raised::SIGTSTP)?;
        relay.resume()?;
        self.send(Signal::CONT);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.ended {
            let _ = kill_process(self.helper, Signal::KILL);
        }
    }
}

/// Tells something on stderr.
pub(crate) fn eprint(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(io::stderr().lock(), "tidegate run: {text}");
}

/// The signals that a command gets as if it stood here.
struct Forwarded(mpsc::UnboundedReceiver<Signal>);

impl Forwarded {
    fn new(has_terminal: bool) -> io::Result<Self> {
        let mut wanted = vec![
            (SignalKind::interrupt(), Signal::INT),
            (SignalKind::terminate(), Signal::TERM),
            (SignalKind::hangup(), Signal::HUP),
            (SignalKind::quit(), Signal::QUIT),
            (SignalKind::user_defined1(), Signal::USR1),
            (SignalKind::user_defined2(), Signal::USR2),
            (SignalKind::alarm(), Signal::ALARM),
            (SignalKind::from_raw(Signal::CONT.as_raw()), Signal::CONT),
        ];
        wanted.push(match has_terminal {
            true => (SignalKind::window_change(), Signal::WINCH),
            // The relay's terminal sends none; without one the shell's does.
            false => (SignalKind::from_raw(Signal::TSTP.as_raw()), Signal::TSTP),
        });
        let (tell, told) = mpsc::unbounded_channel();
        for (kind, which) in wanted {
            let mut signals: Signals = signal(kind)?;
            let tell = tell.clone();
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    if tell.send(which).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self(told))
    }

    async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}
