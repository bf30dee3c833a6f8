//! `identify`: how a sandbox is known, and that no two are known by the same thing.

use std::collections::HashMap;
use std::sync::Arc;

use ipnet::IpNet;

use super::addresses::net;
use super::mistake::quoted;
use super::overlaps::Overlaps;
use super::reader::{Item, Spot, Table};
use super::unix;
use crate::hostname::Hostname;
use crate::identity::{Evidence, Keys, TokenHash, check_spiffe};
use crate::sandbox::{ListenerName, SandboxId};
use crate::socket::Socket;

/// One entry of one sandbox, with its place.
pub(super) struct Known<'a> {
    pub(super) sandbox: SandboxId,
    pub(super) evidence: Evidence,
    /// The unix socket that the entry names, and whether it says anything of its file.
    pub(super) socket: Option<(Socket, bool)>,
    pub(super) spot: Spot<'a>,
}

/// Reads the entries of one sandbox.
pub(super) fn read<'a>(item: &Item<'a>, sandbox: &SandboxId) -> Vec<Known<'a>> {
    let Some(entries) = item.list() else { return Vec::new() };
    let known = |item: Item<'a>| {
        let (evidence, socket) = entry(&item)?;
        Some(Known { sandbox: sandbox.clone(), evidence, socket, spot: item.spot().clone() })
    };
    entries.filter_map(known).collect()
}

fn entry(item: &Item<'_>) -> Option<(Evidence, Option<(Socket, bool)>)> {
    let mut table = item.table()?;
    let mut written = table.len();
    let default = table.take("default");
    let is_default = default.as_ref().map(|item| item.boolean());
    let unix = unix::read(&mut table);
    let mut keys = Keys {
        token: table.take("token_sha256").and_then(|item| token(&item)),
        spiffe: table.take("spiffe").and_then(|item| spiffe(&item)),
        dns: table.take("dns").and_then(|item| dns(&item)),
        cn: table.take("cn").and_then(|item| cn(&item)),
        listener: table.take("listener").and_then(|item| Some(item.string()?.into())),
        source: table.take("source").and_then(|item| network(item.string()?, &item)),
        uid: table.take("uid").and_then(|item| id(&item)),
        gid: table.take("gid").and_then(|item| id(&item)),
    };
    let later = later(&mut table);
    table.finish();
    written -= unix.settings;
    let fits = unix.fits(&keys, item);
    let socket = unix.socket;
    keys.listener = socket.as_ref().map(|(socket, _)| socket.name()).or(keys.listener);
    match is_default {
        None if written == 0 => {
            item.mistake("the entry is empty, so it knows nobody", "write { source = \"10.88.0.7/32\" }");
            None
        }
        // A key that was refused must not widen the entry that it stood in.
        None => (!later && fits && written == keys.written()).then_some((Evidence::All(keys), socket)),
        Some(Some(false)) => {
            item.mistake("`default = false` knows nobody", "remove the entry");
            None
        }
        Some(Some(true)) if written > 1 => {
            let hint = "remove `default`: the other keys know the sandbox, and all of them must hold";
            item.mistake("`default` is whoever shows nothing, so it stands alone", hint);
            None
        }
        Some(Some(true)) => Some((Evidence::Default, None)),
        Some(None) => None,
    }
}

fn later(table: &mut Table<'_>) -> bool {
    let Some(item) = table.take("netns") else { return false };
    item.not_built_yet("sandboxes known by `netns`", "hand the namespace over: see `owners` of the sandbox");
    true
}

fn spiffe(item: &Item<'_>) -> Option<Arc<str>> {
    let text = item.string()?;
    if let Err(why) = check_spiffe(text) {
        item.mistake(format!("{}: {why}", quoted(text)), "write \"spiffe://example.org/agent-7\", whole");
        return None;
    }
    Some(text.into())
}

fn dns(item: &Item<'_>) -> Option<Hostname> {
    let text = item.string()?;
    let name = Hostname::parse(text);
    if let Err(why) = &name {
        item.mistake(
            format!("{}: {why}", quoted(text)),
            "write the whole name, as in \"agent-7.example.com\"",
        );
    }
    name.ok()
}

/// The longest common name (RFC 5280 appendix A.1, ub-common-name).
const CN_LIMIT: usize = 64;

