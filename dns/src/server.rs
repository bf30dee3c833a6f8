//! The filtering server: the sockets that sandboxes ask.

mod tcp;
mod udp;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use policy::{Entrance, Gate, Peer, SandboxId};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;

use crate::config::Limits;
use crate::handler::Handler;
use crate::limits::{Asked, network};
use crate::meter::Meter;
use crate::metrics::Metrics;
use crate::resolver::Resolver;
use crate::socket::Socket;

/// Serves DNS on any number of sockets. Cloning is one reference count.
#[derive(Clone, Debug)]
pub struct Server(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    handler: Handler,
    limits: Limits,
    connections: Arc<Meter<Client>>,
    /// Room for connections, whoever opens them: one client may have thousands of addresses.
    room: Arc<Semaphore>,
}

/// Who opens connections, as far as they are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    Network(IpAddr),
    /// In a namespace every address is local, and a client may come from as many as it likes.
    Sandbox(SandboxId),
}

impl Client {
    fn of(peer: &Peer, from: SocketAddr) -> Self {
        match &peer.namespace {
            Some(namespace) => Self::Sandbox(namespace.sandbox().clone()),
            None => Self::Network(network(from.ip())),
        }
    }
}

impl Server {
    /// A server that decides by `gate` and resolves by `resolver`; `asked` counts for every inbound.
    #[must_use]
    pub fn new(
        gate: Arc<Gate>,
        resolver: Resolver,
        metrics: Metrics,
        limits: Limits,
        asked: Arc<Asked>,
    ) -> Self {
        let connections = Meter::new(limits.connections_per_client);
        let room = Arc::new(Semaphore::new(limits.connections));
        Self(Arc::new(Shared {
            handler: Handler::new(gate, resolver, metrics, limits, asked),
            limits,
            connections,
            room,
        }))
    }

    /// Answers datagrams until `stop` resolves. In a namespace names are answered with addresses that stand for them there.
    ///
    /// The socket should be bound to one address: replies from a wildcard leave with whatever source address the
    /// kernel chooses, and clients drop them.
    ///
    /// # Errors
    /// Where the socket is broken.
    pub async fn serve_udp(
        &self,
        socket: UdpSocket,
        entrance: impl Into<Entrance>,
        stop: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        let socket = Socket::new(socket.into_std()?)?;
        tokio::select! {
            served = udp::serve(&self.0, socket, entrance.into()) => served,
            () = stop => Ok(()),
        }
    }

    /// Answers on TCP connections until `stop` resolves; connections then end with their last reply.
    ///
    /// # Errors
    /// Where the socket is broken.
    pub async fn serve_tcp(
        &self,
        listener: TcpListener,
        entrance: impl Into<Entrance>,
        stop: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        let (closing, closed) = tokio::sync::watch::channel(());
        tokio::select! {
            served = tcp::serve(&self.0, listener, entrance.into(), closed) => served,
            () = stop => {
                drop(closing);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the clients of the tests connect")]
mod tests;
