//! Kernel pipes for splice(2): bytes go from socket to socket without a copy through user space.
//!
//! A pipe is borrowed from the thread for the length of one poll and given back empty, so a thread needs one.
//! It stays with a flow only while the far side will not take what is in it. Pipes cost 10 KiB of kernel
//! memory and two descriptors each (measured), and pages held in them count against
//! `fs.pipe-user-pages-soft`, so their number is capped; beyond the cap a flow copies.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;

use crate::stream::Stream;

/// The kernel's default of 64 KiB makes twice the system calls; above 256 KiB nothing is gained (measured on
/// loopback).
pub(crate) const SIZE: usize = 256 * 1024;

/// `fs.pipe-user-pages-soft` is 16,384 pages by default: 256 pipes of this size. Above it the kernel hands
/// out pipes of two pages (pipe(7)), which are slower than copying.
const MOST: usize = 128;

/// Idle pipes that a thread keeps.
const KEPT: usize = 2;

static ALIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SPARE: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// One pipe and how many bytes are in it.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    filled: usize,
}

/// What came of taking bytes out of a socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// So many bytes are in the pipe now.
    Bytes(usize),
    /// Nothing can be taken this way now; reading will tell why.
    Nothing,
    /// This kind of socket cannot be spliced.
    Unsupported,
}

impl Pipe {
    /// Takes a spare pipe or makes one; `None` where there are too many or the process has no descriptors
    /// left.
    pub(crate) fn borrow() -> Option<Self> {
        SPARE.with_borrow_mut(Vec::pop).or_else(Self::make)
    }

    fn make() -> Option<Self> {
        if ALIVE.fetch_add(1, Ordering::Relaxed) >= MOST {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let Ok((read, write)) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC) else {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        // A smaller pipe works too.
        let _ = fcntl_setpipe_size(&write, SIZE);
        Some(Self { read, write, filled: 0 })
    }

    /// Gives an empty pipe back to the thread. One that still holds bytes is closed.
    pub(crate) fn give_back(self) {
        if self.filled > 0 {
            return;
        }
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < KEPT {
                spare.push(self);
            }
        });
    }

    /// How many idle pipes this thread keeps.
    #[cfg(test)]
    pub(super) fn spare() -> usize {
        SPARE.with_borrow(Vec::len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Moves what the socket has into the empty pipe, at most `most` bytes.
    ///
    /// The readiness of the socket is left alone, since neither would-block nor zero has one meaning here: in
    /// front of an urgent byte splice says would-block, and zero, as at the end, once the sender has finished
    /// behind it (seen on Linux 6.18). The caller asks by a read, which has one.
    pub(crate) fn fill(&mut self, from: &Stream, most: usize) -> io::Result<Filled> {
        let Some(from) = from.plain() else { return Ok(Filled::Unsupported) };
        match splice(from, None, &self.write, None, most.min(SIZE), SpliceFlags::MOVE | SpliceFlags::NONBLOCK)
        {
            Ok(0) | Err(Errno::AGAIN | Errno::INTR) => Ok(Filled::Nothing),
            Ok(bytes) => {
                self.filled += bytes;
                Ok(Filled::Bytes(bytes))
            }
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(Filled::Unsupported),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what is in the pipe out of it, for a flow that goes on in another way.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.filled];
        let mut taken = 0;
        while let Some(room @ [_, ..]) = bytes.get_mut(taken..) {
            match rustix::io::read(&self.read, room) {
                Ok(0) | Err(_) => break,
                Ok(read) => taken += read,
            }
        }
        bytes.truncate(taken);
        bytes
    }

    /// Moves what is in the pipe into the socket, as much as it takes.
    pub(crate) fn drain(&mut self, to: &Stream) -> io::Result<()> {
        let moved = to.try_io(Interest::WRITABLE, |to| {
            splice(&self.read, None, to, None, self.filled, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)
                .map_err(io::Error::from)
        });
        match moved {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => {
                self.filled = self.filled.saturating_sub(moved);
                Ok(())
            }
            // A signal came before the first byte moved.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}
