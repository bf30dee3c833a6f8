//! From the options of a command line to a [`Launch`]: everything that is decided before the first process is made.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use policy::SandboxId;
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use super::environment;
use super::identity::{Caller, Identity, Means};
use super::launch::Launch;
use super::machine::{self, ThisMachine, User};
use super::own;
use super::start::Program;
use super::terminal;
use super::view::{FileSystem, View, ViewError, Wishes};
use crate::config::{self, OwnFiles};
use crate::netns::PROXY_PORT;

/// What the command line says of the sandbox, besides its policy.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) files: FileSystem,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) hide: Vec<PathBuf>,
    pub(crate) sockets: Vec<PathBuf>,
    pub(crate) words: Vec<OsString>,
}

/// What the gateway says of a workload that it serves.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Served {
    /// Names for NO_PROXY.
    pub(crate) local_peers: Vec<String>,
    /// What the workload must neither see nor write.
    pub(crate) own_files: OwnFiles,
}

/// Whose run it is, by which config.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The sandbox.
    pub(crate) launch: Launch,
    /// What its user should know before it starts.
    pub(crate) notes: Vec<String>,
}

/// Why nothing is started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// The plan would not keep its promise.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A path that was named cannot be used.
    #[error("{option} {}", path.display())]
    Path {
        option: &'static str,
        path: PathBuf,
        #[source]
        why: io::Error,
    },
    /// A file of Tidegate's would come where the workload can write.
    #[error(
        "{} is replaced while the command runs, in a folder that the command may write, so that it could not be kept from it: \
         give it a folder of its own",
        .0.display()
    )]
    Replaced(PathBuf),
    /// The working directory is gone, or not to be read.
    #[error("cannot tell the working directory")]
    Directory(#[source] io::Error),
    /// This process does not know itself.
    #[error("cannot tell who runs this")]
    Caller(#[source] io::Error),
}

/// Decides everything.
pub(crate) fn prepare(options: Options, sandbox: &SandboxId, served: &Served) -> Result<Prepared, PlanError> {
    let variables = config::variables();
    let variable = |name: &str| variables.iter().find(|(other, _)| other == name).map(|(_, value)| value);
    let number = |name: &str| variable(name)?.to_str()?.parse::<u32>().ok();
    let sudo = number("SUDO_UID").zip(number("SUDO_GID"));
    let identity = Caller::this(sudo).map_err(PlanError::Caller)?.workload();
    let user = user(identity, variable("HOME"));
    let real = |home: &Path| home.canonicalize().ok().filter(|_| home.is_absolute());
    let known = User::find(identity.uid).and_then(|user| real(&user.home));
    let home = user.as_ref().map(|user| user.home.as_path()).or(variable("HOME").map(Path::new));
    // A service or a scheduler may have set none.
    let home = home.and_then(real).or_else(|| known.clone());
    let directory =
        std::env::current_dir().and_then(|path| path.canonicalize()).map_err(PlanError::Directory)?;
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let write = existing("--rw", options.write)?;
    let mut own = own::files(&served.own_files);
    let roots: Vec<PathBuf> = write.iter().chain([&directory]).cloned().collect();
    let opened = |folder: &Path| match options.files {
        FileSystem::Workspace => roots.iter().any(|root| folder.starts_with(root)),
        FileSystem::Host => identity.may_write(folder),
    };
    own.hidden.extend(own::folders(&served.own_files, &roots, opened).map_err(PlanError::Replaced)?);
    let wishes = Wishes {
        files: options.files,
        directory: directory.clone(),
        runtime: runtime.and_then(|path| path.canonicalize().ok()),
        write,
        read: existing("--ro", options.read)?,
        sockets: existing("--unix", options.sockets)?,
        // What is not there needs no hiding.
        hide: options.hide.iter().filter_map(|path| path.canonicalize().ok()).collect(),
        own,
        other_home: known.filter(|known| home.as_ref() != Some(known)),
        home: home.clone(),
    };
    let View { steps, mut notes } = wishes.plan(&ThisMachine)?;
    if options.files == FileSystem::Host {
        notes.insert(
            0,
            "--fs host: the command sees and writes every file that its user may, credentials included; what it leaves \
             behind (shell start files, git hooks, programs) runs outside later. Only Tidegate's own files are hidden"
                .to_owned(),
        );
    }
    let around = environment::Surroundings {
        proxy: SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_PORT)),
        sandbox: sandbox.as_str(),
        local_peers: &served.local_peers,
        directory: &directory,
        user: user.map(|user| (user.home, user.name)),
        is_contained: true,
    };
    let environment = environment::compose(variables, &around);
    let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::umask(umask);
    let launch = Launch {
        identity,
        view: View { steps, notes: Vec::new() },
        texts: machine::texts(identity, home.as_deref()),
        directory,
        program: Program { words: options.words, environment, umask },
        terminal: terminal::of_this_process(),
    };
    Ok(Prepared { launch, notes })
}

impl Prepared {
    /// As it is without a sandbox: the variables alone, with the proxy at this address of the host.
    pub(crate) fn bare(&mut self, proxy: SocketAddr, sandbox: &SandboxId, served: &Served) {
        let around = environment::Surroundings {
            proxy,
            sandbox: sandbox.as_str(),
            local_peers: &served.local_peers,
            directory: &self.launch.directory,
            user: None,
            is_contained: false,
        };
        self.launch.program.environment = environment::compose(config::variables(), &around);
    }
}

/// Who the workload is by name, where it is not the caller.
fn user(identity: Identity, home: Option<&OsString>) -> Option<User> {
    match identity.means {
        Means::Anybody => None,
        Means::Root | Means::Lowered if identity.is_free => {
            let home = home.map_or(OsStr::new("/"), OsString::as_os_str);
            Some(User { name: machine::USER.into(), home: home.into() })
        }
        Means::Root | Means::Lowered => User::find(identity.uid),
    }
}

fn existing(option: &'static str, paths: Vec<PathBuf>) -> Result<Vec<PathBuf>, PlanError> {
    let real = |path: PathBuf| match path.canonicalize() {
        Ok(real) => Ok(real),
        Err(why) => Err(PlanError::Path { option, path, why }),
    };
    paths.into_iter().map(real).collect()
}
