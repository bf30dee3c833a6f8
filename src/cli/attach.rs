//! `tidegate attach`: the gateway inside a network namespace that exists, for as long as the verb runs.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use policy::SandboxId;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::end::End;
use super::output::{complain, harmless};
use super::{ConfigArgs, Outcome};
use crate::admin::routes::namespaces::{PROTOCOL, READY};
use crate::app::{App, Happened, Running, StartError};
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

/// What a gateway that is asked over its admin socket takes to answer.
const CLOCK: Duration = Duration::from_secs(10);

/// The longest head and body of such an answer.
const ANSWER_LIMIT: u64 = 16 * 1024;

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
    #[error("cannot reach the gateway at {at}: is `tidegate serve` running?")]
    Unreachable { at: String, source: io::Error },
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
            | Self::Unreachable { .. }
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
    let stream = register(sandbox, socket)?;
    let guard = Guard::start(target, stream.as_fd().try_clone_to_owned()?)?;
    handover::answer(&stream).map_err(EnterError::from)?;
    attached(sandbox);
    stream.set_nonblocking(true)?;
    let stream = tokio::net::UnixStream::from_std(stream)?;
    let mut said = String::new();
    let mut last_words = stream.take(ANSWER_LIMIT);
    tokio::select! {
        () = end.told() => return Ok(detached(sandbox)),
        () = ended(&guard) => return Err(EnterError::Guard(None).into()),
        read = last_words.read_to_string(&mut said) => drop(read?),
    }
    let why = said.lines().find_map(|line| line.strip_prefix("shut: ")).ok_or(Failure::Gone)?;
    shut(sandbox, &harmless(why.as_bytes()), &mut end, &guard).await
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
    let open = open.map_err(|refused| Failure::Refused(error_chain(&refused)))?;
    attached(&sandbox);
    let ending = {
        let mut watched = std::pin::pin!(open.watch());
        tokio::select! {
            () = end.told() => {
                running.drain().await;
                return Ok(detached(&sandbox));
            }
            () = ended(&guard) => return Err(EnterError::Guard(None).into()),
            happened = broken(&mut running) => return Err(happened.into()),
            ending = &mut watched => ending,
        }
    };
    let why = match ending {
        Ended::LinkAppeared(link) => format!("link {link} appeared in the namespace"),
        Ended::Removed => "its sandbox was removed".to_owned(),
        Ended::Broken(error) => return Err(error.into()),
    };
    let outcome = shut(&sandbox, &why, &mut end, &guard).await;
    running.drain().await;
    outcome
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

/// Asks the gateway to take a namespace. What comes back is the stream for the hand-over.
fn register(sandbox: &SandboxId, socket: &Path) -> Result<UnixStream, Failure> {
    let unreachable = |source| Failure::Unreachable { at: format!("unix:{}", socket.display()), source };
    let mut stream = UnixStream::connect(socket).map_err(unreachable)?;
    stream.set_read_timeout(Some(CLOCK))?;
    write!(
        stream,
        "POST /v1/namespaces/{sandbox} HTTP/1.1\r\nHost: tidegate\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\nContent-Length: 0\r\n\r\n"
    )?;
    let head = read_head(&stream)?;
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
    if status == "101" {
        let mut ready = [0; READY.len()];
        stream.read_exact(&mut ready)?;
        return if ready == *READY {
            Ok(stream)
        } else {
            Err(io::Error::from(io::ErrorKind::InvalidData).into())
        };
    }
    let mut why = String::new();
    BufReader::new(stream.take(ANSWER_LIMIT)).read_line(&mut why)?;
    Err(Failure::Refused(format!(
        "the gateway refuses the namespace: {}",
        harmless(why.trim_end().as_bytes())
    )))
}

/// The head of an answer, and no byte beyond it.
fn read_head(mut stream: &UnixStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() as u64 > ANSWER_LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData.into())
}
