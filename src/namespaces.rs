//! The namespaces that the gateway serves: sockets that were handed over become inbounds of one sandbox.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use policy::{Gate, Namespace, Policy, Reason, SandboxId};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::enforcement::Enforcement;
use crate::netns::NamespaceId;
use crate::netns::handover::{Checked, HandoverRefused};
use crate::{netlink, probe};

/// What is checked of a namespace as long as it is open, in the audit's words.
const CHECK: &str = "links";

/// How often the kernel is asked for the links and routes of a namespace, besides what it tells by itself.
const SELF_TEST: Duration = Duration::from_secs(10);

/// How often is looked whether the streams of a namespace that closes have ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Every open namespace of a gateway.
#[derive(Debug)]
pub struct Namespaces {
    gate: Arc<Gate>,
    gateway: Arc<proxy::Gateway>,
    dns: dns::Server,
    enforcement: Enforcement,
    stopped: watch::Receiver<()>,
    /// Tells that one was closed from here.
    closings: watch::Sender<()>,
    open: Mutex<HashMap<SandboxId, Place>>,
}

/// Where a sandbox's clients are.
#[derive(Debug)]
struct Place {
    id: NamespaceId,
    /// The uid that may hold it as long as `owners` of the sandbox names it; none where nobody has to be named.
    owner: Option<u32>,
    namespace: Arc<Namespace>,
}

/// Why a namespace is not served.
#[derive(Debug, thiserror::Error)]
pub enum NotOpened {
    /// The policy in force has no such sandbox.
    #[error("there is no sandbox {0}")]
    Unknown(SandboxId),
    /// One live namespace a sandbox.
    #[error("sandbox {0} has a namespace already; end what holds it first")]
    HasOne(SandboxId),
    /// It was a moment ago.
    #[error("uid {0} is not in `owners` of the sandbox any more")]
    Disowned(u32),
    /// One sandbox a namespace.
    #[error(transparent)]
    Refused(#[from] HandoverRefused),
    /// The runtime does not take the sockets.
    #[error("cannot serve the namespace")]
    Serve(#[from] io::Error),
}

/// Why a namespace was shut.
#[derive(Debug)]
pub enum Ended {
    /// A link came, which could lead past the gateway.
    LinkAppeared(Box<str>),
    /// The policy in force has no such sandbox any more.
    Removed,
    /// The policy in force does not name its holder among the sandbox's owners any more.
    Disowned(u32),
    /// A socket broke: it is not served by half.
    Broken(io::Error),
}

/// A namespace that is served. Dropped, its listeners close and what its clients have open ends.
#[derive(Debug)]
pub struct Open {
    all: Arc<Namespaces>,
    namespace: Arc<Namespace>,
    links: AsyncFd<OwnedFd>,
    inbounds: JoinSet<io::Result<()>>,
}

impl Namespaces {
    pub(crate) fn new(
        gate: Arc<Gate>,
        gateway: Arc<proxy::Gateway>,
        dns: dns::Server,
        enforcement: Enforcement,
        stopped: watch::Receiver<()>,
    ) -> Self {
        Self {
            gate,
            gateway,
            dns,
            enforcement,
            stopped,
            closings: watch::Sender::new(()),
            open: Mutex::default(),
        }
    }

    /// Serves a namespace for a sandbox, as long as its `owners` name `owner`, where one is given. Needs a tokio runtime.
    ///
    /// # Errors
    /// Where the sandbox is unknown or has one, or the namespace is another sandbox's.
    pub fn open(
        self: &Arc<Self>,
        sandbox: SandboxId,
        owner: Option<u32>,
        sockets: Checked,
    ) -> Result<Open, NotOpened> {
        let namespace = self.take_place(sandbox, owner, sockets.namespace)?;
        let open =
            self.serve(Arc::clone(&namespace), sockets).inspect_err(|_| self.give_up(&namespace, None))?;
        // Before anybody is told that it is served. What is refused is given up with what it opened.
        match way_out(&open.links)? {
            Some(link) => Err(HandoverRefused::OtherLinks(link).into()),
            None => Ok(open),
        }
    }

    fn serve(self: &Arc<Self>, namespace: Arc<Namespace>, sockets: Checked) -> io::Result<Open> {
        let Checked { proxy, captured, dns, links, namespace: _ } = sockets;
        #[expect(
            deprecated,
            reason = "the other form is `unsafe`: it asks for a descriptor that stays the same and open, as an owned one is"
        )]
        let links = AsyncFd::with_interest(links, Interest::READABLE)?;
        let mut listeners = Vec::new();
        for listener in proxy {
            listeners.push(proxy::Listener::inside(Arc::clone(&namespace), listener)?);
        }
        for listener in captured {
            listeners.push(proxy::Listener::captured(Arc::clone(&namespace), listener)?);
        }
        let mut inbounds = JoinSet::new();
        for listener in listeners {
            let (gateway, stop) = (Arc::clone(&self.gateway), self.until_stopped());
            inbounds.spawn(async move {
                tokio::select! {
                    () = listener.run(gateway) => {}
                    () = stop => {}
                }
                Ok(())
            });
        }
        for (udp, tcp) in dns {
            let (udp, tcp) = (UdpSocket::from_std(udp)?, TcpListener::from_std(tcp)?);
            let (server, at, stop) = (self.dns.clone(), Arc::clone(&namespace), self.until_stopped());
            inbounds.spawn(async move { server.serve_udp(udp, at, stop).await });
            let (server, at, stop) = (self.dns.clone(), Arc::clone(&namespace), self.until_stopped());
            inbounds.spawn(async move { server.serve_tcp(tcp, at, stop).await });
        }
        Ok(Open { all: Arc::clone(self), namespace, links, inbounds })
    }

