//! The namespaces that the gateway serves: sockets that were handed over become inbounds of one sandbox.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use policy::{Gate, Namespace, Reason, SandboxId};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::enforcement::Enforcement;
use crate::netlink;
use crate::netns::NamespaceId;
use crate::netns::handover::{Checked, HandoverRefused};

/// What is checked of a namespace as long as it is open, in the audit's words.
const CHECK: &str = "links";

/// How often the kernel is asked for the links of a namespace, besides what it tells by itself.
const SELF_TEST: Duration = Duration::from_secs(10);

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

    /// Serves a namespace for a sandbox. Needs a tokio runtime.
    ///
    /// # Errors
    /// Where the sandbox is unknown or has one, or the namespace is another sandbox's.
    pub fn open(self: &Arc<Self>, sandbox: SandboxId, sockets: Checked) -> Result<Open, NotOpened> {
        let namespace = self.take_place(sandbox, sockets.namespace)?;
        self.serve(Arc::clone(&namespace), sockets).map_err(|error| {
            self.give_up(&namespace, None);
            NotOpened::Serve(error)
        })
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

    fn take_place(&self, sandbox: SandboxId, id: NamespaceId) -> Result<Arc<Namespace>, NotOpened> {
        let mut open = self.open_ones();
        // Looked up with the lock held: see `policy_changed`.
        if self.gate.policy().sandbox(&sandbox).is_none() {
            return Err(NotOpened::Unknown(sandbox));
        }
        if open.contains_key(&sandbox) {
            return Err(NotOpened::HasOne(sandbox));
        }
        if let Some((other, _)) = open.iter().find(|(_, place)| place.id == id) {
            return Err(HandoverRefused::TakenBy(other.clone()).into());
        }
        let namespace = self.gate.namespace(sandbox.clone());
        open.insert(sandbox, Place { id, namespace: Arc::clone(&namespace) });
        Ok(namespace)
    }

    /// To be called after another policy has been put in force: closes the namespaces of sandboxes that it does not have,
    /// before it returns. A later sandbox of the same name is another one, and its namespace another too.
    pub fn policy_changed(&self) {
        let policy = self.gate.policy();
        for (sandbox, place) in &*self.open_ones() {
            if policy.sandbox(sandbox).is_none() {
                self.gateway.close_namespace(&place.namespace, Some(Reason::PolicyChanged));
            }
        }
        self.closings.send_replace(());
    }

    fn give_up(&self, namespace: &Namespace, reason: Option<Reason>) {
        self.gateway.close_namespace(namespace, reason);
        self.open_ones().remove(namespace.sandbox());
    }

    fn open_ones(&self) -> MutexGuard<'_, HashMap<SandboxId, Place>> {
        // Each change is one insertion or removal: whole, whatever panicked elsewhere.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub async fn watch(mut self) -> Ended {
        let all = Arc::clone(&self.all);
        let enforcement = &all.enforcement;
        let sandbox = self.sandbox().clone();
        // Where it cannot be told, the first look of the self-test ends it.
        if matches!(way_out(&self.links), Ok(None)) {
            enforcement.holds(&sandbox, CHECK, "no link but lo").await;
        }
        let ended = tokio::select! {
            link = link_appeared(&self.links) => link.map_or_else(Ended::Broken, Ended::LinkAppeared),
            link = self_test(&self.links) => link.map_or_else(Ended::Broken, Ended::LinkAppeared),
            () = removed(&self.namespace, self.all.closings.subscribe()) => Ended::Removed,
            error = broken(&mut self.inbounds, self.all.until_stopped()) => Ended::Broken(error),
        };
        match &ended {
            Ended::LinkAppeared(link) => {
                self.inbounds.abort_all();
                self.all.gateway.close_namespace(&self.namespace, Some(Reason::LinkAppeared));
                let detail = format!("link {link} appeared in the namespace");
                enforcement.broken(&sandbox, CHECK, Reason::LinkAppeared, &detail).await;
            }
            Ended::Removed => {
                tracing::info!(%sandbox, "a namespace is no longer served: its sandbox was removed")
            }
            Ended::Broken(error) => tracing::error!(%sandbox, %error, "a namespace is no longer served"),
        }
        ended
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

/// Looks again and again, whatever was noticed: the first time at once.
async fn self_test(links: &AsyncFd<OwnedFd>) -> io::Result<Box<str>> {
    let mut next = tokio::time::interval(SELF_TEST);
    loop {
        next.tick().await;
        if let Some(link) = way_out(links)? {
            return Ok(link);
        }
    }
}

/// The name of a link that could lead out, if there is one: the same question that `tidegate probe` asks inside.
fn way_out(links: &AsyncFd<OwnedFd>) -> io::Result<Option<Box<str>>> {
    let found = netlink::ways_out(links.get_ref())?;
    Ok(found.into_iter().next().map(|link| link.name.escape_debug().to_string().into()))
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
