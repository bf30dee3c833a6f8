//! Sandboxes: whose traffic it is, and what the gateway knows of their clients.

use std::borrow::Borrow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::destination::Host;
use crate::identity::{Certificate, Credentials, Presented};
use crate::namespace::Namespace;

/// The name of a sandbox: 1 to 64 characters of `a-z A-Z 0-9 . _ -`, starting with a letter or a digit.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(Arc<str>);

impl SandboxId {
    /// Parses a sandbox name; `None` where it is empty, too long or holds another character.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let holds_only = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        (starts_well && text.len() <= 64 && text.bytes().all(holds_only)).then(|| Self(text.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SandboxId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of one of the gateway's listeners, as the config writes it: `127.0.0.1:3128` or `unix:/run/…`.
pub type ListenerName = Arc<str>;

/// What the gateway knows of a client: where it comes from, and what it presents to be known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The listener that accepted it.
    pub listener: ListenerName,
    /// The client's address; `None` on a unix socket. IPv4-mapped addresses are unmapped.
    pub address: Option<SocketAddr>,
    /// The network namespace in which the listener stands, if it is a sandbox's own: nobody else can reach it.
    pub namespace: Option<Arc<Namespace>>,
    /// The user behind a unix socket, as the kernel tells it; shared, since every attempt keeps its peer.
    pub user: Option<Arc<User>>,
    /// What it presents; shared too.
    pub credentials: Option<Arc<Credentials>>,
    /// The certificate by which it opened its connection, where it speaks TLS to the gateway.
    pub certificate: Option<Arc<Certificate>>,
}

impl Peer {
    /// A client seen on `listener`, its address in canonical form.
    #[must_use]
    pub fn new(listener: ListenerName, address: Option<SocketAddr>) -> Self {
        // A dual-stack listener reports IPv4 clients as ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2).
        let address = address.map(|addr| SocketAddr::new(addr.ip().to_canonical(), addr.port()));
        Self { listener, address, namespace: None, user: None, credentials: None, certificate: None }
    }

    /// A client in a sandbox's own namespace. Its address says nothing: every address is local there, and a client may
    /// come from any.
    #[must_use]
    pub fn inside(namespace: Arc<Namespace>, address: Option<SocketAddr>) -> Self {
        let listener = Arc::clone(namespace.listener());
        Self { namespace: Some(namespace), address, ..Self::new(listener, None) }
    }

    /// The same client, known to run as a user.
    #[must_use]
    pub fn run_by(mut self, user: User) -> Self {
        self.user = Some(Arc::new(user));
        self
    }

    /// The same client as it presents credentials.
    #[must_use]
    pub fn presenting(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(Arc::new(credentials));
        self
    }

    /// The same client, which has proved to hold the key of a certificate.
    #[must_use]
    pub fn certified(mut self, certificate: Arc<Certificate>) -> Self {
        self.certificate = Some(certificate);
        self
    }

    /// Whether it presents this.
    pub(crate) fn presents(&self, wanted: &Presented) -> bool {
        match wanted {
            Presented::Token(wanted) => match self.credentials.as_deref() {
                Some(Credentials::Token { hash, .. }) => hash == wanted,
                Some(Credentials::Unreadable) | None => false,
            },
            Presented::Spiffe(_) | Presented::Dns(_) | Presented::Cn(_) => {
                self.certificate.as_ref().is_some_and(|certificate| certificate.names().contains(wanted))
            }
        }
    }

    /// The name that a host stands for where this client is, if it is a bound address there.
    #[must_use]
    pub fn meant(&self, host: &Host) -> Option<Host> {
        let namespace = self.namespace.as_ref()?;
        namespace.name_of(host.address()?).map(Host::Name)
    }
}

/// Who connected to a unix socket: the effective ids at that moment (SO_PEERCRED, unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user id, as this host's user namespace sees it.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

/// Where clients come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// One of the gateway's own listeners.
    Listener(ListenerName),
    /// A socket in a sandbox's own namespace.
    Namespace(Arc<Namespace>),
}

impl Entrance {
    /// A client that has come in here, from `address`.
    #[must_use]
    pub fn peer(&self, address: Option<SocketAddr>) -> Peer {
        match self {
            Self::Listener(name) => Peer::new(Arc::clone(name), address),
            Self::Namespace(namespace) => Peer::inside(Arc::clone(namespace), address),
        }
    }

    /// What policy and log call it.
    #[must_use]
    pub fn name(&self) -> &ListenerName {
        match self {
            Self::Listener(name) => name,
            Self::Namespace(namespace) => namespace.listener(),
        }
    }
}

impl From<ListenerName> for Entrance {
    fn from(name: ListenerName) -> Self {
        Self::Listener(name)
    }
}

impl From<Arc<Namespace>> for Entrance {
    fn from(namespace: Arc<Namespace>) -> Self {
        Self::Namespace(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::Names;

    #[test]
    fn names_with_other_characters_are_refused() {
        for text in ["", ".a", "-a", "a b", "a/b", "a\n", "ü", &"a".repeat(65)] {
            assert_eq!(SandboxId::parse(text), None, "{text:?}");
        }
        assert!(SandboxId::parse("agent-7.dev_x").is_some());
    }

    #[test]
    fn a_sandbox_is_found_by_its_name_and_a_place_has_one() {
        let id = SandboxId::parse("a").unwrap();
        let map = std::collections::HashMap::from([(id.clone(), 1)]);
        assert_eq!((map.get("a"), map.get("b")), (Some(&1), None));
        let (namespace, other) = (
            Arc::new(Namespace::new(id.clone(), Names::new(1))),
            Arc::new(Namespace::new(id, Names::new(1))),
        );
        assert!(
            namespace == Arc::clone(&namespace) && namespace != other,
            "one is not another of the same sandbox"
        );
        assert_eq!(**Entrance::from(ListenerName::from("127.0.0.1:53")).name(), *"127.0.0.1:53");
        assert_eq!(**Entrance::Namespace(namespace).name(), *"netns:a");
    }
}
