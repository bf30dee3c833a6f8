//! Where there is no splice(2): there is never a pipe to borrow, so every flow copies.

use std::io;

use crate::stream::Stream;

/// A pipe that cannot be had.
#[derive(Debug)]
pub(super) enum Pipe {}

/// What would come of taking bytes out of a socket.
#[derive(Debug)]
#[expect(dead_code, reason = "the flow matches on what the Linux pipe says")]
pub(super) enum Filled {
    Bytes(usize),
    Nothing,
    Unsupported,
}

impl Pipe {
    pub(super) fn borrow() -> Option<Self> {
        None
    }

    pub(super) fn give_back(self) {
        match self {}
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {}
    }

    pub(super) fn is_empty(&self) -> bool {
        match *self {}
    }

    pub(super) fn fill(&mut self, _: &Stream) -> io::Result<Filled> {
        match *self {}
    }

    pub(super) fn drain(&mut self, _: &Stream) -> io::Result<()> {
        match *self {}
    }
}
