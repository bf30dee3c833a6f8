//! Identity: whose client a peer is, by evidence that the sandbox cannot forge.
//!
//! ```text
//! place:      own namespace, listener, source address   (the client does not choose it)  ─┐
//! presented:  token                                      (wrong is refused, never skipped) ├─ all agree ─▶ sandbox
//! default:    the one sandbox, where there is nothing else                                ─┘
//! ```

mod change;
mod credentials;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

pub use self::credentials::{Credentials, TokenHash};
use crate::reason::Reason;
use crate::sandbox::{ListenerName, Peer, SandboxId};
use crate::shared::SharedMap;

/// One entry of `identify`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Everything that is written must hold.
    All(Keys),
    /// The one sandbox of a gateway that serves just one: whoever shows nothing else.
    Default,
}

/// What one entry of `identify` writes; never nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// The client presents this token.
    pub token: Option<TokenHash>,
    /// The client comes in on this listener, which is then reserved to the sandboxes that name it.
    pub listener: Option<ListenerName>,
    /// The client's address lies in this network.
    pub source: Option<IpNet>,
    /// The client of a unix socket runs as this user.
    pub uid: Option<u32>,
    /// The client of a unix socket runs in this group, as its first one.
    pub gid: Option<u32>,
}

impl Evidence {
    /// Everything that comes in on a listener.
    #[must_use]
    pub fn listener(name: impl Into<ListenerName>) -> Self {
        Self::All(Keys { listener: Some(name.into()), ..Keys::default() })
    }

    /// Everything that comes from a network.
    #[must_use]
    pub fn source(net: IpNet) -> Self {
        Self::All(Keys { source: Some(net), ..Keys::default() })
    }

    /// Everything that presents a token.
    #[must_use]
    pub fn token(hash: TokenHash) -> Self {
        Self::All(Keys { token: Some(hash), ..Keys::default() })
    }
}

impl Keys {
    /// How many keys are written.
    pub(crate) fn written(&self) -> usize {
        let Self { token, listener, source, uid, gid } = self;
        [token.is_some(), listener.is_some(), source.is_some(), uid.is_some(), gid.is_some()]
            .into_iter()
            .filter(|written| *written)
            .count()
    }

    fn holds(&self, peer: &Peer) -> bool {
        let address = || peer.address.map(|address| address.ip());
        self.listener.as_ref().is_none_or(|name| *name == peer.listener)
            && self.uid.is_none_or(|uid| peer.user.as_ref().is_some_and(|user| user.uid == uid))
            && self.gid.is_none_or(|gid| peer.user.as_ref().is_some_and(|user| user.gid == gid))
            && self.source.is_none_or(|net| address().is_some_and(|address| net.contains(&address)))
    }

    /// Whether some client could be known by both: they name something in common, and nothing that tells them apart.
    pub(crate) fn overlap(&self, other: &Self) -> bool {
        let nets = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
        let shared = [
            same(&self.token, &other.token, TokenHash::eq),
            same(&self.listener, &other.listener, ListenerName::eq),
            same(&self.source, &other.source, nets),
            same(&self.uid, &other.uid, u32::eq),
            same(&self.gid, &other.gid, u32::eq),
        ];
        shared.contains(&Some(true)) && !shared.contains(&Some(false))
    }
}

/// Whether two keys can hold at once; `None` where one of them is not written.
fn same<T>(a: &Option<T>, b: &Option<T>, meet: impl Fn(&T, &T) -> bool) -> Option<bool> {
    Some(meet(a.as_ref()?, b.as_ref()?))
}

/// Why a client is no known sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// Nothing names a sandbox, and credentials would not help.
    Unknown,
    /// It presents no credentials or wrong ones, and right ones would name a sandbox.
    Unauthenticated,
    /// Its evidence names different sandboxes.
    Mismatch,
}

impl Stranger {
    /// The reason that it is refused with.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Unknown | Self::Unauthenticated => Reason::UnknownSandbox,
            Self::Mismatch => Reason::IdentityMismatch,
        }
    }
}

/// The compiled `identify` entries of all sandboxes.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    tokens: SharedMap<TokenHash, Vec<(SandboxId, Keys)>>,
    listeners: SharedMap<ListenerName, Reserved>,
    /// Entries of a network alone, by the length of its prefix, so that a thousand sandboxes cost one look-up a length.
    sources: BTreeMap<u8, SharedMap<IpNet, SandboxId>>,
    default: Option<SandboxId>,
}

/// A listener that entries name.
#[derive(Clone, Debug, Default)]
struct Reserved {
    /// The entries that ask for nothing that a client presents.
    plain: Vec<(SandboxId, Keys)>,
    sandboxes: HashSet<SandboxId>,
    takes_tokens: bool,
}

