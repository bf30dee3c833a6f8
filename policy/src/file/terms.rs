//! What a rule asks for beyond its host: ports, methods, paths, DNS types, times, limits.

use super::limits;
use super::mistake::quoted;
use super::reader::{Item, Table};
use super::rules::refuse;
use super::time::timestamp;
use crate::attempt::QType;
use crate::destination::Port;
use crate::limits::Limits;
use crate::path::PathPattern;
use crate::pattern::PortSet;
use crate::rule::{Action, Ech, Terms};

/// Methods and paths are read on plain HTTP only; on TLS they need inspection.
pub(super) fn check_plain_http(table: &mut Table<'_>, ports: &PortSet) {
    for key in ["methods", "paths"] {
        check_key_on_plain_http(table, key, ports);
    }
}

/// The same for one of the two.
pub(super) fn check_key_on_plain_http(table: &mut Table<'_>, key: &'static str, ports: &PortSet) {
    if let Some(item) = table.take(key).filter(|_| ports.contains(Port::HTTPS)) {
        let hint = "keep the rule to ports that speak plain HTTP, as in ports = [80]";
        item.not_built_yet(&format!("`{key}` on port 443, which needs inspection"), hint);
    }
}

/// Reads everything beyond host and port. `Some(None)` where nothing is asked for.
#[expect(
    clippy::option_option,
    reason = "the outer one is a mistake, the inner one the plain rule's lack of terms"
)]
pub(super) fn terms(table: &mut Table<'_>, action: Option<Action>) -> Option<Option<Box<Terms>>> {
    let mut sound = true;
    let (methods, paths) = (read_methods(table, &mut sound), read_paths(table, &mut sound));
    not_built(table);
    let until = table.take("until").map(|item| timestamp(&item));
    sound &= until != Some(None);
    let raw_item = table.take("raw");
    let raw = raw_item.as_ref().and_then(Item::boolean).unwrap_or(false);
    let ech = table.take("ech").map(|item| item.one_of(&[("permit", Ech::Permit), ("deny", Ech::Deny)]));
    sound &= ech != Some(None);
    let qtypes = table.take("qtypes").and_then(|item| read_qtypes(&item, &mut sound));
    let limits = table.take("limits").and_then(|item| item.table());
    let limits =
        limits.map(|table| limits::read(table, Limits::NONE)).filter(|limits| *limits != Limits::NONE);
    if let (true, Some(item), true) = (raw, &raw_item, methods.is_some() || paths.is_some()) {
        item.mistake(
            "a raw tunnel is not read, so it cannot be held to methods or paths",
            "remove one of them",
        );
        sound = false;
    }
    if action == Some(Action::Deny) {
        for key in ["methods", "paths", "raw", "ech", "qtypes", "limits"] {
            if let Some(item) = table.take(key) {
                item.mistake(
                    format!("a deny rule has no `{key}`: it closes the whole host and port"),
                    "remove it",
                );
                sound = false;
            }
        }
    }
    let terms = Terms {
        methods,
        paths,
        until: until.flatten(),
        raw,
        ech: ech.flatten().unwrap_or_default(),
        qtypes,
        limits,
        internal: None,
    };
    let plain = terms == Terms::default();
    sound.then(|| (!plain).then(|| Box::new(terms)))
}

fn not_built(table: &mut Table<'_>) {
    if let Some(item) = table.take("inspect").filter(|item| item.boolean() == Some(true)) {
        item.not_built_yet(
            "inspection of TLS",
            "remove it: TLS passes untouched, held to the name of the rule",
        );
    }
    if let Some(item) = table.take("inject") {
        item.not_built_yet(
            "injection of credentials",
            "give the sandbox the credential itself, or do without",
        );
    }
}

pub(super) fn read_methods(table: &mut Table<'_>, sound: &mut bool) -> Option<Vec<Box<str>>> {
    let item = table.take("methods")?;
    let methods = item.strings()?;
    if methods.is_empty() {
        item.mistake(
            "`methods` is empty, so the rule allows nothing",
            "list methods, or leave the key out for any",
        );
        *sound = false;
    }
    for (method, item) in &methods {
        // Methods are tokens and case-sensitive (RFC 9110 §9.1); `get` is a method that no server knows.
        let token = !method.is_empty()
            && method.bytes().all(|b| b.is_ascii_graphic() && !br#"()<>@,;:\"/[]?={}"#.contains(&b));
        if !token || method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            let hint = format!(
                "methods are case-sensitive: write \"{}\"",
                method.to_ascii_uppercase().escape_debug()
            );
            item.mistake(format!("{} is no method", quoted(method)), hint);
            *sound = false;
        }
    }
    Some(methods.into_iter().map(|(method, _)| method.into()).collect())
}

pub(super) fn read_paths(table: &mut Table<'_>, sound: &mut bool) -> Option<Vec<PathPattern>> {
    let item = table.take("paths")?;
    let paths = item.strings()?;
    if paths.is_empty() {
        item.mistake(
            "`paths` is empty, so the rule allows nothing",
            "list paths, or leave the key out for any",
        );
        *sound = false;
    }
    let parsed = paths.into_iter().filter_map(|(text, item)| {
        let path = PathPattern::parse(text);
        path.inspect_err(|bad| {
            item.mistake(format!("{}: {bad}", quoted(text)), "write a path such as \"/v1/**\"")
        })
        .ok()
    });
    Some(parsed.collect())
}

fn read_qtypes(item: &Item<'_>, sound: &mut bool) -> Option<Vec<QType>> {
    let types = item.strings()?;
    if types.is_empty() {
        item.mistake(
            "`qtypes` is empty, so no look-up of the name is answered",
            "list types, or leave the key out",
        );
        *sound = false;
    }
    let parsed = types.into_iter().filter_map(|(text, item)| {
        let found = QType::parse(text).filter(|qtype| !NEVER.contains(qtype));
        if found.is_none() {
            let what = format!("{} is no type that a rule can open", quoted(text));
            item.mistake(what, "write types in capitals: \"A\", \"AAAA\", \"HTTPS\", \"TXT\", \"TYPE257\"");
        }
        found
    });
    Some(parsed.collect())
}

/// Questions that are no record types, and records that only tunnels use: NULL, AXFR, IXFR, MAILB, MAILA, ANY, OPT.
static NEVER: [QType; 7] = [QType(10), QType(251), QType(252), QType(253), QType(254), QType(255), QType(41)];

/// Reads `ports`: `"*"`, a number, or a list of numbers and `"9000-9010"`.
pub(super) fn ports(item: &Item<'_>) -> Option<PortSet> {
    if !item.is_list() {
        return one_port(item);
    }
    let mut all: Option<PortSet> = None;
    let mut sound = true;
    let mut empty = true;
    for item in item.list()? {
        empty = false;
        match one_port(&item) {
            Some(ports) => all = Some(all.map_or_else(|| ports.clone(), |all| all.union(&ports))),
            None => sound = false,
        }
    }
    if empty {
        item.mistake("`ports` is empty, so the rule matches nothing", "list ports, or write \"*\" for any");
    }
    all.filter(|_| sound)
}

fn one_port(item: &Item<'_>) -> Option<PortSet> {
    if item.is_number() {
        let number = item.number(1..=65535).and_then(|number| u16::try_from(number).ok());
        return number.and_then(Port::new).map(PortSet::from);
    }
    if let Some(text) = item.as_string() {
        return PortSet::parse(text).inspect_err(|error| refuse(item, error)).ok();
    }
    item.mistake("ports are numbers", "write ports = [443], [443, \"9000-9010\"] or \"*\"");
    None
}
