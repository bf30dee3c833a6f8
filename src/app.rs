//! The gateway, wired: from a config to everything that serves it.
//!
//! ```text
//! Config ──▶ Policy ──▶ Gate ──Event──▶ counts, audit
//!    │                    ▲
//!    │         ┌──────────┴──────────┐
//!    ├──▶ dns::Resolver ──▶ proxy::Gateway, dns::Server ◀── listeners
//!    └──▶ pages
//! ```

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use policy::{Event, Gate, Observer, Receipt, SandboxId, Socket};
use prometheus::Registry;
use proxy::UpstreamProxy;
use proxy::tls::Trust;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::admin::{self, Api, Phase, ReloadOrder, Roles, Status};
use crate::audit::{self, Audit, Notice, SandboxChange};
use crate::config::{self, Config, ConfigError, FilesInUse};
use crate::descriptors;
use crate::doors::{Bound, Doors, Holder};
use crate::enforcement::Enforcement;
use crate::host::{self, HostError};
use crate::listeners::{self, BindError, Files, Listeners};
use crate::lookup::{self, UpstreamUnknown};
use crate::metrics::{DecisionCounts, Metrics};
use crate::namespaces::{Namespaces, NotOpened, Open};
use crate::netns::handover::Checked;
use crate::sandboxes::{Activity, Denials, Parts, Sandboxes, Start, StateError};
use crate::summary::Summaries;

/// How long to wait before the host's addresses are read again where that failed.
const FOLLOW_AGAIN: Duration = Duration::from_secs(5);

/// How often a lost audit is tried again.
const PROBE_AUDIT: Duration = Duration::from_secs(1);

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something is wrong with the config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A gateway without listeners protects nobody.
    #[error("nothing listens: write `proxy`, `dns` or `admin` in [listen]")]
    NothingListens,
    /// The floor needs the addresses of this host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The audit cannot be opened.
    #[error(transparent)]
    Audit(#[from] audit::OpenError),
    /// Names could not be resolved.
    #[error("cannot set up the resolver")]
    Resolver(#[from] dns::ResolverError),
    /// The way out leads nowhere.
    #[error(transparent)]
    Upstream(#[from] UpstreamUnknown),
    /// A listener cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// What was changed at run time cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// Callers of the admin socket could not be told from those in containers.
    #[error("cannot tell the gateway's own namespaces from /proc")]
    Namespaces(#[source] io::Error),
    /// Two metrics have one name: a fault of the program.
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
}

/// What serving, reloading and the pages share.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) gate: Arc<Gate>,
    pub(crate) gateway: Arc<proxy::Gateway>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) namespaces: Arc<Namespaces>,
    pub(crate) metrics: Metrics,
    pub(crate) status: Arc<Status>,
    pub(crate) roles: Arc<Roles>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) doors: Arc<Doors>,
    /// What TLS listeners are made of, where there are any.
    pub(crate) trust: Option<Arc<Trust>>,
    /// What the admin listener is made of.
    pub(crate) admin_trust: Option<Arc<Trust>>,
    pub(crate) summaries: Arc<Summaries>,
    /// The config's own files, as they are now.
    pub(crate) files: Arc<FilesInUse>,
}

/// A gateway with everything bound, before its first client.
#[derive(Debug)]
pub struct App {
    core: Core,
    /// The unix sockets of sandboxes, bound.
    sockets: (Bound, Vec<Socket>),
    config: Config,
    dns: dns::Server,
    listeners: Listeners,
    host: host::Watch,
    own: Option<admin::Namespaces>,
    stop: watch::Sender<()>,
}

/// A gateway that serves.
#[derive(Debug)]
pub struct Running {
    core: Core,
    inbounds: JoinSet<io::Result<()>>,
    stop: watch::Sender<()>,
    orders: mpsc::Receiver<ReloadOrder>,
    /// Ends with the gateway: pages, expiries, the host's addresses.
    _background: JoinSet<()>,
    files: Files,
}

/// What the main loop must see to.
#[derive(Debug)]
pub enum Happened {
    /// An inbound has broken: the gateway ends, rather than serve by half.
    Broken(io::Error),
    /// Somebody wants the config read anew.
    Order(ReloadOrder),
}

/// Tells every observer. The audit's receipt is the one to wait for: counting cannot fail.
struct Observers {
    counts: DecisionCounts,
    activity: Arc<Activity>,
    denials: Arc<Denials>,
    audit: Arc<Audit>,
    summaries: Arc<Summaries>,
}

