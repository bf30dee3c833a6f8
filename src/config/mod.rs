//! The config: found, checked for who may write it, read with every mistake at once.
//!
//! ```text
//! environment ──▶ path ──files──▶ Document ──┬─▶ policy::file ──▶ Policy
//!                                            └─▶ listen dns admin state audit log upstream timeouts
//! ```
//!
//! This folder alone reads the environment. What a key means stands in docs/config.md, what it may hold in
//! docs/config.schema.json; tests hold both against [`keys`].

mod admin;
mod audit;
mod dns;
mod environment;
mod files;
mod invocation;
mod listen;
mod lists;
mod log;
mod own;
mod state;
mod timeouts;
mod tls;
mod upstream;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::dns::config::ResolverConfig;
use policy::file::{Document, Mistake, Parsed};
use policy::{LocalAddresses, Policy, Socket, Timestamp};

pub use self::admin::{Admin, Tenant};
pub use self::audit::{Audit, Rotation};
pub use self::environment::{config_candidates, https_proxy, variables};
pub use self::files::Fingerprint;
use self::files::shown;
pub use self::invocation::{Invocation, load_for};
pub use self::listen::{Endpoint, Listen, Listener};
pub use self::lists::Lists;
pub use self::own::{FilesInUse, OwnFiles};
pub use self::state::State;
pub use self::tls::Tls;
pub use self::upstream::Upstream;

/// Everything that the config says.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it was read from; none where it was not read from the disk.
    pub at: Option<PathBuf>,
    /// Where clients come in.
    pub listen: Listen,
    /// Who is asked for names.
    pub dns: ResolverConfig,
    /// Who may do what through the admin socket.
    pub admin: Admin,
    /// Where run-time changes outlive a restart.
    pub state: State,
    /// Where contacts are written down.
    pub audit: Audit,
    /// What the program logs at most.
    pub log: tracing::Level,
    /// The proxy on the way out.
    pub upstream: Option<Upstream>,
    /// How long to wait for whom.
    pub timeouts: proxy::Timeouts,
    /// The compiled policy.
    pub policy: Arc<Policy>,
    /// The unix sockets by which sandboxes are known.
    pub sockets: Vec<Socket>,
    /// The ports of this host that `[internal.X]` tables open.
    pub host_ports: Vec<SocketAddr>,
    /// What other files hold, to be used again where they stay the same.
    pub beside: Beside,
}

/// What other files hold that the config names.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// The deny lists that the policy uses.
    pub lists: Lists,
    /// What TLS listeners are made of.
    pub tls: Option<Tls>,
    /// What the admin listener is made of.
    pub admin_tls: Option<Tls>,
}

impl Beside {
    /// Where all of it is read from.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.lists.paths().chain(self.of_tls().flat_map(Tls::paths))
    }

    /// What the files were when they were read.
    pub(crate) fn seen(&self) -> impl Iterator<Item = &Fingerprint> {
        self.lists.seen().chain(self.of_tls().flat_map(Tls::seen))
    }

    /// What the files are now.
    pub(crate) fn look(&self) -> Vec<Fingerprint> {
        self.lists.look().into_iter().chain(self.of_tls().flat_map(Tls::look)).collect()
    }

    fn of_tls(&self) -> impl Iterator<Item = &Tls> {
        self.tls.iter().chain(&self.admin_tls)
    }
}

/// Why there is no config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Nothing stands where it is looked for.
    NotFound(Vec<PathBuf>),
    /// Everything that is wrong with it.
    Mistakes(Vec<Mistake>),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(looked) => {
                let looked: Vec<_> = looked.iter().map(|path| shown(path)).collect();
                write!(
                    f,
                    "there is no config at {}; write one, or name it with --config",
                    looked.join(" or ")
                )
            }
            Self::Mistakes(mistakes) => {
                for mistake in mistakes {
                    writeln!(f, "{mistake}")?;
                }
                match mistakes.len() {
                    1 => f.write_str("1 mistake in the config"),
                    count => write!(f, "{count} mistakes in the config"),
                }
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// The mistakes, each with its place.
    #[must_use]
    pub fn into_mistakes(self) -> Vec<Mistake> {
        match self {
            Self::NotFound(_) => Vec::new(),
            Self::Mistakes(mistakes) => mistakes,
        }
    }

    /// One line: the first mistake, and how many there are.
    #[must_use]
    pub fn brief(&self) -> String {
        match self {
            Self::NotFound(_) => self.to_string(),
            Self::Mistakes(mistakes) => match mistakes.as_slice() {
                [] => "no mistake".to_owned(),
                [mistake] => mistake.to_string(),
                [first, rest @ ..] => format!("{first}; and {} more, see the log", rest.len()),
            },
        }
    }
}

/// Finds the config: at `named` or `$TIDEGATE_CONFIG` where given, else in the user's folder, else in /etc.
///
/// # Errors
/// Where nothing stands at any of these places.
pub fn find(named: Option<PathBuf>) -> Result<PathBuf, ConfigError> {
    let candidates = config_candidates(named);
    let found = candidates.iter().find(|path| path.symlink_metadata().is_ok());
    found.cloned().ok_or(ConfigError::NotFound(candidates))
}

