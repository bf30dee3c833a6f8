//! Datagrams read together: one system call for as many as wait (recvmmsg(2)).

use std::io::{ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, SockaddrIn6, SockaddrLike, recvmmsg};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// The largest datagram that is read whole. A query needs 300 bytes at most, and upstreams are told 1,232.
pub(crate) const MAX_DATAGRAM: usize = 4096;

/// Buffers for datagrams that are read together.
#[derive(Debug)]
pub(crate) struct Batch {
    local: SocketAddr,
    buffers: Vec<Vec<u8>>,
    received: Vec<(usize, Option<SocketAddr>)>,
}

impl Batch {
    /// A batch of at most `size` datagrams of one socket.
    ///
    /// # Errors
    /// Where the socket has no address.
    pub(crate) fn new(socket: &UdpSocket, size: usize) -> std::io::Result<Self> {
        let buffers = vec![vec![0; MAX_DATAGRAM]; size];
        Ok(Self { local: socket.local_addr()?, buffers, received: Vec::with_capacity(size) })
    }

    /// Reads what waits on the batch's socket, up to the size of the batch.
    ///
    /// # Errors
    /// What the socket reports; `WouldBlock` where nothing waits.
    pub(crate) fn receive(&mut self, socket: &UdpSocket) -> std::io::Result<()> {
        self.received.clear();
        let tried = match self.local {
            SocketAddr::V4(_) => self.try_receive::<SockaddrIn>(socket),
            SocketAddr::V6(_) => self.try_receive::<SockaddrIn6>(socket),
        };
        match tried {
            Err(error) if error.kind() == ErrorKind::WouldBlock && !self.received.is_empty() => Ok(()),
            other => other,
        }
    }

    fn try_receive<A>(&mut self, socket: &UdpSocket) -> std::io::Result<()>
    where
        A: SockaddrLike + Copy + Into<SocketAddr>,
    {
        let Self { buffers, received, .. } = self;
        let size = buffers.len();
        // New headers for each call: nix does not reset the address lengths that the kernel wrote.
        let mut headers = MultiHeaders::<A>::preallocate(size, None);
        socket.try_io(Interest::READABLE, || {
            let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            let found = recvmmsg(socket.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None)?;
            received.extend(found.map(|message| (message.bytes, message.address.map(Into::into))));
            // A short batch has emptied the socket. Saying so inside `try_io` saves the call that would find out, and
            // cannot miss a datagram: what arrived since counts as a new event.
            if received.len() < size { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        })
    }

    /// The datagrams, with whom each came from.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<SocketAddr>)> {
        let whole = self.received.iter().zip(&self.buffers);
        whole.filter_map(|((length, from), buffer)| Some((buffer.get(..*length)?, *from)))
    }

    /// How many datagrams there are.
    pub(crate) fn len(&self) -> usize {
        self.received.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo(bind: &str) {
        let (receiver, sender) = (UdpSocket::bind(bind).await.unwrap(), UdpSocket::bind(bind).await.unwrap());
        let mut batch = Batch::new(&receiver, 4).unwrap();
        for count in [1, 3, 4, 6] {
            for byte in 0..count {
                sender.send_to(&[byte; 3], receiver.local_addr().unwrap()).await.unwrap();
            }
            let mut seen = Vec::new();
            while seen.len() < count.into() {
                receiver.readable().await.unwrap();
                match batch.receive(&receiver) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => panic!("{error}"),
                }
                for (message, from) in batch.iter() {
                    assert_eq!(from, Some(sender.local_addr().unwrap()));
                    seen.push(message.to_vec());
                }
            }
            assert_eq!(seen, (0..count).map(|byte| vec![byte; 3]).collect::<Vec<_>>());
        }
        let nothing = batch.receive(&receiver).map_err(|error| error.kind());
        assert_eq!((nothing, batch.len()), (Err(ErrorKind::WouldBlock), 0));
    }

    #[tokio::test]
    async fn datagrams_keep_their_order_and_their_sender() {
        echo("127.0.0.1:0").await;
        echo("[::1]:0").await;
    }
}