impl Observer for Observers {
    fn record(&self, event: &Event<'_>) -> Receipt {
        drop(self.counts.record(event));
        drop(self.activity.record(event));
        drop(self.denials.record(event));
        drop(self.summaries.record(event));
        self.audit.record(event)
    }

    fn keeps(&self) -> bool {
        self.audit.keeps()
    }
}

impl App {
    /// Reads the config at `path` and binds what it lists. Needs a tokio runtime.
    ///
    /// # Errors
    /// Where anything is missing: a gateway that protects by half does not run.
    pub async fn start(path: &Path) -> Result<Self, StartError> {
        let host = host::Watch::start()?;
        let now = dns::clock::now();
        let config = config::load(path, now, host.addresses())?;
        crate::sys::give_back_free_memory();
        let listens = config.listen.all().next().is_some() || !config.sockets.is_empty();
        if !listens && config.listen.admin.is_none() && config.listen.admin_https.is_none() {
            return Err(StartError::NothingListens);
        }
        Self::assemble(host, config).await
    }

    /// A gateway by a config that may list no listener: one whose only clients are in namespaces of their own.
    ///
    /// # Errors
    /// As [`App::start`].
    pub async fn assemble(host: host::Watch, config: Config) -> Result<Self, StartError> {
        let audit = audit_settings(&config.audit);
        Self::build(host, config, &audit).await
    }

    /// A gateway for one command alone: nothing of `[listen]` is bound. Needs a tokio runtime.
    ///
    /// # Errors
    /// As [`App::start`].
    pub(crate) async fn for_one_command(
        mut config: Config,
        audit: &audit::Settings,
    ) -> Result<Self, StartError> {
        config.listen = config::Listen::default();
        config.state = config::State::default();
        config.sockets.clear();
        Self::build(host::Watch::start()?, config, audit).await
    }

    async fn build(host: host::Watch, config: Config, audit: &audit::Settings) -> Result<Self, StartError> {
        let now = dns::clock::now();
        let registry = Registry::new();
        let metrics = Metrics::new(&registry)?;
        let audit = Arc::new(Audit::open(audit, &registry)?);
        let start = Start::read(config.state.path.as_deref(), Arc::clone(&config.policy), now)?;
        let (activity, denials) = (Arc::new(Activity::default()), Arc::new(Denials::default()));
        let summaries = Arc::<Summaries>::default();
        let observers = Observers {
            counts: DecisionCounts::new(&registry)?,
            activity: Arc::clone(&activity),
            denials: Arc::clone(&denials),
            audit: Arc::clone(&audit),
            summaries: Arc::clone(&summaries),
        };
        let local = Arc::new(host.addresses().clone());
        let gate = Arc::new(Gate::new(Arc::clone(&start.policy), local, Arc::new(observers), run_id()));
        let dns_metrics = dns::Metrics::new(&registry)?;
        let resolver = dns::Resolver::new(&config.dns, dns_metrics.clone())?;
        let asked = Arc::<dns::limits::Asked>::default();
        let (limits, counted) = (config.dns.limits, Arc::clone(&asked));
        let dns = dns::Server::new(Arc::clone(&gate), resolver.clone(), dns_metrics, limits, counted);
        let streams = streams(&config, &resolver).await?;
        let gateway = proxy::Gateway::new(Arc::clone(&gate), resolver, asked, streams, &registry)?;
        let own = match config.listen.admin {
            Some(_) => Some(admin::Namespaces::own().map_err(StartError::Namespaces)?),
            None => None,
        };
        let [trust, admin_trust] = [&config.beside.tls, &config.beside.admin_tls]
            .map(|tls| tls.as_ref().map(|tls| Trust::new(Arc::clone(&tls.material))));
        let listeners = Listeners::bind(&config.listen, trust.as_ref()).await?;
        listeners::admit(&config.listen, &config)?;
        let doors = Arc::new(Doors::new(Arc::clone(&gateway)));
        let sockets = config.doors(&config.listen);
        let sockets = (doors.bind(&Holder::Config, &sockets)?, sockets);
        metrics.started(gate.generation(), &start.policy, now);
        let status = Arc::new(Status::new(Arc::clone(&audit)));
        status.generation(gate.generation());
        let roles = Arc::new(Roles::default());
        roles.set(config.admin.clone());
        let enforcement = Enforcement::new(Arc::clone(&audit), metrics.clone());
        let (stop, stopped) = watch::channel(());
        let namespaces = Arc::new(Namespaces::new(
            Arc::clone(&gate),
            Arc::clone(&gateway),
            dns.clone(),
            enforcement,
            stopped,
        ));
        let parts = Parts {
            gate: Arc::clone(&gate),
            gateway: Arc::clone(&gateway),
            namespaces: Arc::clone(&namespaces),
            audit: Arc::clone(&audit),
            metrics: metrics.clone(),
            status: Arc::clone(&status),
            activity,
            denials,
            listeners: config.listen.all().map(|listener| Arc::clone(&listener.name)).collect(),
            doors: Arc::clone(&doors),
            admin: config.listen.admin.clone(),
        };
        let sandboxes = Sandboxes::new(start, parts, now);
        let files = Arc::new(FilesInUse::new(config.own_files()));
        let core = Core {
            gate,
            gateway,
            audit,
            namespaces,
            metrics,
            status,
            roles,
            sandboxes,
            doors,
            trust,
            admin_trust,
            summaries,
            files,
        };
        Ok(Self { core, sockets, config, dns, listeners, host, own, stop })
    }

