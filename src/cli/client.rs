//! Connections that verbs make for their user: to the proxy that they are told to use, and to the metrics listener.
//!
//! No gateway runs in these processes, so nothing here goes past a gate: whoever starts them could connect as well
//! without them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use policy::Destination;

/// How long a server may take to accept, and between two of its bytes before a tunnel is open.
const CLOCK: Duration = Duration::from_secs(30);

/// The longest page that is read.
const PAGE_LIMIT: u64 = 256 * 1024;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// A host and a port.
    Tcp(Destination),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(destination) => write!(f, "{destination}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) enum Connection {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
}

impl Connection {
    /// Connects, and sets the clock.
    pub(super) fn open(server: &Server) -> io::Result<Self> {
        let connection = match server {
            Server::Tcp(destination) => Self::Tcp(dial(destination)?),
            Server::Unix(path) => {
                Self::Unix(UnixStream::connect(path).map_err(|error| explained(path, error))?)
            }
        };
        connection.set_clock(Some(CLOCK))?;
        Ok(connection)
    }

    /// Sets how long a read or a write may wait; `None` is for ever.
    pub(super) fn set_clock(&self, clock: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(clock).and_then(|()| stream.set_write_timeout(clock))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(clock).and_then(|()| stream.set_write_timeout(clock))
            }
        }
    }

    /// A second handle on the same connection.
    pub(super) fn twin(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Tells the peer that nothing more will be sent.
    pub(super) fn finish_sending(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds who may use a socket to the error of one who may not.
fn explained(path: &Path, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let own = rustix::process::geteuid().as_raw();
    let file = match rustix::fs::stat(path) {
        Ok(stat) => {
            format!("mode {:04o}, owner uid {} gid {}", stat.st_mode & 0o7777, stat.st_uid, stat.st_gid)
        }
        Err(_) => "a folder above it is closed".to_owned(),
    };
    io::Error::new(error.kind(), format!("{error} for uid {own} ({file})"))
}

/// Tries every address of the host in turn.
#[expect(clippy::disallowed_methods, reason = "a client's own connection, in a process without a gateway")]
fn dial(to: &Destination) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = match (to.host.address(), to.host.name()) {
        (Some(address), _) => vec![SocketAddr::new(address, to.port.get())],
        (None, name) => (name.map_or("", |name| name.as_str()), to.port.get()).to_socket_addrs()?.collect(),
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CLOCK) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// GETs a page: its status and body.
pub(super) fn get(server: &Server, path: &str, accept: &str) -> io::Result<(u16, String)> {
    let mut connection = Connection::open(server)?;
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    connection.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    connection.take(PAGE_LIMIT).read_to_end(&mut answer)?;
    page(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP response"))
}

/// The status and the body of an answer.
pub(super) fn page(answer: &[u8]) -> Option<(u16, String)> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body.to_owned()))
}
