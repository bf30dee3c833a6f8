//! Tidegate's own files, as a config names them: what no workload may see or write.

use std::path::{Path, PathBuf};

use super::view::{CONVENTION, Own};
use crate::config::{self, Config, Endpoint};

/// Where they are. `config_path` is the config in use, `written` what the run writes.
pub(crate) fn files(config_path: Option<&Path>, config: &Config, written: &[&Path]) -> Own {
    let mut hidden: Vec<PathBuf> = CONVENTION.iter().map(PathBuf::from).collect();
    let candidates = config::config_candidates(None);
    hidden.extend(candidates.iter().cloned());
    hidden.extend(config_path.map(absolute));
    for path in written {
        hidden.push(absolute(path));
        hidden.extend(aside(path));
    }
    for listener in config.listen.all() {
        if let Endpoint::Unix(path) = &listener.at {
            hidden.push(path.clone());
        }
    }
    hidden.extend(config.listen.admin.clone());
    hidden.extend(config.sockets.iter().map(|socket| PathBuf::from(&*socket.path)));
    hidden.extend(config.beside.paths().map(absolute));
    hidden.extend(config.state.path.clone());
    // A link is hidden with what it leads to: the plan knows places by their real paths.
    let real = hidden.iter().filter_map(|path| path.canonicalize().ok()).collect::<Vec<_>>();
    hidden.extend(real);
    hidden.sort();
    hidden.dedup();
    let programs = std::env::current_exe().into_iter().filter_map(|path| path.canonicalize().ok()).collect();
    Own { hidden, programs, reserved: candidates }
}

/// What was put aside of an audit: `audit.jsonl.1` and so on.
fn aside(audit: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (audit.parent(), audit.file_name()) else { return Vec::new() };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let is_aside = |path: &PathBuf| {
        let rest = path.file_name().and_then(|found| {
            found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes())?.strip_prefix(b".")
        });
        rest.is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit))
    };
    entries.filter(is_aside).map(|path| absolute(&path)).collect()
}

fn absolute(path: &(impl AsRef<Path> + ?Sized)) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.as_ref().to_owned())
}
