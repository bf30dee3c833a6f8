//! Enters a network namespace that exists, in a process of its own, sets it up, and stays to guard it.
//!
//! The process is this program again: a thread cannot join a user namespace (setns(2)), and what has entered must not
//! come back. It hands the sockets over on its standard input, says so on its standard output, and then switches off
//! every link that appears, until nobody reads that output any more.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::kernel::put_in_force;
use super::{Plan, SetupError, handover, nftables, open_here};
use crate::netlink::{self, Link, Netlink};

/// Printed by the guard once the sockets are handed over.
const OFFERED: &[u8; 8] = b"offered\n";

/// An existing network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// That of a process.
    Process(u32),
    /// One that a file stands for, as `ip netns add` and container engines make it.
    File(PathBuf),
}

/// Why a namespace is not entered.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// There is none.
    #[error("there is no network namespace at {0}")]
    NotThere(Target, #[source] io::Error),
    /// The gateway would capture its own traffic.
    #[error("{0} is in the network namespace of the gateway itself")]
    Own(Target),
    /// It belongs to somebody else.
    #[error(
        "cannot enter the network namespace of {0} (CAP_SYS_ADMIN over it is needed: run as root, or as who made it)"
    )]
    Refused(Target, #[source] io::Error),
    /// It was entered, and could not be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The sockets were not taken.
    #[error(transparent)]
    Handover(#[from] handover::HandoverError),
    /// The guard did not start, or ended before its work was done; it has said why.
    #[error("the namespace was not set up")]
    Guard(#[source] Option<io::Error>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::File(path) => write!(f, "{}", path.display().to_string().escape_debug()),
        }
    }
}

impl Target {
    fn open(&self) -> Result<File, EnterError> {
        let not_there = |error| EnterError::NotThere(self.clone(), error);
        let file = match self {
            Self::Process(pid) => File::open(format!("/proc/{pid}/ns/net")),
            Self::File(path) => File::open(path),
        };
        let file = file.map_err(not_there)?;
        let (found, own) = (file.metadata().map_err(not_there)?, own_namespace().map_err(not_there)?);
        // Every namespace is a file of one file system, which has nothing else but namespaces (namespaces(7)).
        if found.dev() != own.dev() {
            return Err(not_there(io::Error::new(io::ErrorKind::InvalidInput, "this is no namespace")));
        }
        if found.ino() == own.ino() {
            return Err(EnterError::Own(self.clone()));
        }
        Ok(file)
    }

    /// Moves the calling thread, which is the only one of its process.
    fn enter(&self) -> Result<(), EnterError> {
        let file = self.open()?;
        let refused = |error: Errno| EnterError::Refused(self.clone(), error.into());
        let Err(error) = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)) else {
            return Ok(());
        };
        // The namespace of a container without root: whoever made its user namespace may enter both.
        let Self::Process(pid) = self else { return Err(refused(error)) };
        let Ok(user) = File::open(format!("/proc/{pid}/ns/user")) else { return Err(refused(error)) };
        move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User)).map_err(refused)?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(refused)
    }
}

fn own_namespace() -> io::Result<fs::Metadata> {
    fs::metadata("/proc/self/ns/net")
}

/// The process in the namespace. Dropped, it ends.
#[derive(Debug)]
pub struct Guard {
    process: Child,
    says: ChildStdout,
}

