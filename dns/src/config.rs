//! What the resolver and the server are told: upstreams, zones and limits.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use policy::Hostname;

/// Where names are asked for, as `[dns] upstreams` and `zones` write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// `system`: the name servers of /etc/resolv.conf, without its search list.
    System,
    /// `udp://ADDR`, with TCP where an answer does not fit.
    Udp(SocketAddr),
    /// `tcp://ADDR`
    Tcp(SocketAddr),
    /// `tls://ADDR#NAME`: DNS over TLS (RFC 7858), the certificate checked for the name.
    Tls {
        /// The server's address.
        address: SocketAddr,
        /// The name that its certificate must carry.
        name: Hostname,
    },
    /// `https://NAME/PATH`: DNS over HTTPS (RFC 8484).
    Https {
        /// The name that its certificate must carry.
        name: Hostname,
        /// The port.
        port: u16,
        /// The path, from the slash on.
        path: Arc<str>,
        /// Its addresses (`bootstrap`): nobody is asked for them.
        bootstrap: Vec<IpAddr>,
    },
}

/// Why a text names no upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUpstream {
    /// Neither `system` nor a known scheme.
    #[error("expected system, udp://ADDR, tcp://ADDR, tls://ADDR#NAME or https://NAME/PATH")]
    Scheme,
    /// The address is missing or is no literal; the port is optional.
    #[error("expected an address such as 192.0.2.53, 192.0.2.53:53 or [2001:db8::53]:53")]
    Address,
    /// TLS without the name to check the certificate for.
    #[error("tls:// needs #NAME, the name that the certificate must carry")]
    TlsName,
    /// The host or path of an https upstream is not usable.
    #[error("expected https://NAME/PATH with a host name and a path")]
    Url,
}

impl Upstream {
    /// Reads an upstream as the config writes it. The addresses of an https one come from `bootstrap`.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn parse(text: &str, bootstrap: &[IpAddr]) -> Result<Self, BadUpstream> {
        if text == "system" {
            return Ok(Self::System);
        }
        let (scheme, rest) = text.split_once("://").ok_or(BadUpstream::Scheme)?;
        match scheme {
            "udp" => socket_address(rest, 53).map(Self::Udp),
            "tcp" => socket_address(rest, 53).map(Self::Tcp),
            "tls" => {
                let (address, name) = rest.split_once('#').ok_or(BadUpstream::TlsName)?;
                let name = Hostname::parse(name).map_err(|_| BadUpstream::TlsName)?;
                Ok(Self::Tls { address: socket_address(address, 853)?, name })
            }
            "https" => https(rest, bootstrap),
            _ => Err(BadUpstream::Scheme),
        }
    }
}

fn socket_address(text: &str, port: u16) -> Result<SocketAddr, BadUpstream> {
    let whole = text.parse().ok();
    let bare = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port));
    let bracketed = || {
        let inner = text.strip_prefix('[')?.strip_suffix(']')?;
        inner.parse().ok().map(|ip| SocketAddr::new(IpAddr::V6(ip), port))
    };
    let found = whole.or_else(bare).or_else(bracketed).ok_or(BadUpstream::Address)?;
    if found.port() == 0 { Err(BadUpstream::Address) } else { Ok(found) }
}

fn https(rest: &str, bootstrap: &[IpAddr]) -> Result<Upstream, BadUpstream> {
    let (host, path) = rest.split_once('/').ok_or(BadUpstream::Url)?;
    let (host, port) = match host.split_once(':') {
        Some((host, port)) => (host, port.parse().map_err(|_| BadUpstream::Url)?),
        None => (host, 443),
    };
    let name = Hostname::parse(host).map_err(|_| BadUpstream::Url)?;
    let printable = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#' && byte != b'?');
    if !printable || port == 0 {
        return Err(BadUpstream::Url);
    }
    Ok(Upstream::Https { name, port, path: format!("/{path}").into(), bootstrap: bootstrap.to_vec() })
}

/// What a resolver is built from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolverConfig {
    /// Who is asked, in order of preference.
    pub upstreams: Vec<Upstream>,
    /// Split DNS: who is asked for a domain and everything below it. The longest domain wins.
    pub zones: Vec<(Hostname, Vec<Upstream>)>,
    /// How much may be under way at once.
    pub limits: Limits,
}

/// How much may be under way at once. Beyond a limit the answer is SERVFAIL, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Questions that wait for upstreams, over all sandboxes and inbounds.
    pub in_flight: usize,
    /// Questions of one sandbox that wait for upstreams.
    pub in_flight_per_sandbox: usize,
    /// TCP connections of all clients together: each holds a descriptor of the gateway's.
    pub connections: usize,
    /// TCP connections of one client: an IPv4 address, an IPv6 /64, or a sandbox in a namespace of its own.
    pub connections_per_client: usize,
    /// Questions on one TCP connection, which then closes.
    pub queries_per_connection: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight: 4096,
            in_flight_per_sandbox: 512,
            connections: 1024,
            connections_per_client: 16,
            queries_per_connection: 100,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Upstream, BadUpstream> {
        Upstream::parse(text, &[])
    }

    #[test]
    fn upstreams_are_read_as_the_config_writes_them() {
        let name = Hostname::parse("dns.example").unwrap();
        assert_eq!(parse("system"), Ok(Upstream::System));
        assert_eq!(parse("udp://192.0.2.53"), Ok(Upstream::Udp("192.0.2.53:53".parse().unwrap())));
        assert_eq!(parse("udp://2001:db8::53"), Ok(Upstream::Udp("[2001:db8::53]:53".parse().unwrap())));
        assert_eq!(
            parse("tcp://[2001:db8::53]:5353"),
            Ok(Upstream::Tcp("[2001:db8::53]:5353".parse().unwrap()))
        );
        assert_eq!(
            parse("tls://192.0.2.53#dns.example"),
            Ok(Upstream::Tls { address: "192.0.2.53:853".parse().unwrap(), name: name.clone() })
        );
        let bootstrap = ["192.0.2.53".parse().unwrap()];
        assert_eq!(
            Upstream::parse("https://dns.example/dns-query", &bootstrap),
            Ok(Upstream::Https { name, port: 443, path: "/dns-query".into(), bootstrap: bootstrap.to_vec() })
        );
    }

    #[test]
    fn what_names_no_upstream_is_refused() {
        for (text, why) in [
            ("", BadUpstream::Scheme),
            ("System", BadUpstream::Scheme),
            ("192.0.2.53", BadUpstream::Scheme),
            ("quic://192.0.2.53", BadUpstream::Scheme),
            ("udp://dns.example", BadUpstream::Address),
            ("udp://192.0.2.53:0", BadUpstream::Address),
            ("tls://192.0.2.53", BadUpstream::TlsName),
            ("tls://192.0.2.53#192.0.2.53", BadUpstream::TlsName),
            ("https://dns.example", BadUpstream::Url),
            ("https://dns.example/a b", BadUpstream::Url),
        ] {
            assert_eq!(parse(text), Err(why), "{text}");
        }
    }
}
