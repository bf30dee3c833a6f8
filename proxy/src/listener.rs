//! Accepts clients and gives each a task of its own.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use policy::{Entrance, ListenerName, Namespace, Peer, User};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::time::sleep;

use crate::connection::Connection;
use crate::gateway::Gateway;
use crate::stream::{self, Stream};
use crate::tls::{self, Trust};

/// Connections that the kernel completes ahead of us; bursts of installers open dozens at once.
const BACKLOG: u32 = 1024;

/// How long to wait when nothing can be accepted, as with no descriptor left: the condition does not clear by itself
/// and accept would fail again at once.
const PAUSE: Duration = Duration::from_millis(50);

/// One place where clients come in. Closed when dropped.
#[derive(Debug)]
pub struct Listener {
    entrance: Entrance,
    /// Where it listens, if it takes connections that were meant for other addresses.
    captures: Option<SocketAddr>,
    /// What its clients shake hands by, if they speak TLS.
    trust: Option<Arc<Trust>>,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on an address. Policy knows the listener by `name`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn tcp(name: ListenerName, address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restart must not fail on the last run's connections in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        // Linux gives what is set here to every accepted socket: no system call for each of them.
        stream::tune(&listener);
        Ok(Self::plain(name.into(), None, Socket::Tcp(listener)))
    }

    /// Listens on an address for clients that speak TLS to the gateway.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn tls(name: ListenerName, address: SocketAddr, trust: Arc<Trust>) -> io::Result<Self> {
        Ok(Self { trust: Some(trust), ..Self::tcp(name, address)? })
    }

    const fn plain(entrance: Entrance, captures: Option<SocketAddr>, socket: Socket) -> Self {
        Self { entrance, captures, trust: None, socket }
    }

    /// Listens on a unix socket. Whoever may write to the file may connect: its mode is the caller's to set.
    ///
    /// # Errors
    /// What the kernel says; the path must not exist.
    pub fn unix(name: ListenerName, path: &Path) -> io::Result<Self> {
        let socket = Socket::Unix(UnixListener::bind(path)?);
        Ok(Self::plain(name.into(), None, socket))
    }

    /// Takes over the proxy port in a sandbox's own namespace: what a client there speaks to on purpose.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn inside(namespace: Arc<Namespace>, listener: std::net::TcpListener) -> io::Result<Self> {
        let socket = Socket::Tcp(handed_over(listener)?);
        Ok(Self::plain(namespace.into(), None, socket))
    }

    /// Takes over the port in a sandbox's own namespace to which the kernel redirects every other connection there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn captured(namespace: Arc<Namespace>, listener: std::net::TcpListener) -> io::Result<Self> {
        let own = listener.local_addr()?;
        let socket = Socket::Tcp(handed_over(listener)?);
        Ok(Self::plain(namespace.into(), Some(own), socket))
    }

    /// Where it listens; `None` for a unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(tcp) => tcp.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// Serves clients until it is dropped; the clients that it has accepted go on.
    pub async fn run(self, gateway: Arc<Gateway>) {
        let mut failing = false;
        loop {
            match self.accept().await {
                Ok((stream, peer)) => {
                    failing = false;
                    // One that finds no room is closed at once.
                    let Some(client) = gateway.client(&peer) else { continue };
                    match (stream, &self.trust) {
                        (Stream::Tcp(tcp), Some(trust)) => {
                            tokio::spawn(tls::serve(Arc::clone(trust), tcp, peer, client));
                        }
                        (stream, _) => {
                            let connection = Connection { stream, peer, client, captured_at: self.captures };
                            tokio::spawn(connection.serve());
                        }
                    }
                }
                // The client has gone already (accept(2)).
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(listener = %self.entrance.name(), %error, "cannot accept connections; trying on");
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        let (stream, address) = match &self.socket {
            Socket::Tcp(tcp) => {
                let (stream, address) = tcp.accept().await?;
                (Stream::Tcp(stream), Some(address))
            }
            Socket::Unix(unix) => {
                let stream = unix.accept().await?.0;
                // The kernel has it from connect(2); where it cannot be had the client is nobody in particular.
                let user = stream.peer_cred().map(|user| User { uid: user.uid(), gid: user.gid() });
                let peer = self.entrance.peer(None);
                let peer = user.map_or_else(|_| peer.clone(), |user| peer.clone().run_by(user));
                return Ok((Stream::Unix(stream), peer));
            }
        };
        Ok((stream, self.entrance.peer(address)))
    }
}

/// A listener that another process has made. Nothing of it is taken for granted: accepting must not wait, since all
/// clients of the gateway would wait with it.
fn handed_over(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    stream::tune(&listener);
    TcpListener::from_std(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the client's side")]
    async fn an_accepted_socket_has_what_was_set_on_the_listener() {
        let listener = Listener::tcp("127.0.0.1:0".into(), "127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = tokio::net::TcpStream::connect(listener.address().unwrap()).await.unwrap();
        let (Stream::Tcp(accepted), peer) = listener.accept().await.unwrap() else {
            panic!("a TCP listener")
        };
        let socket = socket2::SockRef::from(&accepted);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
        assert!(peer.address.is_some_and(|address| address.ip().is_loopback()));
    }
}
