//! `identify`: how a sandbox is known, and that no two are known by the same thing.

use ipnet::IpNet;

use super::addresses::net;
use super::mistake::quoted;
use super::reader::{Item, Spot};
use crate::sandbox::{Evidence, ListenerName, SandboxId};

/// One entry of one sandbox, with its place.
pub(super) struct Known<'a> {
    pub(super) sandbox: SandboxId,
    pub(super) evidence: Evidence,
    pub(super) spot: Spot<'a>,
}

/// Reads the entries of one sandbox.
pub(super) fn read<'a>(item: &Item<'a>) -> Vec<(Evidence, Spot<'a>)> {
    let Some(entries) = item.list() else { return Vec::new() };
    entries.filter_map(|item| entry(&item).map(|evidence| (evidence, item.spot().clone()))).collect()
}

fn entry(item: &Item<'_>) -> Option<Evidence> {
    let mut table = item.table()?;
    let mut found = Vec::new();
    if let Some(source) = table.take("source") {
        found.extend(source.string().and_then(|text| network(text, &source)).map(Evidence::Source));
    }
    if let Some(listener) = table.take("listener") {
        found.extend(listener.string().map(|text| Evidence::Listener(text.into())));
    }
    if let Some(default) = table.take("default") {
        match default.boolean() {
            Some(true) => found.push(Evidence::Default),
            Some(false) => default.mistake("`default = false` knows nobody", "remove the entry"),
            None => {}
        }
    }
    let mut later = false;
    for key in LATER {
        if let Some(item) = table.take(key) {
            let what = format!("sandboxes known by `{key}`");
            item.not_built_yet(&what, "know it by `source`, `listener` or `default`");
            later = true;
        }
    }
    let written = table.len();
    table.finish();
    match (found.pop(), found.is_empty()) {
        (Some(evidence), true) => Some(evidence),
        (Some(_), false) => {
            item.not_built_yet(
                "an entry whose keys must all hold",
                "keep one key an entry; entries are any-of",
            );
            None
        }
        (None, _) => {
            if !later && written == 0 {
                item.mistake("the entry is empty, so it knows nobody", "write { source = \"10.88.0.7/32\" }");
            }
            None
        }
    }
}

/// Tokens, unix sockets, and the names in a client certificate.
const LATER: [&str; 6] = ["token_sha256", "unix", "spiffe", "dns", "cn", "netns"];

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
    for (at, this) in known.iter().enumerate() {
        let before = known.iter().take(at);
        let mut others = before.filter(|other| other.sandbox != this.sandbox);
        if let Some(other) = others.find(|other| overlap(&this.evidence, &other.evidence)) {
            let place = other.spot.place();
            let what = format!(
                "the same clients are known as sandbox {} ({}:{})",
                quoted(other.sandbox.as_str()),
                place.file,
                place.line
            );
            this.spot.mistake(what, "each client belongs to one sandbox");
        }
    }
    let default = known.iter().find(|entry| entry.evidence == Evidence::Default);
    let Some(default) = default else { return };
    let by_source = |entry: &&Known<'_>| {
        matches!(entry.evidence, Evidence::Source(_)) && entry.sandbox != default.sandbox
    };
    if let Some(other) = known.iter().find(by_source) {
        let what = format!(
            "`default` beside sandbox {}, which is known by its source: a stranger would pass for this one",
            quoted(other.sandbox.as_str())
        );
        default.spot.mistake(what, "know each sandbox by its source or listener");
    }
}

fn overlap(a: &Evidence, b: &Evidence) -> bool {
    match (a, b) {
        (Evidence::Source(a), Evidence::Source(b)) => a.contains(b) || b.contains(a),
        _ => a == b,
    }
}

/// The listeners that sandboxes are known by.
pub(super) fn listeners(known: Vec<Known<'_>>) -> Vec<(ListenerName, Spot<'_>)> {
    let listeners = known.into_iter().filter_map(|entry| match entry.evidence {
        Evidence::Listener(name) => Some((name, entry.spot)),
        Evidence::Source(_) | Evidence::Default => None,
    });
    listeners.collect()
}
