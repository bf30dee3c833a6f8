//! `[policy.X]`.

use std::collections::HashMap;
use std::sync::Arc;

use super::mistake::quoted;
use super::reader::{Config, Item, Table};
use super::rules::{Context, NAME_HINT, entry, is_name, long_form};
use super::sandboxes::names;
use crate::rule::{Action, Rule, RuleName};
use crate::source::{PolicySource, RegistrySource};

pub(super) fn read(
    config: &mut Config<'_>,
    context: &Context<'_>,
    registries: &[RegistrySource],
) -> Vec<PolicySource> {
    let registries = Existing {
        names: registries.iter().map(|table| Arc::clone(&table.name)).collect(),
        whole: config.is_whole(),
    };
    let tables = config.group("policy").into_iter();
    tables.map(|(name, table)| policy(name, table, context, &registries)).collect()
}

/// The registries that a policy may name.
struct Existing {
    names: Vec<Arc<str>>,
    /// Whether every table of the config was found: only then does a name not exist.
    whole: bool,
}

fn policy(name: &str, mut table: Table<'_>, context: &Context<'_>, existing: &Existing) -> PolicySource {
    if !is_name(name) {
        table.spot().mistake(format!("{} is no name for a policy", quoted(name)), NAME_HINT);
    }
    let mut rules = Vec::new();
    for (key, action) in [("allow", Action::Allow), ("deny", Action::Deny)] {
        let Some(entries) = table.take(key).and_then(|item| item.list()) else { continue };
        rules.extend(entries.zip(0..).filter_map(|(each, at)| entry(name, &each, action, at, context)));
    }
    later(&mut table, "ask", "rules that ask a person", "list the hosts in `allow` or leave them denied");
    let registries = names(&mut table, ("registries", "registry"), &existing.names, existing.whole);
    later(&mut table, "lists", "deny lists", "list the hosts in `deny`");
    if let Some(long) = table.take("rule").and_then(|item| item.list()) {
        rules.extend(long.zip(0..).filter_map(|(item, at)| long_form(item.table()?, at, context)));
    }
    twice(&rules, table.spot());
    let place = table.spot().place();
    table.finish();
    PolicySource { name: name.into(), place, rules, registries }
}

/// An empty list asks for nothing, so it may stay.
fn later(table: &mut Table<'_>, key: &'static str, what: &str, hint: &str) {
    let Some(item) = table.take(key) else { return };
    if item.list().is_some_and(|mut list| list.next().is_some()) {
        Item::not_built_yet(&item, what, hint);
    }
}

fn twice(rules: &[Rule], spot: &super::reader::Spot<'_>) {
    let mut seen: HashMap<&str, u32> = HashMap::new();
    for rule in rules {
        if let RuleName::Id(id) = &rule.name
            && let Some(line) = seen.insert(id, rule.line)
        {
            let what = format!("two rules have the id {}, in lines {line} and {}", quoted(id), rule.line);
            spot.mistake(what, "ids name one rule in the audit; give one of them another");
        }
    }
}
