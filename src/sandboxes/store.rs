//! The state folder: one file a sandbox, each replaced in one step and on the disk before anybody is told.
//!
//! ```text
//! PATH/lock                  held while a gateway runs
//! PATH/sandboxes/NAME.json   what was said of it at run time
//! PATH/sandboxes/.NAME.new   one that is being written; whatever is left of it is removed at the start
//! ```
//!
//! A file is written beside, synced, renamed, and its folder is synced (rename(2) is atomic, and on the disk only once
//! the folder is; fsync(2)). So each file holds what was last acknowledged, or what was being written when the machine
//! stopped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use policy::SandboxId;
use rustix::fs::{FlockOperation, flock};

use super::record::Record;

/// No record is longer: the admin API reads at most 64 KiB.
const RECORD_LIMIT: u64 = 256 * 1024;

/// The folder of one gateway.
#[derive(Debug)]
pub struct Store {
    records: PathBuf,
    folder: File,
    /// Keeps another gateway away for as long as it is open.
    _lock: File,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the state at `{}`", path.display())]
pub struct StateError {
    path: PathBuf,
    #[source]
    why: io::Error,
}

impl StateError {
    fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |why| Self { path: path.to_owned(), why }
    }
}

impl Store {
    /// Opens the folder, or makes it, and reads every record.
    ///
    /// # Errors
    /// Where others could read or write it, another gateway uses it, or a record cannot be read: a gateway that forgets
    /// who was paused would let traffic through.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), StateError> {
        make(path).map_err(StateError::at(path))?;
        let lock = path.join("lock");
        let lock = take(&lock).map_err(StateError::at(&lock))?;
        let records = path.join("sandboxes");
        make(&records).map_err(StateError::at(&records))?;
        let folder = File::open(&records).map_err(StateError::at(&records))?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&records).map_err(StateError::at(&records))? {
            let path = entry.map_err(StateError::at(&records))?.path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                // It was never acknowledged.
                fs::remove_file(&path).map_err(StateError::at(&path))?;
                continue;
            }
            found.push(read(&path).map_err(StateError::at(&path))?);
        }
        Ok((Self { records, folder, _lock: lock }, found))
    }

    /// Writes a record, in place of what stood there. It is on the disk when this returns. Blocks.
    ///
    /// # Errors
    /// Where that fails: what stood there before still does.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let name = record.id.as_str();
        let (beside, place) = (self.records.join(format!(".{name}.new")), self.place(&record.id));
        let written = write_whole(&beside, record).and_then(|()| fs::rename(&beside, &place));
        if let Err(error) = written {
            let _ = fs::remove_file(&beside);
            return Err(error);
        }
        self.folder.sync_all()
    }

    /// Removes a record; it is gone from the disk when this returns. Blocks.
    ///
    /// # Errors
    /// Where that fails.
    pub fn remove(&self, id: &SandboxId) -> io::Result<()> {
        fs::remove_file(self.place(id))?;
        self.folder.sync_all()
    }

    fn place(&self, id: &SandboxId) -> PathBuf {
        // A sandbox's name starts with a letter or a digit and holds no slash.
        self.records.join(format!("{id}.json"))
    }
}

/// Makes a folder that nobody else may enter, or checks that it is one.
fn make(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            // The folder itself must outlive a crash too.
            if let Some(parent) = path.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::symlink_metadata(path)?;
    let own = rustix::process::geteuid().as_raw();
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !found.is_dir() {
        return refuse("it is no folder".to_owned());
    }
    if found.uid() != own {
        return refuse(format!("it belongs to uid {}, not to the gateway's user (uid {own})", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        return refuse(format!("others may enter it (mode {:04o}); chmod go= it", found.mode() & 0o7777));
    }
    Ok(())
}

fn take(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let lock = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => {
            io::Error::new(io::ErrorKind::AddrInUse, "another gateway uses this state")
        }
        error => error.into(),
    })?;
    Ok(lock)
}

fn write_whole(path: &Path, record: &Record) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.sync_all()
}

fn read(path: &Path) -> io::Result<Record> {
    let mut text = Vec::new();
    File::open(path)?.take(RECORD_LIMIT).read_to_end(&mut text)?;
    let record: Record = serde_json::from_slice(&text)?;
    let named = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".json"));
    if named != Some(record.id.as_str()) {
        let why = format!("the record of sandbox {} has another file's name", record.id);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn record(name: &str) -> Record {
        Record::of_config(SandboxId::parse(name).expect("a name"), Some(super::super::record::Tunnels::Keep))
    }

    fn names(records: &[Record]) -> Vec<&str> {
        let mut names: Vec<_> = records.iter().map(|record| record.id.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_was_written_is_read_again_and_what_was_not_finished_is_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let (store, found) = Store::open(&path).expect("a fresh state");
        assert!(found.is_empty());
        for name in ["a", "b", "c"] {
            store.write(&record(name)).expect("written");
        }
        store.remove(&record("b").id).expect("removed");
        assert!(store.remove(&record("b").id).is_err(), "it is gone");
        drop(store);
        fs::write(path.join("sandboxes/.d.new"), "{\"half\":").expect("half a record");
        let (_store, found) = Store::open(&path).expect("the same state");
        assert_eq!(names(&found), ["a", "c"]);
        assert!(!path.join("sandboxes/.d.new").exists());
    }

    #[test]
    fn a_state_that_others_reach_or_use_or_that_is_damaged_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let held = Store::open(&path).expect("a fresh state");
        let refusal = || crate::error_chain(&Store::open(&path).map(|_| ()).expect_err("refused"));
        assert!(refusal().contains("another gateway uses this state"), "{}", refusal());
        held.0.write(&record("a")).expect("written");
        drop(held);
        fs::rename(path.join("sandboxes/a.json"), path.join("sandboxes/b.json")).expect("renamed");
        assert!(refusal().contains("another file's name"), "{}", refusal());
        fs::write(path.join("sandboxes/b.json"), "{").expect("damaged");
        assert!(refusal().contains("b.json"), "{}", refusal());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("its mode");
        assert!(refusal().contains("others may enter it (mode 0750)"), "{}", refusal());
    }
}
