//! `[sandbox.X]`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::identify::{self, Known};
use super::limits;
use super::mistake::{did_you_mean, quoted};
use super::reader::{Config, Item, Spot, Table};
use super::rules::{NAME_HINT, is_name, refuse};
use super::time::timestamp;
use crate::destination::{Destination, Port};
use crate::identity::Evidence;
use crate::life::Life;
use crate::limits::Limits;
use crate::pattern::Entry;
use crate::policy::{Mode, Policy};
use crate::sandbox::{ListenerName, SandboxId};
use crate::socket::Socket;
use crate::source::{InternalSource, PolicySource, SandboxSource};
use crate::time::Timestamp;

/// The sandboxes, and the listeners and unix sockets by which they are known, with their places.
pub(super) struct Read<'a> {
    pub(super) sandboxes: Vec<SandboxSource>,
    pub(super) listeners: Vec<(ListenerName, Spot<'a>)>,
    pub(super) sockets: Vec<(Socket, Spot<'a>)>,
    pub(super) certificates: Vec<(Option<ListenerName>, Spot<'a>)>,
}

pub(super) fn read<'a>(
    config: &mut Config<'a>,
    now: Timestamp,
    policies: &[PolicySource],
    internals: &[InternalSource],
) -> Read<'a> {
    let policies: Vec<_> = policies.iter().map(|policy| Arc::clone(&policy.name)).collect();
    let internals: Vec<_> = internals.iter().map(|table| Arc::clone(&table.name)).collect();
    let mut known = Vec::new();
    let mut sandboxes = Vec::new();
    let whole = config.is_whole();
    for (name, table) in config.group("sandbox") {
        let existing = Existing { policies: &policies, internals: &internals, whole };
        sandboxes.extend(sandbox(name, table, now, &existing, &mut known));
    }
    identify::check_overlaps(&known);
    let (sockets, certificates) = (identify::sockets(&known), identify::certificates(&known));
    Read { sandboxes, listeners: identify::listeners(known), sockets, certificates }
}

/// The one sandbox of a config that has nothing else. It may name what a policy has; without one, anything.
pub(super) fn read_one(
    config: &mut Config<'_>,
    now: Timestamp,
    policy: Option<&Policy>,
) -> Option<SandboxSource> {
    let whole = config.is_whole();
    let mut known = Vec::new();
    let mut found = None;
    for (name, mut table) in config.group("sandbox") {
        let (policies, internals) = match policy {
            Some(policy) => policy.tables().names(),
            None => (as_written(&mut table, "policies"), as_written(&mut table, "internal")),
        };
        let existing = Existing { policies: &policies, internals: &internals, whole };
        found = sandbox(name, table, now, &existing, &mut known);
    }
    for entry in known.iter().filter(|entry| entry.evidence == Evidence::Default) {
        let hint = "know it by its token, source or listener";
        entry.spot.mistake("whoever shows nothing else is a sandbox of the config, or none", hint);
    }
    if let Some(found) = &mut found {
        found.sockets = identify::sockets(&known).into_iter().map(|(socket, _)| socket).collect();
    }
    found
}

/// The names in a list, whatever they stand for.
fn as_written(table: &mut Table<'_>, key: &'static str) -> Vec<Arc<str>> {
    let listed = table.take(key).and_then(|item| item.strings()).unwrap_or_default();
    listed.into_iter().map(|(name, _)| name.into()).collect()
}

/// What a sandbox may name.
struct Existing<'a> {
    policies: &'a [Arc<str>],
    internals: &'a [Arc<str>],
    /// Whether every table of the config was found: only then does a name not exist.
    whole: bool,
}

fn sandbox<'a>(
    name: &str,
    mut table: Table<'a>,
    now: Timestamp,
    existing: &Existing<'_>,
    known: &mut Vec<Known<'a>>,
) -> Option<SandboxSource> {
    let id = SandboxId::parse(name);
    if id.is_none() {
        table.spot().mistake(format!("{} is no name for a sandbox", quoted(name)), NAME_HINT);
    }
    let place = table.spot().place();
    let policies = names(&mut table, ("policies", "policy"), existing.policies, existing.whole);
    let internal = names(&mut table, ("internal", "internal"), existing.internals, existing.whole);
    let identify = table.take("identify");
    let labels = table.take("labels").and_then(|item| item.table()).map(labels).unwrap_or_default();
    let local_peers = table.take("local_peers").and_then(|item| item.strings()).unwrap_or_default();
    let local_peers = local_peers.iter().filter_map(local_peer).collect();
    let mode = mode(&mut table, now);
    let hints = table.take("hints").and_then(|item| item.boolean()).unwrap_or(false);
    let limits = table.take("limits").and_then(|item| item.table());
    let limits = limits.map_or_else(Limits::default, |table| limits::read(table, Limits::default()));
    let owners = table.take("owners").map(|item| owners(&item)).unwrap_or_default();
    table.finish();
    let id = id?;
    let life = Life::default();
    let entries = identify.map(|item| identify::read(&item, &id)).unwrap_or_default();
    let identify = entries.iter().map(|entry| entry.evidence.clone()).collect();
    known.extend(entries);
    Some(SandboxSource {
        id,
        place,
        policies,
        internal,
        identify,
        sockets: Vec::new(),
        labels,
        local_peers,
        mode,
        hints,
        limits,
        owners,
        life,
    })
}

