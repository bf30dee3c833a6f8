//! The files of `lists`: read once for all policies that name them, and again when they change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::List;
use policy::file::Mistake;

use super::files::{Fingerprint, read_one};
use super::shown;

/// Deny lists by the path of their file.
#[derive(Clone, Debug, Default)]
pub struct Lists(BTreeMap<PathBuf, Held>);

/// A list, with what its file was when it was read.
#[derive(Clone, Debug)]
struct Held {
    list: Arc<List>,
    seen: Option<Fingerprint>,
}

impl Lists {
    /// The list at a path: that of `before` where its file has stayed the same.
    ///
    /// # Errors
    /// Where the file cannot be read, could have been written by others, or has lines that are not understood.
    pub(super) fn list(&mut self, path: &Path, before: &Self) -> Result<Arc<List>, Vec<Mistake>> {
        if let Some(held) = self.0.get(path) {
            return Ok(Arc::clone(&held.list));
        }
        // Before it is read: what changes meanwhile is seen next time.
        let seen = Fingerprint::of(path).ok();
        let same = before.0.get(path).filter(|held| held.seen.is_some() && held.seen == seen);
        let list = match same {
            Some(held) => Arc::clone(&held.list),
            None => {
                let bytes = read_one(path).map_err(|mistake| vec![*mistake])?;
                Arc::new(List::parse(shown(path).into(), &bytes)?)
            }
        };
        self.0.insert(path.to_owned(), Held { list: Arc::clone(&list), seen });
        Ok(list)
    }

    /// Where they are read from.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    /// What the files were when they were read.
    pub(crate) fn seen(&self) -> impl Iterator<Item = &Fingerprint> {
        self.0.values().filter_map(|held| held.seen.as_ref())
    }

    /// What the files are now.
    pub(crate) fn look(&self) -> Vec<Fingerprint> {
        self.0.keys().filter_map(|path| Fingerprint::of(path).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_list_is_read_again_only_when_its_file_has_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("list.txt");
        fs::write(&path, "ads.example.com\n").expect("a file");
        let mut first = Lists::default();
        let list = first.list(&path, &Lists::default()).expect("a list");
        assert!(Arc::ptr_eq(&list, &first.list(&path, &Lists::default()).expect("the same")), "read once");
        let mut second = Lists::default();
        assert!(Arc::ptr_eq(&list, &second.list(&path, &first).expect("the same")));
        fs::write(&path, "ads.example.com\nmore.example.com\n").expect("a file");
        assert_ne!(second.seen().cloned().collect::<Vec<_>>(), second.look());
        let mut third = Lists::default();
        assert_eq!(third.list(&path, &second).expect("a list").len(), 2);
        fs::write(&path, "@@||ads.example.com^\n").expect("a file");
        let mistakes = Lists::default().list(&path, &third).map(|_| ()).expect_err("an exception");
        assert_eq!(mistakes[0].line, 1);
        assert!(Lists::default().list(&folder.path().join("none"), &third).is_err());
    }
}
