//! `[dns]`: who is asked for names, and what sandboxes are told.

use std::net::IpAddr;

use dns::config::{ResolverConfig, Upstream};
use policy::Hostname;
use policy::file::{Config, Item, Table, quoted};

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["upstreams", "bootstrap", "answers", "zones"];

/// Reads the table. Without it the host's own name servers are asked.
pub(super) fn read(config: &mut Config<'_>) -> ResolverConfig {
    let mut held = ResolverConfig { upstreams: vec![Upstream::System], ..ResolverConfig::default() };
    let Some(mut table) = config.table("dns") else { return held };
    let bootstrap = bootstrap(&mut table);
    if let Some(item) = table.take("upstreams") {
        held.upstreams = upstreams(&item, &bootstrap);
    }
    if let Some(item) = table.take("answers")
        && item.one_of(&[("real", false), ("bound", true)]) == Some(true)
    {
        item.not_built_yet("bound addresses", "write \"real\"");
    }
    if let Some(zones) = table.take("zones").and_then(|item| item.table()) {
        held.zones =
            zones.into_entries().iter().filter_map(|(name, item)| zone(name, item, &bootstrap)).collect();
    }
    table.finish();
    held
}

fn bootstrap(table: &mut Table<'_>) -> Vec<IpAddr> {
    let listed = table.take("bootstrap").and_then(|item| item.strings()).unwrap_or_default();
    let read = listed.into_iter().filter_map(|(text, item)| {
        let found = text.parse().ok();
        if found.is_none() {
            item.mistake(format!("{} is no address", quoted(text)), "write \"192.0.2.53\", without a port");
        }
        found
    });
    read.collect()
}

fn upstreams(item: &Item<'_>, bootstrap: &[IpAddr]) -> Vec<Upstream> {
    let Some(listed) = item.strings() else { return Vec::new() };
    if listed.is_empty() {
        item.mistake("the list is empty, so no name could be resolved", "write [\"system\"]");
    }
    let read = listed.into_iter().filter_map(|(text, item)| match Upstream::parse(text, bootstrap) {
        Ok(Upstream::Https { .. }) if bootstrap.is_empty() => {
            item.mistake(
                "an https upstream needs the addresses of its name: nobody could be asked for them",
                "write bootstrap = [\"192.0.2.53\"] beside it",
            );
            None
        }
        Ok(upstream) => Some(upstream),
        Err(why) => {
            item.mistake(format!("{} is no upstream", quoted(text)), why.to_string());
            None
        }
    });
    read.collect()
}

fn zone(name: &str, item: &Item<'_>, bootstrap: &[IpAddr]) -> Option<(Hostname, Vec<Upstream>)> {
    let upstreams = upstreams(item, bootstrap);
    match Hostname::parse(name) {
        Ok(name) => Some((name, upstreams)),
        Err(why) => {
            item.mistake(format!("{} is no domain: {why}", quoted(name)), "write \"corp.example\"");
            None
        }
    }
}
