//! Datagrams read and sent together: one system call for as many as wait (recvmmsg(2), sendmmsg(2)).

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, SockaddrIn6, SockaddrLike, recvmmsg};
use rustix::net::addr::SocketAddrArg as _;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};
use tokio::io::Interest;

use crate::socket::Socket;

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
    pub(crate) fn new(socket: &Socket, size: usize) -> std::io::Result<Self> {
        let buffers = vec![vec![0; MAX_DATAGRAM]; size];
        Ok(Self { local: socket.get().local_addr()?, buffers, received: Vec::with_capacity(size) })
    }

    /// Reads what waits on the batch's socket, up to the size of the batch.
    ///
    /// # Errors
    /// What the socket reports; `WouldBlock` where nothing waits.
    pub(crate) fn receive(&mut self, socket: &Socket) -> std::io::Result<()> {
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

    fn try_receive<A>(&mut self, socket: &Socket) -> std::io::Result<()>
    where
        A: SockaddrLike + Copy + Into<SocketAddr>,
    {
        let Self { buffers, received, .. } = self;
        let size = buffers.len();
        // New headers for each call: nix does not reset the address lengths that the kernel wrote.
        let mut headers = MultiHeaders::<A>::preallocate(size, None);
        socket.take(Interest::READABLE, |socket| {
            let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            let found = recvmmsg(socket.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None)?;
            received.extend(found.map(|message| (message.bytes, message.address.map(Into::into))));
            // A short batch has emptied the socket. Saying so in here saves the call that would find out, and
            // cannot miss a datagram: what arrived since counts as a new event.
            if received.len() < size { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        })
    }

    /// Whether it took as many as it can: more may wait.
    pub(crate) fn is_full(&self) -> bool {
        self.received.len() == self.buffers.len()
    }

    /// An empty batch of the same socket and size.
    pub(crate) fn another(&self) -> Self {
        let size = self.buffers.len();
        Self {
            local: self.local,
            buffers: vec![vec![0; MAX_DATAGRAM]; size],
            received: Vec::with_capacity(size),
        }
    }

    /// The datagrams, with whom each came from.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<SocketAddr>)> {
        let whole = self.received.iter().zip(&self.buffers);
        whole.filter_map(|((length, from), buffer)| Some((buffer.get(..*length)?, *from)))
    }
}

/// Datagrams to be sent together.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    bytes: Vec<u8>,
    /// Where each ends in `bytes`, and whom it is for.
    ends: Vec<(usize, SocketAddr)>,
}

/// Buffers that grew beyond this in a rush are given back.
const KEPT: usize = 64 << 10;

/// Datagrams that one call sends at most.
const AT_ONCE: usize = 64;

impl Replies {
    /// Adds what `write` appends.
    pub(crate) fn add(&mut self, to: SocketAddr, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push((self.bytes.len(), to));
    }

    /// Whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Sends all and forgets them. What cannot be sent is lost: the client is gone, or its network is, and it asks again
    /// if it cares.
    pub(crate) async fn send(&mut self, socket: &Socket) {
        let mut sent = 0;
        while sent < self.ends.len() {
            match self.try_send(socket, sent) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if socket.room().await.is_err() {
                        break;
                    }
                }
                // It is the first of them that failed (sendmmsg(2)).
                Err(error) => {
                    tracing::debug!(%error, "cannot send a DNS reply");
                    sent += 1;
                }
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.ends.clear();
    }

    fn try_send(&self, socket: &Socket, sent: usize) -> std::io::Result<usize> {
        let start = sent.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |(end, _)| *end);
        let mut from = start;
        let left = self.ends.get(sent..).unwrap_or_default().iter().take(AT_ONCE);
        let left = left.map(|(end, to)| {
            let message = self.bytes.get(std::mem::replace(&mut from, *end)..*end).unwrap_or_default();
            (message, *to)
        });
        let left: Vec<(&[u8], SocketAddr)> = left.collect();
        match left.as_slice() {
            [] => Ok(0),
            [(message, to)] => socket.get().send_to(message, *to).map(|_| 1),
            several => send_all(socket, several),
        }
    }
}

