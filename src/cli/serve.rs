//! `tidegate serve`: the daemon, from its config to a clean end.

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, available_parallelism};

use clap::Args;
use policy::Generation;
use rustix::process::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::end::End;
use super::output::complain;
use super::{ConfigArgs, Outcome};
use crate::app::{App, Happened, Running, StartError};
use crate::audit::By;
use crate::config::{self, ConfigError, Fingerprint};
use crate::error_chain;
use crate::logging::LogLevel;
use crate::reload::Reloader;

const EXAMPLE: &str = "Example:
  tidegate serve --config /etc/tidegate/tidegate.toml

Signals: SIGTERM and SIGINT drain and end, a second one ends at once; SIGHUP reopens the audit and reloads.
Exit status: 0 ended as told, 1 could not start or go on, 2 usage or config.";

/// Run the gateway: proxy, DNS and metrics, until SIGTERM
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Serve {
    #[command(flatten)]
    config: ConfigArgs,
}

impl Serve {
    pub(super) fn run(self) -> Outcome {
        let path = match config::find(self.config.config) {
            Ok(path) => path,
            Err(error) => {
                complain("serve", error);
                return Outcome::Usage;
            }
        };
        let workers = available_parallelism().map_or(1, usize::from);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
        let ended = match runtime {
            Ok(runtime) => runtime.block_on(serve(path)),
            Err(error) => Err(Ended::Broken(error)),
        };
        match ended {
            Ok(()) => Outcome::Done,
            Err(Ended::NotStarted(error @ (StartError::Config(_) | StartError::NothingListens))) => {
                complain("serve", error_chain(&error));
                Outcome::Usage
            }
            Err(Ended::NotStarted(error)) => {
                complain("serve", error_chain(&error));
                Outcome::Failed
            }
            Err(Ended::Broken(error)) => {
                complain("serve", error_chain(&error));
                Outcome::Failed
            }
        }
    }
}

/// Why the daemon ended other than as told.
enum Ended {
    NotStarted(StartError),
    Broken(io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

async fn serve(path: PathBuf) -> Result<(), Ended> {
    // Before anything can be killed by them.
    let mut signals = Signals::new()?;
    raise_descriptor_limit();
    let seen = Fingerprint::of(&path).ok();
    let app = App::start(&path).await.map_err(Ended::NotStarted)?;
    let log = LogLevel::init(app.config().log);
    let mut reloader = Reloader::new(app.core().clone(), path, log, app.config().clone(), seen);
    let running = app.serve();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "ready");
    notify(&[NotifyState::Ready]);
    run_until_told(running, &mut reloader, &mut signals).await
}

async fn run_until_told(
    mut running: Running,
    reloader: &mut Reloader,
    signals: &mut Signals,
) -> Result<(), Ended> {
    loop {
        tokio::select! {
            _ = signals.hangup.recv() => {
                running.reopen_audit();
                // How it went stands in the log, the audit and on the pages.
                let _ = reload(reloader, None).await;
            }
            () = reloader.changed() => drop(reload(reloader, None).await),
            () = signals.end.told() => break,
            happened = running.happening() => match happened {
                Happened::Broken(error) => return Err(Ended::Broken(error)),
                // Whoever asked may have left meanwhile.
                Happened::Order(order) => drop(order.done.send(reload(reloader, Some(&order.by)).await)),
            },
        }
    }
    tracing::info!("draining");
    notify(&[NotifyState::Stopping]);
    tokio::select! {
        () = running.drain() => tracing::info!("drained"),
        () = signals.end.told() => tracing::warn!("told twice: ending at once"),
    }
    Ok(())
}

async fn reload(reloader: &mut Reloader, by: Option<&By>) -> Result<Generation, ConfigError> {
    // systemd 253 wants the time beside RELOADING (sd_notify(3)).
    match NotifyState::monotonic_usec_now() {
        Ok(time) => notify(&[NotifyState::Reloading, time]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
    let outcome = reloader.reload(by).await;
    notify(&[NotifyState::Ready]);
    // What was read for it is dropped by now, and the policy before it.
    drop(tokio::task::spawn_blocking(crate::sys::give_back_free_memory));
    outcome
}

/// Tells the service manager, where there is one, from a thread of its own: a manager that does not read lets its socket
/// fill up, and a blocked send would hold up every reload (seen with ten unread messages, the kernel's default).
fn notify(states: &[NotifyState<'static>]) {
    static MANAGER: OnceLock<SyncSender<Vec<NotifyState<'static>>>> = OnceLock::new();
    let manager = MANAGER.get_or_init(|| {
        let (sender, messages) = sync_channel::<Vec<_>>(16);
        thread::spawn(move || {
            for states in messages {
                if let Err(error) = sd_notify::notify(false, &states) {
                    tracing::warn!(%error, "cannot notify the service manager");
                }
            }
        });
        sender
    });
    // Whoever has left sixteen messages unread misses nothing by not getting another.
    let _ = manager.try_send(states.to_vec());
}

struct Signals {
    hangup: Signal,
    end: End,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let end = End::new()?;
        Ok(Self { hangup: signal(SignalKind::hangup())?, end })
    }
}

/// A tunnel takes two descriptors and up to four for splicing; the usual soft limit of 1024 is that of select(2), which
/// nothing here uses.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        complain("serve", format_args!("cannot raise the limit of open files: {error}"));
    }
}
