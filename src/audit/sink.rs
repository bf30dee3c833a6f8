//! Where lines go: a file, or the standard output. Whole lines only, and never a wait without an end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::OpenError;

/// The mode of an audit file: its owner writes, its group reads.
const MODE: u32 = 0o640;

/// A write of at most this many bytes to a pipe is never mixed with another's (POSIX `PIPE_BUF`, 4096 on Linux).
const PIPE_BUF: usize = 4096;

/// SIGKILL may end a write to a file between two pages, never inside one (`generic_perform_write` in Linux asks before
/// each). A piece that crosses no border is therefore whole or not there.
const PAGE: u64 = 4096;

/// How long a pipe or a terminal may take nothing before its lines are given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same, where the lines before were given up too.
const SHORT_PATIENCE: Duration = Duration::from_millis(10);

pub(super) const NOWHERE: &str = "/dev/null";

/// Where the audit is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The standard output.
    Stdout,
    /// A file.
    File(PathBuf),
    /// Nowhere: whoever runs one command and asks for no log.
    Nowhere,
}

/// When a file is put aside, and how many of those are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A file that would grow past this many bytes is put aside first.
    pub size: u64,
    /// How many files put aside are kept: `audit.jsonl.1` is the newest.
    pub keep: u32,
}

/// What became of a batch of lines.
#[derive(Debug)]
pub(super) enum Outcome {
    /// All are written.
    Written,
    /// Some are not.
    Lost {
        /// How many, from the first, are written whole.
        after: usize,
        /// Why the others are not.
        error: io::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A write goes to the page cache and does not wait for a reader.
    Regular,
    Socket,
    /// A pipe, a terminal or another device: a write may wait for whoever reads.
    Stream,
}

/// An open sink.
#[derive(Debug)]
pub(super) struct Sink {
    place: Place,
    rotation: Option<Rotation>,
    fd: OwnedFd,
    kind: Kind,
    /// Bytes in the file; it is put aside when it would pass `full_at`.
    size: u64,
    full_at: u64,
    /// The last write ended inside a line.
    torn: bool,
    failing: bool,
}

impl Sink {
    pub(super) fn open(place: Place, rotation: Option<Rotation>) -> Result<Self, OpenError> {
        let Opened { fd, kind, size, torn } = open(&place)?;
        let full_at = rotation.map_or(u64::MAX, |rotation| rotation.size);
        Ok(Self { place, rotation, fd, kind, size, full_at, torn, failing: false })
    }

    /// Opens the place anew, for whoever has moved the file away. The old file stays in use where that fails.
    pub(super) fn reopen(&mut self) -> Result<(), OpenError> {
        if self.place != Place::Stdout {
            let fresh = Self::open(self.place.clone(), self.rotation)?;
            *self = Self { failing: self.failing, ..fresh };
        }
        Ok(())
    }

    /// Whether the file has been removed: what is written then is nowhere to be read. One that was moved away still has a
    /// name, and whoever moved it will say so.
    pub(super) fn is_gone(&self) -> bool {
        self.kind == Kind::Regular && rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Whether a write may wait for somebody who reads: not the place for a task of the runtime.
    pub(super) fn may_wait(&self) -> bool {
        self.kind != Kind::Regular
    }

    /// Writes whole lines.
    pub(super) fn write(&mut self, lines: &[u8]) -> Outcome {
        if self.size > 0 && self.size.saturating_add(lines.len() as u64) > self.full_at {
            self.rotate();
        }
        let (done, error) = self.write_bytes(lines);
        self.failing = error.is_some();
        let Some(error) = error else { return Outcome::Written };
        let written = lines.get(..done).unwrap_or(lines);
        if let Some(last) = written.last() {
            self.torn = *last != b'\n';
        }
        Outcome::Lost { after: written.iter().filter(|byte| **byte == b'\n').count(), error }
    }

    /// Writes until all is written or an error comes; gives how much was.
    fn write_bytes(&mut self, lines: &[u8]) -> (usize, Option<io::Error>) {
        // After ENOSPC half a line may stand at the end: it is ended, so that it costs no other line.
        if self.torn {
            if let Err(error) = self.write_some(b"\n") {
                return (0, Some(error));
            }
            self.torn = false;
        }
        let mut done = 0;
        while let Some(rest) = lines.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write_some(self.piece(rest)) {
                Ok(0) => return (done, Some(io::ErrorKind::WriteZero.into())),
                Ok(count) => done += count,
                Err(error) => return (done, Some(error)),
            }
        }
        (done, None)
    }

