//! Identity: whose client a peer is, by evidence that the sandbox cannot forge.
//!
//! ```text
//! place:      own namespace, listener, source address   (the client does not choose it)  ─┐
//! presented:  token, certificate                         (wrong is refused, never skipped) ├─ all agree ─▶ sandbox
//! default:    the one sandbox, where there is nothing else                                ─┘
//! ```

mod certificate;
mod change;
mod credentials;
mod presented;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

pub use self::certificate::{BadSpiffe, Certificate, CertificateNames, check_spiffe};
pub use self::credentials::{Credentials, TokenHash};
use crate::hostname::Hostname;
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
    /// The client's certificate has this URI, which is the only one in it.
    pub spiffe: Option<Arc<str>>,
    /// The client's certificate has this DNS name among its alternative names.
    pub dns: Option<Hostname>,
    /// The client's certificate has this common name, which is the only one in it.
    pub cn: Option<Arc<str>>,
    /// The client comes in on this listener, which is then reserved to the sandboxes that name it.
    pub listener: Option<ListenerName>,
    /// The client's address lies in this network.
    pub source: Option<IpNet>,
    /// The client of a unix socket runs as this user.
    pub uid: Option<u32>,
    /// The client of a unix socket runs in this group, as its first one.
    pub gid: Option<u32>,
}

/// One thing that a client presents, or that an entry asks to be presented.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Presented {
    Token(TokenHash),
    Spiffe(Arc<str>),
    Dns(Hostname),
    Cn(Arc<str>),
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

/// As `explain` shows it.
impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::All(keys) = self else { return f.write_str("showing nothing else") };
        let Keys { token, spiffe, dns, cn, listener, source, uid, gid } = keys;
        let shown = |key: &str, value: &dyn fmt::Display| format!("{key} {value}");
        let all = [
            token.map(|_| "token".to_owned()),
            spiffe.as_ref().map(|name| format!("certificate {name}")),
            dns.as_ref().map(|name| format!("certificate for {name}")),
            cn.as_ref().map(|name| format!("certificate with the common name {name:?}")),
            listener.as_ref().map(|name| shown("listener", name)),
            source.as_ref().map(|net| shown("source", net)),
            uid.as_ref().map(|uid| shown("uid", uid)),
            gid.as_ref().map(|gid| shown("gid", gid)),
        ];
        f.write_str(&all.into_iter().flatten().collect::<Vec<_>>().join(" and "))
    }
}

impl Keys {
    /// How many keys are written.
    pub(crate) fn written(&self) -> usize {
        let Self { token: _, spiffe: _, dns: _, cn: _, listener, source, uid, gid } = self;
        let place = [listener.is_some(), source.is_some(), uid.is_some(), gid.is_some()];
        place.into_iter().filter(|written| *written).count() + self.presented().count()
    }

    /// What a client must present.
    pub(crate) fn presented(&self) -> impl Iterator<Item = Presented> {
        let Self { token, spiffe, dns, cn, .. } = self;
        let all = [
            token.map(Presented::Token),
            spiffe.clone().map(Presented::Spiffe),
            dns.clone().map(Presented::Dns),
            cn.clone().map(Presented::Cn),
        ];
        all.into_iter().flatten()
    }

    /// Whether a client must present anything.
    pub(crate) fn asks(&self) -> bool {
        self.token.is_some() || self.asks_for_certificate()
    }

    /// Whether a client must present a certificate.
    #[must_use]
    pub const fn asks_for_certificate(&self) -> bool {
        self.spiffe.is_some() || self.dns.is_some() || self.cn.is_some()
    }

    fn holds(&self, peer: &Peer) -> bool {
        let address = || peer.address.map(|address| address.ip());
        self.listener.as_ref().is_none_or(|name| *name == peer.listener)
            && self.uid.is_none_or(|uid| peer.user.as_ref().is_some_and(|user| user.uid == uid))
            && self.gid.is_none_or(|gid| peer.user.as_ref().is_some_and(|user| user.gid == gid))
            && self.source.is_none_or(|net| address().is_some_and(|address| net.contains(&address)))
            && self.presented().all(|wanted| peer.presents(&wanted))
    }

    /// Whether some client could be known by both: they name something in common, and nothing that tells them apart.
    /// Where both ask for something to be presented that is what they must have in common: clients of one listener may be
    /// told apart by what they present.
    pub(crate) fn overlap(&self, other: &Self) -> bool {
        let nets = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
        let presented = [
            same(&self.token, &other.token, TokenHash::eq),
            same(&self.spiffe, &other.spiffe, Arc::eq),
            same(&self.dns, &other.dns, Hostname::eq),
            same(&self.cn, &other.cn, Arc::eq),
        ];
        let place = [
            same(&self.listener, &other.listener, ListenerName::eq),
            same(&self.source, &other.source, nets),
            same(&self.uid, &other.uid, u32::eq),
            same(&self.gid, &other.gid, u32::eq),
        ];
        let apart = presented.contains(&Some(false)) || place.contains(&Some(false));
        let both_ask = self.asks() && other.asks();
        !apart && (presented.contains(&Some(true)) || (!both_ask && place.contains(&Some(true))))
    }
}

