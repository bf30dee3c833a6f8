//! `[listen]`: where clients, scrapers and health checks come in.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use policy::ListenerName;
use policy::file::{Config, Item, Read, Spot, Table, quoted};

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["proxy", "dns", "metrics", "admin"];

/// The `[listen]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// HTTP CONNECT, plain HTTP and SOCKS5, told apart by the first byte.
    pub proxy: Vec<Listener>,
    /// DNS, by UDP and TCP.
    pub dns: Vec<Listener>,
    /// `/metrics`, `/healthz` and `/readyz`.
    pub metrics: Option<SocketAddr>,
    /// The admin socket's path.
    pub admin: Option<PathBuf>,
}

/// One place to listen, with its name in policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address as the config writes it: `identify = [{ listener = "…" }]` names it so.
    pub name: ListenerName,
    /// Where it is.
    pub at: Endpoint,
}

/// Where a listener is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", super::shown(path)),
        }
    }
}

impl Endpoint {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl Listen {
    /// Reads the table, and gives the place of `metrics` for [`Listen::check`].
    pub(super) fn read<'a>(config: &mut Config<'a>) -> (Self, Option<Spot<'a>>) {
        let Some(mut table) = config.table("listen") else { return (Self::default(), None) };
        let proxy = listeners(&mut table, "proxy", true);
        let dns = listeners(&mut table, "dns", false);
        let metrics_item = table.take("metrics");
        let metrics = metrics_item.as_ref().and_then(metrics);
        let admin = table.take("admin").and_then(|item| admin(&item, &proxy));
        table.finish();
        (Self { proxy, dns, metrics, admin }, metrics_item.map(|item| item.spot().clone()))
    }

    /// Checks what the policy says against the listeners that there are.
    pub(super) fn check(&self, metrics: Option<Spot<'_>>, read: &Read<'_>) {
        for (name, spot) in &read.listeners {
            if !self.all().any(|listener| listener.name == *name) {
                let known: Vec<_> = self.all().map(|listener| format!("\"{}\"", listener.name)).collect();
                let hint = match known.is_empty() {
                    true => "add it to `proxy` or `dns` of [listen]".to_owned(),
                    false => format!("name one of [listen]: {}", known.join(", ")),
                };
                spot.mistake(format!("there is no listener {}", quoted(name)), hint);
            }
        }
        for (socket, spot) in &read.sockets {
            if self.admin.as_deref() == Some(Path::new(&*socket.path)) {
                spot.mistake("this is the admin socket", "give the sandbox a socket in a folder of its own");
            }
        }
        for (port, spot) in &read.host_ports {
            if self.inbounds().chain(self.metrics).any(|bound| takes(bound, *port)) {
                let what = format!("{port} is a listener of the gateway itself");
                spot.mistake(what, "a sandbox reaches the gateway by its inbounds only");
            }
        }
        if let (Some(spot), Some(address)) = (metrics, self.metrics)
            && self.is_in_reach(address, read)
        {
            spot.mistake(
                "sandboxes that are known by their source address would reach the metrics listener",
                "write \"127.0.0.1:9464\", or an address of a network without sandboxes",
            );
        }
    }

    /// Whether a sandbox that comes over a network could connect to `metrics`: there, no policy is in between.
    fn is_in_reach(&self, metrics: SocketAddr, read: &Read<'_>) -> bool {
        if metrics.ip().is_loopback() {
            return false;
        }
        let shares = |bound: IpAddr| bound.is_unspecified() || bound == metrics.ip();
        let beside_clients = self.inbounds().any(|bound| shares(bound.ip()));
        let mut sources = read.policy.identities.sources().filter(|net| !net.addr().is_loopback());
        sources.any(|net| beside_clients || net.contains(&metrics.ip()))
    }

    /// Every listener through which sandboxes come.
    pub fn all(&self) -> impl Iterator<Item = &Listener> {
        self.proxy.iter().chain(&self.dns)
    }

    fn inbounds(&self) -> impl Iterator<Item = SocketAddr> {
        self.all().filter_map(|listener| listener.at.address())
    }
}

/// Whether a listener that is bound to `bound` takes connections to `port` of loopback.
fn takes(bound: SocketAddr, port: SocketAddr) -> bool {
    bound.port() == port.port() && (bound.ip().is_unspecified() || bound.ip() == port.ip())
}

fn listeners(table: &mut Table<'_>, key: &'static str, may_be_unix: bool) -> Vec<Listener> {
    let listed = table.take(key).and_then(|item| item.strings()).unwrap_or_default();
    let mut found: Vec<Listener> = Vec::with_capacity(listed.len());
    for (text, item) in listed {
        let Some(at) = endpoint(text, may_be_unix, &item) else { continue };
        if found.iter().any(|other| other.at == at) {
            item.mistake(format!("{} is listed twice", quoted(text)), "remove one of them");
        } else {
            found.push(Listener { name: text.into(), at });
        }
    }
    found
}

fn endpoint(text: &str, may_be_unix: bool, item: &Item<'_>) -> Option<Endpoint> {
    match text.strip_prefix("unix:") {
        Some(path) if may_be_unix => unix(path, item),
        Some(_) => {
            item.mistake("DNS has no unix sockets", "write \"127.0.0.1:5353\"");
            None
        }
        None => address(text, item).map(Endpoint::Tcp),
    }
}

/// `sun_path` holds 107 bytes and a NUL (unix(7)).
const UNIX_PATH_LIMIT: usize = 107;

fn unix(path: &str, item: &Item<'_>) -> Option<Endpoint> {
    if !path.starts_with('/') || path.ends_with('/') || path.len() > UNIX_PATH_LIMIT || path.contains('\0') {
        let what = format!("a unix socket needs an absolute path of at most {UNIX_PATH_LIMIT} bytes");
        item.mistake(what, "write \"unix:/run/tidegate/s/agent-7/proxy.sock\"");
        return None;
    }
    Some(Endpoint::Unix(path.into()))
}

fn address(text: &str, item: &Item<'_>) -> Option<SocketAddr> {
    let found = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    if found.is_none() {
        let what = format!("{} is no address with a port", quoted(text));
        item.mistake(what, "write \"127.0.0.1:3128\" or \"[::1]:3128\"; names and port 0 are not taken");
    }
    found
}

/// The admin socket. Its folder must not be the one of a sandbox's socket: that one is mounted whole.
fn admin(item: &Item<'_>, proxy: &[Listener]) -> Option<PathBuf> {
    let text = item.string()?;
    let Some(path) = text.strip_prefix("unix:") else {
        item.mistake("the admin socket is a unix socket", "write \"unix:/run/tidegate/admin/admin.sock\"");
        return None;
    };
    let Endpoint::Unix(path) = unix(path, item)? else { return None };
    let beside = |listener: &Listener| match &listener.at {
        Endpoint::Unix(other) => other.parent() == path.parent(),
        Endpoint::Tcp(_) => false,
    };
    if proxy.iter().any(beside) {
        item.mistake(
            "it stands in the folder of a sandbox's socket, which is mounted whole",
            "give it a folder of its own: \"unix:/run/tidegate/admin/admin.sock\"",
        );
        return None;
    }
    Some(path)
}

fn metrics(item: &Item<'_>) -> Option<SocketAddr> {
    let found = address(item.string()?, item)?;
    if found.ip().is_unspecified() {
        item.mistake(
            "the metrics listener would be open on every network of this host",
            "write \"127.0.0.1:9464\", or the one address that the scraper uses",
        );
        return None;
    }
    Some(found)
}
