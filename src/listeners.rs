//! Binds everything that the config lists, before the gateway says that it is ready.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::{ListenerName, Owner, Socket};
use proxy::tls::Trust;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::process::geteuid;
use tokio::net::{TcpListener, UdpSocket, UnixListener};

use crate::config::{Config, Endpoint, Listen, Listener};

/// A listener that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {at}")]
pub struct BindError {
    at: String,
    #[source]
    why: io::Error,
}

impl BindError {
    /// A sandbox's socket that cannot be opened.
    pub(crate) fn of(socket: &Socket, why: io::Error) -> Self {
        let owner = socket.owner.map_or_else(String::new, |owner| format!(", owner {}", owner.uid));
        Self { at: format!("unix:{} (mode {:04o}{owner})", socket.path, socket.mode), why }
    }
}

/// Every socket of the gateway.
#[derive(Debug)]
pub struct Listeners {
    /// Where streams come in over TCP.
    pub proxy: Vec<proxy::Listener>,
    /// Where questions come in.
    pub dns: Vec<DnsSockets>,
    /// Where the pages are.
    pub metrics: Option<TcpListener>,
    /// Where the gateway is told what to do.
    pub admin: Option<UnixListener>,
    /// The same over TCP.
    pub admin_https: Option<TcpListener>,
    /// The files of unix sockets, to be removed at the end.
    pub files: Files,
}

/// One DNS listener.
#[derive(Debug)]
pub struct DnsSockets {
    /// Its name in policy.
    pub name: ListenerName,
    /// For datagrams.
    pub udp: UdpSocket,
    /// For connections (RFC 7766 section 5: a server has both).
    pub tcp: TcpListener,
}

/// The files of unix sockets. Removed when dropped.
#[derive(Debug, Default)]
pub struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

impl Listeners {
    /// Binds all of them, or none. `trust` is what TLS listeners are made of. The admin socket is its own user's alone until [`admit`]. Needs a tokio runtime.
    ///
    /// # Errors
    /// The first one that cannot be bound.
    pub async fn bind(listen: &Listen, trust: Option<&Arc<Trust>>) -> Result<Self, BindError> {
        let mut files = Files::default();
        let mut proxy = Vec::with_capacity(listen.proxy.len());
        for listener in &listen.proxy {
            let name = Arc::clone(&listener.name);
            let bound = match (&listener.at, trust) {
                (Endpoint::Tcp(address), _) => proxy::Listener::tcp(name, *address),
                (Endpoint::Tls(address), Some(trust)) => {
                    proxy::Listener::tls(name, *address, Arc::clone(trust))
                }
                (Endpoint::Tls(_), None) => {
                    Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no certificate for it"))
                }
                // They open with the policy that names them.
                (Endpoint::Unix(_), _) => continue,
            };
            proxy.push(bound.map_err(|why| error(&listener.at, why))?);
        }
        let mut dns = Vec::with_capacity(listen.dns.len());
        for listener in &listen.dns {
            dns.push(resolver(listener).await.map_err(|why| error(&listener.at, why))?);
        }
        let metrics = tcp(listen.metrics).await?;
        let admin_https = tcp(listen.admin_https).await?;
        let admin = match &listen.admin {
            Some(path) => {
                let at = Endpoint::Unix(path.clone());
                Some(unix(path, &mut files).map_err(|why| error(&at, why))?)
            }
            None => None,
        };
        Ok(Self { proxy, dns, metrics, admin, admin_https, files })
    }
}

async fn tcp(address: Option<SocketAddr>) -> Result<Option<TcpListener>, BindError> {
    let Some(address) = address else { return Ok(None) };
    TcpListener::bind(address).await.map(Some).map_err(|why| error(&address, why))
}

fn error(at: &impl ToString, why: io::Error) -> BindError {
    BindError { at: at.to_string(), why }
}

/// The file of a unix socket. Removed when dropped.
#[derive(Debug)]
pub(crate) struct OwnFile(PathBuf);

