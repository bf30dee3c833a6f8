//! Sockets that stand in the sandbox's network namespace, made there by the helper and used by the gateway.
//!
//! A socket belongs to the namespace of whoever made it, for life: a connection over one of these reaches the workload's
//! own loopback and nothing else.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socket_with,
};

/// In the helper: answers one request. An error means that nobody asks any more.
pub(super) fn make(asked: impl AsFd) -> io::Result<()> {
    let mut byte = [0];
    let (_, read) = recv(&asked, &mut byte[..], RecvFlags::empty())?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [socket.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(&asked, &[IoSlice::new(&byte)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// In the gateway: asks for a socket inside and waits for it.
pub(super) fn ask(helper: impl AsFd) -> io::Result<OwnedFd> {
    rustix::net::send(&helper, &[0], SendFlags::NOSIGNAL)?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&helper, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let held = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    held.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
