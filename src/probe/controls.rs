//! Servers outside a sandbox that are shown to work there, so that a failure to reach them from inside proves something.

use std::fmt;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{self as unix_net, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::fs::{Mode, mkdir};

use super::socket::{self, Stream};
use super::unix::says;
use crate::netns::NamespaceId;

/// Running controls. They end with this value.
#[derive(Debug)]
pub struct Controls {
    known: Known,
    folder: PathBuf,
    contacts: Arc<AtomicU32>,
    ends: Vec<End>,
}

#[derive(Debug)]
enum End {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// What a probe must know of controls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// On the loopback of the host.
    pub tcp: SocketAddr,
    /// The name of an abstract unix socket.
    pub abstract_name: String,
    /// The path of a unix socket that everybody may use.
    pub path: PathBuf,
    /// What each of them says.
    pub nonce: String,
    /// The network namespace that they are in (`SO_NETNS_COOKIE`).
    pub namespace: Option<String>,
}

impl Controls {
    /// Starts controls where the calling thread is, and makes sure that each can be reached there.
    ///
    /// # Errors
    /// Where one cannot be started, or does not answer.
    pub fn start() -> io::Result<Self> {
        let controls = Self::bind()?;
        controls.serve()?;
        Ok(controls)
    }

    /// Opens the sockets of controls, without a thread: a process that is to be copied has none.
    ///
    /// # Errors
    /// Where one cannot be opened.
    pub fn bind() -> io::Result<Self> {
        let random = RandomState::new();
        let nonce = format!("{:016x}{:016x}", random.hash_one(1), random.hash_one(2));
        let folder = Path::new("/tmp").join(format!("tidegate-probe-{nonce}"));
        mkdir(&folder, Mode::from_bits_truncate(0o755))?;
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let abstract_name = format!("tidegate-probe-{nonce}");
        let hidden = UnixListener::bind_addr(&unix_net::SocketAddr::from_abstract_name(&abstract_name)?)?;
        let path = folder.join("control.sock");
        let shown = UnixListener::bind(&path)?;
        rustix::fs::chmod(&path, Mode::from_bits_truncate(0o666))?;
        let known = Known {
            tcp: tcp.local_addr()?,
            abstract_name,
            path,
            nonce,
            namespace: NamespaceId::own().ok().map(|id| id.to_string()),
        };
        let contacts = Arc::new(AtomicU32::new(0));
        let ends = vec![End::Tcp(tcp), End::Unix(hidden), End::Unix(shown)];
        Ok(Self { known, folder, contacts, ends })
    }

    /// Answers from now on, once it is sure that each of them can be reached here.
    ///
    /// # Errors
    /// Where one does not answer.
    pub fn serve(&self) -> io::Result<()> {
        for end in &self.ends {
            end.serve(self.known.nonce.clone(), Arc::clone(&self.contacts))?;
        }
        self.check()
    }

    /// What a probe must know of them.
    #[must_use]
    pub const fn known(&self) -> &Known {
        &self.known
    }

    /// How often one of them was reached, since they were shown to work.
    #[must_use]
    pub fn contacts(&self) -> u32 {
        self.contacts.load(Ordering::Relaxed)
    }

    fn check(&self) -> io::Result<()> {
        let Known { tcp, abstract_name, path, nonce, .. } = &self.known;
        let silent = || io::Error::other("a control of the probe does not answer outside");
        let Stream::Open(mut stream) = socket::stream(*tcp) else { return Err(silent()) };
        let over_tcp = socket::exchange(&mut stream, b"")? == nonce.as_bytes();
        let hidden = UnixStream::connect_addr(&unix_net::SocketAddr::from_abstract_name(abstract_name)?)?;
        let works = over_tcp && says(hidden, nonce)? && says(UnixStream::connect(path)?, nonce)?;
        self.contacts.store(0, Ordering::Relaxed);
        if works { Ok(()) } else { Err(silent()) }
    }
}

impl End {
    fn serve(&self, nonce: String, contacts: Arc<AtomicU32>) -> io::Result<()> {
        let mut accept: Box<dyn FnMut() -> io::Result<Box<dyn io::Write>> + Send> = match self {
            Self::Tcp(listener) => {
                let listener = listener.try_clone()?;
                Box::new(move || Ok(Box::new(listener.accept()?.0)))
            }
            Self::Unix(listener) => {
                let listener = listener.try_clone()?;
                Box::new(move || Ok(Box::new(listener.accept()?.0)))
            }
        };
        thread::spawn(move || {
            while let Ok(mut client) = accept() {
                contacts.fetch_add(1, Ordering::Relaxed);
                // Who goes away again has reached it all the same.
                let _ = client.write_all(nonce.as_bytes());
            }
        });
        Ok(())
    }
}

impl Drop for Controls {
    fn drop(&mut self) {
        for end in &self.ends {
            // Ends the wait of its thread for the next client.
            let _ = match end {
                End::Tcp(listener) => socket2::SockRef::from(listener).shutdown(std::net::Shutdown::Both),
                End::Unix(listener) => socket2::SockRef::from(listener).shutdown(std::net::Shutdown::Both),
            };
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// One word, as `--controls` takes it.
impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace.as_deref().unwrap_or("-");
        write!(f, "{},{},{},{},{namespace}", self.tcp, self.abstract_name, self.path.display(), self.nonce)
    }
}

impl std::str::FromStr for Known {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "controls are written ADDRESS:PORT,NAME,PATH,NONCE,NAMESPACE";
        let mut parts = text.split(',');
        let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or(WRONG);
        let (tcp, name, path, nonce, namespace) = (next()?, next()?, next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(WRONG);
        }
        Ok(Self {
            tcp: tcp.parse().map_err(|_| WRONG)?,
            abstract_name: name.to_owned(),
            path: path.into(),
            nonce: nonce.to_owned(),
            namespace: Some(namespace.to_owned()).filter(|namespace| namespace != "-"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_work_outside_and_can_be_told_of() {
        let controls = Controls::start().expect("controls");
        assert_eq!(controls.contacts(), 0);
        let known: Known = controls.known().to_string().parse().expect("what was written");
        assert_eq!(&known, controls.known());
        assert!(says(UnixStream::connect(&known.path).expect("a client"), &known.nonce).expect("an answer"));
        assert_eq!(controls.contacts(), 1);
        assert_eq!(
            "127.0.0.1:1,a,b,c".parse::<Known>(),
            Err("controls are written ADDRESS:PORT,NAME,PATH,NONCE,NAMESPACE")
        );
        let folder = controls.folder.clone();
        drop(controls);
        assert!(!folder.exists());
    }
}
