//! Tidegate's own files, as a config names them: what no workload may see or write.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::{Audit, Config, Endpoint};

/// Files and folders of one gateway, whether or not they are there. Sent to those whose workloads it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnFiles {
    /// Each of them, with an absolute path.
    pub paths: Vec<PathBuf>,
    /// Those among them that have older ones beside them: `audit.jsonl.1` and so on.
    pub logs: Vec<PathBuf>,
    /// Those files that are replaced by others of their name while the gateway runs: configs, lists and keys by
    /// whoever renews them, logs that are put aside.
    pub replaced: Vec<PathBuf>,
}

/// The files of a gateway that runs, as they are now.
#[derive(Debug)]
pub struct FilesInUse(Mutex<OwnFiles>);

impl FilesInUse {
    /// What they are at the start.
    #[must_use]
    pub const fn new(files: OwnFiles) -> Self {
        Self(Mutex::new(files))
    }

    /// What they are.
    #[must_use]
    pub fn get(&self) -> OwnFiles {
        // Replaced whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that they are others now.
    pub fn set(&self, files: OwnFiles) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = files;
    }
}

impl OwnFiles {
    /// Those of another config of the same gateway as well.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.paths.extend(other.paths);
        self.logs.extend(other.logs);
        self.replaced.extend(other.replaced);
        self.sorted()
    }

    fn sorted(mut self) -> Self {
        for list in [&mut self.paths, &mut self.logs, &mut self.replaced] {
            list.sort();
            list.dedup();
        }
        self
    }
}

impl Audit {
    /// The file, where it is one.
    #[must_use]
    pub fn own_files(&self) -> OwnFiles {
        let logs: Vec<_> = self.path.as_deref().map(absolute).into_iter().collect();
        OwnFiles { paths: logs.clone(), logs: logs.clone(), replaced: logs }
    }
}

impl Config {
    /// Every file and folder that the config is read from or names.
    #[must_use]
    pub fn own_files(&self) -> OwnFiles {
        // Each table in turn, so that a new one does not compile until somebody has thought of its files.
        let Self {
            at,
            listen,
            dns: _,
            admin: _,
            state,
            audit,
            log: _,
            upstream: _,
            timeouts: _,
            policy: _,
            sockets,
            beside,
            host_ports: _,
        } = self;
        let mut paths: Vec<PathBuf> = at.iter().map(|path| absolute(path)).collect();
        paths.extend(listen.all().filter_map(|listener| match &listener.at {
            Endpoint::Unix(path) => Some(absolute(path)),
            Endpoint::Tcp(_) | Endpoint::Tls(_) => None,
        }));
        paths.extend(listen.admin.as_deref().map(absolute));
        paths.extend(sockets.iter().map(|socket| absolute(Path::new(&*socket.path))));
        paths.extend(state.path.as_deref().map(absolute));
        let mut replaced: Vec<PathBuf> = beside.paths().map(absolute).collect();
        paths.extend(replaced.iter().cloned());
        replaced.extend(at.iter().map(|path| absolute(path)));
        OwnFiles { paths, logs: Vec::new(), replaced }.and(audit.own_files())
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
