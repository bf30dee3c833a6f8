//! `tidegate run`: a command whose only way out is the gateway, from its options to its exit status.

mod choice;
mod handed;
mod own;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use policy::SandboxId;
use rustix::fs::{Mode, OFlags};
use tracing::Level;

use self::choice::Gateway;
use super::ConfigArgs;
use super::output::complain;
use crate::config::{ConfigError, Invocation};
use crate::logging::LogLevel;
use crate::probe::Controls;
use crate::summary::Told;
use crate::workload::{FileSystem, Options, Outcome, Prepared, Published, RunError, Served, eprint, prepare};
use crate::{error_chain, host};

const EXAMPLE: &str = "Examples:
  tidegate run --allow api.github.com -- curl https://api.github.com/zen
  tidegate run --config tidegate.toml --sandbox agent-7 --publish 127.0.0.1:8080:8080 -- ./server
  tidegate run --registry pip --summary run.json -- pip install -r requirements.txt

Exit status: that of the command; 128 and the number of the signal that ended it; 125 where tidegate itself failed (nothing
was run, or it was ended), 126 where the command cannot be executed, 127 where it is not found.";

/// A status of our own, as env(1) and timeout(1) have it.
pub(super) const FAILED: u8 = 125;
/// What the probe says where something was reached.
const ESCAPED: u8 = 1;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The options that a gateway which runs already cannot serve.
const ALONE: [&str; 7] = ["registries", "allow", "deny", "learn", "audit", "allow_weak", "own_gateway"];

/// Run a command where the gateway is the only way out
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Run {
    #[command(flatten)]
    config: ConfigArgs,
    /// Whose traffic it is: a sandbox of the config, or a name for this run where no config is read
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Use this policy of the config too
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
    /// Let the pinned registry of this name through
    #[arg(long = "registry", value_name = "NAME")]
    registries: Vec<String>,
    /// Let a destination through: HOST, HOST:PORT, *.HOST, ADDRESS:PORT, as in `allow` of a policy
    #[arg(long, value_name = "RULE")]
    allow: Vec<String>,
    /// Deny a destination, whatever else allows it
    #[arg(long, value_name = "RULE")]
    deny: Vec<String>,
    /// Let through what no rule mentions, and tell at the end what would have been denied
    #[arg(long)]
    learn: bool,
    /// Let ADDRESS:PORT on this host reach PORT of the command's loopback
    #[arg(long, value_name = "ADDRESS:PORT:PORT")]
    publish: Vec<Published>,
    /// How much of the file system the command may write
    #[arg(long, value_enum, default_value = "workspace", value_name = "HOW")]
    fs: FileSystem,
    /// Let the command write this path too
    #[arg(long, value_name = "PATH")]
    rw: Vec<PathBuf>,
    /// Let the command read this path, which is hidden otherwise, or not write it
    #[arg(long, value_name = "PATH")]
    ro: Vec<PathBuf>,
    /// Hide this path from the command
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// Let the command connect to this unix socket of the host
    #[arg(long, value_name = "PATH")]
    unix: Vec<PathBuf>,
    /// The admin socket of the gateway that is to serve the command; without it, what [listen] of the config says
    #[arg(long, value_name = "PATH", conflicts_with_all = ALONE)]
    admin: Option<PathBuf>,
    /// Start a gateway for this command alone although one runs
    #[arg(long)]
    own_gateway: bool,
    /// Where no sandbox can be had, run the command all the same, with proxy variables that it may ignore
    #[arg(long)]
    allow_weak: bool,
    /// Write every contact to this file (audit.md); without it, where the config says
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// Write the summary of the run to this file, as JSON
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// In place of a command, try every way out (tidegate probe), with servers outside that must not be reached
    #[arg(long, conflicts_with_all = ["command", "allow_weak"])]
    probe: bool,
    /// The command and its arguments, after --
    #[arg(last = true, required_unless_present = "probe", value_name = "CMD")]
    command: Vec<OsString>,
    #[arg(skip)]
    name: OsString,
}