    /// The config that it started with.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) const fn core(&self) -> &Core {
        &self.core
    }

    /// Serves from now on.
    #[must_use]
    pub fn serve(self) -> Running {
        let Listeners { proxy, dns, metrics, admin, admin_https, files } = self.listeners;
        let stop = self.stop;
        let stopped = stop.subscribe();
        let mut inbounds = JoinSet::new();
        for listener in proxy {
            let (gateway, stop) = (Arc::clone(&self.core.gateway), until_closed(&stopped));
            inbounds.spawn(async move {
                tokio::select! {
                    () = listener.run(gateway) => {}
                    () = stop => {}
                }
                Ok(())
            });
        }
        for sockets in dns {
            let (server, name, stop) = (self.dns.clone(), Arc::clone(&sockets.name), until_closed(&stopped));
            inbounds.spawn(async move { server.serve_udp(sockets.udp, name, stop).await });
            let (server, stop) = (self.dns.clone(), until_closed(&stopped));
            inbounds.spawn(async move { server.serve_tcp(sockets.tcp, sockets.name, stop).await });
        }
        let core = self.core;
        let mut background = JoinSet::new();
        let gateway = Arc::clone(&core.gateway);
        background.spawn(async move { gateway.watch_expiry().await });
        background.spawn(follow_host(self.host, core.clone()));
        background.spawn(probe_lost_audit(core.clone()));
        background.spawn(Arc::clone(&core.sandboxes).watch());
        if let Some(listener) = metrics {
            background.spawn(admin::serve(listener, Arc::clone(&core.status), core.metrics.clone()));
        }
        let (bound, sockets) = self.sockets;
        core.doors.serve(&Holder::Config, bound, &sockets);
        core.sandboxes.settle_doors();
        let (api, orders) = Api::new(core.clone());
        if let (Some(listener), Some(trust)) = (admin_https, &core.admin_trust) {
            background.spawn(admin::serve_https(listener, Arc::clone(trust), Arc::clone(&api)));
        }
        if let (Some(listener), Some(own)) = (admin, self.own) {
            background.spawn(admin::serve_socket(listener, own, api));
        }
        core.status.enter(Phase::Ready);
        Running { core, inbounds, stop, orders, _background: background, files }
    }
}

impl Running {
    /// Waits for what the main loop must see to.
    pub async fn happening(&mut self) -> Happened {
        tokio::select! {
            // Without listeners its only clients are in namespaces of their own.
            Some(ended) = self.inbounds.join_next() => Happened::Broken(match ended {
                Ok(Err(error)) => error,
                Ok(Ok(())) | Err(_) => io::Error::other("an inbound has ended by itself"),
            }),
            // Without an admin socket nobody orders anything.
            Some(order) = self.orders.recv() => Happened::Order(order),
            else => std::future::pending().await,
        }
    }

    /// Lets the clients of a listener on this host be one sandbox, whoever they are: for a command that has no namespace.
    ///
    /// # Errors
    /// Where the runtime does not take the listener.
    pub(crate) fn serve_weakly(
        &mut self,
        sandbox: SandboxId,
        listener: std::net::TcpListener,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = proxy::Listener::inside(self.core.gate.namespace(sandbox), listener)?;
        let gateway = Arc::clone(&self.core.gateway);
        self.inbounds.spawn(async move {
            listener.run(gateway).await;
            Ok(())
        });
        self.core.metrics.uncontained();
        Ok(())
    }

    /// Tells the audit of a sandbox's workload.
    pub(crate) async fn note_workload(&self, sandbox: &SandboxId, change: SandboxChange<'_>) {
        if let Some(sandbox) = self.core.gate.policy().sandbox(sandbox).cloned() {
            // A required audit that cannot be written denies everything by itself.
            let _ = self.core.audit.note(Notice::Sandbox { sandbox: &sandbox, change, by: None }).await;
        }
    }