impl Drop for OwnFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Makes the folder of a sandbox's socket where it is missing, and gives it then: what is mounted into a sandbox is the
/// folder.
///
/// # Errors
/// Where it cannot be made.
pub(crate) fn make_folder(socket: &Socket) -> Result<Option<PathBuf>, BindError> {
    let Some(folder) = Path::new(&*socket.path).parent() else { return Ok(None) };
    let make = || {
        if let Some(above) = folder.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(above)?;
        }
        // Whoever may not write the socket's file cannot use it, so that the folder may be seen.
        match fs::DirBuilder::new().mode(0o755).create(folder) {
            Ok(()) => Ok(Some(folder.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    };
    make().map_err(|why| BindError::of(socket, why))
}

/// Opens a unix socket for sandboxes, in a folder that exists. Needs a tokio runtime.
///
/// # Errors
/// Where it cannot be made, or cannot be given the mode and the owner that it is to have.
pub(crate) fn open_socket(socket: &Socket) -> Result<(proxy::Listener, OwnFile), BindError> {
    let path = Path::new(&*socket.path);
    let open = || {
        remove_stale(path)?;
        let listener = proxy::Listener::unix(socket.name(), path)?;
        Ok((listener, OwnFile(path.to_owned())))
    };
    let (listener, file) = open().map_err(|why| BindError::of(socket, why))?;
    describe(socket)?;
    Ok((listener, file))
}

/// Gives the file of a socket its mode and owner.
///
/// # Errors
/// Where the gateway may not.
pub(crate) fn describe(socket: &Socket) -> Result<(), BindError> {
    dress(Path::new(&*socket.path), socket.mode, socket.owner).map_err(|why| BindError::of(socket, why))
}

/// Gives a socket's file a mode and an owner, through a descriptor of that very file.
///
/// By its path anything could be meant: a sandbox is given the socket's folder, and root of a container without a user
/// namespace may write there. A link to a file of the host in the socket's place must not be followed.
fn dress(path: &Path, mode: u32, owner: Option<Owner>) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::Socket {
        return Err(no_socket());
    }
    if let Some(Owner { uid, gid }) = owner {
        let (uid, gid) = (Some(Uid::from_raw(uid)), gid.map(Gid::from_raw));
        rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    // fchmod(2) takes no such descriptor, and its link in /proc leads to the file itself (proc_pid_fd(5)).
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(itself, fs::Permissions::from_mode(mode))
}

fn no_socket() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "something that is no socket stands there")
}

fn unix(path: &Path, files: &mut Files) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let bound = UnixListener::bind(path)?;
    files.0.push(path.to_owned());
    // Who connects before this is told apart by uid and namespaces as everybody else.
    dress(path, 0o600, None)?;
    Ok(bound)
}

/// Lets those come near the admin socket whom the config names. Where only root and the gateway's own user may do
/// anything, nobody else need reach it.
///
/// # Errors
/// What the kernel says.
pub fn admit(listen: &Listen, config: &Config) -> Result<(), BindError> {
    let Some(path) = &listen.admin else { return Ok(()) };
    let own = geteuid().as_raw();
    let mut owners = config.policy.sandboxes.values().flat_map(|sandbox| &sandbox.owners);
    let has_others = config.admin.names_anybody() || owners.any(|uid| *uid != own && *uid != 0);
    let mode = if has_others { 0o666 } else { 0o600 };
    let at = Endpoint::Unix(path.clone());
    dress(path, mode, None).map_err(|why| error(&at, why))
}

async fn resolver(listener: &Listener) -> io::Result<DnsSockets> {
    let Endpoint::Tcp(address) = listener.at else {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "DNS has no unix sockets"));
    };
    let (udp, tcp) = (UdpSocket::bind(address).await?, TcpListener::bind(address).await?);
    Ok(DnsSockets { name: Arc::clone(&listener.name), udp, tcp })
}

/// Removes a socket that a gateway which was killed has left behind. A socket that somebody serves, and anything that
/// is no socket, stays.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(no_socket());
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another program serves this socket")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use policy::{Owner, Socket};

    use super::{describe, fs, geteuid, io, remove_stale};

    /// Seen by reading: chmod(2) and chown(2) by path followed a link that root of a container had put in the place of
    /// the socket in its folder, and changed a file of the host.
    #[test]
    fn a_link_in_the_place_of_a_socket_leads_to_no_file_of_the_host() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, victim) = (folder.path().join("proxy.sock"), folder.path().join("shadow"));
        fs::write(&victim, "").expect("a file");
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).expect("its mode");
        let owner = Some(Owner { uid: geteuid().as_raw(), gid: None });
        let socket = Socket { path: path.to_str().expect("plain").into(), mode: 0o660, owner };
        let served = UnixListener::bind(&path).expect("a socket");
        describe(&socket).expect("described");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o660);

        drop(served);
        fs::remove_file(&path).expect("removed");
        symlink(&victim, &path).expect("a link");
        describe(&socket).expect_err("a link");
        assert_eq!(fs::metadata(&victim).expect("there").mode() & 0o7777, 0o600);
    }

    #[test]
    fn only_a_socket_that_nobody_serves_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        drop(UnixListener::bind(at("stale")).expect("a socket"));
        let _served = UnixListener::bind(at("served")).expect("a socket");
        fs::write(at("file"), "").expect("a file");

        remove_stale(&at("stale")).expect("removed");
        assert!(!at("stale").exists());
        remove_stale(&at("absent")).expect("nothing to remove");
        assert_eq!(remove_stale(&at("served")).expect_err("served").kind(), io::ErrorKind::AddrInUse);
        assert_eq!(remove_stale(&at("file")).expect_err("a file").kind(), io::ErrorKind::AlreadyExists);
    }
}
