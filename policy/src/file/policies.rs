//! `[policy.X]`.

use std::collections::HashMap;
use std::sync::Arc;

use super::ReadList;
use super::mistake::{Report, quoted};
use super::reader::{Config, Item, Table};
use super::rules::{Context, NAME_HINT, entry, is_name, long_form};
use super::sandboxes::names;
use crate::list::List;
use crate::rule::{Action, Rule, RuleName};
use crate::source::{Place, PolicySource, RegistrySource};

pub(super) fn read(
    config: &mut Config<'_>,
    context: &Context<'_>,
    registries: &[RegistrySource],
    lists: &mut ReadList<'_>,
) -> Vec<PolicySource> {
    let mut lists = Lists { read: lists, report: config.report() };
    let registries = Existing {
        names: registries.iter().map(|table| Arc::clone(&table.name)).collect(),
        whole: config.is_whole(),
    };
    let tables = config.group("policy").into_iter();
    tables.map(|(name, table)| policy(name, table, context, &registries, &mut lists)).collect()
}

/// The registries that a policy may name.
struct Existing {
    names: Vec<Arc<str>>,
    /// Whether every table of the config was found: only then does a name not exist.
    whole: bool,
}

/// Where deny lists come from, and where the mistakes in them go.
struct Lists<'l> {
    read: &'l mut ReadList<'l>,
    report: &'l Report,
}

impl Lists<'_> {
    fn list(&mut self, text: &str, item: &Item<'_>) -> Option<(Arc<List>, Place)> {
        let Some(path) = text.strip_prefix("file:").filter(|path| path.starts_with('/')) else {
            let what = format!("{} is no list", quoted(text));
            item.mistake(what, "write \"file:/etc/tidegate/blocklist.txt\", with an absolute path");
            return None;
        };
        match (self.read)(path) {
            Ok(list) => Some((list, item.spot().place())),
            Err(mistakes) => {
                mistakes.into_iter().for_each(|mistake| self.report.add(mistake));
                None
            }
        }
    }
}

fn policy(
    name: &str,
    mut table: Table<'_>,
    context: &Context<'_>,
    existing: &Existing,
    lists: &mut Lists<'_>,
) -> PolicySource {
    if !is_name(name) {
        table.spot().mistake(format!("{} is no name for a policy", quoted(name)), NAME_HINT);
    }
    let mut rules = Vec::new();
    for (key, action) in [("allow", Action::Allow), ("deny", Action::Deny), ("ask", Action::Ask)] {
        let Some(entries) = table.take(key).and_then(|item| item.list()) else { continue };
        rules.extend(entries.zip(0..).filter_map(|(each, at)| entry(name, &each, action, at, context)));
    }
    let registries = names(&mut table, ("registries", "registry"), &existing.names, existing.whole);
    let named = table.take("lists").and_then(|item| item.strings()).unwrap_or_default();
    let lists = named.iter().filter_map(|(text, item)| lists.list(text, item)).collect();
    if let Some(long) = table.take("rule").and_then(|item| item.list()) {
        rules.extend(long.zip(0..).filter_map(|(item, at)| long_form(item.table()?, at, context)));
    }
    twice(&rules, table.spot());
    let place = table.spot().place();
    table.finish();
    PolicySource { name: name.into(), place, rules, lists, registries }
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