    /// Ends at once, when the only client has ended: what is open may take `patience` to be carried out.
    pub(crate) async fn end(self, patience: Duration) {
        let core = self.core.clone();
        if tokio::time::timeout(patience, self.drain()).await.is_err() {
            core.gateway.end_streams();
            core.audit.finish();
        }
    }

    /// Serves a namespace that was handed over, for as long as what it gives lives.
    ///
    /// # Errors
    /// Where the sandbox is unknown or has a namespace, or the namespace is another sandbox's.
    pub fn open_namespace(&self, sandbox: SandboxId, sockets: Checked) -> Result<Open, NotOpened> {
        self.core.namespaces.open(sandbox, None, sockets)
    }

    /// Opens the audit anew, after it was moved away.
    pub fn reopen_audit(&self) {
        if let Err(error) = self.core.audit.reopen() {
            tracing::error!(error = %crate::error_chain(&error), "the audit stays in its old file");
        }
    }

    /// Takes no more clients, waits for those that there are as long as a drain may take, and writes what is left of
    /// the audit.
    pub async fn drain(mut self) {
        self.core.status.enter(Phase::Draining);
        drop(self.stop);
        drop(self.files);
        self.core.doors.close();
        while self.inbounds.join_next().await.is_some() {}
        self.core.gateway.drain().await;
        self.core.audit.finish();
    }
}

/// Tries a lost audit again, and begins one anew whose file is gone. While it is required and lost nothing is allowed and the gateway is not ready, so that no
/// traffic may come whose line would show that it can be written again.
async fn probe_lost_audit(core: Core) {
    loop {
        tokio::time::sleep(PROBE_AUDIT).await;
        if let Err(error) = core.audit.look() {
            tracing::error!(error = %crate::error_chain(&error), "the audit stays in a file that is gone");
        }
        if core.audit.is_lost() {
            let detail = "the log could not be written; nothing was allowed meanwhile";
            // Whether it was written is what the next look at the audit tells.
            let notice =
                Notice::Enforcement { sandbox: None, check: "audit", holds: false, reason: None, detail };
            let _ = core.audit.note(notice).await;
        }
    }
}

/// Resolves when the gateway stops.
fn until_closed(stopped: &watch::Receiver<()>) -> impl Future<Output = ()> + use<> {
    let mut stopped = stopped.clone();
    async move { while stopped.changed().await.is_ok() {} }
}

/// Keeps the gate's knowledge of the host's own addresses true.
async fn follow_host(mut host: host::Watch, core: Core) {
    loop {
        let local = match host.changed().await {
            Ok(local) => Arc::new(local.clone()),
            Err(error) => {
                tracing::error!(%error, "the addresses of this host are no longer followed; trying again");
                tokio::time::sleep(FOLLOW_AGAIN).await;
                match host::Watch::start() {
                    Ok(fresh) => host = fresh,
                    Err(_) => continue,
                }
                Arc::new(host.addresses().clone())
            }
        };
        let generation = core.gate.set_local_addresses(local);
        core.gateway.addresses_changed();
        core.metrics.generation(generation);
        core.status.generation(generation);
        tracing::info!(%generation, "the addresses of this host have changed");
    }
}

fn audit_settings(table: &config::Audit) -> audit::Settings {
    let place = table.path.clone().map_or(audit::Place::Stdout, audit::Place::File);
    let rotation =
        table.rotation.map(|rotation| audit::Rotation { size: rotation.size, keep: rotation.keep });
    audit::Settings { place, required: table.required, rotation }
}

/// What the proxy is told. The name of an upstream proxy is resolved once, here.
async fn streams(config: &Config, resolver: &dns::Resolver) -> Result<proxy::Config, UpstreamUnknown> {
    let upstream = match &config.upstream {
        Some(table) => {
            let addresses = lookup::upstream(resolver, &table.proxy).await?;
            Some(UpstreamProxy { addresses, except: table.except.clone() })
        }
        None => None,
    };
    // Without an admin socket nobody could answer.
    let admin = config.listen.admin.as_ref();
    let approvers = admin.map_or(proxy::Approvers::Nobody, |_| proxy::Approvers::Somebody);
    Ok(proxy::Config {
        timeouts: config.timeouts,
        upstream,
        approvers,
        clients: proxy::config::Clients(descriptors::clients()),
    })
}

/// What makes the ids of this run differ from those of any other.
fn run_id() -> u32 {
    // A hasher's keys are random for each process; no secret hangs on them.
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 32).unwrap_or_default()
}
