//! One network namespace, kept alive by its descriptor, and ways to act inside it without moving the caller.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::Duration,
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{getgid, getuid},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use socket2::{Domain, Socket, Type};

/// A network namespace of its own.
///
/// Everything is done on a fresh thread that joins the namespace and ends: a thread's namespace follows it for life, so
/// moving the caller (or a runtime's worker) would move whatever runs there next.
#[derive(Debug)]
pub struct Namespace {
    net: OwnedFd,
}

/// A file that one process sees in place of the host's: another `resolv.conf`, say.
#[derive(Debug, Clone)]
pub struct HostFile {
    /// The path as the process sees it; it must exist on the host.
    pub at: PathBuf,
    /// The file that stands there instead.
    pub shows: PathBuf,
}

/// A file system in memory that one process alone sees, and that ends with it.
#[derive(Debug, Clone)]
pub struct Volume {
    /// The folder where it stands.
    pub at: PathBuf,
    /// How much it holds.
    pub bytes: u64,
}

impl Namespace {
    /// An empty one: `lo` alone, and that is off. Needs CAP_SYS_ADMIN.
    pub fn new() -> io::Result<Namespace> {
        let net = on_fresh_thread(|| {
            unshare(UnshareFlags::NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        })?;
        Ok(Namespace { net: net.into() })
    }

    /// The one that a process is in.
    pub fn of_process(pid: u32) -> io::Result<Namespace> {
        Ok(Namespace { net: File::open(format!("/proc/{pid}/ns/net"))?.into() })
    }

    /// Its descriptor, as setns(2) takes it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.net.as_fd()
    }

    /// Runs `work` on a thread inside the namespace and waits for it. Sockets made there stay there for life.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_fresh_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// Starts a process inside the namespace; what it starts in turn is there too.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.run(|| command.spawn())
    }

    /// As [`Namespace::spawn`], with files of the host replaced for this process alone.
    pub fn spawn_seeing(&self, files: &[HostFile], command: &mut Command) -> io::Result<Child> {
        if files.is_empty() { self.spawn(command) } else { self.spawn_apart(None, files, command) }
    }

    /// As [`Namespace::spawn_seeing`], with a file system of its own.
    pub fn spawn_on(&self, volume: &Volume, files: &[HostFile], command: &mut Command) -> io::Result<Child> {
        self.spawn_apart(Some(volume), files, command)
    }

    fn spawn_apart(
        &self,
        volume: Option<&Volume>,
        files: &[HostFile],
        command: &mut Command,
    ) -> io::Result<Child> {
        self.run(|| {
            unshare(UnshareFlags::NEWNS | UnshareFlags::FS)?;
            // Without this the mounts below would also appear in the host's tree (mount_namespaces(7), shared subtrees).
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            if let Some(Volume { at, bytes }) = volume {
                let size = CString::new(format!("size={bytes},mode=0755"))?;
                mount("tmpfs", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, size.as_c_str())?;
            }
            for file in files {
                mount_bind(&file.shows, &file.at)?;
            }
            command.spawn()
        })
    }

    /// Listens on `address` inside the namespace. `[::]:PORT` takes IPv4 as well, and in the world is every host on that port.
    pub fn tcp_listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        self.run(|| {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            if address.is_ipv6() {
                socket.set_only_v6(false)?;
            }
            socket.bind(&address.into())?;
            socket.listen(1024)?;
            Ok(socket.into())
        })
    }

    /// Binds a datagram socket inside the namespace.
    pub fn udp_bind(&self, address: SocketAddr) -> io::Result<UdpSocket> {
        self.run(|| UdpSocket::bind(address))
    }

    /// Opens a connection from inside the namespace: what a client on that host would do.
    pub fn tcp_connect(&self, address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
        self.run(|| tcp_connect_here(address, patience))
    }

    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

/// Opens a connection as a client would where the calling thread is.
pub fn tcp_connect_here(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    #[expect(clippy::disallowed_methods, reason = "a stand-in client of a lab, not a contact of the gateway")]
    TcpStream::connect_timeout(&address, patience)
}

/// Makes the whole process root in a user namespace of its own, so that an ordinary user may build a [`super::Lab`].
///
/// Call it before a second thread runs: the kernel refuses a process with threads (`unshare(2)`, `EINVAL`).
pub fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    unshare(UnshareFlags::NEWUSER)?;
    // A process may map its group only once it gave up setgroups (user_namespaces(7), "gid_map").
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

#[expect(
    deprecated,
    reason = "rustix marks it for CLONE_FILES, which is never passed here; the other form is `unsafe`"
)]
fn unshare(what: UnshareFlags) -> io::Result<()> {
    debug_assert!(!what.contains(UnshareFlags::FILES));
    Ok(rustix::thread::unshare(what)?)
}

fn on_fresh_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("lab".into())
            .spawn_scoped(scope, work)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread of the lab panicked")))
    })
}

/// Writes a sysctl of the calling thread's network namespace. A read-only `/proc/sys` is no fault where the value is right.
pub(super) fn sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys/net").join(name);
    if fs::read_to_string(&path)?.trim() == value {
        return Ok(());
    }
    fs::write(path, value)
}