impl Guard {
    /// Starts it, and returns once it has offered the namespace's sockets on `gateway`: an end of a unix socket, which
    /// the guard does not keep.
    ///
    /// # Errors
    /// Where it did not come that far. It has told the cause on the standard error.
    pub fn start(target: &Target, gateway: OwnedFd) -> Result<Self, EnterError> {
        // Told here as well, where no process has to be started for it.
        target.open()?;
        let broken = |error| EnterError::Guard(Some(error));
        #[expect(clippy::disallowed_methods, reason = "this program again, in another namespace")]
        let mut command = Command::new("/proc/self/exe");
        command.args(["attach", "--guard"]);
        match target {
            Target::Process(pid) => command.arg("--pid").arg(pid.to_string()),
            Target::File(path) => command.arg("--netns").arg(path),
        };
        // A group of its own: what a terminal sends is for the parent, whose end ends the guard.
        command.process_group(0).env_clear().current_dir("/");
        command.stdin(Stdio::from(gateway)).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(broken)?;
        let Some(mut says) = process.stdout.take() else { return Err(EnterError::Guard(None)) };
        // The command holds the parent's copy of the socket.
        drop(command);
        let mut said = [0; OFFERED.len()];
        if says.read_exact(&mut said).is_err() || said != *OFFERED {
            // It ends, or is ended by the pipe that is dropped.
            drop(says);
            process.wait().map_err(broken)?;
            return Err(EnterError::Guard(None));
        }
        Ok(Self { process, says })
    }

    /// A pipe that says nothing more, and closes when the guard ends.
    ///
    /// # Errors
    /// Where there are no descriptors left.
    pub fn life(&self) -> io::Result<OwnedFd> {
        self.says.as_fd().try_clone_to_owned()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // What it keeps away it keeps away until the end; it holds nothing that must be put back.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The guard itself. Returns when nobody wants it any more.
///
/// # Errors
/// Where the namespace cannot be entered, set up or guarded.
pub fn guard(target: &Target) -> Result<(), EnterError> {
    let broken = |error| EnterError::Guard(Some(error));
    let gateway: UnixStream = io::stdin().as_fd().try_clone_to_owned().map_err(broken)?.into();
    // Else the guard would hold the registration, also when its parent is gone.
    let nothing = File::open("/dev/null").map_err(broken)?;
    rustix::stdio::dup2_stdin(&nothing).map_err(|error| broken(error.into()))?;
    target.enter()?;
    let notices = Netlink::link_notices().map_err(broken)?;
    let sockets = open_here(&Plan::for_this_kernel())?;
    handover::offer(&gateway, sockets)?;
    drop(gateway);
    let mut stdout = io::stdout().lock();
    stdout.write_all(OFFERED).and_then(|()| stdout.flush()).map_err(broken)?;
    keep_shut(&notices, stdout.as_fd()).map_err(broken)
}

/// Shuts every link that appears, until nobody reads `parent`.
fn keep_shut(notices: &OwnedFd, parent: BorrowedFd<'_>) -> io::Result<()> {
    let mut netlink = Netlink::route()?;
    loop {
        let mut ready =
            [PollFd::new(notices, PollFlags::IN), PollFd::from_borrowed_fd(parent, PollFlags::empty())];
        match poll(&mut ready, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let [links, parent] = &ready;
        if !parent.revents().is_empty() {
            return Ok(());
        }
        if links.revents().is_empty() {
            continue;
        }
        let found = match netlink::noticed(notices) {
            Ok(found) => found,
            // Some notices were lost (netlink(7)): what is there now is what counts.
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => netlink.links()?,
            Err(error) => return Err(error),
        };
        for link in found.into_iter().filter(|link| !link.leads_nowhere()) {
            shut(&mut netlink, &link);
        }
    }
}

/// Switches a link off, and lets nothing pass it if somebody switches it on again: what packet sockets send passes no
/// other rule (AF_PACKET has no hook but that of the device, Linux 5.16).
fn shut(netlink: &mut Netlink, link: &Link) {
    let name = link.name.escape_debug();
    // It may be gone again.
    if let Err(error) = netlink.switch(link.index, false) {
        complain(format_args!("cannot switch link {name} off: {error}"));
    }
    let link_alone = nftables::Links::Named(&link.name);
    if let Err(error) = put_in_force(|found| nftables::shut(link_alone, found)) {
        complain(format_args!("link {name} is off, but without rules of its own: {error}"));
    }
}

fn complain(what: impl fmt::Display) {
    // Nobody may be there to read it.
    let _ = writeln!(io::stderr().lock(), "tidegate attach: {what}");
}
