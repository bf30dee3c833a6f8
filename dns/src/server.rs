//! The filtering server: the sockets that sandboxes ask.

mod tcp;
mod udp;

use std::net::IpAddr;
use std::sync::Arc;

use policy::{Gate, ListenerName};
use tokio::net::{TcpListener, UdpSocket};

use crate::config::Limits;
use crate::handler::Handler;
use crate::meter::Meter;
use crate::metrics::Metrics;
use crate::resolver::Resolver;

/// Serves DNS on any number of sockets. Cloning is one reference count.
#[derive(Clone, Debug)]
pub struct Server(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    handler: Handler,
    limits: Limits,
    connections: Arc<Meter<IpAddr>>,
}

impl Server {
    /// A server that decides by `gate` and resolves by `resolver`.
    #[must_use]
    pub fn new(gate: Arc<Gate>, resolver: Resolver, metrics: Metrics, limits: Limits) -> Self {
        let connections = Meter::new(limits.connections_per_client);
        Self(Arc::new(Shared { handler: Handler::new(gate, resolver, metrics, limits), limits, connections }))
    }

    /// Answers datagrams until `stop` resolves.
    ///
    /// The socket should be bound to one address: replies from a wildcard leave with whatever source address the
    /// kernel chooses, and clients drop them.
    ///
    /// # Errors
    /// Where the socket is broken.
    pub async fn serve_udp(
        &self,
        socket: UdpSocket,
        name: ListenerName,
        stop: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        tokio::select! {
            served = udp::serve(&self.0, Arc::new(socket), name) => served,
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
        name: ListenerName,
        stop: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        let (closing, closed) = tokio::sync::watch::channel(());
        tokio::select! {
            served = tcp::serve(&self.0, listener, name, closed) => served,
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
