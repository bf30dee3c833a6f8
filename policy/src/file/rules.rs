//! Entries of `allow`, `deny` and `ask`, and `[[policy.X.rule]]`.

use ipnet::IpNet;

use super::mistake::quoted;
use super::reader::{Item, Table};
use super::terms::{check_plain_http, ports, terms};
use crate::destination::Port;
use crate::pattern::{Broadness, Entry, EntryError, HostPattern, PortSet};
use crate::reason::Reason;
use crate::rule::{Action, Rule, RuleName};
use crate::special::{AddressBook, AddressClass, LocalAddresses, name_floor, special_use_name};

/// What entries are checked against.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) addresses: &'a AddressBook,
    pub(super) local: &'a LocalAddresses,
}

impl Context<'_> {
    /// Reports an allow rule that could never allow, because the floor lies over it.
    pub(super) fn check_floor(&self, host: &HostPattern, item: &Item<'_>) -> bool {
        let metadata = ("a cloud metadata endpoint is never opened", "remove it; no rule lifts that");
        let name = match host {
            HostPattern::Exact(name) | HostPattern::Below(name) | HostPattern::ApexAndBelow(name) => {
                Some(name)
            }
            HostPattern::InnerStar(star) => Some(&star.after),
            HostPattern::Any | HostPattern::Net(_) => None,
        };
        let floor = name.and_then(name_floor);
        let found = match host {
            _ if floor == Some(Reason::MetadataEndpoint) => Some(metadata),
            _ if floor == Some(Reason::SpecialUseName) => Some((
                "the name never means a host on the network",
                "to open a port of this host, write `host_port` in an `[internal.X]` table",
            )),
            HostPattern::Net(net) => self.addresses.floor_of(*net, self.local).map(|class| match class {
                AddressClass::Metadata => metadata,
                AddressClass::Gateway => (
                    "the address is the gateway's own host, which no rule opens",
                    "to open one of its ports, write `host_port` in an `[internal.X]` table",
                ),
                AddressClass::Forbidden | AddressClass::NotPublic | AddressClass::Public => {
                    ("the address is unspecified, multicast or otherwise no destination", "remove it")
                }
            }),
            _ => None,
        };
        if let Some((what, hint)) = found {
            item.mistake(format!("{}: {what}", quoted(item.as_string().unwrap_or_default())), hint);
        }
        found.is_none()
    }
}

impl Context<'_> {
    /// Reports an ask rule that would never ask: a person is asked for ordinary names and public addresses only.
    fn check_askable(&self, host: &HostPattern, item: &Item<'_>) -> bool {
        let name = match host {
            HostPattern::Exact(name) | HostPattern::Below(name) | HostPattern::ApexAndBelow(name) => {
                Some(name)
            }
            HostPattern::InnerStar(star) => Some(&star.after),
            HostPattern::Any | HostPattern::Net(_) => None,
        };
        // `*.com` is broad, not special: single labels are where nothing stands before them.
        let special = name.filter(|name| !name.is_single_label() || matches!(host, HostPattern::Exact(_)));
        let found = match host {
            HostPattern::Net(net) => {
                let class = |address| self.addresses.classify(address, self.local);
                let public = [net.network(), net.broadcast()].map(class) == [AddressClass::Public; 2];
                (!public).then_some("the address is not public, and a person's word does not open it")
            }
            _ if special.is_some_and(|name| special_use_name(name).is_some()) => {
                Some("the name is reserved for special use, and a person's word does not open it")
            }
            _ => None,
        };
        if let Some(what) = found {
            let text = quoted(item.as_string().unwrap_or_default());
            item.mistake(format!("{text}: {what}"), "list it in `allow`, or leave it denied");
        }
        found.is_none()
    }

    /// Reports a rule that could never do what it says.
    fn check(&self, action: Action, host: &HostPattern, item: &Item<'_>) -> bool {
        match action {
            Action::Deny => true,
            Action::Allow => self.check_floor(host, item),
            Action::Ask => self.check_floor(host, item) && self.check_askable(host, item),
        }
    }
}

/// Why a rule must say that it is meant to be broad.
fn needs_broad(action: Action, host: &HostPattern) -> Option<Broadness> {
    match action {
        Action::Allow => host.needs_broad(),
        // Denying much is no danger, but `*` would make the policy say nothing else.
        Action::Deny => host.needs_broad().filter(|_| *host == HostPattern::Any),
        // A person sees each name by itself.
        Action::Ask => host.needs_broad().filter(|_| *host != HostPattern::Any),
    }
}

