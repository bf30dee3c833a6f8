//! Where there is no splice(2): there is never a pipe to borrow, so every flow copies.

use std::io;

use crate::stream::Stream;

/// What a pipe would hold.
pub(crate) const SIZE: usize = 256 * 1024;

/// A pipe that cannot be had.
#[derive(Debug)]
pub(crate) enum Pipe {}

/// What would come of taking bytes out of a socket.
#[derive(Debug)]
#[expect(dead_code, reason = "the flow matches on what the Linux pipe says")]
pub(crate) enum Filled {
    Bytes(usize),
    Nothing,
    Unsupported,
}

impl Pipe {
    pub(crate) fn borrow() -> Option<Self> {
        None
    }

    pub(crate) fn give_back(self) {
        match self {}
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {}
    }

    pub(crate) fn is_empty(&self) -> bool {
        match *self {}
    }

    pub(crate) fn fill(&mut self, _: &Stream, _: usize) -> io::Result<Filled> {
        match *self {}
    }

    pub(crate) fn drain(&mut self, _: &Stream) -> io::Result<()> {
        match *self {}
    }
}
