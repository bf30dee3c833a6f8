//! `[listen]`: where clients, scrapers and health checks come in.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use policy::ListenerName;
use policy::file::{Config, Item, Read, Spot, quoted};

use super::tls::Files;

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["proxy", "dns", "metrics", "admin", "tls", "admin_https"];

/// The keys of `[listen.admin_https]`.
pub(super) const ADMIN_HTTPS_KEYS: &[&str] =
    &["address", "cert_file", "key_file", "client_ca_file", "client_crl_files"];

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
    /// Where the admin API is served over TCP.
    pub admin_https: Option<SocketAddr>,
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
    /// The same, for clients that speak TLS to the gateway.
    Tls(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Tls(address) => write!(f, "https://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", super::shown(path)),
        }
    }
}

impl Endpoint {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) | Self::Tls(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

/// What stands in the table beside the listeners, for [`Listen::check`].
#[derive(Debug, Default)]
pub(super) struct Beside<'a> {
    metrics: Option<Spot<'a>>,
    proxy: Option<Spot<'a>>,
    tls: Option<Spot<'a>>,
    /// The files of `[listen.tls]`, which are read by whoever serves them.
    pub(super) files: Option<Files>,
    admin_https: Option<Spot<'a>>,
    /// Those of `[listen.admin_https]`.
    pub(super) admin_files: Option<Files>,
}

