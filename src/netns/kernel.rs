//! Does what a plan says: the only part that needs privileges.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use netlink_packet_route::AddressFamily;
use socket2::{Domain, Socket, Type};

use super::nftables::{Batch, Table};
use super::plan::{Family, Place, Plan, Step};
use super::remedy::Remedy;
use super::{SetupError, Sockets, first_line, nftables};
use crate::netlink::{Link, Netlink};

/// Connections that the kernel completes ahead of the gateway; bursts of installers open dozens at once.
const BACKLOG: i32 = 1024;

pub(super) fn apply(plan: &Plan) -> Result<Sockets, SetupError> {
    let mut netlink = Netlink::route().map_err(|source| SetupError {
        step: "open a netlink socket".into(),
        source,
        remedy: Some(Remedy::Netlink),
    })?;
    // Before anything is looked at, so that no link comes between the look and the watch.
    let links = Netlink::link_notices().map_err(|source| SetupError {
        step: "watch the links of the namespace".into(),
        source,
        remedy: Some(Remedy::Netlink),
    })?;
    let mut listeners = Vec::new();
    for step in &plan.steps {
        let done = match step {
            Step::OnlyLoopback => only_loopback(&mut netlink),
            Step::Setting { name, value } => set(name, value),
            Step::LoopbackUp => netlink.switch(Link::LOOPBACK, true),
            Step::OwnEveryAddress(family) => own_every_address(&mut netlink, *family),
            Step::Rules(rules) => put_in_force(|found| nftables::make(rules, found)),
            Step::LinkRules => {
                // Older kernels refuse it. There the guard of a namespace shuts a link that has come.
                let _ = put_in_force(|found| nftables::shut(nftables::Links::AllButLoopback, found));
                Ok(())
            }
            Step::Listen(place) => listen(*place).map(|socket| listeners.push(socket)),
        };
        done.map_err(|source| {
            let remedy = Remedy::of(step, &source);
            SetupError { step: first_line(step), source, remedy }
        })?;
    }
    Ok(Sockets { listeners, links })
}

/// Makes a table, in place of one of its name where there is one.
pub(super) fn put_in_force(batch: impl Fn(Table) -> Batch) -> io::Result<()> {
    let mut netlink = Netlink::netfilter()?;
    let fresh = batch(Table::Absent);
    match netlink.exchange(&fresh.bytes, fresh.last) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let again = batch(Table::Replaced);
            netlink.exchange(&again.bytes, again.last)
        }
        done => done,
    }
}

fn only_loopback(netlink: &mut Netlink) -> io::Result<()> {
    let others: Vec<String> =
        netlink.links()?.into_iter().filter(|link| !link.leads_nowhere()).map(|link| link.name).collect();
    match others.is_empty() {
        true => Ok(()),
        false => {
            let what = format!("the namespace has other links, which could lead out: {}", others.join(", "));
            Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
        }
    }
}

/// A read-only /proc/sys is no fault where the value is right.
fn set(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys/net").join(name);
    if fs::read_to_string(&path)?.trim() == value {
        return Ok(());
    }
    fs::write(path, value)
}

fn own_every_address(netlink: &mut Netlink, family: Family) -> io::Result<()> {
    let family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    match netlink.own_every_address(family) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// Never SO_REUSEPORT, and no SO_REUSEADDR on datagrams: with them a workload could take a share of what is sent here.
fn listen(place: Place) -> io::Result<OwnedFd> {
    let address = place.address();
    let kind = if place.is_datagram() { Type::DGRAM } else { Type::STREAM };
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if place.is_datagram() {
        socket.bind(&address.into())?;
        return Ok(socket.into());
    }
    // Connections of the gateway before may still wait for their last packets (TIME_WAIT), for a minute. It shares nothing:
    // while this listens nobody binds the port, and whoever has bound it ahead cannot listen (socket(7), SO_REUSEADDR).
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