/// Whether two keys can hold at once; `None` where one of them is not written.
fn same<T>(a: &Option<T>, b: &Option<T>, meet: impl Fn(&T, &T) -> bool) -> Option<bool> {
    Some(meet(a.as_ref()?, b.as_ref()?))
}

/// By what a client was known: the strongest of what it showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// The network namespace that its listener stands in.
    Namespace,
    /// The listener that it came in on.
    Listener,
    /// Its address.
    Source,
    /// A token.
    Token,
    /// Its certificate.
    Certificate,
    /// Nothing: there is only one sandbox.
    Default,
}

impl Means {
    /// Every one.
    pub const ALL: [Self; 6] =
        [Self::Namespace, Self::Listener, Self::Source, Self::Token, Self::Certificate, Self::Default];

    /// The public word for it, as audit lines carry it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Listener => "listener",
            Self::Source => "source",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::Default => "default",
        }
    }
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
    /// Every entry that asks for something to be presented, under each such thing.
    presented: SharedMap<Presented, Vec<(SandboxId, Keys)>>,
    /// How many entries ask for a token, and for a certificate.
    with_token: usize,
    with_certificate: usize,
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
    Known(&'a SandboxId, Means),
    /// A listener of sandboxes that are told apart by more than the listener.
    Reserved(&'a Reserved),
    Open,
}

impl Place<'_> {
    /// Whether a client of a sandbox may be here.
    fn fits(&self, id: &SandboxId) -> bool {
        match self {
            Self::Known(known, _) => *known == id,
            Self::Reserved(reserved) => reserved.sandboxes.contains(id),
            Self::Open => true,
        }
    }
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

    /// The sandbox behind a client.
    ///
    /// # Errors
    /// Where nothing names one, where what the client presents is wrong, and where two pieces of evidence disagree.
    pub fn identify<'a>(&'a self, peer: &'a Peer) -> Result<&'a SandboxId, Stranger> {
        self.recognize(peer).map(|(id, _)| id)
    }

    /// The sandbox behind a client, and by what it is known.
    ///
    /// # Errors
    /// As [`Identities::identify`].
    pub fn recognize<'a>(&'a self, peer: &'a Peer) -> Result<(&'a SandboxId, Means), Stranger> {
        // What is closed is nobody's, nor is what is no longer trusted.
        if peer.namespace.as_ref().is_some_and(|namespace| namespace.is_closed())
            || peer.certificate.as_ref().is_some_and(|certificate| certificate.is_withdrawn())
        {
            return Err(Stranger::Unknown);
        }
        let place = self.place(peer);
        // Where nobody is known by a token, what clients send for another proxy or out of habit says nothing; where nobody
        // is known by a certificate, it only opens the listener.
        let token = peer.credentials.as_deref().filter(|_| self.with_token > 0);
        let certificate = peer.certificate.as_deref().filter(|_| self.with_certificate > 0);
        if token.is_some() || certificate.is_some() {
            return self.presented(token, certificate, peer, &place);
        }
        match place {
            Place::Known(id, means) => Ok((id, means)),
            Place::Reserved(reserved) if reserved.takes_tokens => Err(Stranger::Unauthenticated),
            Place::Reserved(_) => Err(Stranger::Unknown),
            Place::Open => match &self.default {
                Some(id) => Ok((id, Means::Default)),
                None if self.with_token == 0 => Err(Stranger::Unknown),
                None => Err(Stranger::Unauthenticated),
            },
        }
    }

    fn place<'a>(&'a self, peer: &'a Peer) -> Place<'a> {
        if let Some(namespace) = &peer.namespace {
            return Place::Known(namespace.sandbox(), Means::Namespace);
        }
        if let Some(reserved) = self.listeners.get(&peer.listener) {
            let known = reserved.plain.iter().find(|(_, keys)| keys.holds(peer));
            return known.map_or(Place::Reserved(reserved), |(id, _)| Place::Known(id, Means::Listener));
        }
        let by_source = peer.address.and_then(|address| self.by_source(address.ip()));
        by_source.map_or(Place::Open, |id| Place::Known(id, Means::Source))
    }

    /// Whether some sandbox is known by a token.
    #[must_use]
    pub const fn take_tokens(&self) -> bool {
        self.with_token > 0
    }

    /// The networks by which sandboxes are known.
    pub fn sources(&self) -> impl Iterator<Item = IpNet> {
        let alone = self.sources.values().flat_map(SharedMap::keys).copied();
        let presenting = self.presented.values().flatten().filter_map(|(_, keys)| keys.source);
        let with_listener = self.listeners.values().flat_map(|reserved| &reserved.plain);
        alone.chain(presenting).chain(with_listener.filter_map(|(_, keys)| keys.source))
    }

    fn by_source(&self, address: IpAddr) -> Option<&SandboxId> {
        self.sources.iter().rev().find_map(|(len, nets)| nets.get(&IpNet::new(address, *len).ok()?.trunc()))
    }
}

#[cfg(test)]
mod tests;