    fn until_stopped(&self) -> impl Future<Output = ()> + use<> {
        let mut stopped = self.stopped.clone();
        async move { while stopped.changed().await.is_ok() {} }
    }

    fn take_place(
        &self,
        sandbox: SandboxId,
        owner: Option<u32>,
        id: NamespaceId,
    ) -> Result<Arc<Namespace>, NotOpened> {
        let mut open = self.open_ones();
        // Looked up with the lock held: see `policy_changed`.
        match standing(&self.gate.policy(), &sandbox, owner) {
            Some(Ended::Disowned(uid)) => return Err(NotOpened::Disowned(uid)),
            Some(_) => return Err(NotOpened::Unknown(sandbox)),
            None => {}
        }
        if open.contains_key(&sandbox) {
            return Err(NotOpened::HasOne(sandbox));
        }
        if let Some((other, _)) = open.iter().find(|(_, place)| place.id == id) {
            return Err(HandoverRefused::TakenBy(other.clone()).into());
        }
        let namespace = self.gate.namespace(sandbox.clone());
        open.insert(sandbox, Place { id, owner, namespace: Arc::clone(&namespace) });
        Ok(namespace)
    }

    /// To be called after another policy has been put in force: closes the namespaces of sandboxes that it does not have,
    /// and those whose holders it does not name any more, before it returns. A later sandbox of the same name is another one, and its namespace another too.
    pub fn policy_changed(&self) {
        let policy = self.gate.policy();
        for (sandbox, place) in &*self.open_ones() {
            if standing(&policy, sandbox, place.owner).is_some() {
                self.gateway.close_namespace(&place.namespace, Some(Reason::PolicyChanged));
            }
        }
        self.closings.send_replace(());
    }

    fn give_up(&self, namespace: &Namespace, reason: Option<Reason>) {
        self.gateway.close_namespace(namespace, reason);
        self.open_ones().remove(namespace.sandbox());
    }

    /// Why a namespace was closed from here.
    fn why_closed(&self, sandbox: &SandboxId) -> Ended {
        let owner = self.open_ones().get(sandbox).and_then(|place| place.owner);
        standing(&self.gate.policy(), sandbox, owner).unwrap_or(Ended::Removed)
    }

    fn open_ones(&self) -> MutexGuard<'_, HashMap<SandboxId, Place>> {
        // Each change is one insertion or removal: whole, whatever panicked elsewhere.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a policy lets nobody hold a namespace for a sandbox, or not who does; `None` where it may be held.
fn standing(policy: &Policy, sandbox: &SandboxId, owner: Option<u32>) -> Option<Ended> {
    match (policy.sandbox(sandbox), owner) {
        (None, _) => Some(Ended::Removed),
        (Some(table), Some(uid)) if !table.owners.contains(&uid) => Some(Ended::Disowned(uid)),
        (Some(_), _) => None,
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkAppeared(link) => write!(f, "link {link} appeared in the namespace"),
            Self::Removed => f.write_str("its sandbox was removed"),
            Self::Disowned(uid) => write!(f, "uid {uid} is not in `owners` of its sandbox any more"),
            Self::Broken(error) => write!(f, "{error}"),
        }
    }
}

