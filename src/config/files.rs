//! Opens the config's files: only where nobody but root and the gateway's user could have written them.
//!
//! Links are followed one at a time, since a Kubernetes ConfigMap is nothing but links: each is opened with O_NOFOLLOW
//! relative to its folder, and each folder on the way is checked through the descriptor that the next step uses. So
//! what is checked is what is read, whatever is renamed meanwhile.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use policy::file::{Document, Mistake};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;

/// What all config files may hold together. A million names are about 30 MB.
const SIZE_LIMIT: u64 = 256 * 1024 * 1024;

/// How many links lead to a file at most; the kernel's own limit is 40 (path_resolution(7)).
const LINK_LIMIT: usize = 40;

/// Reads the config at `path`: one file, or every `*.toml` of a directory in the order of their names.
///
/// # Errors
/// Every file that cannot be read, is too large, or could have been written by others.
pub(super) fn read(path: &Path) -> Result<Vec<Document>, Vec<Mistake>> {
    let found = match open(path) {
        Ok(Opened::File(file)) => {
            return Ok(vec![decode(path, file, &mut 0).map_err(|mistake| vec![mistake])?]);
        }
        Ok(Opened::Folder(folder)) => names(&folder).map_err(|error| vec![unreadable(path, &error)])?,
        Err(mistake) => return Err(vec![*mistake]),
    };
    if found.is_empty() {
        return Err(vec![Mistake::of_file(shown(path), "the directory holds no *.toml file", "add one")]);
    }
    let (mut documents, mut mistakes, mut size) = (Vec::new(), Vec::new(), 0);
    for path in found.into_iter().map(|name| path.join(name)) {
        let document = match open(&path) {
            Ok(Opened::File(file)) => decode(&path, file, &mut size),
            Ok(Opened::Folder(_)) => continue,
            Err(mistake) => Err(*mistake),
        };
        match document {
            Ok(document) => documents.push(document),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if mistakes.is_empty() { Ok(documents) } else { Err(mistakes) }
}

/// Reads one file that the config names, such as a list that others publish: whoever may write it decides what is denied,
/// or who is known.
///
/// # Errors
/// Where it cannot be read, is too large, or could have been written by others.
pub(super) fn read_one(path: &Path) -> Result<Vec<u8>, Box<Mistake>> {
    read_to_end(path, open_file(path)?)
}

/// Reads a file that holds a secret.
///
/// # Errors
/// As [`read_one`], and where everybody on this host may read it.
pub(super) fn read_key(path: &Path) -> Result<Vec<u8>, Box<Mistake>> {
    let file = OwnedFd::from(open_file(path)?);
    let stat = rustix::fs::fstat(&file).map_err(|error| Box::new(unreadable(path, &error.into())))?;
    // A Kubernetes Secret has mode 0644 on a mount that only its pod has.
    if stat.st_mode & 0o004 != 0 && !is_read_only(&file) {
        let what = format!("everybody may read the key (mode {:04o})", stat.st_mode & 0o7777);
        return Err(Box::new(Mistake::of_file(shown(path), what, format!("chmod o-r {}", shown(path)))));
    }
    read_to_end(path, file.into())
}

fn open_file(path: &Path) -> Result<File, Box<Mistake>> {
    match open(path)? {
        Opened::File(file) => Ok(file),
        Opened::Folder(_) => {
            Err(Box::new(Mistake::of_file(shown(path), "this is a directory", "name a file")))
        }
    }
}

fn read_to_end(path: &Path, file: File) -> Result<Vec<u8>, Box<Mistake>> {
    let mut bytes = Vec::new();
    file.take(SIZE_LIMIT + 1).read_to_end(&mut bytes).map_err(|error| Box::new(unreadable(path, &error)))?;
    if bytes.len() as u64 > SIZE_LIMIT {
        let what = format!("the file is larger than {} MiB", SIZE_LIMIT >> 20);
        return Err(Box::new(Mistake::of_file(shown(path), what, "")));
    }
    Ok(bytes)
}

enum Opened {
    File(File),
    Folder(OwnedFd),
}

/// Follows `path` link by link, checking each folder that could redirect it.
fn open(path: &Path) -> Result<Opened, Box<Mistake>> {
    let failed = |error: Errno| Box::new(unreadable(path, &error.into()));
    let mut at = path.to_path_buf();
    for _ in 0..LINK_LIMIT {
        let Some(name) = at.file_name() else {
            // `.`, `..` or `/`: a folder by itself.
            let folder = folder(&at).map_err(failed)?;
            check(&at, &folder, Trust::Strict)?;
            return Ok(Opened::Folder(folder));
        };
        let parent = at.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let holder = folder(parent).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let opened = match rustix::fs::openat(&holder, name, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::LOOP) => {
                check(parent, &holder, Trust::Strict)?;
                let target = rustix::fs::readlinkat(&holder, name, Vec::new()).map_err(failed)?;
                at = parent.join(OsStr::from_bytes(target.as_bytes()));
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        let stat = check(&at, &opened, Trust::Strict)?;
        return match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                check(parent, &holder, Trust::Strict)?;
                Ok(Opened::File(File::from(opened)))
            }
            FileType::Directory => {
                check(parent, &holder, Trust::Sticky)?;
                Ok(Opened::Folder(opened))
            }
            _ => Err(Box::new(Mistake::of_file(shown(path), "this is neither a file nor a directory", ""))),
        };
    }
    Err(failed(Errno::LOOP))
}

/// Whom a folder may let write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Nobody else.
    Strict,
    /// Others too, where the sticky bit keeps them from replacing what is not theirs (inode(7)): enough for the
    /// folder of a config directory, whose own owner and mode are checked.
    Sticky,
}

