//! Sandboxes: whose traffic it is, and how the gateway knows.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::destination::Host;
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

/// What the gateway sees of a client, before anything that the client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The listener that accepted it.
    pub listener: ListenerName,
    /// The client's address; `None` on a unix socket. IPv4-mapped addresses are unmapped.
    pub address: Option<SocketAddr>,
    /// The network namespace in which the listener stands, if it is a sandbox's own: nobody else can reach it.
    pub namespace: Option<Arc<Namespace>>,
}

impl Peer {
    /// A client seen on `listener`, its address in canonical form.
    #[must_use]
    pub fn new(listener: ListenerName, address: Option<SocketAddr>) -> Self {
        // A dual-stack listener reports IPv4 clients as ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2).
        let address = address.map(|addr| SocketAddr::new(addr.ip().to_canonical(), addr.port()));
        Self { listener, address, namespace: None }
    }

    /// A client in a sandbox's own namespace. Its address says nothing: every address is local there, and a client may
    /// come from any.
    #[must_use]
    pub fn inside(namespace: Arc<Namespace>, address: Option<SocketAddr>) -> Self {
        let listener = Arc::clone(namespace.listener());
        Self { listener, address, namespace: Some(namespace) }
    }

    /// The name that a host stands for where this client is, if it is a bound address there.
    #[must_use]
    pub fn meant(&self, host: &Host) -> Option<Host> {
        let namespace = self.namespace.as_ref()?;
        namespace.name_of(host.address()?).map(Host::Name)
    }
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

/// One way of knowing a sandbox; the keys of one entry of `identify` must all hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Everything that arrives on this listener; nothing else identifies there.
    Listener(ListenerName),
    /// The client's address lies in this network.
    Source(IpNet),
    /// The one sandbox of a gateway that serves just one.
    Default,
}

/// The compiled `identify` entries of all sandboxes.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    listeners: HashMap<ListenerName, SandboxId>,
    /// Networks by the length of their prefix, so that a thousand sandboxes cost one look-up a length.
    sources: BTreeMap<u8, HashMap<IpNet, SandboxId>>,
    default: Option<SandboxId>,
}

impl Identities {
    /// Collects the evidence of every sandbox. Overlaps were refused when the config was read.
    #[must_use]
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a SandboxId, &'a Evidence)>) -> Self {
        let mut all = Self::default();
        for (id, evidence) in entries {
            match evidence {
                Evidence::Listener(name) => {
                    all.listeners.insert(name.clone(), id.clone());
                }
                Evidence::Source(net) => {
                    all.sources.entry(net.prefix_len()).or_default().insert(net.trunc(), id.clone());
                }
                Evidence::Default => all.default = Some(id.clone()),
            }
        }
        all
    }

    /// The sandbox behind a client, or `None` where nothing names one.
    #[must_use]
    pub fn identify<'a>(&'a self, peer: &'a Peer) -> Option<&'a SandboxId> {
        if let Some(namespace) = &peer.namespace {
            return Some(namespace.sandbox()).filter(|_| !namespace.is_closed());
        }
        let by_listener = self.listeners.get(&peer.listener);
        let by_source = || peer.address.and_then(|address| self.by_source(address.ip()));
        by_listener.or_else(by_source).or(self.default.as_ref())
    }

    /// The networks by which sandboxes are known.
    pub fn sources(&self) -> impl Iterator<Item = IpNet> {
        self.sources.values().flat_map(HashMap::keys).copied()
    }

    fn by_source(&self, address: IpAddr) -> Option<&SandboxId> {
        self.sources.iter().rev().find_map(|(len, nets)| nets.get(&IpNet::new(address, *len).ok()?.trunc()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::Names;

    fn id(text: &str) -> SandboxId {
        SandboxId::parse(text).expect("a sandbox name")
    }

    #[test]
    fn names_with_other_characters_are_refused() {
        for text in ["", ".a", "-a", "a b", "a/b", "a\n", "ü", &"a".repeat(65)] {
            assert_eq!(SandboxId::parse(text), None, "{text:?}");
        }
        assert!(SandboxId::parse("agent-7.dev_x").is_some());
    }

    #[test]
    fn a_listener_decides_before_a_source_and_a_source_before_the_default() {
        let entries = [
            (id("by-listener"), Evidence::Listener("127.0.0.1:1".into())),
            (id("by-source"), Evidence::Source("10.1.0.0/16".parse().expect("net"))),
            (id("rest"), Evidence::Default),
        ];
        let all = Identities::new(entries.iter().map(|(id, evidence)| (id, evidence)));
        let peer = |listener: &str, address: &str| Peer::new(listener.into(), address.parse().ok());
        let who = |peer: &Peer| all.identify(peer).map(SandboxId::as_str).map(str::to_owned);
        assert_eq!(who(&peer("127.0.0.1:1", "10.1.2.3:9")).as_deref(), Some("by-listener"));
        assert_eq!(who(&peer("127.0.0.1:2", "10.1.2.3:9")).as_deref(), Some("by-source"));
        assert_eq!(who(&peer("127.0.0.1:2", "[::ffff:10.1.2.3]:9")).as_deref(), Some("by-source"));
        assert_eq!(who(&peer("127.0.0.1:2", "10.2.2.3:9")).as_deref(), Some("rest"));
    }

    #[test]
    fn without_a_default_a_stranger_is_nobody() {
        let entry = (id("a"), Evidence::Source("10.1.0.0/16".parse().expect("net")));
        let all = Identities::new([(&entry.0, &entry.1)]);
        assert_eq!(all.identify(&Peer::new("x".into(), "10.2.0.1:1".parse().ok())), None);
        assert_eq!(all.identify(&Peer::new("x".into(), None)), None);
    }

    #[test]
    fn a_client_inside_a_namespace_is_its_sandbox_whatever_its_address() {
        let (a, b) = (SandboxId::parse("a").unwrap(), SandboxId::parse("b").unwrap());
        let source = Evidence::Source("10.0.0.0/8".parse().unwrap());
        let all = Identities::new([(&b, &source), (&b, &Evidence::Default)]);
        let namespace = Arc::new(Namespace::new(a.clone(), Names::new(1)));
        let peer = Peer::inside(Arc::clone(&namespace), "10.0.0.7:1".parse().ok());
        assert_eq!(all.identify(&peer), Some(&a));
        namespace.close();
        assert_eq!(all.identify(&peer), None, "what is closed is nobody's");
    }
}
