//! `[registry.X]`: the hosts of a package registry, as `tidegate registries discover` found them and a person pinned them.

use super::internal::addresses;
use super::mistake::quoted;
use super::reader::{Config, Item, Table};
use super::rules::{Context, NAME_HINT, default_ports, is_name, refuse};
use super::terms::{check_key_on_plain_http, ports, read_methods};
use crate::pattern::{Entry, HostPattern, PortSet};
use crate::rule::{Action, Internal, Rule, RuleName, Terms};
use crate::source::RegistrySource;

/// How long a note of where a table was read from may be.
const LONGEST_NOTE: usize = 256;

pub(super) fn read(config: &mut Config<'_>, context: &Context<'_>) -> Vec<RegistrySource> {
    let tables = config.group("registry").into_iter();
    tables.map(|(name, table)| registry(name, table, context)).collect()
}

/// A table with mistakes keeps its name, so that policies that use it are not told that it does not exist.
fn registry(name: &str, mut table: Table<'_>, context: &Context<'_>) -> RegistrySource {
    if !is_name(name) {
        table.spot().mistake(format!("{} is no name for a registry", quoted(name)), NAME_HINT);
    }
    let place = table.spot().place();
    let listed =
        table.require("hosts", "write hosts = [\"packages.example\"]").map(|item| hosts(&item, context));
    let listed = listed.unwrap_or_default();
    let written = table.take("ports").map(|item| ports(&item));
    let ports = written.unwrap_or_else(|| Some(default_ports(Action::Allow)));
    let mut sound = true;
    let methods = read_methods(&mut table, &mut sound);
    let addresses = table.take("addresses").map(|item| (addresses(&item, context), item));
    if let Some(item) = table.take("inspect").filter(|item| item.boolean() == Some(true)) {
        item.not_built_yet("inspection of TLS", "remove it: a registry is then host and port");
    }
    note(&mut table);
    let all = listed.iter().filter_map(|(entry, _)| entry.ports.as_ref()).chain(&ports);
    if let Some(all) = all.cloned().reduce(|all, ports| all.union(&ports)) {
        check_key_on_plain_http(&mut table, "methods", &all);
    }
    let shared = listed.len() > 1;
    let nets = match addresses {
        Some((nets, item)) => {
            if listed.iter().any(|(entry, _)| matches!(entry.host, HostPattern::Net(_))) {
                item.mistake(
                    "`addresses` is for names, and a host is an address already",
                    "remove one of them",
                );
            }
            sound &= nets.is_some();
            nets
        }
        None => None,
    };
    table.finish();
    let internal = nets.map(|addresses| Internal { addresses, host_port: None, shared });
    let terms = Terms { methods, internal, ..Terms::default() };
    let terms = (terms != Terms::default()).then(|| Box::new(terms));
    let rules = listed.into_iter().zip(0..).filter_map(|((entry, item), at)| {
        sound.then_some(())?;
        let ports = entry.ports.or_else(|| ports.clone())?;
        Some(rule(entry.host, ports, at, &item, terms.clone()))
    });
    RegistrySource { name: name.into(), place, rules: rules.collect() }
}

fn hosts<'a>(item: &Item<'a>, context: &Context<'_>) -> Vec<(Entry, Item<'a>)> {
    let Some(entries) = item.strings() else { return Vec::new() };
    if entries.is_empty() {
        item.mistake("`hosts` is empty, so the registry is nowhere", "list its hosts, or remove the table");
    }
    let read = entries.into_iter().filter_map(|(text, item)| {
        let entry = Entry::parse(text).inspect_err(|error| refuse(&item, error)).ok()?;
        if let Some(broad) = entry.needs_broad() {
            item.mistake(format!("{} {broad}", quoted(text)), "list the registry's own hosts");
            return None;
        }
        context.check_floor(&entry.host, &item).then_some((entry, item))
    });
    read.collect()
}

/// Where the table was read from: for people alone.
fn note(table: &mut Table<'_>) {
    let Some((item, text)) = table.take("from").and_then(|item| Some((item.clone(), item.string()?))) else {
        return;
    };
    if text.chars().count() > LONGEST_NOTE || text.chars().any(char::is_control) {
        item.mistake("the note is too long or has control characters", "256 characters at most, on one line");
    }
}

fn rule(host: HostPattern, ports: PortSet, at: u32, item: &Item<'_>, terms: Option<Box<Terms>>) -> Rule {
    let place = item.spot().place();
    let (line, column) = (place.line, place.column);
    Rule { host, ports, action: Action::Allow, name: RuleName::Host(at), line, column, terms }
}
