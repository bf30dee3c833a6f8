//! What holds where the probe stands: its links, its capabilities, and the controls outside that are known.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;

use super::controls::Known;
use super::{Line, socket, ways_out};
use crate::netlink::Netlink;
use crate::netns::NamespaceId;

/// CAP_SYS_ADMIN, by which mounts and namespaces are changed (capabilities(7)).
pub(super) const SYS_ADMIN: u64 = 1 << 21;
/// CAP_NET_ADMIN, by which links, routes and packet rules are changed.
pub(super) const NET_ADMIN: u64 = 1 << 12;

/// How many datagrams are sent at once, so that other traffic of a link does not hide or mimic them.
pub(super) const BURST: u64 = 16;

/// Where the probe stands.
#[derive(Debug)]
pub(super) struct Ground<'k> {
    /// Links that could lead out; an error where they cannot be read.
    links: io::Result<Vec<String>>,
    /// The effective capabilities.
    pub(super) capabilities: u64,
    /// Whether execve(2) can add any.
    pub(super) no_new_privileges: bool,
    pub(super) known: Option<&'k Known>,
}

impl<'k> Ground<'k> {
    pub(super) fn look(known: Option<&'k Known>) -> Self {
        let links = Netlink::link_notices().and_then(ways_out);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        Self {
            links,
            // What cannot be read is taken for everything.
            capabilities: field("CapEff")
                .and_then(|set| u64::from_str_radix(set, 16).ok())
                .unwrap_or(u64::MAX),
            no_new_privileges: field("NoNewPrivs") == Some("1"),
            known,
        }
    }

    /// Whether no packet of this network namespace can leave it: there is no link to leave by. Namespaces below it have
    /// no other.
    pub(super) fn is_sealed(&self) -> bool {
        self.links.as_ref().is_ok_and(Vec::is_empty)
    }

    /// Why a packet cannot leave, or might.
    pub(super) fn why(&self) -> String {
        match &self.links {
            Ok(links) if links.is_empty() => "no link here but lo, and no route over another".to_owned(),
            Ok(links) => format!("links here: {}", links.join(", ")),
            Err(error) => format!("the links here cannot be read: {error}"),
        }
    }

    pub(super) fn has(&self, capability: u64) -> bool {
        self.capabilities & capability != 0
    }

    /// Whether an address may be sent to: a documentation address always, another one where nothing can leave.
    pub(super) fn may_send_to(&self, to: SocketAddr) -> bool {
        self.is_sealed() || socket::is_documentation(to.ip())
    }

    /// What left over the links while something was tried.
    pub(super) fn watch<T>(&self, attempt: impl FnOnce() -> T) -> (T, Option<(String, u64)>) {
        let before = sent();
        let done = attempt();
        let after = sent();
        let left = after.into_iter().filter_map(|(link, count)| {
            let more = count.saturating_sub(before.get(&link).copied().unwrap_or(0));
            (more > 0).then_some((link, more))
        });
        (done, left.max_by_key(|(_, more)| *more))
    }

    /// Whether there is a link that leads out: a burst is sent over each.
    pub(super) fn links_line(&self) -> Line {
        const WAY: &str = "links of the network namespace";
        if let Some(line) = self.same_namespace(WAY) {
            return line;
        }
        let links = match &self.links {
            Ok(links) if links.is_empty() => return Line::contained(WAY, self.why()),
            Ok(links) => links,
            Err(_) => return Line::unproven(WAY, self.why()),
        };
        let (_, left) = self.watch(|| links.iter().for_each(|link| socket::burst_over(link)));
        match left {
            Some((link, count)) if count >= BURST => {
                Line::escaped(WAY, format!("{count} packets left over {link}"))
            }
            Some((link, count)) => Line::escaped(
                WAY,
                format!("{count} packets left over {link}, as many as it takes to ask where to"),
            ),
            None => Line::unproven(WAY, format!("{}; nothing left over them now", self.why())),
        }
    }

    fn same_namespace(&self, way: &'static str) -> Option<Line> {
        let outside = self.known?.namespace.as_deref()?;
        let own = NamespaceId::own().ok()?.to_string();
        (own == outside).then(|| Line::escaped(way, "this is the network namespace of the controls outside"))
    }
}

/// The packets that each link but `lo` has sent (proc_net_dev, netdevice(7)).
fn sent() -> BTreeMap<String, u64> {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let counts = text.lines().filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        // Eight columns of what was received come first, then bytes, then packets.
        let packets = numbers.split_whitespace().nth(9)?.parse().ok()?;
        Some((name.trim().to_owned(), packets))
    });
    counts.filter(|(name, _)| name != "lo").collect()
}