fn folder(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Refuses what others than root and the gateway's user own or may write.
fn check(path: &Path, opened: &OwnedFd, trust: Trust) -> Result<Stat, Box<Mistake>> {
    let stat = rustix::fs::fstat(opened).map_err(|error| Box::new(unreadable(path, &error.into())))?;
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let what = if is_folder { "the folder" } else { "the file" };
    let refuse = |what: String, hint: String| Err(Box::new(Mistake::of_file(shown(path), what, hint)));
    let own = rustix::process::geteuid().as_raw();
    if !(stat.st_uid == 0 || stat.st_uid == own) {
        return refuse(
            format!(
                "{what} belongs to uid {}, not to root or to the gateway's user (uid {own})",
                stat.st_uid
            ),
            format!("chown root {}", shown(path)),
        );
    }
    let held_back = trust == Trust::Sticky && stat.st_mode & 0o1000 != 0;
    if stat.st_mode & 0o022 != 0 && !held_back && !is_read_only(opened) {
        return refuse(
            format!("others may write {what} (mode {:04o})", stat.st_mode & 0o7777),
            format!("chmod go-w {}", shown(path)),
        );
    }
    Ok(stat)
}

/// A ConfigMap's folder has mode 0777 on a mount that nobody in the pod can write.
fn is_read_only(opened: &OwnedFd) -> bool {
    rustix::fs::fstatvfs(opened).is_ok_and(|volume| volume.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// The `*.toml` files of a folder by name; those that start with a dot are an editor's or a ConfigMap's own.
fn names(folder: &OwnedFd) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let name = PathBuf::from(OsStr::from_bytes(entry?.file_name().to_bytes()));
        let hidden = name.as_os_str().as_bytes().starts_with(b".");
        if !hidden && name.extension().is_some_and(|extension| extension == "toml") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn decode(path: &Path, file: File, size: &mut u64) -> Result<Document, Mistake> {
    let mut bytes = Vec::new();
    let room = SIZE_LIMIT.saturating_sub(*size);
    file.take(room + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    *size += bytes.len() as u64;
    if *size > SIZE_LIMIT {
        let what = format!("the config is larger than {} MiB", SIZE_LIMIT >> 20);
        return Err(Mistake::of_file(shown(path), what, ""));
    }
    Document::new(shown(path), &bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> Mistake {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "create it, or name another one with --config",
        io::ErrorKind::PermissionDenied => "let the gateway's user read it",
        _ => "",
    };
    Mistake::of_file(shown(path), format!("cannot be read: {error}"), hint)
}

/// A path as reports and audit lines show it.
pub(super) fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// What tells that the config at a path is another one than before.
///
/// For a file: what it resolves to. For a directory: where it and its `..data` link lead, so that an edit in place
/// waits for SIGHUP, and a swap does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(Vec<Seen>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    device: u64,
    inode: u64,
    /// Size, and the times of the last change of content and of inode in nanoseconds; of files only.
    content: Option<(i64, i128, i128)>,
}

impl Fingerprint {
    /// Looks at what stands at `path` now.
    ///
    /// # Errors
    /// Where nothing stands there, or it cannot be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        let stat = |path: &Path| rustix::fs::statat(CWD, path, AtFlags::empty());
        let at = stat(path)?;
        let mut seen = vec![Seen::new(&at)];
        if FileType::from_raw_mode(at.st_mode) == FileType::Directory {
            seen.extend(stat(&path.join("..data")).ok().as_ref().map(Seen::new));
        }
        Ok(Self(seen))
    }
}

impl Fingerprint {
    /// This and other files as one.
    pub(crate) fn beside<'f>(mut self, others: impl Iterator<Item = &'f Self>) -> Self {
        self.0.extend(others.flat_map(|other| other.0.iter().cloned()));
        self
    }
}

impl Seen {
    fn new(stat: &Stat) -> Self {
        let nanos = |secs: i64, nanos: i128| i128::from(secs) * 1_000_000_000 + nanos;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let content = is_file.then(|| {
            let modified = nanos(stat.st_mtime, stat.st_mtime_nsec.into());
            (stat.st_size, modified, nanos(stat.st_ctime, stat.st_ctime_nsec.into()))
        });
        Self { device: stat.st_dev, inode: stat.st_ino, content }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn folder_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("a file");
        }
        folder
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    fn refusal(path: &Path) -> String {
        let mistakes = read(path).map(|_| ()).expect_err("must be refused");
        mistakes.iter().map(|mistake| mistake.what.clone()).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let folder = folder_with(&[("a.toml", "")]);
        let file = folder.path().join("a.toml");
        for bits in [0o666, 0o664, 0o646] {
            mode(&file, bits);
            assert_eq!(refusal(&file), format!("others may write the file (mode {bits:04o})"));
        }
        mode(&file, 0o644);
        assert_eq!(read(&file).expect("a good file").len(), 1);
    }

    #[test]
    fn a_file_in_a_folder_that_others_may_write_is_refused() {
        let folder = folder_with(&[("a.toml", "")]);
        mode(folder.path(), 0o777);
        assert_eq!(refusal(&folder.path().join("a.toml")), "others may write the folder (mode 0777)");
        assert_eq!(refusal(folder.path()), "others may write the folder (mode 0777)");
    }

    #[test]
    fn a_link_into_a_folder_that_others_may_write_is_refused() {
        let (trusted, open) = (folder_with(&[]), folder_with(&[("a.toml", "")]));
        mode(open.path(), 0o1777);
        let link = trusted.path().join("tidegate.toml");
        symlink(open.path().join("a.toml"), &link).expect("a link");
        assert_eq!(refusal(&link), "others may write the folder (mode 1777)");
    }

    #[test]
    fn a_config_map_is_read_through_its_links_and_its_swap_is_seen() {
        let folder = folder_with(&[]);
        let at = |name: &str| folder.path().join(name);
        for (version, text) in [("..1", "# one"), ("..2", "# two")] {
            fs::create_dir(at(version)).expect("a folder");
            fs::write(at(version).join("tidegate.toml"), text).expect("a file");
        }
        symlink("..1", at("..data")).expect("a link");
        symlink("..data/tidegate.toml", at("tidegate.toml")).expect("a link");
        let file = at("tidegate.toml");
        assert_eq!(read(&file).expect("one file").len(), 1);
        assert_eq!(read(folder.path()).expect("one file").len(), 1);

        let before =
            [Fingerprint::of(&file).expect("a file"), Fingerprint::of(folder.path()).expect("a folder")];
        symlink("..2", at("..new")).expect("a link");
        fs::rename(at("..new"), at("..data")).expect("a swap");
        let after =
            [Fingerprint::of(&file).expect("a file"), Fingerprint::of(folder.path()).expect("a folder")];
        assert!(before[0] != after[0] && before[1] != after[1]);
    }

    #[test]
    fn an_edit_in_a_directory_is_no_swap() {
        let folder = folder_with(&[("a.toml", "")]);
        let before = Fingerprint::of(folder.path()).expect("a folder");
        fs::write(folder.path().join("a.toml"), "# more").expect("a file");
        assert_eq!(Fingerprint::of(folder.path()).expect("a folder"), before);
    }

    #[test]
    fn directories_give_their_toml_files_in_order() {
        let folder = folder_with(&[
            ("b.toml", ""),
            ("a.toml", ""),
            (".a.toml.swp", ""),
            (".c.toml", ""),
            ("d.bak", ""),
        ]);
        let files: Vec<_> =
            read(folder.path()).expect("two files").iter().map(|d| d.file().to_string()).collect();
        assert_eq!(files, [shown(&folder.path().join("a.toml")), shown(&folder.path().join("b.toml"))]);
    }

    #[test]
    fn what_is_no_file_or_not_there_is_told() {
        let (folder, links) = (folder_with(&[]), folder_with(&[]));
        let circle = links.path().join("circle.toml");
        symlink("circle.toml", &circle).expect("a link");
        assert!(refusal(&circle).starts_with("cannot be read: Too many levels"), "{}", refusal(&circle));
        assert!(refusal(&folder.path().join("none.toml")).starts_with("cannot be read: No such file"));
        assert_eq!(refusal(folder.path()), "the directory holds no *.toml file");
    }
}
