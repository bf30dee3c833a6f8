//! User namespaces through which the files of an owner are seen as the workload's own, by that owner (mount_setattr(2)).
//!
//! A namespace lives as long as a process in it or a descriptor of it, and its maps are written from outside: each is made
//! by a process that ends as soon as it is held. They are begun first and taken last, so that they cost no time of their own.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::exit;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, WaitOptions, getpid, getppid, set_parent_process_death_signal, waitpid};
use rustix::thread::UnshareFlags;

use super::identity::{self, Identity, Means};
use super::view::{Step, View};
use crate::sys::{self, Fork};

/// What the process of a namespace says once it is there.
const MADE: u8 = b'u';

/// The numbers of an owner and of its group.
type Owner = (u32, u32);

/// Those that the steps of a view need.
#[derive(Debug, Default)]
pub(crate) struct IdMaps(HashMap<Owner, OwnedFd>);

/// The same, under way.
pub(super) struct Begun(Vec<(Owner, Pid, UnixStream)>);

impl IdMaps {
    /// Begins to make one for every owner of something that the steps open, as root. To be called before this process has
    /// a pid namespace for its children, whose first process must be the sandbox's.
    pub(super) fn begin(view: &View, workload: Identity) -> io::Result<Begun> {
        let mut owners = BTreeSet::new();
        if workload.means == Means::Root {
            for path in view.steps.iter().filter(|step| step.shows_the_host()).map(Step::at) {
                let owner = fs::metadata(path).map(|held| (held.uid(), held.gid()));
                owners.extend(owner.ok().filter(|owner| owner.0 != workload.uid));
            }
        }
        owners.into_iter().map(begin).collect::<io::Result<_>>().map(Begun)
    }

    /// The namespace that maps an owner.
    pub(super) fn of(&self, owner: Owner) -> Option<&OwnedFd> {
        self.0.get(&owner)
    }
}

impl Begun {
    /// Waits for them.
    pub(super) fn finish(self, workload: Identity) -> io::Result<IdMaps> {
        let held = |(owner, child, near)| Ok((owner, finish(owner, child, near, workload)?));
        self.0.into_iter().map(held).collect::<io::Result<_>>().map(IdMaps)
    }
}

fn begin(owner: Owner) -> io::Result<(Owner, Pid, UnixStream)> {
    let (near, mut far) = UnixStream::pair()?;
    let parent = getpid();
    match sys::fork()? {
        Fork::Child => {
            drop(near);
            let _ = set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            if getppid() == Some(parent) && sys::unshare(UnshareFlags::NEWUSER).is_ok() {
                let _ = far.write_all(&[MADE]);
                let _ = far.read_exact(&mut [0]);
            }
            exit(0)
        }
        Fork::Parent(child) => Ok((owner, child, near)),
    }
}

fn finish((uid, gid): Owner, child: Pid, mut near: UnixStream, workload: Identity) -> io::Result<OwnedFd> {
    let held = near.read_exact(&mut [0]).and_then(|()| {
        // Of an id map the left side is what the disk holds, the right side what is seen (mount_setattr(2)).
        identity::write_maps(child, identity::line(uid, workload.uid), identity::line(gid, workload.gid))?;
        let path = Path::new("/proc").join(child.as_raw_nonzero().to_string()).join("ns/user");
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    });
    drop(near);
    let _ = waitpid(Some(child), WaitOptions::empty());
    held
}
