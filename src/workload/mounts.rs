//! Builds what a [`View`] plans, in a mount namespace that nobody else is in.
//!
//! Paths are opened without following links: between the plan and the mount another program of the same user may put one
//! in the way.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change,
    move_mount, open_tree, unmount,
};

use super::identity::{Identity, Means};
use super::idmap::IdMaps;
use super::step::{At as _, StepError};
use super::view::{Access, Kind, Step, View};
use crate::sys::{self, Reach};

/// Where things are made ready: a folder that every system has, and that gets its own mount at the end.
const STAGE: &str = "/proc";

/// Devices without a state that others could see. `tty` is the terminal of whoever opens it.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// In /proc: not written, for those whose own mode would let the workload's user.
const PROC_READ_ONLY: [&str; 5] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"];

/// In /proc: about the whole machine, or about keyrings, which no namespace separates.
const PROC_HIDDEN: [&str; 6] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/latency_stats",
];

/// A file of ours in the place of the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// The path without links; it may not exist where it leads into an empty folder.
    pub(crate) at: PathBuf,
    pub(crate) text: String,
}

impl Step {
    /// Whether a copy of what the host has there is taken.
    pub(super) fn shows_the_host(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Home { .. })
    }
}

/// Builds the tree. Returns what could not be had and is not needed.
pub(super) fn build(
    view: &View,
    texts: &[Text],
    identity: Identity,
    maps: &IdMaps,
) -> Result<Vec<String>, StepError> {
    // Else what is mounted here would appear outside, and the other way round (mount_namespaces(7)).
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .at("cut the mount tree off from the host's")?;
    let mut tree = Tree { identity, maps, held: HashMap::new(), notes: Vec::new() };
    tree.hold(view)?;
    let cgroups = clone(Path::new("/sys/fs/cgroup")).ok();
    let (first, rest) = match view.steps.split_first() {
        Some((Step::ReadOnly, rest)) => (Some(&Step::ReadOnly), rest),
        _ => (None, view.steps.as_slice()),
    };
    if let Some(step) = first {
        tree.take(step)?;
    }
    // Now, so that it is written.
    mount("tmpfs", STAGE, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=0755")
        .at("mount a place to prepare files")?;
    tree.prepare_stage()?;
    for step in rest {
        tree.take(step)?;
    }
    for text in texts {
        tree.write(text)?;
    }
    tree.system(cgroups)?;
    unmount(STAGE, UnmountFlags::DETACH).at("remove the place to prepare files")?;
    tree.processes()?;
    Ok(tree.notes)
}

struct Tree<'a> {
    identity: Identity,
    maps: &'a IdMaps,
    /// Copies of the host's mounts, taken before anything is changed.
    held: HashMap<PathBuf, OwnedFd>,
    notes: Vec<String>,
}