fn cn(item: &Item<'_>) -> Option<Arc<str>> {
    let text = item.string()?;
    if text.is_empty() || text.chars().count() > CN_LIMIT || text.chars().any(char::is_control) {
        let what = format!("a common name has 1 to {CN_LIMIT} characters, none of them a control character");
        item.mistake(what, "write it as it stands in the certificate's subject");
        return None;
    }
    Some(text.into())
}

fn id(item: &Item<'_>) -> Option<u32> {
    // The last one means "no change" to chown(2).
    u32::try_from(item.number(0..=u64::from(u32::MAX - 1))?).ok()
}

fn token(item: &Item<'_>) -> Option<TokenHash> {
    let hint = "write the 64 digits that `printf %s \"$TOKEN\" | sha256sum` prints";
    let hash = TokenHash::parse(item.string()?);
    match hash {
        None => item.mistake("this is no SHA-256 in hexadecimal", hint),
        Some(hash) if hash.is_of_nothing() => {
            item.mistake("this is the SHA-256 of an empty token", hint);
            return None;
        }
        Some(_) => {}
    }
    hash
}

fn network(text: &str, item: &Item<'_>) -> Option<IpNet> {
    let net = net(text, item)?;
    if net.prefix_len() == 0 {
        item.mistake(
            "every client has such an address",
            "write { default = true } if there is one sandbox only",
        );
        return None;
    }
    Some(net)
}

/// Reports evidence that stands for two sandboxes.
pub(super) fn check_overlaps(known: &[Known<'_>]) {
    for (this, other) in Overlaps::of(known).pairs() {
        let (Some(this), Some(other)) = (known.get(this), known.get(other)) else { continue };
        let place = other.spot.place();
        let what = format!(
            "the same clients are known as sandbox {} ({}:{})",
            quoted(other.sandbox.as_str()),
            place.file,
            place.line
        );
        this.spot.mistake(what, "each client belongs to one sandbox");
    }
    let default = known.iter().find(|entry| entry.evidence == Evidence::Default);
    let Some(default) = default else { return };
    let shows = |entry: &&Known<'_>| match &entry.evidence {
        Evidence::All(keys) => keys.listener.is_none() || keys.asks(),
        Evidence::Default => false,
    };
    let mut others = known.iter().filter(|entry| entry.sandbox != default.sandbox);
    if let Some(other) = others.find(shows) {
        let what = format!(
            "`default` beside sandbox {}, which is known by what its clients show: a stranger would pass for this one",
            quoted(other.sandbox.as_str())
        );
        default.spot.mistake(what, "know each sandbox by its token, certificate, source or listener");
    }
}

/// The unix sockets that sandboxes are known by, each once; entries that describe the file of one otherwise are reported.
pub(super) fn sockets<'a>(known: &[Known<'a>]) -> Vec<(Socket, Spot<'a>)> {
    let mut described: HashMap<&str, &Socket> = HashMap::new();
    let mut found: Vec<(Socket, Spot<'a>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for entry in known {
        let Some((socket, describes)) = &entry.socket else { continue };
        let place = *places.entry(&socket.path).or_insert(found.len());
        if place == found.len() {
            found.push((socket.clone(), entry.spot.clone()));
        }
        if !describes {
            continue;
        }
        let first = *described.entry(&socket.path).or_insert(socket);
        if first != socket {
            let what = format!("the file of {} is described otherwise above", socket.path.escape_debug());
            entry.spot.mistake(what, "write `mode` and `owner` of a socket once");
        } else if let Some((held, _)) = found.get_mut(place) {
            held.clone_from(socket);
        }
    }
    found
}

/// The entries that ask for a certificate: the listener that each of them names, and its place.
pub(super) fn certificates<'a>(known: &[Known<'a>]) -> Vec<(Option<ListenerName>, Spot<'a>)> {
    let asking = known.iter().filter_map(|entry| match &entry.evidence {
        Evidence::All(keys) if keys.asks_for_certificate() => {
            Some((keys.listener.clone(), entry.spot.clone()))
        }
        Evidence::All(_) | Evidence::Default => None,
    });
    asking.collect()
}

/// The listeners that sandboxes are known by, unix sockets of their own aside.
pub(super) fn listeners(known: Vec<Known<'_>>) -> Vec<(ListenerName, Spot<'_>)> {
    let listeners = known.into_iter().filter_map(|entry| match entry.evidence {
        Evidence::All(keys) if entry.socket.is_none() => Some((keys.listener?, entry.spot)),
        Evidence::All(_) => None,
        Evidence::Default => None,
    });
    listeners.collect()
}
