//! Other namespaces, by the handles that /proc and the file system show, and the mounts of this one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::{MountFlags, mount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::ground::{Ground, NET_ADMIN, SYS_ADMIN};
use super::{Line, socket};

/// Where tools keep the namespaces that they made.
const FOLDERS: [&str; 3] = ["/run/netns", "/var/run/netns", "/run/docker/netns"];

pub(super) fn lines(ground: &Ground<'_>) -> Vec<Line> {
    vec![through_proc(ground), nested(ground), roots(), mounts(ground), rules(ground)]
}

fn own(kind: &str) -> Option<u64> {
    fs::metadata(format!("/proc/self/ns/{kind}")).ok().map(|namespace| namespace.ino())
}

/// Enters every network namespace that there is a handle of.
fn through_proc(ground: &Ground<'_>) -> Line {
    const WAY: &str = "other network namespaces (setns)";
    let Some(own) = own("net") else { return Line::unproven(WAY, "/proc/self/ns cannot be read") };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_processes = processes.map(|process| process.path().join("ns/net"));
    let named = FOLDERS.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let mut tried = BTreeSet::new();
    let mut refused = None;
    for handle in of_processes.chain(named.map(|entry| entry.path())) {
        let Ok(found) = fs::metadata(&handle) else { continue };
        if found.ino() == own || !tried.insert((found.dev(), found.ino())) {
            continue;
        }
        match enter(&handle) {
            Ok(()) => return Line::escaped(WAY, format!("entered that of {}", handle.display())),
            Err(error) => refused = Some(format!("{}: {}", handle.display(), socket::told(&error))),
        }
    }
    match refused {
        None => Line::contained(WAY, "there is a handle of none"),
        // setns(2) needs it in the namespace and in one's own user namespace.
        Some(refused) if !ground.has(SYS_ADMIN) && ground.no_new_privileges => {
            Line::contained(WAY, format!("{refused}; CAP_SYS_ADMIN is not held and cannot be gained"))
        }
        Some(refused) => Line::unproven(WAY, refused),
    }
}

/// On a thread that ends with it: a thread stays where it has gone.
fn enter(handle: &Path) -> io::Result<()> {
    on_a_thread(|| {
        let handle = File::open(handle)?;
        Ok(move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))?)
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended early")))
}

/// A namespace below this one, whose root its maker is.
fn nested(ground: &Ground<'_>) -> Line {
    const WAY: &str = "a nested network namespace";
    if ground.is_sealed() {
        Line::contained(
            WAY,
            format!(
                "it starts with a lo of its own, and there is no other link to move into it; {}",
                ground.why()
            ),
        )
    } else {
        Line::unproven(WAY, format!("a link could be moved into it; {}", ground.why()))
    }
}

/// The file systems of other processes, past the mounts of this one.
fn roots() -> Line {
    const WAY: &str = "the file systems of other processes";
    let here = fs::metadata("/").ok().map(|root| (root.dev(), root.ino()));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut other = processes.filter_map(|process| {
        let root: PathBuf = process.path().join("root");
        // Through the link: where it may not be followed, nothing is behind it.
        let found = fs::metadata(&root).ok()?;
        (Some((found.dev(), found.ino())) != here).then_some(root)
    });
    match other.next() {
        Some(root) => Line::escaped(WAY, format!("{} leads to another one", root.display())),
        None => Line::contained(WAY, "no process that is seen here has another root that can be entered"),
    }
}

/// Takes a mount away or puts one on top: what is hidden by mounts would show.
fn mounts(ground: &Ground<'_>) -> Line {
    const WAY: &str = "changing mounts";
    let done = on_a_thread(|| {
        unshare_mounts()?;
        Ok(mount("none", "/tmp", "tmpfs", MountFlags::empty(), None::<&std::ffi::CStr>)?)
    });
    match done {
        Ok(()) => Line::unproven(WAY, "a mount can be made: what mounts hide is not safe"),
        Err(error) if !ground.has(SYS_ADMIN) && ground.no_new_privileges => Line::contained(
            WAY,
            format!("{}; CAP_SYS_ADMIN is not held and cannot be gained", socket::told(&error)),
        ),
        Err(error) => Line::unproven(WAY, socket::told(&error)),
    }
}

#[expect(
    deprecated,
    reason = "rustix marks it for CLONE_FILES, which is not asked for; the other form is `unsafe`"
)]
fn unshare_mounts() -> io::Result<()> {
    Ok(rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::FS)?)
}

/// Packet rules, routes, resolv.conf and switches of the kernel: with all of them gone there is still no link.
fn rules(ground: &Ground<'_>) -> Line {
    const WAY: &str = "flushing rules, changing routes, links, sysctls and resolv.conf";
    let root = if ground.has(NET_ADMIN) { "CAP_NET_ADMIN is held" } else { "CAP_NET_ADMIN is not held" };
    if ground.is_sealed() {
        Line::contained(WAY, format!("{root}; whatever is changed, there is {}", ground.why()))
    } else if ground.has(NET_ADMIN) {
        Line::escaped(WAY, format!("{root}; {}", ground.why()))
    } else {
        Line::unproven(WAY, format!("{root}; {}", ground.why()))
    }
}