/// Reads the config at `path`. `now` bounds learn mode; `local` are the addresses that no rule opens.
///
/// # Errors
/// Every mistake; then nothing is to be served from it.
pub fn load(path: &Path, now: Timestamp, local: &LocalAddresses) -> Result<Config, ConfigError> {
    load_again(path, now, local, &Beside::default())
}

/// The same, with what other files held when they were read before.
///
/// # Errors
/// Every mistake; then nothing is to be served from it.
pub fn load_again(
    path: &Path,
    now: Timestamp,
    local: &LocalAddresses,
    before: &Beside,
) -> Result<Config, ConfigError> {
    let documents = files::read(path).map_err(ConfigError::Mistakes)?;
    let config = parse(&documents, now, local, before, None).map_err(ConfigError::Mistakes)?;
    Ok(Config { at: Some(path.to_owned()), ..config })
}

fn parse(
    documents: &[Document],
    now: Timestamp,
    local: &LocalAddresses,
    before: &Beside,
    invocation: Option<&policy::file::Invocation>,
) -> Result<Config, Vec<Mistake>> {
    let parsed = Parsed::new(documents);
    let mut top = parsed.config();
    let (listen, mut beside_listen) = Listen::read(&mut top);
    let dns = dns::read(&mut top);
    let admin = Admin::read(&mut top);
    let state = State::read(&mut top);
    let audit = Audit::read(&mut top);
    let log = log::read(&mut top);
    let upstream = Upstream::read(&mut top);
    let timeouts = timeouts::read(&mut top);
    let mut lists = Lists::default();
    let mut list = |path: &str| lists.list(path.as_ref(), &before.lists);
    let read = policy::file::read(&mut top, now, local, &mut list, invocation);
    listen.check(&beside_listen, &read);
    let tls = beside_listen.files.take().and_then(|files| files.load(before.tls.as_ref(), top.report()));
    let admin_files = beside_listen.admin_files.take();
    let admin_tls = admin_files.and_then(|files| files.load(before.admin_tls.as_ref(), top.report()));
    let beside = Beside { lists, tls, admin_tls };
    let host_ports = read.host_ports.iter().map(|(port, _)| *port).collect();
    let sockets = read.sockets.into_iter().map(|(socket, _)| socket).collect();
    let policy = Arc::new(read.policy);
    top.finish();
    parsed.finish(Config {
        at: None,
        listen,
        dns,
        admin,
        state,
        audit,
        log,
        upstream,
        timeouts,
        policy,
        sockets,
        host_ports,
        beside,
    })
}

/// The metrics listener of the config at `path`, whatever else is wrong with that config: a health check must not
/// fail because an edit is half done while the gateway serves the policy before it.
///
/// # Errors
/// Where the config cannot be read at all.
pub fn metrics_listener(path: &Path) -> Result<Option<SocketAddr>, ConfigError> {
    Ok(listeners(path)?.metrics)
}

/// The admin socket of the config at `path`, whatever else is wrong with that config.
///
/// # Errors
/// Where the config cannot be read at all.
pub fn admin_socket(path: &Path) -> Result<Option<PathBuf>, ConfigError> {
    Ok(listeners(path)?.admin)
}

fn listeners(path: &Path) -> Result<Listen, ConfigError> {
    let documents = files::read(path).map_err(ConfigError::Mistakes)?;
    let parsed = Parsed::new(&documents);
    Ok(Listen::read(&mut parsed.config()).0)
}

impl Config {
    /// Every unix socket for sandboxes: those by which they are known, and those that `listen` lists besides.
    #[must_use]
    pub fn doors(&self, listen: &Listen) -> Vec<Socket> {
        let listed = listen.proxy.iter().filter_map(|listener| match &listener.at {
            Endpoint::Unix(path) => Some(path.to_str()?),
            Endpoint::Tcp(_) | Endpoint::Tls(_) => None,
        });
        let besides = listed.filter(|path| !self.sockets.iter().any(|socket| *socket.path == **path));
        let besides = besides.map(|path| Socket { path: path.into(), mode: Socket::OPEN, owner: None });
        self.sockets.iter().cloned().chain(besides).collect()
    }

    /// The tables that differ from those in use and are read at the start only.
    #[must_use]
    pub fn needs_restart(&self, in_use: &Self) -> Vec<&'static str> {
        let tables = [
            ("listen", self.listen != in_use.listen),
            ("dns", self.dns != in_use.dns),
            ("state", self.state != in_use.state),
            ("audit", self.audit != in_use.audit),
            ("upstream", self.upstream != in_use.upstream),
            ("timeouts", self.timeouts != in_use.timeouts),
        ];
        tables.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// Every table of the config with its keys. `NAME` stands for a name that the author chooses.
pub fn keys() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let own = [
        ("listen", listen::KEYS),
        ("listen.tls", tls::KEYS),
        ("listen.admin_https", listen::ADMIN_HTTPS_KEYS),
        ("dns", dns::KEYS),
        ("admin", admin::KEYS),
        ("admin.tenant.NAME", admin::TENANT_KEYS),
        ("state", state::KEYS),
        ("audit", audit::KEYS),
        ("log", log::KEYS),
        ("upstream", upstream::KEYS),
        ("timeouts", timeouts::KEYS),
    ];
    own.into_iter().chain(policy::file::KEYS.iter().copied())
}

#[cfg(test)]
mod tests;