/// Sends datagrams; returns how many were sent before one failed. By rustix: nix 0.32 tells how many by reading addresses
/// that it has not set.
fn send_all(socket: &Socket, messages: &[(&[u8], SocketAddr)]) -> std::io::Result<usize> {
    let addresses: Vec<_> = messages.iter().map(|(_, to)| to.as_any()).collect();
    let slices: Vec<_> = messages.iter().map(|(message, _)| [IoSlice::new(message)]).collect();
    let mut nothing: Vec<_> = messages.iter().map(|_| SendAncillaryBuffer::default()).collect();
    let parts = addresses.iter().zip(&slices).zip(&mut nothing);
    let mut headers: Vec<_> =
        parts.map(|((to, message), nothing)| MMsgHdr::new_with_addr(to, message, nothing)).collect();
    Ok(sendmmsg(socket.get(), &mut headers, SendFlags::DONTWAIT)?)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn bound(at: &str) -> Socket {
        let socket = UdpSocket::bind(at).unwrap();
        socket.set_nonblocking(true).unwrap();
        Socket::new(socket).unwrap()
    }

    async fn receive(socket: &Socket, buffer: &mut [u8]) -> (usize, SocketAddr) {
        loop {
            socket.arrived().await.unwrap();
            match socket.take(Interest::READABLE, |socket| socket.recv_from(buffer)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other.unwrap(),
            }
        }
    }

    async fn echo(bind: &str) {
        let (receiver, sender) = (bound(bind), bound(bind));
        let mut batch = Batch::new(&receiver, 4).unwrap();
        for count in [1, 3, 4, 6] {
            for byte in 0..count {
                sender.get().send_to(&[byte; 3], receiver.get().local_addr().unwrap()).unwrap();
            }
            let mut seen = Vec::new();
            while seen.len() < count.into() {
                receiver.arrived().await.unwrap();
                match batch.receive(&receiver) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => panic!("{error}"),
                }
                for (message, from) in batch.iter() {
                    assert_eq!(from, Some(sender.get().local_addr().unwrap()));
                    seen.push(message.to_vec());
                }
            }
            assert_eq!(seen, (0..count).map(|byte| vec![byte; 3]).collect::<Vec<_>>());
        }
        let nothing = batch.receive(&receiver).map_err(|error| error.kind());
        assert_eq!((nothing, batch.iter().count()), (Err(ErrorKind::WouldBlock), 0));
    }

    async fn answered(bind: &str, count: u8) {
        let (server, client) = (bound(bind), bound(bind));
        let (mut replies, to) = (Replies::default(), client.get().local_addr().unwrap());
        for round in 0..2 {
            for byte in 0..count {
                replies.add(to, |out| out.extend(std::iter::repeat_n(byte ^ round, byte.into())));
            }
            replies.send(&server).await;
            assert!(replies.is_empty());
            for byte in 0..count {
                let mut buffer = [0; 512];
                let (length, from) = receive(&client, &mut buffer).await;
                assert_eq!(buffer[..length], vec![byte ^ round; byte.into()]);
                assert_eq!(from, server.get().local_addr().unwrap());
            }
        }
    }

    #[tokio::test]
    async fn replies_leave_in_order_and_one_that_fails_takes_no_other_along() {
        for count in [0, 1, 2, 200] {
            answered("127.0.0.1:0", count).await;
            answered("[::1]:0", count).await;
        }
        let (server, client) = (bound("127.0.0.1:0"), bound("127.0.0.1:0"));
        let mut replies = Replies::default();
        for size in [1, 70_000, 2, 3] {
            replies.add(client.get().local_addr().unwrap(), |out| out.resize(out.len() + size, 0));
        }
        replies.send(&server).await;
        let mut buffer = [0; 512];
        for size in [1, 2, 3] {
            assert_eq!(receive(&client, &mut buffer).await.0, size);
        }
    }

    #[tokio::test]
    async fn datagrams_keep_their_order_and_their_sender() {
        echo("127.0.0.1:0").await;
        echo("[::1]:0").await;
    }
}