/// What the place that a client comes from says.
enum Place<'a> {
    Known(&'a SandboxId),
    /// A listener of sandboxes that are told apart by more than the listener.
    Reserved(&'a Reserved),
    Open,
}

impl Identities {
    /// Collects the evidence of every sandbox. Overlaps were refused when the config was read.
    #[must_use]
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a SandboxId, &'a Evidence)>) -> Self {
        let mut all = Self::default();
        for (id, evidence) in entries {
            all.insert(id, evidence);
        }
        all
    }

    fn insert_keys(&mut self, id: &SandboxId, keys: &Keys) {
        let Keys { token, listener, source, .. } = keys;
        if let Some(name) = listener {
            let reserved = self.listeners.get_or_default(name.clone());
            reserved.sandboxes.insert(id.clone());
            reserved.takes_tokens |= token.is_some();
            if token.is_none() {
                reserved.plain.push((id.clone(), keys.clone()));
            }
        }
        match (token, listener, source) {
            (Some(hash), ..) => self.tokens.get_or_default(*hash).push((id.clone(), keys.clone())),
            (None, None, Some(net)) => {
                self.sources.entry(net.prefix_len()).or_default().insert(net.trunc(), id.clone());
            }
            (None, ..) => {}
        }
    }

    /// The sandbox behind a client.
    ///
    /// # Errors
    /// Where nothing names one, where what the client presents is wrong, and where two pieces of evidence disagree.
    pub fn identify<'a>(&'a self, peer: &'a Peer) -> Result<&'a SandboxId, Stranger> {
        // What is closed is nobody's.
        if peer.namespace.as_ref().is_some_and(|namespace| namespace.is_closed()) {
            return Err(Stranger::Unknown);
        }
        let place = self.place(peer);
        // Where nobody is known by a token, what clients send for another proxy or out of habit says nothing.
        let presented = peer.credentials.as_deref().filter(|_| !self.tokens.is_empty());
        match (presented, place) {
            (Some(credentials), place) => self.presented(credentials, peer, &place),
            (None, Place::Known(id)) => Ok(id),
            (None, Place::Reserved(reserved)) if reserved.takes_tokens => Err(Stranger::Unauthenticated),
            (None, Place::Reserved(_)) => Err(Stranger::Unknown),
            (None, Place::Open) => match &self.default {
                Some(id) => Ok(id),
                None if self.tokens.is_empty() => Err(Stranger::Unknown),
                None => Err(Stranger::Unauthenticated),
            },
        }
    }

    fn place<'a>(&'a self, peer: &'a Peer) -> Place<'a> {
        if let Some(namespace) = &peer.namespace {
            return Place::Known(namespace.sandbox());
        }
        if let Some(reserved) = self.listeners.get(&peer.listener) {
            let known = reserved.plain.iter().find(|(_, keys)| keys.holds(peer));
            return known.map_or(Place::Reserved(reserved), |(id, _)| Place::Known(id));
        }
        let by_source = peer.address.and_then(|address| self.by_source(address.ip()));
        by_source.map_or(Place::Open, Place::Known)
    }

    /// Judges a token, which must be right by itself and belong to whom the place names.
    fn presented<'a>(
        &'a self,
        credentials: &Credentials,
        peer: &Peer,
        place: &Place<'a>,
    ) -> Result<&'a SandboxId, Stranger> {
        let Credentials::Token { name, hash } = credentials else { return Err(Stranger::Unauthenticated) };
        let owners = self.tokens.get(hash).map(Vec::as_slice).unwrap_or_default();
        let named = |id: &SandboxId| name.as_deref().is_none_or(|name| name == id.as_str());
        let mut owners = owners.iter().filter(|(id, _)| named(id)).peekable();
        if owners.peek().is_none() {
            return Err(Stranger::Unauthenticated);
        }
        let fits = |id: &SandboxId| match place {
            Place::Known(known) => *known == id,
            Place::Reserved(reserved) => reserved.sandboxes.contains(id),
            Place::Open => true,
        };
        let mut fitting = owners.filter(|(id, _)| fits(id)).peekable();
        if fitting.peek().is_none() {
            return Err(Stranger::Mismatch);
        }
        let whole = fitting.find(|(_, keys)| keys.holds(peer));
        whole.map(|(id, _)| id).ok_or(Stranger::Unauthenticated)
    }

    /// Whether some sandbox is known by a token.
    #[must_use]
    pub fn take_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The networks by which sandboxes are known.
    pub fn sources(&self) -> impl Iterator<Item = IpNet> {
        let alone = self.sources.values().flat_map(SharedMap::keys).copied();
        let with_token = self.tokens.values().flatten().filter_map(|(_, keys)| keys.source);
        let with_listener = self.listeners.values().flat_map(|reserved| &reserved.plain);
        alone.chain(with_token).chain(with_listener.filter_map(|(_, keys)| keys.source))
    }

    fn by_source(&self, address: IpAddr) -> Option<&SandboxId> {
        self.sources.iter().rev().find_map(|(len, nets)| nets.get(&IpNet::new(address, *len).ok()?.trunc()))
    }
}

#[cfg(test)]
mod tests;
