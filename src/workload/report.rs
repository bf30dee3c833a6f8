//! What the processes inside tell the gateway: one message a datagram, over a socket pair that was there before them.
//!
//! The first process of the sandbox keeps its end as its standard output, so that it has no descriptor but stdio.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The longest message; what is longer is cut.
const LIMIT: usize = 4096;

/// Something that happened inside.
#[derive(Debug)]
pub(super) enum Report {
    /// A step failed: the command will not run.
    Failed(String),
    /// Something is not as it should be, and the command runs all the same.
    Note(String),
    /// The near end of the terminal that the command has.
    Terminal(OwnedFd),
    /// The command could not be executed: the error number of execve(2).
    NotExecuted(i32),
    /// The command was stopped by its terminal.
    Stopped,
}

/// One end.
#[derive(Debug)]
pub(super) struct Reporter(OwnedFd);

/// The other end.
#[derive(Debug)]
pub(super) struct Reports(OwnedFd);

pub(super) fn pair() -> io::Result<(Reporter, Reports)> {
    let (inside, outside) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Reporter(inside), Reports(outside)))
}

impl Reporter {
    /// Tells it.
    pub(super) fn tell(&self, report: &Report) {
        tell(&self.0, report);
    }

    /// The descriptor, to be kept where it is wanted.
    pub(super) fn as_descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Tells it over a descriptor of a [`Reporter`]. Nobody may listen any more: then nobody needs to know.
pub(super) fn tell(to: impl AsFd, report: &Report) {
    let (kind, text) = match report {
        Report::Failed(text) => (b'F', text.as_bytes()),
        Report::Note(text) => (b'N', text.as_bytes()),
        Report::Terminal(_) => (b'T', &b""[..]),
        Report::NotExecuted(number) => (b'X', &number.to_ne_bytes()[..]),
        Report::Stopped => (b'Z', &b""[..]),
    };
    let text = text.get(..LIMIT - 1).unwrap_or(text);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptor: Option<[BorrowedFd<'_>; 1]> = match report {
        Report::Terminal(terminal) => Some([terminal.as_fd()]),
        _ => None,
    };
    if let Some(descriptor) = &descriptor {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptor));
    }
    let kind = [kind];
    let parts = [IoSlice::new(&kind), IoSlice::new(text)];
    let _ = rustix::io::retry_on_intr(|| sendmsg(&to, &parts, &mut ancillary, SendFlags::NOSIGNAL));
}

impl From<OwnedFd> for Reporter {
    fn from(inside: OwnedFd) -> Self {
        Self(inside)
    }
}

impl Reports {
    /// Waits for the next; `None` once everybody inside has gone.
    pub(super) fn next(&self) -> Option<Report> {
        let mut bytes = [0; LIMIT];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(_) => return None,
                Ok(received) => break received,
            }
        };
        let (kind, text) = bytes.get(..received.bytes)?.split_first()?;
        let shown = || String::from_utf8_lossy(text).into_owned();
        match kind {
            b'F' => Some(Report::Failed(shown())),
            b'N' => Some(Report::Note(shown())),
            b'X' => Some(Report::NotExecuted(text.try_into().map_or(0, i32::from_ne_bytes))),
            b'Z' => Some(Report::Stopped),
            b'T' => {
                let held = ancillary.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                    _ => None,
                });
                held.map(Report::Terminal)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_arrives_as_it_was_told_and_the_end_is_seen() {
        let (inside, outside) = pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let told = [
            Report::Note("a".repeat(5000)),
            Report::Terminal(null.into()),
            Report::NotExecuted(2),
            Report::Stopped,
            Report::Failed("mount: no".into()),
        ];
        told.iter().for_each(|report| inside.tell(report));
        drop(inside);
        let mut heard = Vec::new();
        while let Some(report) = outside.next() {
            heard.push(format!("{report:?}").chars().take(20).collect::<String>());
        }
        let expected: Vec<String> =
            told.iter().map(|report| format!("{report:?}").chars().take(20).collect()).collect();
        assert_eq!(heard.len(), 5);
        assert_eq!(heard[2..], expected[2..]);
        assert!(heard[0].starts_with("Note(\"aaaa") && heard[1].starts_with("Terminal("));
    }
}
