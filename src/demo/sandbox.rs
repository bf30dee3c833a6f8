//! A sandbox of the demo: a network of its own, in which clients know of no proxy.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::stage::PATIENCE;
use crate::lab::Namespace;
use crate::netns::handover::{self, Checked, Offered};
use crate::netns::{self, Plan};

/// A namespace that is set up, with its sockets for the gateway.
pub(super) struct Sandbox {
    namespace: Namespace,
    sockets: Mutex<Option<Checked>>,
}

impl Sandbox {
    /// Sets it up and hands its sockets over, as `tidegate attach` does.
    pub(super) fn build() -> io::Result<Self> {
        let namespace = Namespace::new()?;
        let sockets =
            namespace.run(|| netns::open_here(&Plan::for_this_kernel()).map_err(io::Error::other))?;
        let (inside, gateway) = UnixStream::pair()?;
        let checked = thread::scope(|scope| {
            let sender = scope.spawn(|| handover::send(&inside, sockets));
            let checked = handover::receive(&gateway).and_then(Offered::check);
            handover::acknowledge(&gateway, checked.as_ref().err().map(|why| why as &dyn Error))?;
            match sender.join() {
                Ok(sent) => sent.map_err(io::Error::other)?,
                Err(_) => return Err(io::Error::other("the hand-over panicked")),
            }
            checked.map_err(io::Error::other)
        })?;
        Ok(Self { namespace, sockets: Mutex::new(Some(checked)) })
    }

    /// What the gateway is to serve; once.
    pub(super) fn take(&self) -> Option<Checked> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A connection to any address, as a client inside opens it.
    pub(super) fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.namespace.tcp_connect(to, PATIENCE)
    }

    /// A socket to ask any name server from.
    pub(super) fn udp(&self) -> io::Result<UdpSocket> {
        self.namespace.udp_bind((Ipv4Addr::UNSPECIFIED, 0).into())
    }
}
