//! What to do where a namespace cannot be had: the missing piece, by name.

use std::fmt;
use std::fs;
use std::io;

use super::plan::Step;

/// What an operator can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Ordinary users may have no user namespaces: AppArmor.
    AppArmor,
    /// Ordinary users may have no user namespaces: Debian's switch.
    UnprivilegedClone,
    /// There may be no user namespaces.
    NoneAllowed,
    /// There are as many user namespaces as there may be.
    TooMany,
    /// The kernel was built without them, or a filter of the container forbids them.
    Forbidden,
    /// Another link is there.
    OtherLinks,
    /// A capability over the namespace is missing.
    NetAdmin,
    /// The kernel has no nf_tables.
    NoNftables,
    /// The kernel has no netlink for this process.
    Netlink,
    /// /proc/sys cannot be written.
    ReadOnlyProcSys,
    /// Somebody in the namespace listens there.
    PortTaken,
}

impl Remedy {
    pub(super) fn of(step: &Step, error: &io::Error) -> Option<Self> {
        use rustix::io::Errno;
        let errno = Errno::from_io_error(error);
        match (step, errno) {
            (Step::OnlyLoopback, None) => Some(Self::OtherLinks),
            (_, Some(Errno::PERM | Errno::ACCESS)) => Some(Self::NetAdmin),
            (Step::Setting { .. }, Some(Errno::ROFS)) => Some(Self::ReadOnlyProcSys),
            // nf_tables itself missing, or one of its expressions; gVisor has no such protocol.
            (
                Step::Rules(_),
                Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::INVAL),
            ) => Some(Self::NoNftables),
            (Step::Listen(_), Some(Errno::ADDRINUSE)) => Some(Self::PortTaken),
            _ => None,
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AppArmor => {
                "AppArmor keeps user namespaces from ordinary users: load a profile for tidegate that has `userns,`, or \
                 set kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
            }
            Self::UnprivilegedClone => {
                "user namespaces are kept from ordinary users: set kernel.unprivileged_userns_clone=1, or run as root"
            }
            Self::NoneAllowed => "user namespaces are switched off: set user.max_user_namespaces above 0",
            Self::TooMany => {
                "there are as many user or network namespaces as may be: raise user.max_user_namespaces and \
                 user.max_net_namespaces"
            }
            Self::Forbidden => {
                "the kernel or a filter of the container refuses namespaces: give the container CAP_SYS_ADMIN and a \
                 seccomp profile that permits unshare, or run outside of it"
            }
            Self::OtherLinks => {
                "start the container without a network (`--network none`), or remove the links"
            }
            Self::NetAdmin => "CAP_NET_ADMIN over the namespace is needed: run as root, or as who made the namespace",
            Self::NoNftables => {
                "the kernel has no nf_tables with nat and reject: load nf_tables, nft_chain_nat, nft_redir, \
                 nft_reject_inet and nft_ct; gVisor has none"
            }
            Self::Netlink => "the process may open no netlink socket: permit AF_NETLINK where address families are limited",
            Self::ReadOnlyProcSys => "/proc/sys is read-only: run outside of the container",
            Self::PortTaken => "a process of the sandbox listens there: start tidegate before it",
        })
    }
}

/// What the kernel says about user namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserNamespaces {
    /// `kernel.apparmor_restrict_unprivileged_userns`; absent without AppArmor.
    pub apparmor_restricts: Option<bool>,
    /// `kernel.unprivileged_userns_clone`; absent on kernels without Debian's patch.
    pub ordinary_users_may: Option<bool>,
    /// `user.max_user_namespaces`.
    pub at_most: Option<u64>,
}

impl UserNamespaces {
    /// Reads the switches of the running kernel.
    #[must_use]
    pub fn of_this_kernel() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        Self {
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
                .map(|value| value != 0),
            ordinary_users_may: number("/proc/sys/kernel/unprivileged_userns_clone").map(|value| value != 0),
            at_most: number("/proc/sys/user/max_user_namespaces"),
        }
    }

    /// What to do where unshare(2) failed so.
    #[must_use]
    pub fn remedy(self, refused: &io::Error) -> Remedy {
        let is_full = rustix::io::Errno::from_io_error(refused) == Some(rustix::io::Errno::NOSPC);
        match self {
            Self { at_most: Some(0), .. } => Remedy::NoneAllowed,
            _ if is_full => Remedy::TooMany,
            Self { ordinary_users_may: Some(false), .. } => Remedy::UnprivilegedClone,
            Self { apparmor_restricts: Some(true), .. } => Remedy::AppArmor,
            _ => Remedy::Forbidden,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_that_keeps_user_namespaces_away_is_named() {
        let refused = io::Error::from_raw_os_error(1);
        let full = io::Error::from_raw_os_error(28);
        let facts = |apparmor, clone, most| UserNamespaces {
            apparmor_restricts: apparmor,
            ordinary_users_may: clone,
            at_most: most,
        };
        assert_eq!(facts(Some(true), None, Some(9)).remedy(&refused), Remedy::AppArmor);
        assert_eq!(facts(Some(false), Some(false), Some(9)).remedy(&refused), Remedy::UnprivilegedClone);
        assert_eq!(facts(None, None, Some(0)).remedy(&full), Remedy::NoneAllowed);
        assert_eq!(facts(Some(true), None, Some(9)).remedy(&full), Remedy::TooMany);
        assert_eq!(facts(None, Some(true), None).remedy(&refused), Remedy::Forbidden);
    }
}
