//! Who the workload is: the user that it runs as, and the maps of its user namespace.
//!
//! Never root on the host, and never the user of a gateway that is root: as root the workload is the user who called sudo,
//! or one whom nobody else is. An ordinary user's workload is that user, in a user namespace that maps nobody else.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Gid, Pid, Uid};
use rustix::thread::{CapabilitySet, capabilities};

/// The first of the uids that no distribution hands out: 0x70000000 to 0x7fffffff lie behind systemd's containers.
/// The gateway's pid is added, so that no two sandboxes of a machine are the same user.
const FREE: u32 = 0x7000_0000;

/// How the namespaces are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// By root: with root's rights until the workload's user namespace is made last, for another user.
    Root,
    /// By anybody: the user namespace comes first and lends the rights for the rest.
    Anybody,
    /// By root without the right to mount, as in most containers: it becomes the workload's user first, then as anybody.
    Lowered,
}

/// Who the workload is on the host, and inside: the numbers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) means: Means,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether the user is one of nobody's: there is no line in /etc/passwd.
    pub(crate) is_free: bool,
}

/// What decides about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// May make namespaces and mounts where it is.
    pub(crate) is_capable: bool,
    /// Sees the users of the host, not one of them under root's name.
    pub(crate) sees_all: bool,
    /// What sudo says of who called it; false words of root harm nobody but root.
    pub(crate) sudo: Option<(u32, u32)>,
    pub(crate) pid: u32,
}

impl Caller {
    /// Looks at this process. `sudo` are $SUDO_UID and $SUDO_GID.
    pub(crate) fn this(sudo: Option<(u32, u32)>) -> io::Result<Self> {
        let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
        let held = capabilities(None)?.effective;
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            is_capable: held.contains(needed),
            sees_all: maps_everybody(&fs::read_to_string("/proc/self/uid_map")?),
            sudo,
            pid: u32::try_from(rustix::process::getpid().as_raw_nonzero().get()).unwrap_or_default(),
        })
    }

    /// Who the workload will be.
    pub(crate) fn workload(self) -> Identity {
        let Self { uid, gid, .. } = self;
        // Root of a user namespace with few users in it is one of those.
        if uid != 0 || !self.sees_all {
            return Identity { means: Means::Anybody, uid, gid, is_free: false };
        }
        let means = if self.is_capable { Means::Root } else { Means::Lowered };
        match self.sudo {
            Some((uid, gid)) if uid != 0 && gid != 0 => Identity { means, uid, gid, is_free: false },
            _ => {
                let free = FREE + self.pid % 0x0fff_ffff;
                Identity { means, uid: free, gid: free, is_free: true }
            }
        }
    }
}

/// Whether a uid_map lets the free users be told apart (user_namespaces(7): inside, outside, count).
fn maps_everybody(map: &str) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers.as_slice(), [inside, _, count] if *inside == 0 && *count > 0x7fff_ffff)
    })
}

impl Identity {
    /// Writes the maps of the user namespace that this process is in: its own user and nobody else.
    pub(super) fn map_self(self) -> io::Result<()> {
        // A process without rights outside may map its group only once setgroups(2) is shut (user_namespaces(7)).
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", line(self.uid, self.uid))?;
        fs::write("/proc/self/gid_map", line(self.gid, self.gid))
    }

    /// The same for a child, by root.
    pub(super) fn map_child(self, child: Pid) -> io::Result<()> {
        write_maps(child, line(self.uid, self.uid), line(self.gid, self.gid))
    }

    /// Whether this user may write in a folder: as its owner, as anybody, or as one of a group, whichever that is.
    pub(super) fn may_write(self, folder: &Path) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let Ok(found) = folder.metadata() else { return false };
        found.uid() == self.uid || found.mode() & 0o022 != 0
    }

    /// Becomes this user, in a user namespace where it is the only one.
    pub(super) fn assume(self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

/// Writes the maps of a child's user namespace, each a line `inside outside count`.
pub(super) fn write_maps(child: Pid, uids: String, gids: String) -> io::Result<()> {
    let proc = Path::new("/proc").join(child.as_raw_nonzero().to_string());
    fs::write(proc.join("uid_map"), uids)?;
    fs::write(proc.join("gid_map"), gids)
}

/// A line of a map for one id.
pub(super) fn line(inside: u32, outside: u32) -> String {
    format!("{inside} {outside} 1\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Caller = Caller { uid: 0, gid: 0, is_capable: true, sees_all: true, sudo: None, pid: 4711 };

    #[test]
    fn the_workload_of_root_is_who_called_sudo_or_nobody_else() {
        let free = FREE + 4711;
        for (sudo, uid, gid, is_free) in [
            (None, free, free, true),
            (Some((1000, 100)), 1000, 100, false),
            (Some((0, 0)), free, free, true),
            (Some((1000, 0)), free, free, true),
        ] {
            let identity = Caller { sudo, ..ROOT }.workload();
            assert_eq!(identity, Identity { means: Means::Root, uid, gid, is_free }, "{sudo:?}");
        }
    }

    #[test]
    fn an_ordinary_user_and_a_root_of_little_are_themselves() {
        for caller in [
            Caller { uid: 1000, gid: 100, is_capable: false, ..ROOT },
            Caller { sees_all: false, sudo: Some((1000, 100)), ..ROOT },
        ] {
            let expected =
                Identity { means: Means::Anybody, uid: caller.uid, gid: caller.gid, is_free: false };
            assert_eq!(caller.workload(), expected);
        }
    }

    #[test]
    fn root_without_the_right_to_mount_is_nobody_else_either() {
        let identity = Caller { is_capable: false, ..ROOT }.workload();
        assert_eq!((identity.means, identity.uid), (Means::Lowered, FREE + 4711));
    }

    #[test]
    fn maps_of_one_user_hide_the_others() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(!maps_everybody("0 1000 1\n"));
        assert!(!maps_everybody("0 1000 1\n1 100000 65536\n"));
    }
}
