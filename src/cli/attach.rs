//! `tidegate attach`: the gateway inside a network namespace that exists, for as long as the verb runs.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use policy::SandboxId;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::end::End;
use super::output::complain;
use super::registration::{self, NotRegistered, Registration};
use super::{ConfigArgs, Outcome};
use crate::app::{App, Happened, Running, StartError};
use crate::audit::SandboxChange;
use crate::config::{self, ConfigError};
use crate::error_chain;
use crate::host;
use crate::logging::LogLevel;
use crate::namespaces::Ended;
use crate::netns::enter::{self, EnterError, Guard, Target};
use crate::netns::handover;

const EXAMPLE: &str = "Example:
  docker run -d --name agent --network none IMAGE
  tidegate attach --sandbox agent-7 --pid $(docker inspect -f '{{.State.Pid}}' agent)

It stays in the foreground; SIGINT and SIGTERM detach, and leave the namespace without a way out.
Exit status: 0 detached as told, 1 not attached or shut, 2 usage or config.";

/// Open the gateway inside an existing network namespace, e.g. of a container started with no network
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Attach {
    #[command(flatten)]
    config: ConfigArgs,
    /// Whose namespace it is
    #[arg(long, value_name = "ID", required_unless_present = "guard")]
    sandbox: Option<String>,
    /// The namespace of this process
    #[arg(long, value_name = "N", required_unless_present = "netns", conflicts_with = "netns")]
    pid: Option<u32>,
    /// The namespace that this file stands for
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,
    /// The admin socket of the gateway that is to serve it; without it, what [listen] of the config says
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    admin: Option<PathBuf>,
    /// The part of it that enters the namespace
    #[arg(long, hide = true, conflicts_with_all = ["sandbox", "config", "admin"])]
    guard: bool,
}

