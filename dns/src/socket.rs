//! A datagram socket that wakes its task for what arrives, and not for room that has become free.
//!
//! Linux reports a UDP socket as writable after each datagram that has left it: a registration for both directions costs
//! a wake-up for each reply (an epoll_wait(2) more, seen with strace). Here room is asked about where there was none.

use std::io::{ErrorKind, Result};
use std::net::UdpSocket;

use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

/// Registered for reading alone.
#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<UdpSocket>);

impl Socket {
    /// Takes over a socket that does not block. Needs a tokio runtime.
    ///
    /// # Errors
    /// Where it cannot be registered.
    pub(crate) fn new(socket: UdpSocket) -> Result<Self> {
        register(socket, Interest::READABLE).map(Self)
    }

    pub(crate) fn get(&self) -> &UdpSocket {
        self.0.get_ref()
    }

    /// Waits until a datagram or an error has arrived.
    pub(crate) async fn arrived(&self) -> Result<Ready> {
        Ok(self.0.ready(Interest::READABLE | Interest::ERROR).await?.ready())
    }

    /// Takes what has arrived. Where `take` says `WouldBlock`, [`Socket::arrived`] waits anew.
    pub(crate) fn take<T>(&self, what: Interest, take: impl FnOnce(&UdpSocket) -> Result<T>) -> Result<T> {
        self.0.try_io(what, take)
    }

    /// Waits until a datagram can be sent.
    pub(crate) async fn room(&self) -> Result<()> {
        let other = register(self.get().try_clone()?, Interest::WRITABLE)?;
        other.writable().await?.retain_ready();
        Ok(())
    }

    /// Sends to the address that the socket is connected to.
    pub(crate) async fn send(&self, message: &[u8]) -> Result<()> {
        loop {
            match self.get().send(message) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.room().await?,
                other => return other.map(drop),
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "not sound for types whose descriptor may change (tokio, pull request 8587), which a UdpSocket's never \
              does; what takes its place is `unsafe`"
)]
fn register(socket: UdpSocket, interest: Interest) -> Result<AsyncFd<UdpSocket>> {
    AsyncFd::with_interest(socket, interest)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn bound() -> Socket {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Socket::new(socket).unwrap()
    }

    #[tokio::test]
    async fn what_arrives_is_taken_once_and_what_leaves_needs_no_registration() {
        let (socket, peer) = (bound(), bound());
        socket.room().await.unwrap();
        socket.get().send_to(b"out", peer.get().local_addr().unwrap()).unwrap();
        assert!(peer.arrived().await.unwrap().is_readable());
        peer.get().send_to(b"in", socket.get().local_addr().unwrap()).unwrap();
        assert!(socket.arrived().await.unwrap().is_readable());
        let mut buffer = [0; 8];
        assert_eq!(socket.take(Interest::READABLE, |socket| socket.recv(&mut buffer)).unwrap(), 2);
        let nothing = socket.take(Interest::READABLE, |socket| socket.recv(&mut buffer));
        assert_eq!(nothing.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    }
}
