//! Tidegate's own files, as the gateway that serves a workload names them: what the workload may neither see nor write.

use std::path::{Path, PathBuf};

use super::view::{CONVENTION, Own};
use crate::config::{self, OwnFiles};

/// Where they are.
pub(crate) fn files(named: &OwnFiles) -> Own {
    let mut hidden: Vec<PathBuf> = CONVENTION.iter().map(PathBuf::from).collect();
    let candidates = config::config_candidates(None);
    hidden.extend(candidates.iter().cloned());
    hidden.extend(named.paths.iter().cloned());
    hidden.extend(named.logs.iter().flat_map(|log| aside(log)));
    // A link is hidden with what it leads to: the plan knows places by their real paths.
    let real = hidden.iter().filter_map(|path| path.canonicalize().ok()).collect::<Vec<_>>();
    hidden.extend(real);
    hidden.sort();
    hidden.dedup();
    let programs = std::env::current_exe().into_iter().filter_map(|path| path.canonicalize().ok()).collect();
    Own { hidden, programs, reserved: candidates }
}

/// The folders in which files of the gateway come while the workload runs, which would be hidden by nothing. `opened`
/// tells of a folder whether the workload may write in it.
///
/// # Errors
/// A file in a folder that cannot be hidden, since the workload is to work in it, or below it.
pub(crate) fn folders(
    named: &OwnFiles,
    roots: &[PathBuf],
    opened: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, PathBuf> {
    let mut found = Vec::new();
    for file in named.replaced.iter().filter(|path| !path.is_dir()) {
        let Some(folder) = file.parent().and_then(|folder| folder.canonicalize().ok()) else { continue };
        if !opened(&folder) {
            continue;
        }
        if roots.iter().any(|root| root.starts_with(&folder)) {
            return Err(file.clone());
        }
        found.push(folder);
    }
    Ok(found)
}

/// What was put aside of a log: `audit.jsonl.1` and so on.
fn aside(log: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name()) else { return Vec::new() };
    let entries = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let is_aside = |path: &PathBuf| {
        let rest = path.file_name().and_then(|found| {
            found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes())?.strip_prefix(b".")
        });
        rest.is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit))
    };
    entries.filter(is_aside).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_in_which_files_are_replaced_is_hidden_or_refused_where_it_is_written() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        for folder in ["work/logs", "elsewhere"] {
            fs::create_dir_all(place.join(folder)).unwrap();
        }
        let roots = [place.join("work")];
        let opened = |folder: &Path| folder.starts_with(&roots[0]);
        let of = |file: &str| {
            let named = OwnFiles { replaced: vec![place.join(file)], ..OwnFiles::default() };
            folders(&named, &roots, opened)
        };
        assert_eq!(of("work/logs/audit.jsonl"), Ok(vec![place.join("work/logs")]));
        assert_eq!(of("work/audit.jsonl"), Err(place.join("work/audit.jsonl")));
        assert_eq!(of("elsewhere/audit.jsonl"), Ok(vec![]));
        // A folder of configs is hidden as it is.
        assert_eq!(of("work/logs"), Ok(vec![]));
    }

    #[test]
    fn a_log_is_hidden_with_what_was_put_aside_of_it() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for name in ["a.jsonl", "a.jsonl.1", "a.jsonl.22", "a.jsonl.old", "b.jsonl.1"] {
            fs::write(at(name), "").unwrap();
        }
        let named = OwnFiles { logs: vec![at("a.jsonl")], ..OwnFiles::default() };
        let hidden = files(&named).hidden;
        for (name, is_hidden) in
            [("a.jsonl.1", true), ("a.jsonl.22", true), ("a.jsonl.old", false), ("b.jsonl.1", false)]
        {
            assert_eq!(hidden.contains(&at(name)), is_hidden, "{name}");
        }
    }
}