/// Why the verb ended other than as told.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("there is no [sandbox.{0}] in the config")]
    Unknown(SandboxId),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Enter(#[from] EnterError),
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Register(#[from] NotRegistered),
    #[error("the gateway is gone")]
    Gone,
    #[error(transparent)]
    Broken(#[from] io::Error),
}

impl Failure {
    const fn outcome(&self) -> Outcome {
        match self {
            Self::Config(_) | Self::Unknown(_) | Self::Start(StartError::Config(_)) => Outcome::Usage,
            Self::Start(_)
            | Self::Enter(_)
            | Self::Refused(_)
            | Self::Register(_)
            | Self::Gone
            | Self::Broken(_) => Outcome::Failed,
        }
    }
}

impl Attach {
    pub(super) fn run(self) -> Outcome {
        let target = match (self.pid, self.netns) {
            (Some(pid), _) => Target::Process(pid),
            (None, Some(path)) => Target::File(path),
            (None, None) => return Outcome::Usage,
        };
        if self.guard {
            return match enter::guard(&target) {
                Ok(()) => Outcome::Done,
                Err(error) => {
                    complain("attach", error_chain(&error));
                    Outcome::Failed
                }
            };
        }
        let Some(sandbox) = self.sandbox.as_deref().and_then(SandboxId::parse) else {
            complain("attach", "--sandbox is no name of a sandbox: 1 to 64 of a-z A-Z 0-9 . _ -");
            return Outcome::Usage;
        };
        let attached = match self.admin {
            Some(socket) => at_socket(&sandbox, &target, &socket),
            None => attach(sandbox, &target, self.config.config),
        };
        match attached {
            Ok(outcome) => outcome,
            Err(failure) => {
                complain("attach", error_chain(&failure));
                failure.outcome()
            }
        }
    }
}

fn attach(sandbox: SandboxId, target: &Target, config: Option<PathBuf>) -> Result<Outcome, Failure> {
    let path = config::find(config)?;
    match config::admin_socket(&path)? {
        Some(socket) => at_socket(&sandbox, target, &socket),
        None => {
            complain("attach", "[listen] has no `admin`, so this is the gateway: its config is read once");
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(as_gateway(sandbox, target, &path))
        }
    }
}

fn at_socket(sandbox: &SandboxId, target: &Target, socket: &Path) -> Result<Outcome, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(at_running_gateway(sandbox, target, socket))
}

/// Registers the namespace with a gateway that runs, and holds it.
async fn at_running_gateway(sandbox: &SandboxId, target: &Target, socket: &Path) -> Result<Outcome, Failure> {
    let mut end = End::new()?;
    let registration = Registration::of(sandbox, socket)?;
    let guard = Guard::start(target, registration.stream().as_fd().try_clone_to_owned()?)?;
    handover::answer(registration.stream()).map_err(EnterError::from)?;
    attached(sandbox);
    let mut served = registration.served()?;
    let how = tokio::select! {
        () = end.told() => return Ok(detached(sandbox)),
        () = ended(&guard) => return Err(EnterError::Guard(None).into()),
        how = served.ended() => how?,
    };
    match how {
        registration::End::Shut(why) => shut(sandbox, &why, &mut end, &guard).await,
        registration::End::Gone => Err(Failure::Gone),
    }
}

/// Runs a gateway whose only client is the namespace, beside what its config lists.
async fn as_gateway(sandbox: SandboxId, target: &Target, path: &Path) -> Result<Outcome, Failure> {
    let mut end = End::new()?;
    let host = host::Watch::start().map_err(StartError::from)?;
    let config = config::load(path, dns::clock::now(), host.addresses())?;
    if config.policy.sandbox(&sandbox).is_none() {
        return Err(Failure::Unknown(sandbox));
    }
    let app = App::assemble(host, config).await?;
    // Held for the life of the gateway: dropping it changes nothing.
    let _log = LogLevel::init(app.config().log);
    let mut running = app.serve();
    let (mine, guards) = UnixStream::pair()?;
    let target = target.clone();
    let (guard, checked) = tokio::task::spawn_blocking(move || {
        let guard = Guard::start(&target, guards.into())?;
        let checked = handover::receive(&mine).and_then(handover::Offered::check);
        Ok::<_, EnterError>((guard, checked))
    })
    .await
    .map_err(io::Error::other)??;
    let checked = checked.map_err(|refused| Failure::Refused(error_chain(&refused)))?;
    let open = running.open_namespace(sandbox.clone(), checked);
    let mut open = open.map_err(|refused| Failure::Refused(error_chain(&refused)))?;
    running.note_workload(&sandbox, SandboxChange::Start).await;
    attached(&sandbox);
    let ending = tokio::select! {
        () = end.told() => Ok(None),
        () = ended(&guard) => Err(EnterError::Guard(None).into()),
        happened = broken(&mut running) => Err(Failure::Broken(happened)),
        ending = open.watch() => Ok(Some(ending)),
    };
    running.note_workload(&sandbox, SandboxChange::Exit { status: None }).await;
    match ending? {
        None => {
            running.drain().await;
            Ok(detached(&sandbox))
        }
        Some(Ended::Broken(error)) => Err(error.into()),
        Some(ending) => {
            let outcome = shut(&sandbox, &ending.to_string(), &mut end, &guard).await;
            running.drain().await;
            outcome
        }
    }
}

/// Waits for an inbound to break. Without an admin socket nobody orders anything.
async fn broken(running: &mut Running) -> io::Error {
    loop {
        if let Happened::Broken(error) = running.happening().await {
            return error;
        }
    }
}

fn attached(sandbox: &SandboxId) {
    complain("attach", format_args!("sandbox {sandbox} is served; SIGINT or SIGTERM detaches"));
}

fn detached(sandbox: &SandboxId) -> Outcome {
    complain("attach", format_args!("sandbox {sandbox} is detached: its namespace has no way out"));
    Outcome::Done
}

/// The namespace is served no more. Links are kept off until the verb is told to end: who watches them is the guard.
async fn shut(sandbox: &SandboxId, why: &str, end: &mut End, guard: &Guard) -> Result<Outcome, Failure> {
    let text = format_args!("sandbox {sandbox} is shut: {why}; links are kept off until SIGINT or SIGTERM");
    complain("attach", text);
    tokio::select! {
        () = end.told() => Ok(Outcome::Failed),
        () = ended(guard) => Err(EnterError::Guard(None).into()),
    }
}

/// Resolves when the guard has ended.
async fn ended(guard: &Guard) {
    let Ok(mut life) = guard.life().and_then(|life: OwnedFd| pipe::Receiver::from_owned_fd(life)) else {
        return;
    };
    // It says nothing more: whatever comes is its end.
    let _ = life.read(&mut [0]).await;
}