impl Open {
    /// Whose it is.
    #[must_use]
    pub fn sandbox(&self) -> &SandboxId {
        self.namespace.sandbox()
    }

    /// Serves until it must not go on: then it is shut and told to the audit. To be polled as long as the namespace is
    /// open; it never ends while the gateway is told to stop.
    pub async fn watch(&mut self) -> Ended {
        let all = Arc::clone(&self.all);
        let enforcement = &all.enforcement;
        let sandbox = self.sandbox().clone();
        // Where it cannot be told, the first look of the self-test ends it.
        if matches!(way_out(&self.links), Ok(None)) {
            enforcement.holds(&sandbox, CHECK, "no link but lo, and no route over another").await;
        }
        let ended = tokio::select! {
            link = link_appeared(&self.links) => link.map_or_else(Ended::Broken, Ended::LinkAppeared),
            link = self_test(&self.links) => link.map_or_else(Ended::Broken, Ended::LinkAppeared),
            () = removed(&self.namespace, all.closings.subscribe()) => all.why_closed(&sandbox),
            error = broken(&mut self.inbounds, all.until_stopped()) => Ended::Broken(error),
        };
        match &ended {
            Ended::LinkAppeared(_) => {
                self.inbounds.abort_all();
                self.all.gateway.close_namespace(&self.namespace, Some(Reason::LinkAppeared));
                enforcement.broken(&sandbox, CHECK, Reason::LinkAppeared, &ended.to_string()).await;
            }
            Ended::Removed | Ended::Disowned(_) => {
                tracing::info!(%sandbox, "a namespace is no longer served: {ended}");
            }
            Ended::Broken(error) => tracing::error!(%sandbox, %error, "a namespace is no longer served"),
        }
        ended
    }

    /// Closes the listeners, and gives what is open a while to end by itself: the clients are gone, and their last bytes
    /// may be on the way.
    pub(crate) async fn finish(mut self, patience: Duration) {
        self.inbounds.shutdown().await;
        let streams = self.all.gateway.streams();
        let gone = async {
            while streams.count_in(&self.namespace) > 0 {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        // What is still open then ends with the namespace.
        let _ = tokio::time::timeout(patience, gone).await;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.inbounds.abort_all();
        self.all.give_up(&self.namespace, None);
    }
}

/// Waits for a link that could lead out, and gives its name.
async fn link_appeared(links: &AsyncFd<OwnedFd>) -> io::Result<Box<str>> {
    loop {
        let mut ready = links.readable().await?;
        let found = match netlink::noticed(ready.get_inner()) {
            Ok(found) => found,
            // Notices were lost because they came faster than they were read (netlink(7)): some link has changed.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                return Ok("of unknown name".into());
            }
            Err(error) => return Err(error),
        };
        // All that waited was read. Still called ready, the socket would be read again and again, and this task do
        // nothing else (seen when a notice told of `lo`).
        ready.clear_ready();
        if let Some(link) = found.into_iter().find(|link| !link.leads_nowhere()) {
            return Ok(link.name.escape_debug().to_string().into());
        }
    }
}

/// Looks again and again, whatever was noticed: the first time at once. What the workload does is not looked at, nor is
/// anything sent: that would be contacts of the sandbox in its own log.
async fn self_test(links: &AsyncFd<OwnedFd>) -> io::Result<Box<str>> {
    let mut next = tokio::time::interval(SELF_TEST);
    loop {
        next.tick().await;
        if let Some(link) = way_out(links)? {
            return Ok(link);
        }
    }
}

/// The name of a link that could lead out, if there is one: the question on which `tidegate probe` rests inside.
fn way_out(links: &AsyncFd<OwnedFd>) -> io::Result<Option<Box<str>>> {
    let found = probe::ways_out(links.get_ref())?;
    Ok(found.into_iter().next().map(|name| name.escape_debug().to_string().into()))
}

/// Waits until the namespace is closed because its sandbox is no more.
async fn removed(namespace: &Namespace, mut closings: watch::Receiver<()>) {
    while !namespace.is_closed() {
        if closings.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn broken(inbounds: &mut JoinSet<io::Result<()>>, stop: impl Future<Output = ()>) -> io::Error {
    let mut stop = std::pin::pin!(stop);
    tokio::select! {
        biased;
        () = &mut stop => std::future::pending().await,
        ended = inbounds.join_next() => match ended {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(())) | Err(_)) | None => io::Error::other("an inbound has ended by itself"),
        },
    }
}