/// Reads a list of names of tables that must exist: `key` holds it, `[group.NAME]` is each of them.
pub(super) fn names(
    table: &mut Table<'_>,
    (key, group): (&'static str, &str),
    existing: &[Arc<str>],
    whole: bool,
) -> Vec<Arc<str>> {
    let listed = table.take(key).and_then(|item| item.strings()).unwrap_or_default();
    let mut found: Vec<Arc<str>> = Vec::with_capacity(listed.len());
    for (name, item) in listed {
        if found.iter().any(|other| **other == *name) {
            item.mistake(format!("{} is listed twice", quoted(name)), "remove one of them");
        } else if let Some(existing) = existing.iter().find(|existing| ***existing == *name) {
            found.push(Arc::clone(existing));
        } else if whole {
            let hint = match did_you_mean(name, existing.iter().map(|existing| &**existing)) {
                Some(meant) => format!("did you mean {}?", quoted(meant)),
                None => format!("write a table [{group}.NAME] for it, or remove it"),
            };
            item.mistake(format!("there is no [{group}.{}]", name.escape_debug()), hint);
        }
    }
    found
}

/// The largest uid; the one above it stands for none (`setreuid(2)`).
const LARGEST_UID: u64 = u32::MAX as u64 - 1;

fn owners(item: &Item<'_>) -> Vec<u32> {
    let Some(entries) = item.list() else { return Vec::new() };
    let mut found: Vec<u32> = Vec::new();
    for entry in entries {
        let Some(uid) = entry.number(0..=LARGEST_UID).and_then(|uid| u32::try_from(uid).ok()) else {
            continue;
        };
        if found.contains(&uid) {
            entry.mistake(format!("{uid} is listed twice"), "remove one of them");
        } else {
            found.push(uid);
        }
    }
    found
}

fn labels(table: Table<'_>) -> BTreeMap<Arc<str>, Arc<str>> {
    let read = table.into_entries().into_iter().filter_map(|(key, item)| {
        let value = item.string()?;
        if !is_name(key) {
            item.mistake(format!("{} is no name for a label", quoted(key)), NAME_HINT);
            return None;
        }
        if value.chars().count() > 256 || value.chars().any(char::is_control) {
            item.mistake(
                "the label is too long or has control characters",
                "256 characters at most, on one line",
            );
            return None;
        }
        Some((key.into(), value.into()))
    });
    read.collect()
}

fn local_peer((text, item): &(&str, Item<'_>)) -> Option<Arc<str>> {
    if let Err(error) = Entry::parse(text) {
        refuse(item, &error);
        return None;
    }
    match Destination::from_authority_or(text.as_bytes(), Port::HTTP) {
        Ok(_) => Some((*text).into()),
        Err(bad) => {
            item.mistake(format!("{}: {bad}", quoted(text)), "write \"mcp-gateway:8080\" or \"mcp-gateway\"");
            None
        }
    }
}

/// A day, in nanoseconds: learning longer than that is no longer watched by anybody.
const LONGEST_LEARNING: u64 = 24 * 60 * 60 * 1_000_000_000;

fn mode(table: &mut Table<'_>, now: Timestamp) -> Mode {
    let learn = table.take("mode").and_then(|item| item.one_of(&[("enforce", false), ("learn", true)]));
    if learn != Some(true) {
        if let Some(item) = table.take("until") {
            item.mistake(
                "`until` ends learn mode, and this sandbox does not learn",
                "remove it, or write mode = \"learn\"",
            );
        }
        return Mode::Enforce;
    }
    let latest = Timestamp::from_secs(now.plus_nanos(LONGEST_LEARNING).millis() / 1000);
    let hint = format!("write until = {latest}, or a time before it: 24 hours at most");
    let Some((item, until)) =
        table.require("until", &hint).and_then(|item| Some((item.clone(), timestamp(&item)?)))
    else {
        return Mode::Enforce;
    };
    if until.since(now) > LONGEST_LEARNING {
        item.mistake(
            "learn mode ends at most 24 hours from now",
            format!("write until = {latest}, or a time before it"),
        );
        return Mode::Enforce;
    }
    Mode::Learn { until }
}