/// Why a run ends without a status of its command.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Plan(#[from] crate::workload::PlanError),
    #[error(transparent)]
    Host(#[from] host::HostError),
    #[error(transparent)]
    Start(#[from] crate::app::StartError),
    #[error(transparent)]
    Open(#[from] crate::namespaces::NotOpened),
    #[error(transparent)]
    Run(#[from] RunError),
    /// The gateway that runs says no, or nothing.
    #[error("{0}")]
    Refused(String),
    #[error("cannot write `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        why: io::Error,
    },
    #[error("cannot start")]
    System(#[from] io::Error),
}

/// What is known before anything is started.
struct Decided {
    gateway: Gateway,
    sandbox: SandboxId,
    served: Served,
    summary: Option<(File, PathBuf)>,
    prepared: Prepared,
}

impl Run {
    pub(super) fn run(mut self) -> ExitCode {
        match self.go() {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                complain("run", error_chain(&error));
                ExitCode::from(FAILED)
            }
        }
    }

    fn go(&mut self) -> Result<u8, Failed> {
        let controls = self.probe.then(Controls::bind).transpose()?;
        if let Some(controls) = &controls {
            self.probe_instead(controls)?;
        }
        self.name = self.command.first().cloned().unwrap_or_default();
        let mut run = self.prepare()?;
        for note in &run.prepared.notes {
            eprint(note);
        }
        // Until the helper is there nothing may start a thread: a process with threads cannot be copied safely.
        let weak = match self.allow_weak {
            true => run.prepared.launch.try_out()?.err(),
            false => None,
        };
        let (helper, proxy) = match &weak {
            None => (run.prepared.launch.start()?, None),
            Some(why) => {
                warn_of_weakness(why);
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                run.prepared.bare(listener.local_addr()?, &run.sandbox, &run.served);
                (run.prepared.launch.start_bare()?, Some(listener))
            }
        };
        let summary_file = run.summary.take();
        let level = match &run.gateway {
            Gateway::Own { config, .. } => config.log.min(Level::WARN),
            Gateway::Running { .. } => Level::WARN,
        };
        let _log = LogLevel::init(level);
        // One thread serves one command: it carries GiB/s, and others would cost each start more than they give.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        if let Some(controls) = &controls {
            controls.serve()?;
        }
        let mut told = Told::default();
        let ended = runtime.block_on(async {
            match &run.gateway {
                Gateway::Own { config, audit } => {
                    let audit = own::audit_settings(config, audit.clone());
                    own::serve(&run, config, &audit, helper, proxy, &self.publish, &mut told).await
                }
                Gateway::Running { socket, table } => {
                    handed::serve(&run, socket, table.as_ref(), helper, &self.publish, &mut told).await
                }
            }
        });
        // A thread may wait for keys for ever.
        runtime.shutdown_background();
        let code = match &ended {
            Ok(ended) => self.status(ended),
            Err(_) => FAILED,
        };
        let reached = controls.map_or(0, |controls| controls.contacts());
        let code = if reached == 0 { code } else { ESCAPED };
        if self.probe {
            told.offer_nothing();
        }
        let text = told.text();
        if !text.is_empty() {
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
        if let Some((mut file, path)) = summary_file {
            let json = format!("{:#}\n", told.json(run.sandbox.as_str(), code));
            file.set_len(0)
                .and_then(|()| file.write_all(json.as_bytes()))
                .map_err(|why| Failed::File { path, why })?;
        }
        ended.map(|_| code)
    }

    /// The probe is this program again: it must see it, and must not be able to write it.
    fn probe_instead(&mut self, controls: &Controls) -> io::Result<()> {
        let program = std::env::current_exe()?;
        let words = ["probe".to_owned(), "--controls".to_owned(), controls.known().to_string()];
        self.command = [program.clone().into()].into_iter().chain(words.map(OsString::from)).collect();
        self.ro.push(program);
        Ok(())
    }

    /// Everything that is decided while there is one thread.
    fn prepare(&mut self) -> Result<Decided, Failed> {
        let (gateway, sandbox, mut served) = self.choose()?;
        // It must be there before the plan, which hides it: a command must not write what is told of it.
        let summary = self.summary.as_deref().map(create).transpose()?;
        served.own_files.paths.extend(self.summary.iter().filter_map(|path| std::path::absolute(path).ok()));
        let options = Options {
            files: self.fs,
            write: std::mem::take(&mut self.rw),
            read: std::mem::take(&mut self.ro),
            hide: std::mem::take(&mut self.hide),
            sockets: std::mem::take(&mut self.unix),
            words: std::mem::take(&mut self.command),
        };
        let prepared = prepare(options, &sandbox, &served)?;
        Ok(Decided { gateway, sandbox, served, summary, prepared })
    }

    /// What the command line says of the policy.
    fn invocation(&mut self) -> Invocation {
        Invocation {
            sandbox: self.sandbox.take(),
            policies: std::mem::take(&mut self.policies),
            registries: std::mem::take(&mut self.registries),
            allow: std::mem::take(&mut self.allow),
            deny: std::mem::take(&mut self.deny),
            learn: self.learn,
        }
    }

    /// The exit status, and a word about a command that was not executed.
    fn status(&self, ended: &Outcome) -> u8 {
        let Some(error) = &ended.not_executed else { return ended.code };
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let why = if is_missing { "it is not found".to_owned() } else { error.to_string() };
        complain("run", format_args!("cannot execute {:?}: {why}", self.name));
        if is_missing { NOT_FOUND } else { NOT_EXECUTABLE }
    }
}

/// Makes a file of the run's own, never through a link that somebody has put there.
fn create(path: &Path) -> Result<(File, PathBuf), Failed> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::from_raw_mode(0o640)) {
        Ok(file) => Ok((file.into(), path.to_owned())),
        Err(why) => Err(Failed::File { path: path.to_owned(), why: why.into() }),
    }
}

/// Lets go of the command's streams: whoever holds their other ends must see when the command closes them.
fn let_go_of_streams() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}

fn warn_of_weakness(why: &str) {
    eprint(&format!(
        "NO SANDBOX: {why}\n  --allow-weak: the command runs as you, with your files and your network. Only clients that follow \
         proxy variables go through the gateway; nothing keeps the others from anywhere."
    ));
}
