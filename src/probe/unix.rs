//! Unix sockets of the host: abstract ones, which a network namespace holds, and those with a path, which mounts hide.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use super::ground::Ground;
use super::socket::PATIENCE;
use super::{Line, socket};

/// Where servers keep their sockets. /tmp has those of tmux, X11 and editors, /run those of engines and buses.
const FOLDERS: [&str; 6] = ["/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm", "/var/lib"];

/// How much is looked at: folders on the way to a socket, and entries in all.
const DEPTH: usize = 4;
const ENTRIES: usize = 20_000;

pub(super) fn lines(ground: &Ground<'_>) -> Vec<Line> {
    [Some(abstract_sockets(ground)), Some(path_sockets(ground)), control(ground)]
        .into_iter()
        .flatten()
        .collect()
}

/// The inodes of the sockets that processes seen here hold.
pub(super) fn sockets_of_visible_processes() -> HashSet<u64> {
    let mut held = HashSet::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        held.extend(descriptors.filter_map(|descriptor| {
            let target = fs::read_link(descriptor.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
        }));
    }
    held
}

/// The kernel shows the abstract sockets of this network namespace, and finds no others (unix(7)).
fn abstract_sockets(ground: &Ground<'_>) -> Line {
    const WAY: &str = "abstract unix sockets of the host";
    let Ok(table) = fs::read("/proc/self/net/unix") else {
        return Line::unproven(WAY, "/proc/self/net/unix cannot be read");
    };
    if let Some(known) = ground.known {
        let address = SocketAddr::from_abstract_name(&known.abstract_name);
        let reached = address
            .and_then(|address| UnixStream::connect_addr(&address))
            .and_then(|stream| says(stream, &known.nonce));
        if matches!(reached, Ok(true)) {
            return Line::escaped(WAY, "the control outside answered");
        }
    }
    let own = sockets_of_visible_processes();
    let text = String::from_utf8_lossy(&table);
    let strange = text.lines().filter(|line| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut fields = line.split_whitespace().skip(6);
        let inode = fields.next().and_then(|inode| inode.parse().ok());
        inode.is_some_and(|inode| !own.contains(&inode))
            && fields.next().is_some_and(|path| path.starts_with('@'))
    });
    match (strange.count(), ground.known) {
        (0, Some(_)) => {
            Line::contained(WAY, "the control works outside and is not found here; no other is listed")
        }
        (0, None) if ground.is_sealed() => {
            Line::contained(WAY, "this network namespace has none but the sandbox's own")
        }
        (0, None) => Line::unproven(WAY, "no control outside was named (--controls)"),
        (count, _) => Line::unproven(WAY, format!("{count} of processes that are not seen here")),
    }
}

/// Connects to every socket that can be found.
fn path_sockets(ground: &Ground<'_>) -> Line {
    const WAY: &str = "unix sockets with a path";
    let mut found = Vec::new();
    let mut looked = 0;
    for folder in FOLDERS {
        collect(Path::new(folder), DEPTH, &mut looked, &mut found);
    }
    let ours = |path: &PathBuf| ground.known.is_some_and(|known| known.path == *path);
    let (mut unclear, mut open) = (Vec::new(), 0);
    for path in found.iter().filter(|path| !ours(path)) {
        match Server::at(path) {
            Server::Nobody => {}
            Server::Here => open += 1,
            Server::Outside => {
                return Line::escaped(WAY, format!("{} is served from outside", path.display()));
            }
            Server::Unknown(error) => unclear.push(format!("{}: {error}", path.display())),
        }
    }
    // Where the network is shared with others, so may be the processes that are seen.
    if open > 0 && !ground.is_sealed() {
        unclear.push(format!("{open} can be connected to; {}", ground.why()));
    }
    match (unclear.first(), looked < ENTRIES) {
        (Some(unclear), _) => Line::unproven(WAY, unclear),
        (None, true) => {
            Line::contained(WAY, format!("none leads out: {} sockets in {}", found.len(), FOLDERS.join(", ")))
        }
        (None, false) => Line::unproven(WAY, format!("more than {ENTRIES} files in {}", FOLDERS.join(", "))),
    }
}

/// Who serves a socket.
enum Server {
    Nobody,
    /// A process that is seen here.
    Here,
    Outside,
    Unknown(io::Error),
}

impl Server {
    fn at(path: &Path) -> Self {
        let pid = match UnixStream::connect(path) {
            Ok(stream) => getsockopt(&stream, PeerCredentials).map(|peer| peer.pid()),
            // A socket of another type: loggers and service managers take datagrams.
            Err(error) if error.raw_os_error() == Some(nix::libc::EPROTOTYPE) => {
                return match UnixDatagram::unbound().and_then(|socket| socket.connect(path)) {
                    Ok(()) if is_listed_here(path) => Self::Here,
                    Ok(()) => Self::Outside,
                    Err(_) => Self::Nobody,
                };
            }
            Err(_) => return Self::Nobody,
        };
        match pid {
            // The pid of a process that this pid namespace does not have is shown as 0 (pid_namespaces(7)).
            Ok(pid) if pid > 0 && Path::new("/proc").join(pid.to_string()).exists() => Self::Here,
            Ok(_) => Self::Outside,
            Err(error) => Self::Unknown(error.into()),
        }
    }
}

/// Whether a socket was made in this network namespace: the kernel lists no others by their paths.
fn is_listed_here(path: &Path) -> bool {
    let table = fs::read("/proc/self/net/unix").unwrap_or_default();
    let text = String::from_utf8_lossy(&table);
    text.lines().any(|line| line.split_whitespace().nth(7).is_some_and(|listed| Path::new(listed) == path))
}

fn collect(folder: &Path, depth: usize, looked: &mut usize, found: &mut Vec<PathBuf>) {
    let Ok(here) = fs::symlink_metadata(folder) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        *looked += 1;
        if *looked >= ENTRIES {
            return;
        }
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_socket() {
            found.push(entry.path());
        } else if kind.is_dir()
            && depth > 0
            && entry.metadata().is_ok_and(|below| below.dev() == here.dev() || depth == DEPTH)
        {
            collect(&entry.path(), depth - 1, looked, found);
        }
    }
}

/// The socket of the controls, in a folder that everybody on the host may enter.
fn control(ground: &Ground<'_>) -> Option<Line> {
    const WAY: &str = "a unix socket of the host by its path";
    let known = ground.known?;
    let at = known.path.display();
    Some(match UnixStream::connect(&known.path).and_then(|stream| says(stream, &known.nonce)) {
        Ok(true) => Line::escaped(WAY, format!("the control at {at} answered")),
        Ok(false) => Line::unproven(WAY, format!("another server answers at {at}")),
        Err(error) => Line::contained(
            WAY,
            format!("the control at {at} works outside, and here: {}", socket::told(&error)),
        ),
    })
}

/// Whether a control is what answers.
pub(super) fn says(stream: UnixStream, nonce: &str) -> io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut said = Vec::new();
    stream.take(nonce.len() as u64).read_to_end(&mut said)?;
    Ok(said == nonce.as_bytes())
}