impl Tree<'_> {
    fn hold(&mut self, view: &View) -> Result<(), StepError> {
        for step in view.steps.iter().filter(|step| step.shows_the_host()) {
            let at = step.at();
            let copy = match clone(at) {
                Ok(copy) => copy,
                // Opened by an option it must be there; a home directory need not.
                Err(_) if matches!(step, Step::Home { .. }) => continue,
                Err(error) => return Err(error).at(("open", at)),
            };
            self.map_ids(&copy, at);
            self.held.insert(at.to_owned(), copy);
        }
        if view.steps.contains(&Step::Devices) {
            for name in DEVICES {
                let at = Path::new("/dev").join(name);
                if let Ok(copy) = clone(&at) {
                    self.held.insert(at, copy);
                }
            }
        }
        Ok(())
    }

    /// Lets the workload see as its own what belongs to the owner of the place.
    fn map_ids(&mut self, copy: &OwnedFd, at: &Path) {
        let Ok(stat) = rustix::fs::fstat(copy) else { return };
        let Some(map) = self.maps.of((stat.st_uid, stat.st_gid)) else { return };
        // Some file systems below it may not know how; what matters is the one at the top.
        let mapped = sys::map_ids(copy.as_fd(), Reach::Tree, map.as_fd())
            .or_else(|_| sys::map_ids(copy.as_fd(), Reach::Alone, map.as_fd()));
        if let Err(error) = mapped {
            let Identity { uid, .. } = self.identity;
            self.notes.push(format!(
                "{} stays its owner's (uid {}), not the workload's (uid {uid}): the file system maps no ids ({error})",
                at.display(),
                stat.st_uid
            ));
        }
    }

    fn prepare_stage(&self) -> Result<(), StepError> {
        for name in ["empty", "upper", "work", "lower", "texts"] {
            self.make_folder(&stage(name), 0o755).at("prepare folders")?;
        }
        fs::write(stage("blank"), "").at("prepare an empty file")
    }

    fn take(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::ReadOnly => {
                let root = place(Path::new("/")).at("open the root directory")?;
                sys::make_read_only(root.as_fd(), Reach::Tree).at("make the file system read-only")
            }
            Step::Devices => self.devices(),
            Step::Private { at, mode } => {
                self.make_folders(at).at(("make the folder", at.as_path()))?;
                self.memory(at, *mode).at(("mount an empty folder at", at.as_path()))
            }
            Step::Home { at, without } => self.home(at, without),
            Step::Open { at, access } => self.open(at, *access),
            Step::Hide { at, kind } => match cover(at, &stage(blank(*kind))) {
                // What is not there in this view needs no cover.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done.at(("hide", at.as_path())),
            },
            Step::Pin { at } => {
                let copy = clone(at).at(("open", at.as_path()))?;
                attach(&copy, at).at(("hold in place", at.as_path()))
            }
        }
    }

    fn devices(&mut self) -> Result<(), StepError> {
        let dev = Path::new("/dev");
        self.memory(dev, 0o755).at("mount /dev")?;
        for name in DEVICES {
            let at = dev.join(name);
            if let Some(copy) = self.held.remove(&at) {
                fs::write(&at, "").and_then(|()| attach(&copy, &at)).at(("make the device", at.as_path()))?;
            }
        }
        for (name, to) in LINKS {
            rustix::fs::symlink(to, dev.join(name)).at("make the links of /dev")?;
        }
        let (pts, shm) = (dev.join("pts"), dev.join("shm"));
        self.make_folder(&pts, 0o755).at("make /dev/pts")?;
        self.make_folder(&shm, 0o1777).at("make /dev/shm")?;
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        mount("devpts", &pts, "devpts", flags, c"newinstance,ptmxmode=0666,mode=0620")
            .at("mount /dev/pts")?;
        self.memory(&shm, 0o1777).at("mount /dev/shm")?;
        let dev = place(dev).at("open /dev")?;
        sys::make_read_only(dev.as_fd(), Reach::Alone).at("make /dev read-only")
    }

    /// An empty file system in memory, of the workload's user.
    fn memory(&self, at: &Path, mode: u32) -> io::Result<()> {
        let Identity { uid, gid, .. } = self.identity;
        let options = std::ffi::CString::new(format!("mode={mode:04o},uid={uid},gid={gid}"))?;
        Ok(mount("tmpfs", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?)
    }

    fn home(&mut self, at: &Path, without: &[PathBuf]) -> Result<(), StepError> {
        self.make_folders(at).at(("make the folder", at))?;
        let laid = match self.held.remove(at) {
            Some(copy) => self.overlay(at, &copy, without),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        if let Err(error) = laid {
            self.notes.push(format!(
                "{} is empty for the workload: the host's cannot be laid under it ({error})",
                at.display()
            ));
            self.memory(at, 0o700).at(("mount an empty folder at", at))?;
        }
        Ok(())
    }

    fn overlay(&self, at: &Path, copy: &OwnedFd, without: &[PathBuf]) -> io::Result<()> {
        let lower = stage("lower");
        attach(copy, &lower)?;
        let upper = stage("upper");
        let held = rustix::fs::fstat(copy)?;
        rustix::fs::chmod(&upper, Mode::from_raw_mode(held.st_mode & 0o7777))?;
        for path in without {
            let Ok(inner) = path.strip_prefix(at) else { continue };
            if lower.join(inner).symlink_metadata().is_ok() {
                self.white_out(&lower, &upper, inner)?;
            }
        }
        // Extended attributes of the overlay's own are `trusted.*`, which root of a user namespace may not write.
        let own = if self.identity.means == Means::Root { "" } else { ",userxattr" };
        let options = format!(
            "lowerdir={},upperdir={},workdir={}{own}",
            lower.display(),
            upper.display(),
            stage("work").display()
        );
        let options = std::ffi::CString::new(options)?;
        Ok(mount("overlay", at, "overlay", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?)
    }

    /// Makes a name of the lower layer be there no more.
    fn white_out(&self, lower: &Path, upper: &Path, inner: &Path) -> io::Result<()> {
        let mut at = PathBuf::new();
        for part in inner.parent().into_iter().flat_map(Path::components) {
            at.push(part);
            let (below, above) = (lower.join(&at), upper.join(&at));
            match above.symlink_metadata() {
                // Something above it is not there already.
                Ok(held) if !held.is_dir() => return Ok(()),
                Ok(_) => {}
                Err(_) => self.make_folder(&above, fs::metadata(&below)?.mode() & 0o7777)?,
            }
        }
        // A character device 0:0 in the upper layer takes the name out of the lower one (Linux' overlayfs.rst); anybody
        // may make one.
        match rustix::fs::mknodat(CWD, upper.join(inner), FileType::CharacterDevice, Mode::empty(), 0) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn open(&mut self, at: &Path, access: Access) -> Result<(), StepError> {
        let copy = match self.held.remove(at) {
            Some(copy) => copy,
            // Opened twice: what lies there now is the host's already.
            None => clone(at).at(("open", at))?,
        };
        if access == Access::Read {
            sys::make_read_only(copy.as_fd(), Reach::Tree).at(("make read-only", at))?;
        }
        let is_folder = rustix::fs::fstat(&copy)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        if at.symlink_metadata().is_err() {
            let made = match (is_folder, at.parent()) {
                (false, Some(parent)) => self.make_folders(parent).and_then(|()| fs::write(at, "")),
                _ => self.make_folders(at),
            };
            made.at(("make a place for", at))?;
        }
        attach(&copy, at).at(("mount", at))
    }

    fn write(&self, Text { at, text }: &Text) -> Result<(), StepError> {
        if at.symlink_metadata().is_err() {
            // Only in an empty folder of ours; elsewhere there is nothing to replace.
            if at.parent().is_some_and(|parent| self.make_folders(parent).is_ok()) {
                let _ = fs::write(at, text);
            }
            return Ok(());
        }
        let name: String = at.to_string_lossy().replace('/', "_");
        let source = stage("texts").join(name);
        fs::write(&source, text).and_then(|()| cover(at, &source)).at(("replace", at.as_path()))
    }

    /// A /sys of the network namespace that this process is in: the host's would show its links.
    fn system(&mut self, cgroups: Option<OwnedFd>) -> Result<(), StepError> {
        let sys = Path::new("/sys");
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
        if mount("sysfs", sys, "sysfs", flags, None).is_err() {
            // A container may show only part of its /sys, and then the kernel gives no whole one.
            if let Ok(held) = place(sys) {
                sys::make_read_only(held.as_fd(), Reach::Tree).at("make /sys read-only")?;
            }
            return Ok(());
        }
        // Runtimes read their limits there.
        if let Some(cgroups) = cgroups
            && sys::make_read_only(cgroups.as_fd(), Reach::Tree).is_ok()
        {
            let _ = attach(&cgroups, &sys.join("fs/cgroup"));
        }
        Ok(())
    }

    fn processes(&self) -> Result<(), StepError> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", "/proc", "proc", flags, None).at("mount /proc of the workload's own processes")?;
        for path in PROC_READ_ONLY.map(Path::new) {
            if let Ok(copy) = clone(path) {
                sys::make_read_only(copy.as_fd(), Reach::Tree)
                    .and_then(|()| attach(&copy, path))
                    .at(("make read-only", path))?;
            }
        }
        for path in PROC_HIDDEN.map(Path::new) {
            match cover(path, Path::new("/dev/null")) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done.at(("hide", path))?,
            }
        }
        Ok(())
    }

    /// Makes a folder of the workload's user.
    fn make_folder(&self, at: &Path, mode: u32) -> io::Result<()> {
        fs::create_dir(at)?;
        rustix::fs::chmod(at, Mode::from_raw_mode(mode))?;
        if self.identity.means == Means::Root {
            let Identity { uid, gid, .. } = self.identity;
            rustix::fs::chown(at, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(())
    }

    /// Makes what is missing of a path.
    fn make_folders(&self, at: &Path) -> io::Result<()> {
        if at.is_dir() {
            return Ok(());
        }
        if let Some(parent) = at.parent() {
            self.make_folders(parent)?;
        }
        self.make_folder(at, 0o755)
    }
}

/// What is prepared to stand in the place of something hidden.
const fn blank(kind: Kind) -> &'static str {
    match kind {
        Kind::Folder => "empty",
        Kind::File => "blank",
    }
}

fn stage(name: &str) -> PathBuf {
    Path::new(STAGE).join(name)
}

/// The place itself, no link on the way to it followed.
fn place(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?)
}

/// A copy of the mount at a path, with those below it, attached nowhere yet.
fn clone(path: &Path) -> io::Result<OwnedFd> {
    let held = place(path)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(held, "", flags)?)
}

/// Shows something else, read-only, in a place. It is looked for first: to let go of a copy that was attached nowhere makes
/// the kernel wait for all its readers.
fn cover(at: &Path, by: &Path) -> io::Result<()> {
    let at = place(at)?;
    let copy = clone(by)?;
    sys::make_read_only(copy.as_fd(), Reach::Alone)?;
    attach_to(&copy, &at)
}

fn attach(copy: &impl AsFd, at: &Path) -> io::Result<()> {
    attach_to(copy, &place(at)?)
}

fn attach_to(copy: &impl AsFd, at: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    let copy: BorrowedFd<'_> = copy.as_fd();
    Ok(move_mount(copy, "", at.as_fd(), "", flags)?)
}
