//! `[addresses]`: what the operator knows about addresses that no registry does.

use std::net::IpAddr;

use ipnet::IpNet;

use super::mistake::quoted;
use super::reader::{Config, Item, Table};
use crate::special::{AddressBook, Nat64Prefix, canonical, canonical_net, check_public};

pub(super) fn read(config: &mut Config<'_>) -> AddressBook {
    let Some(mut table) = config.table("addresses") else {
        return AddressBook::default();
    };
    let own = nets(&mut table, "own");
    let nat64 = nets(&mut table, "nat64").into_iter().filter_map(|(net, item)| match net {
        IpNet::V6(prefix) => {
            let checked = Nat64Prefix::new(prefix).map(|_| prefix);
            checked
                .inspect_err(|bad| item.mistake(bad.to_string(), "write the prefix of your translator"))
                .ok()
        }
        IpNet::V4(_) => {
            item.mistake("a NAT64 prefix is IPv6", "write it as \"2001:db8:64::/96\"");
            None
        }
    });
    let nat64 = nat64.collect();
    let private = nets(&mut table, "treat_as_private");
    let public = nets(&mut table, "treat_as_public").into_iter().filter(|(net, item)| {
        let checked = check_public(*net);
        let hint = "private addresses are opened by a rule for the literal, or by `[internal.X]`";
        checked.inspect_err(|bad| item.mistake(bad.to_string(), hint)).is_ok()
    });
    let public = public.map(|(net, _)| net).collect();
    let spot = table.spot().clone();
    table.finish();
    let plain = |nets: Vec<(IpNet, Item<'_>)>| nets.into_iter().map(|(net, _)| net).collect();
    // Every range was checked one by one, with its place; this is the same check once more.
    AddressBook::new(plain(own), nat64, plain(private), public).unwrap_or_else(|bad| {
        spot.mistake(bad.to_string(), "");
        AddressBook::default()
    })
}

fn nets<'a>(table: &mut Table<'a>, key: &'static str) -> Vec<(IpNet, Item<'a>)> {
    let entries = table.take(key).and_then(|item| item.strings()).unwrap_or_default();
    entries.into_iter().filter_map(|(text, item)| Some((net(text, &item)?, item))).collect()
}

/// Reads an address or a range without brackets, as address lists hold them.
pub(super) fn net(text: &str, item: &Item<'_>) -> Option<IpNet> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(IpNet::from(canonical(address)));
    }
    let hint = "write \"10.0.3.7\", \"10.0.0.0/24\" or \"2001:db8::/64\", without brackets and ports";
    let Ok(net) = text.parse::<IpNet>() else {
        item.mistake(format!("{} is no address and no range", quoted(text)), hint);
        return None;
    };
    if net != net.trunc() {
        let hint = format!("write \"{}\" for the address, \"{}\" for the range", net.addr(), net.trunc());
        item.mistake(format!("{}: the range has host bits set", quoted(text)), hint);
        return None;
    }
    Some(canonical_net(net))
}