    /// What one write takes: whole lines that stay in one piece, whatever happens; one line where none does.
    fn piece<'a>(&self, rest: &'a [u8]) -> &'a [u8] {
        let room = match self.kind {
            Kind::Regular => usize::try_from(PAGE - self.size % PAGE).unwrap_or(PIPE_BUF),
            Kind::Socket | Kind::Stream => PIPE_BUF,
        };
        let Some(head) = rest.get(..room) else { return rest };
        let fits = head.iter().rposition(|byte| *byte == b'\n');
        let end = fits.or_else(|| rest.iter().position(|byte| *byte == b'\n'));
        end.and_then(|end| rest.get(..=end)).unwrap_or(rest)
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let patience = if self.failing { SHORT_PATIENCE } else { PATIENCE };
        let deadline = Instant::now() + patience;
        loop {
            if self.kind != Kind::Regular {
                self.wait_until_writable(deadline)?;
            }
            let result = match self.kind {
                // A socket that is somebody else's too must not be made non-blocking.
                Kind::Socket => rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
                Kind::Regular | Kind::Stream => rustix::io::write(&self.fd, bytes),
            };
            match result {
                Ok(count) => {
                    self.size = self.size.saturating_add(count as u64);
                    return Ok(count);
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait_until_writable(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads what is written there")),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts the file aside as `.1`, those aside one further, and starts a new one.
    fn rotate(&mut self) {
        let (Place::File(path), Some(rotation)) = (&self.place, self.rotation) else { return };
        // Somebody who moved the file has rotated it already.
        let moved = if is_at(&self.fd, path) { put_aside(path, rotation.keep) } else { Ok(()) };
        let done = moved.map_err(|why| OpenError::of(path, why)).and_then(|()| self.reopen());
        if let Err(error) = done {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%error, why, "cannot rotate the audit log, which grows on");
            self.full_at = self.size.saturating_add(rotation.size);
        }
    }
}

/// Whether the open file is the one at `path`.
fn is_at(fd: &OwnedFd, path: &Path) -> bool {
    let (Ok(held), Ok(there)) = (rustix::fs::fstat(fd), rustix::fs::lstat(path)) else { return false };
    (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)
}

fn put_aside(path: &Path, keep: u32) -> io::Result<()> {
    if keep == 0 {
        return std::fs::remove_file(path);
    }
    for place in (1..keep).rev() {
        match std::fs::rename(aside(path, place), aside(path, place + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    std::fs::rename(path, aside(path, 1))
}

/// `audit.jsonl.3`
pub(super) fn aside(path: &Path, place: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{place}"));
    name.into()
}

/// A place just opened.
struct Opened {
    fd: OwnedFd,
    kind: Kind,
    size: u64,
    torn: bool,
}

fn open(place: &Place) -> Result<Opened, OpenError> {
    match place {
        Place::Stdout => open_stdout().map_err(|why| OpenError::of(Path::new("-"), why)),
        Place::File(path) => open_file(path).map_err(|why| OpenError::of(path, why)),
        Place::Nowhere => open_nowhere().map_err(|why| OpenError::of(Path::new(NOWHERE), why)),
    }
}

fn open_nowhere() -> io::Result<Opened> {
    let fd = rustix::fs::open(NOWHERE, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // As a file it is: a write is done at once.
    Ok(Opened { fd, kind: Kind::Regular, size: 0, torn: false })
}

fn open_file(path: &Path) -> io::Result<Opened> {
    // O_NOFOLLOW: whoever may write to the folder must not lead the gateway's lines elsewhere. O_NONBLOCK: opening a
    // FIFO that nobody reads fails at once; it changes nothing for regular files.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            let fd =
                rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(MODE))?;
            // The umask may have taken the group's right away.
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(MODE))?;
            fd
        }
        Err(Errno::LOOP) => {
            return Err(refused("it is a symbolic link; name the file itself, or \"-\" for stdout"));
        }
        Err(Errno::NXIO) => return Err(refused("it is a pipe that nobody reads")),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    let kind = kind_of(FileType::from_raw_mode(stat.st_mode));
    let wide = stat.st_mode & 0o777 & !MODE;
    if kind == Kind::Regular && wide != 0 {
        let narrowed = Mode::from_raw_mode(stat.st_mode & MODE);
        let result = rustix::fs::fchmod(&fd, narrowed);
        if result.is_err() && wide & 0o022 != 0 {
            return Err(refused("others may write to it; chmod it to 0640"));
        }
    }
    let size = size_of(&stat);
    let torn = kind == Kind::Regular && ends_inside_a_line(path, size);
    Ok(Opened { fd, kind, size, torn })
}

/// Whether whoever wrote last was stopped inside a line. Where that cannot be seen, a line is ended once too often.
fn ends_inside_a_line(path: &Path, size: u64) -> bool {
    let Some(last) = size.checked_sub(1) else { return false };
    let mut byte = [0; 1];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut byte, last));
    read.is_err() || byte != [b'\n']
}

fn open_stdout() -> io::Result<Opened> {
    let stdout = io::stdout();
    let stat = rustix::fs::fstat(&stdout)?;
    let kind = kind_of(FileType::from_raw_mode(stat.st_mode));
    if kind == Kind::Stream {
        // A description of our own can be non-blocking without making everybody else's so (proc(5)). It is refused
        // where the pipe belongs to another user; then poll alone keeps writes short.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if let Ok(fd) = rustix::fs::open("/proc/self/fd/1", flags, Mode::empty()) {
            return Ok(Opened { fd, kind, size: 0, torn: false });
        }
    }
    Ok(Opened { fd: stdout.as_fd().try_clone_to_owned()?, kind, size: size_of(&stat), torn: false })
}

const fn kind_of(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::Regular,
        FileType::Socket => Kind::Socket,
        _ => Kind::Stream,
    }
}