/// Reports what is wrong with an entry, and what to write instead.
pub(super) fn refuse(item: &Item<'_>, error: &EntryError) {
    let text = item.as_string().unwrap_or_default();
    item.mistake(format!("{}: {error}", quoted(text)), error.hint());
}

/// Reads one entry of an `allow`, `deny` or `ask` list.
pub(super) fn entry(
    policy: &str,
    item: &Item<'_>,
    action: Action,
    at: u32,
    context: &Context<'_>,
) -> Option<Rule> {
    let text = item.string()?;
    let entry = Entry::parse(text).inspect_err(|error| refuse(item, error)).ok()?;
    if let Some(broad) = needs_broad(action, &entry.host) {
        let hint = format!(
            "if that is meant, write a `[[policy.{policy}.rule]]` with host = \"{}\" and broad = true",
            entry.host
        );
        item.mistake(format!("{} {broad}", quoted(text)), hint);
        return None;
    }
    if !context.check(action, &entry.host, item) {
        return None;
    }
    let ports = entry.ports.unwrap_or_else(|| default_ports(action));
    let place = item.spot().place();
    Some(Rule {
        host: entry.host,
        ports,
        action,
        name: RuleName::Listed(action, at),
        line: place.line,
        column: place.column,
        terms: None,
    })
}

/// A bare host means HTTPS where it opens something, and everything where it closes something.
pub(super) fn default_ports(action: Action) -> PortSet {
    match action {
        Action::Allow | Action::Ask => PortSet::from(Port::HTTPS),
        Action::Deny => PortSet::any(),
    }
}

/// Reads one `[[policy.X.rule]]`.
pub(super) fn long_form(mut table: Table<'_>, at: u32, context: &Context<'_>) -> Option<Rule> {
    let id = table.take("id").and_then(|item| name(&item));
    let words = [("allow", Action::Allow), ("deny", Action::Deny), ("ask", Action::Ask)];
    let action = table.take("action").map_or(Some(Action::Allow), |item| item.one_of(&words));
    let broad = table.take("broad").and_then(|item| item.boolean()).unwrap_or(false);
    let host = table.require("host", "write host = \"api.example.com\"").and_then(|item| {
        let host = HostPattern::parse(item.string()?).inspect_err(|error| refuse(&item, error)).ok()?;
        // What a rule with an action that is none would do is unknown: it is checked as the strictest.
        let action = action.unwrap_or(Action::Allow);
        let reason = host.needs_broad().filter(|_| !broad && action != Action::Deny);
        if let Some(reason) = reason.filter(|_| action != Action::Ask || host != HostPattern::Any) {
            item.mistake(
                format!("{} {reason}", quoted(&host.to_string())),
                "if that is meant, add broad = true",
            );
            return None;
        }
        context.check(action, &host, &item).then_some(host)
    });
    let written_ports = table.take("ports").map(|item| ports(&item));
    let terms = terms(&mut table, action);
    let ports = written_ports.unwrap_or_else(|| Some(default_ports(action.unwrap_or(Action::Allow))));
    if let (Some(ports), true) = (&ports, action != Some(Action::Deny)) {
        check_plain_http(&mut table, ports);
    }
    let place = table.spot().place();
    table.finish();
    let name = id.map_or(RuleName::Unnamed(at), |id| RuleName::Id(id.into()));
    Some(Rule {
        host: host?,
        ports: ports?,
        action: action?,
        name,
        line: place.line,
        column: place.column,
        terms: terms?,
    })
}

/// The name of a policy, a rule or a table: what can stand in a log line and a message as it is.
pub(super) fn name<'a>(item: &Item<'a>) -> Option<&'a str> {
    let text = item.string()?;
    let known = is_name(text);
    if !known {
        item.mistake(format!("{} is no name", quoted(text)), NAME_HINT);
    }
    known.then_some(text)
}

pub(super) fn is_name(text: &str) -> bool {
    crate::SandboxId::parse(text).is_some()
}

pub(super) const NAME_HINT: &str = "1 to 64 letters, digits, `.`, `_` and `-`, with a letter or digit first";

/// Whether a range is so wide that it is a network and not an API.
pub(super) fn is_network(net: IpNet) -> bool {
    net.prefix_len() < if matches!(net, IpNet::V4(_)) { 16 } else { 32 }
}
