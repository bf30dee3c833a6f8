//! `[internal.X]`: a private address by name; a narrow API, not a network.

use std::net::SocketAddr;

use ipnet::IpNet;

use super::addresses::net;
use super::mistake::quoted;
use super::reader::{Config, Item, Spot, Table};
use super::rules::{Context, NAME_HINT, default_ports, is_name, is_network, refuse};
use super::terms::{check_plain_http, ports, read_methods, read_paths};
use crate::destination::Port;
use crate::pattern::{HostPattern, PortSet};
use crate::rule::{Action, Internal, Rule, RuleName, Terms};
use crate::source::InternalSource;
use crate::special::{SpecialUse, special_use_name};

/// The tables, and the ports of this host that they open, with their places.
pub(super) fn read<'a>(
    config: &mut Config<'a>,
    context: &Context<'_>,
) -> (Vec<InternalSource>, Vec<(SocketAddr, Spot<'a>)>) {
    let mut host_ports = Vec::new();
    let tables = config.group("internal").into_iter();
    let tables = tables.filter_map(|(name, table)| internal(name, table, context, &mut host_ports)).collect();
    (tables, host_ports)
}

fn internal<'a>(
    name: &str,
    mut table: Table<'a>,
    context: &Context<'_>,
    host_ports: &mut Vec<(SocketAddr, Spot<'a>)>,
) -> Option<InternalSource> {
    if !is_name(name) {
        table.spot().mistake(format!("{} is no name for an internal table", quoted(name)), NAME_HINT);
    }
    let place = table.spot().place();
    let host =
        table.require("host", "write host = \"billing.corp.example\"").and_then(|item| host(&item, context));
    let host_port = table
        .take("host_port")
        .map(|item| host_port(&item).inspect(|port| host_ports.push((*port, item.spot().clone()))));
    let addresses = match (table.take("addresses"), &host_port) {
        (Some(item), Some(_)) => {
            item.mistake("`addresses` and `host_port` cannot stand together", "keep the one that is meant");
            None
        }
        (Some(item), None) => addresses(&item, context),
        (None, Some(_)) => Some(Vec::new()),
        (None, None) => {
            table.require(
                "addresses",
                "write addresses = [\"10.0.3.7/32\"], or host_port = \"127.0.0.1:11434\"",
            );
            None
        }
    };
    let written = table.take("ports").map(|item| ports(&item));
    let default = || match host_port.flatten().and_then(|socket| Port::new(socket.port())) {
        Some(port) => PortSet::from(port),
        None => default_ports(Action::Allow),
    };
    let ports = written.unwrap_or_else(|| Some(default()));
    let mut sound = true;
    let (methods, paths) = (read_methods(&mut table, &mut sound), read_paths(&mut table, &mut sound));
    if let Some(ports) = &ports {
        check_plain_http(&mut table, ports);
    }
    if let Some(item) = table.take("ca_file") {
        item.not_built_yet(
            "`ca_file`, which needs inspection",
            "remove it: the sandbox checks the certificate itself",
        );
    }
    table.finish();
    let internal = Internal { addresses: addresses?, host_port: host_port.flatten(), shared: false };
    let rule = Rule {
        host: HostPattern::Exact(host?),
        ports: ports?,
        action: Action::Allow,
        name: RuleName::Internal,
        line: place.line,
        column: place.column,
        terms: Some(Box::new(Terms { methods, paths, internal: Some(internal), ..Terms::default() })),
    };
    sound.then(|| InternalSource { name: name.into(), place, rule })
}

fn host(item: &Item<'_>, context: &Context<'_>) -> Option<crate::Hostname> {
    let pattern = HostPattern::parse(item.string()?).inspect_err(|error| refuse(item, error)).ok()?;
    if matches!(&pattern, HostPattern::Exact(name) if special_use_name(name) == Some(SpecialUse::Always)) {
        let what = format!("{}: the name never means a host on the network", quoted(&pattern.to_string()));
        item.mistake(what, "choose another name for the API, as in host = \"llm.internal\"");
        return None;
    }
    if !context.check_floor(&pattern, item) {
        return None;
    }
    match pattern {
        HostPattern::Exact(name) => Some(name),
        HostPattern::Net(_) => {
            item.mistake("an address needs no name", "list the address with its port in `allow` of a policy");
            None
        }
        _ => {
            item.mistake("an internal table opens one name, without a star", "write one table for each name");
            None
        }
    }
}

fn host_port(item: &Item<'_>) -> Option<SocketAddr> {
    let text = item.string()?;
    let socket =
        text.parse::<SocketAddr>().ok().filter(|socket| socket.ip().is_loopback() && socket.port() != 0);
    if socket.is_none() {
        let what = format!("{} is no loopback address with a port", quoted(text));
        item.mistake(what, "write \"127.0.0.1:11434\" or \"[::1]:11434\"");
    }
    socket
}

/// Reads the addresses inside which names must resolve.
pub(super) fn addresses(item: &Item<'_>, context: &Context<'_>) -> Option<Vec<IpNet>> {
    let entries = item.strings()?;
    if entries.is_empty() {
        item.mistake(
            "`addresses` is empty, so the name resolves to nothing",
            "list the addresses of the API",
        );
    }
    let count = entries.len();
    let nets: Vec<IpNet> = entries
        .into_iter()
        .filter_map(|(text, item)| {
            let net = net(text, &item)?;
            if is_network(net) {
                item.mistake(
                    "the range is a network, not an API",
                    "list single addresses, or /16 (IPv4), /32 (IPv6) at most",
                );
                return None;
            }
            context.check_floor(&HostPattern::Net(net), &item).then_some(net)
        })
        .collect();
    (count > 0 && nets.len() == count).then_some(nets)
}
