//! The log read back: the files put aside from the oldest on, then the one in use, and what comes after.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::sink::aside;

/// Nothing that is longer is a line of ours: those stay below 4096 bytes.
const LONGEST: usize = 64 << 10;

/// Reads lines, over every file of one log.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    reading: Open,
    later: VecDeque<Open>,
    /// What has been read, of what is there.
    seen: Vec<Identity>,
    line: Vec<u8>,
    /// The line is longer than any of ours: it is passed over to its end.
    too_long: bool,
    /// Another file was seen in its place.
    moved: bool,
}

#[derive(Debug)]
struct Open {
    file: BufReader<File>,
    identity: Identity,
    read: u64,
}

/// What a file keeps when it is put aside. A number of a file that is gone is soon another's, but not its birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    born: Option<SystemTime>,
}

impl Open {
    fn at(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let identity = Identity::of(&file.metadata()?);
        Ok(Self { file: BufReader::new(file), identity, read: 0 })
    }
}

impl Identity {
    fn of(file: &Metadata) -> Self {
        Self { device: file.dev(), inode: file.ino(), born: file.created().ok() }
    }
}

/// The files of a log, the oldest first and the one in use last.
fn files(path: &Path) -> io::Result<VecDeque<Open>> {
    // The newest first: a file that is put aside meanwhile is then found twice, and not missed.
    let mut files = VecDeque::from([Open::at(path)?]);
    for place in places(path)? {
        match Open::at(&aside(path, place)) {
            Ok(file) if files.iter().any(|known| known.identity == file.identity) => {}
            Ok(file) => files.push_front(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

/// The numbers of the files put aside, in order.
fn places(path: &Path) -> io::Result<BTreeSet<u32>> {
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else { return Ok(BTreeSet::new()) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut places = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?.file_name();
        let number = entry.as_encoded_bytes().strip_prefix(name.as_encoded_bytes()).and_then(|rest| {
            let digits = std::str::from_utf8(rest.strip_prefix(b".")?).ok()?;
            digits.parse().ok()
        });
        places.extend(number.filter(|number| aside(Path::new(name), *number).as_os_str() == entry));
    }
    Ok(places)
}

impl History {
    /// Opens the log at `path`, with what was put aside.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut files = files(path)?;
        let reading = files.pop_front().ok_or(io::ErrorKind::NotFound)?;
        let seen = vec![reading.identity];
        let path = path.to_owned();
        Ok(Self { path, reading, later: files, seen, line: Vec::new(), too_long: false, moved: false })
    }

    /// The next whole line, without its newline; `None` where there is none now. A line without an end waits for it.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            if self.line.last() == Some(&b'\n') {
                self.line.clear();
            }
            if self.fill()? {
                if !std::mem::take(&mut self.too_long) {
                    return Ok(self.line.split_last().map(|(_, line)| line));
                }
            } else if let Some(next) = self.later.pop_front() {
                // What has no end in a file that was put aside gets none.
                self.turn_to(next);
            } else {
                return Ok(None);
            }
        }
    }

    /// To be called where there was no line, after a pause: goes on to the file that has taken the place of this one.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn catch_up(&mut self) -> io::Result<()> {
        let in_use = match fs::metadata(&self.path) {
            Ok(in_use) => in_use,
            // It was put aside a moment ago.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if Identity::of(&in_use) == self.reading.identity {
            if in_use.size() < self.reading.read {
                // Emptied: `logrotate` does so with `copytruncate`.
                self.turn_to(Open::at(&self.path)?);
            }
        } else if !std::mem::replace(&mut self.moved, true) {
            // Whoever moves a file tells the gateway a moment later: the last lines may still come.
        } else {
            // Several may have been put aside since, and this one anywhere.
            let mut files = files(&self.path)?;
            self.seen.retain(|seen| files.iter().any(|file| file.identity == *seen));
            files.retain(|file| !self.seen.contains(&file.identity));
            self.later = files;
        }
        Ok(())
    }

    fn turn_to(&mut self, next: Open) {
        if !self.seen.contains(&next.identity) {
            self.seen.push(next.identity);
        }
        self.reading = next;
        self.line.clear();
        self.too_long = false;
        self.moved = false;
    }

    /// Reads to the end of a line; whether it came.
    fn fill(&mut self) -> io::Result<bool> {
        loop {
            let buffer = self.reading.file.fill_buf()?;
            if buffer.is_empty() {
                return Ok(false);
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(buffer.len(), |end| end + 1);
            self.too_long |= self.line.len() + taken > LONGEST;
            if self.too_long {
                self.line.clear();
            }
            let piece = buffer.get(..taken).unwrap_or(buffer);
            // Of a line that is passed over, its newline alone is kept.
            let kept = if self.too_long { piece.get(taken - 1..).unwrap_or(piece) } else { piece };
            self.line.extend_from_slice(kept);
            self.reading.file.consume(taken);
            self.reading.read += taken as u64;
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn drain(history: &mut History) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = history.next_line().expect("readable") {
            lines.push(String::from_utf8(line.to_vec()).expect("text"));
        }
        lines
    }

    fn append(path: &Path, text: &str) {
        let mut file = File::options().append(true).create(true).open(path).expect("a file");
        file.write_all(text.as_bytes()).expect("written");
    }

    #[test]
    fn files_put_aside_are_read_from_the_oldest_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        for (name, text) in [
            ("a.10", "0\n"),
            ("a.2", "1\n2"),
            ("a.1", "3\n"),
            ("a.1.gz", "x\n"),
            ("a.01", "x\n"),
            ("a", "4\n5"),
        ] {
            append(&folder.path().join(name), text);
        }
        let mut history = History::open(&path).expect("readable");
        assert_eq!(drain(&mut history), ["0", "1", "3", "4"], "half a line is none");
        append(&path, "6\n");
        assert_eq!(drain(&mut history), ["56"], "until its rest comes");
    }

    #[test]
    fn a_line_longer_than_any_of_ours_is_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        for length in [LONGEST - 1, LONGEST, LONGEST + 1, 10 * LONGEST] {
            append(&path, &format!("{}\nnext\n", "x".repeat(length)));
        }
        let mut history = History::open(&path).expect("readable");
        let lines: Vec<usize> = drain(&mut history).iter().map(String::len).collect();
        assert_eq!(lines, [LONGEST - 1, 4, 4, 4, 4]);
    }

    #[test]
    fn a_reader_follows_over_several_rotations() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        append(&path, "1\n");
        let mut history = History::open(&path).expect("readable");
        assert_eq!(drain(&mut history), ["1"]);
        append(&path, "2\n");
        for text in ["3\n", "4\n5\n"] {
            let _ = fs::rename(aside(&path, 1), aside(&path, 2));
            fs::rename(&path, aside(&path, 1)).expect("it is there");
            append(&path, text);
        }
        let mut lines = Vec::new();
        for _ in 0..3 {
            history.catch_up().expect("readable");
            lines.extend(drain(&mut history));
        }
        assert_eq!(lines, ["2", "3", "4", "5"]);
        fs::write(&path, "6\n").expect("emptied and written");
        history.catch_up().expect("readable");
        assert_eq!(drain(&mut history), ["6"]);
    }

    #[test]
    fn a_file_that_is_moved_elsewhere_brings_nothing_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        append(&aside(&path, 1), "1\n");
        append(&path, "2\n");
        let mut history = History::open(&path).expect("readable");
        let mut lines = drain(&mut history);
        fs::rename(&path, folder.path().join("elsewhere")).expect("it is there");
        history.catch_up().expect("a file that is gone is no fault");
        append(&path, "3\n");
        for _ in 0..3 {
            history.catch_up().expect("readable");
            lines.extend(drain(&mut history));
        }
        assert_eq!(lines, ["1", "2", "3"]);
    }

    #[test]
    fn a_reader_that_fell_behind_goes_on_with_the_oldest_that_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        append(&path, "1\n");
        let mut history = History::open(&path).expect("readable");
        fs::rename(&path, folder.path().join("elsewhere")).expect("it is there");
        append(&aside(&path, 1), "2\n");
        append(&path, "3\n");
        let mut lines = drain(&mut history);
        for _ in 0..2 {
            history.catch_up().expect("readable");
            lines.extend(drain(&mut history));
        }
        assert_eq!(lines, ["1", "2", "3"]);
    }
}