fn size_of(stat: &rustix::fs::Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_torn_line_costs_no_other_line() {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let mut sink = Sink {
            place: Place::Stdout,
            rotation: None,
            fd: near.into(),
            kind: Kind::Socket,
            size: 0,
            full_at: u64::MAX,
            torn: false,
            failing: true,
        };
        // No newline for longer than any socket buffer: the write stops inside the line, whatever the buffer's size.
        let mut long = vec![b'x'; 8 << 20];
        long.push(b'\n');
        assert!(matches!(sink.write(&long), Outcome::Lost { after: 0, .. }));
        assert!(sink.torn);
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            far.read_to_string(&mut text).map(|_| text)
        });
        sink.failing = false;
        assert!(matches!(sink.write(b"{\"a\":1}\n{\"b\":2}\n"), Outcome::Written));
        drop(sink);
        let text = reader.join().expect("no panic").expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.get(1..), Some(&["{\"a\":1}", "{\"b\":2}"][..]));
        assert!(lines[0].bytes().all(|byte| byte == b'x'));
    }
    #[test]
    fn what_the_last_run_left_torn_is_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        for (left, expected) in [("", "x\n"), ("a\n", "a\nx\n"), ("a\n{\"b", "a\n{\"b\nx\n")] {
            std::fs::write(&path, left).expect("written");
            let mut sink = Sink::open(Place::File(path.clone()), None).expect("it opens");
            assert!(matches!(sink.write(b"x\n"), Outcome::Written));
            assert_eq!(std::fs::read_to_string(&path).expect("text"), expected);
        }
    }

    #[test]
    fn a_piece_holds_whole_lines_and_crosses_a_page_only_where_a_line_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sink = Sink::open(Place::File(folder.path().join("a")), None).expect("it opens");
        let line = |length: usize| [vec![b'x'; length - 1], vec![b'\n']].concat();
        for (size, lines, first) in [
            (0, vec![100], 100),
            (0, vec![4096], 4096),
            (0, vec![3000, 1000, 97], 4000),
            (4000, vec![97, 10], 97),
            (4000, vec![96, 10], 96),
            (4000, vec![10, 10, 97], 20),
            (8191, vec![2, 10], 2),
        ] {
            sink.size = size;
            let batch: Vec<u8> = lines.iter().flat_map(|length| line(*length)).collect();
            assert_eq!(sink.piece(&batch).len(), first, "{size} {lines:?}");
        }
    }
}