impl Listen {
    /// Reads the table.
    pub(super) fn read<'a>(config: &mut Config<'a>) -> (Self, Beside<'a>) {
        let Some(mut table) = config.table("listen") else { return (Self::default(), Beside::default()) };
        let spot = |item: &Option<Item<'a>>| item.as_ref().map(|item| item.spot().clone());
        let proxy_item = table.take("proxy");
        let proxy = listeners(proxy_item.as_ref(), Kind::Proxy);
        let dns = listeners(table.take("dns").as_ref(), Kind::Dns);
        let metrics_item = table.take("metrics");
        let metrics = metrics_item.as_ref().and_then(metrics);
        let admin = table.take("admin").and_then(|item| admin(&item, &proxy));
        let tls = table.take("tls");
        let files = tls.as_ref().and_then(Files::read);
        let admin_item = table.take("admin_https");
        let (admin_https, admin_files) = admin_item.as_ref().map(admin_https).unwrap_or_default();
        table.finish();
        let beside = Beside {
            metrics: spot(&metrics_item),
            proxy: spot(&proxy_item),
            tls: spot(&tls),
            files,
            admin_https: spot(&admin_item),
            admin_files,
        };
        (Self { proxy, dns, metrics, admin, admin_https }, beside)
    }

    /// Checks what the policy says against the listeners that there are.
    pub(super) fn check(&self, beside: &Beside<'_>, read: &Read<'_>) {
        self.check_tls(beside, read);
        self.check_admin(beside, read);
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
            if self.taken(&[*port]).is_some() {
                let what = format!("{port} is a listener of the gateway itself");
                spot.mistake(what, "a sandbox reaches the gateway by its inbounds only");
            }
        }
        if let (Some(spot), Some(address)) = (&beside.metrics, self.metrics)
            && self.is_in_reach(address, read)
        {
            spot.mistake(
                "sandboxes that are known by their source address would reach the metrics listener",
                "write \"127.0.0.1:9464\", or an address of a network without sandboxes",
            );
        }
    }

    /// The first of these ports of loopback that is one of the gateway's own.
    #[must_use]
    pub fn taken(&self, ports: &[SocketAddr]) -> Option<SocketAddr> {
        let is_own = |port: &&SocketAddr| {
            self.inbounds().chain(self.metrics).chain(self.admin_https).any(|bound| takes(bound, **port))
        };
        ports.iter().find(is_own).copied()
    }

    /// Checks that no sandbox can dial the admin listener: through the gateway none can, since every address of this host is
    /// `gateway_address`.
    fn check_admin(&self, beside: &Beside<'_>, read: &Read<'_>) {
        let (Some(spot), Some(address)) = (&beside.admin_https, self.admin_https) else { return };
        if self.inbounds().chain(self.metrics).any(|bound| bound == address) {
            spot.mistake("another listener has this address", "give the admin listener a port of its own");
        }
        if self.is_in_reach(address, read) {
            spot.mistake(
                "sandboxes that are known by their source address would reach the admin listener",
                "use an address of a network without sandboxes, or the admin socket",
            );
        }
    }

    /// Checks that what speaks TLS has a certificate, and that those are asked for certificates who are known by them.
    fn check_tls(&self, beside: &Beside<'_>, read: &Read<'_>) {
        let speaks = |listener: &&Listener| matches!(listener.at, Endpoint::Tls(_));
        match (&beside.tls, &beside.proxy, self.proxy.iter().any(|listener| speaks(&listener))) {
            (None, Some(proxy), true) => {
                proxy.mistake(
                    "an https listener needs a certificate",
                    "write cert_file and key_file in [listen.tls]",
                );
            }
            (Some(tls), _, false) => {
                tls.mistake(
                    "no listener speaks TLS",
                    "write \"https://ADDRESS:PORT\" in `proxy`, or remove the table",
                );
            }
            (..) => {}
        }
        let asks = beside.files.as_ref().is_some_and(Files::asks_for_certificates);
        for (name, spot) in &read.certificates {
            let named = name.as_ref().and_then(|name| self.all().find(|listener| listener.name == *name));
            if named.is_some_and(|listener| !speaks(&listener)) {
                let hint = "name an https listener, or none: a certificate is shown at such ones only";
                spot.mistake("clients of this listener show no certificate", hint);
            } else if !asks && (beside.tls.is_none() || beside.files.is_some()) {
                spot.mistake(
                    "no listener asks its clients for certificates",
                    "write client_ca_file in [listen.tls]",
                );
            }
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

/// What listeners are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Proxy,
    Dns,
}

fn listeners(item: Option<&Item<'_>>, kind: Kind) -> Vec<Listener> {
    let listed = item.and_then(Item::strings).unwrap_or_default();
    let mut found: Vec<Listener> = Vec::with_capacity(listed.len());
    for (text, item) in listed {
        let Some(at) = endpoint(text, kind, &item) else { continue };
        let is_same = |other: &Listener| {
            other.at == at || (at.address().is_some() && other.at.address() == at.address())
        };
        if found.iter().any(is_same) {
            item.mistake(format!("{} is listed twice", quoted(text)), "remove one of them");
        } else {
            found.push(Listener { name: text.into(), at });
        }
    }
    found
}

fn endpoint(text: &str, kind: Kind, item: &Item<'_>) -> Option<Endpoint> {
    match (kind, text.strip_prefix("unix:"), text.strip_prefix("https://")) {
        (Kind::Proxy, Some(path), _) => unix(path, item),
        (Kind::Proxy, None, Some(text)) => address(text, item).map(Endpoint::Tls),
        (Kind::Dns, Some(_), _) => {
            item.mistake("DNS has no unix sockets", "write \"127.0.0.1:5353\"");
            None
        }
        (Kind::Dns, None, Some(_)) => {
            item.mistake("DNS is not served over TLS", "write \"127.0.0.1:5353\"");
            None
        }
        (_, None, None) => address(text, item).map(Endpoint::Tcp),
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
        Endpoint::Tcp(_) | Endpoint::Tls(_) => false,
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

/// The admin listener. Who calls is told by certificates alone there.
fn admin_https(item: &Item<'_>) -> (Option<SocketAddr>, Option<Files>) {
    let Some(mut table) = item.table() else { return (None, None) };
    let hint = "write address = \"10.9.0.1:9443\", of a network without sandboxes";
    let found = table.require("address", hint).and_then(|item| Some((address(item.string()?, &item)?, item)));
    if let Some((found, item)) = &found
        && found.ip().is_unspecified()
    {
        item.mistake("the admin listener would be open on every network of this host", hint);
    }
    let files = Files::take(&mut table);
    table.finish();
    if files.as_ref().is_some_and(|files| !files.asks_for_certificates()) {
        item.mistake(
            "without client_ca_file everybody could call",
            "name the authorities of the callers' certificates",
        );
    }
    (found.map(|(address, _)| address), files)
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
