//! What a sandbox asks to reach: a host and a port, parsed once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

use crate::hostname::{BadHost, Hostname};
use crate::special;

/// A TCP port, 1–65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(NonZeroU16);

impl Port {
    /// The port of plain HTTP.
    pub const HTTP: Port = Port(NonZeroU16::new(80).expect("not zero"));
    /// The port of HTTPS, and of a rule that names none.
    pub const HTTPS: Port = Port(NonZeroU16::new(443).expect("not zero"));

    /// `None` for zero, which means "any" to the kernel.
    pub const fn new(number: u16) -> Option<Port> {
        match NonZeroU16::new(number) {
            Some(number) => Some(Port(number)),
            None => None,
        }
    }

    /// Reads plain decimal digits: no sign (`u16::from_str` takes `+443`), no space, no leading zero.
    pub fn parse(text: &str) -> Option<Port> {
        let digits = text.as_bytes();
        if digits.len() > 5 || digits.first() == Some(&b'0') || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        text.parse().ok().and_then(Port::new)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A name or a literal address. A name rule never matches a literal, an address rule never a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name, to be resolved by the gateway.
    Name(Hostname),
    /// An address that the client wrote itself; IPv4-mapped IPv6 is the IPv4 address that the socket would reach.
    Address(IpAddr),
}

impl Host {
    /// Reads a host as it stands before `:port`: a name, an IPv4 address in its one canonical spelling, or an
    /// IPv6 address in brackets without a zone (RFC 3986 §3.2.2; IPvFuture is refused).
    pub fn parse(text: &str) -> Result<Host, BadHost> {
        if let Some(inside) = text.strip_prefix('[') {
            let inside = inside.strip_suffix(']').ok_or(BadHost::Ipv6)?;
            let address = Ipv6Addr::from_str(inside).map_err(|_| BadHost::Ipv6)?;
            return Ok(Host::from_ip(IpAddr::V6(address)));
        }
        if text.bytes().filter(|&byte| byte == b':').nth(1).is_some() {
            return Err(BadHost::Ipv6);
        }
        // std reads four decimal parts without leading zeros and nothing else.
        if let Ok(address) = Ipv4Addr::from_str(text) {
            return Ok(Host::Address(IpAddr::V4(address)));
        }
        Hostname::parse(text).map(Host::Name)
    }

    /// The host for an address that came as bytes.
    pub fn from_ip(address: IpAddr) -> Host {
        Host::Address(special::canonical(address))
    }

    /// The name, if it is one.
    pub fn name(&self) -> Option<&Hostname> {
        match self {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        }
    }

    /// The literal address, if it is one.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Host::Name(_) => None,
            Host::Address(address) => Some(*address),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => name.fmt(f),
            Host::Address(IpAddr::V4(address)) => address.fmt(f),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl From<Hostname> for Host {
    fn from(name: Hostname) -> Host {
        Host::Name(name)
    }
}

/// The host and port that a sandbox named.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// Name or literal address.
    pub host: Host,
    /// Port of the far side.
    pub port: Port,
}

/// Why bytes are not a destination. Never repeats them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadDestination {
    /// The host part is wrong.
    #[error(transparent)]
    Host(#[from] BadHost),
    /// There is no `:port`, and this place has no default.
    #[error("the port is missing")]
    PortMissing,
    /// Not plain decimal from 1 to 65535.
    #[error("the port is not a plain decimal number from 1 to 65535")]
    Port,
}

impl Destination {
    /// Reads the target of a CONNECT: `host:port`, the port mandatory (RFC 9112 §3.2.3).
    pub fn from_authority(authority: &[u8]) -> Result<Destination, BadDestination> {
        let (host, port) = split(authority)?;
        let port = port.ok_or(BadDestination::PortMissing)?;
        Ok(Destination { host: Host::parse(host)?, port })
    }

    /// Reads a Host header or the authority of an absolute URI: the port may be left out, but not after a colon.
    pub fn from_authority_or(authority: &[u8], default: Port) -> Result<Destination, BadDestination> {
        let (host, port) = split(authority)?;
        Ok(Destination { host: Host::parse(host)?, port: port.unwrap_or(default) })
    }

    /// Reads a SOCKS5 domain (RFC 1928 §5) and its port. Clients send literals this way too.
    pub fn from_parts(host: &[u8], port: u16) -> Result<Destination, BadDestination> {
        Ok(Destination {
            host: Host::parse(utf8(host)?)?,
            port: Port::new(port).ok_or(BadDestination::Port)?,
        })
    }

    /// The destination of a connection that was captured or named by address.
    pub fn from_socket(address: SocketAddr) -> Result<Destination, BadDestination> {
        let port = Port::new(address.port()).ok_or(BadDestination::Port)?;
        Ok(Destination { host: Host::from_ip(address.ip()), port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn utf8(host: &[u8]) -> Result<&str, BadHost> {
    std::str::from_utf8(host).map_err(|_| BadHost::Character)
}

/// Host (with its brackets) and port of an authority without userinfo.
fn split(authority: &[u8]) -> Result<(&str, Option<Port>), BadDestination> {
    let text = utf8(authority)?;
    let (host, rest) = match text.find(']') {
        Some(end) if text.starts_with('[') => text.split_at(end + 1),
        _ => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if rest.is_empty() {
        return Ok((host, None));
    }
    // `a:1:2` is either two ports or an IPv6 address without brackets; both are refused here.
    let port = rest.strip_prefix(':').ok_or(BadHost::Ipv6)?;
    if !host.starts_with('[') && port.contains(':') {
        return Err(BadHost::Ipv6.into());
    }
    Ok((host, Some(Port::parse(port).ok_or(BadDestination::Port)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(authority: &str) -> Result<String, BadDestination> {
        Destination::from_authority(authority.as_bytes()).map(|destination| destination.to_string())
    }

    #[test]
    fn an_authority_has_one_form() {
        for (text, canonical) in [
            ("API.example.com.:443", "api.example.com:443"),
            ("203.0.113.10:65535", "203.0.113.10:65535"),
            ("[2001:DB8:0::10]:443", "[2001:db8::10]:443"),
            ("[0:0:0:0:0:0:0:1]:80", "[::1]:80"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
            ("[::FFFF:a9fe:a9fe]:80", "169.254.169.254:80"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(canonical), "{text}");
        }
    }

    #[test]
    fn a_port_is_plain_decimal() {
        for port in [
            "0",
            "00443",
            "0443",
            "+443",
            "-443",
            " 443",
            "443 ",
            "65536",
            "443junk",
            "443/",
            "0x1bb",
            "４４３",
            "1e2",
        ] {
            assert_eq!(read(&format!("api.example.com:{port}")), Err(BadDestination::Port), "{port}");
        }
        assert_eq!(read("api.example.com:"), Err(BadDestination::Port));
        assert_eq!(read("api.example.com"), Err(BadDestination::PortMissing));
        assert_eq!(read("[::1]"), Err(BadDestination::PortMissing));
        assert_eq!(read("[::1]:1:2"), Err(BadDestination::Port));
        assert_eq!(Port::parse(""), None);
        assert_eq!(Port::parse("443"), Some(Port::HTTPS));
    }

    #[test]
    fn the_fault_of_an_authority_is_named() {
        assert_eq!(read("2001:db8:cafe::10:443"), Err(BadHost::Ipv6.into()));
        assert_eq!(read("a]b.example.com:443"), Err(BadHost::Character.into()));
    }

    #[test]
    fn hosts_that_parsers_split_differently_are_refused() {
        for authority in [
            "api.example.com@attacker.test:443",
            "attacker.test:443@api.example.com:443",
            "attacker.test#.example.com:443",
            "attacker.test?.example.com:443",
            "api.example.com:443:22",
            "2001:db8:cafe::10:443",
            "[::1%25.example.com]:80",
            "[::ffff:169.254.169.254%x.example.com]:80",
            "[fe80::1%eth0]:80",
            "[203.0.113.10]:443",
            "[v1.api.example.com]:443",
            "[::1:443",
            "::1]:443",
            "[::1]443",
            "[::1].example.com:443",
            "[[::1]]:443",
            "[]:443",
            ":443",
            "//api.example.com:443",
            "api.example.com:443, b:1",
            "http://api.example.com:443",
        ] {
            assert!(read(authority).is_err(), "{authority}");
        }
        assert!(Destination::from_authority(b"\xff.example.com:443").is_err());
    }

    #[test]
    fn a_default_port_stands_in_for_a_missing_one_only() {
        let read =
            |text: &str| Destination::from_authority_or(text.as_bytes(), Port::HTTP).map(|d| d.to_string());
        assert_eq!(read("web.example.com").as_deref(), Ok("web.example.com:80"));
        assert_eq!(read("[2001:db8::1]").as_deref(), Ok("[2001:db8::1]:80"));
        assert_eq!(read("web.example.com:8080").as_deref(), Ok("web.example.com:8080"));
        assert_eq!(read("web.example.com:"), Err(BadDestination::Port));
        assert_eq!(read("web.example.com, attacker.test"), Err(BadHost::Character.into()));
    }

    #[test]
    fn socks_domains_and_sockets_take_the_same_form() {
        let part = |host: &[u8]| Destination::from_parts(host, 443).map(|d| d.to_string());
        assert_eq!(part(b"API.example.com").as_deref(), Ok("api.example.com:443"));
        assert_eq!(part(b"203.0.113.10").as_deref(), Ok("203.0.113.10:443"));
        assert_eq!(part(b"attacker.test\0.example.com"), Err(BadHost::Character.into()));
        assert_eq!(part(b"api.example.com:443"), Err(BadHost::Character.into()));
        assert_eq!(part(b"::1"), Err(BadHost::Ipv6.into()));
        assert_eq!(part(b""), Err(BadHost::Empty.into()));
        assert_eq!(Destination::from_parts(b"api.example.com", 0), Err(BadDestination::Port));
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:22".parse().unwrap();
        assert_eq!(Destination::from_socket(mapped).map(|d| d.to_string()).as_deref(), Ok("10.0.0.1:22"));
        assert!(Destination::from_socket("10.0.0.1:0".parse().unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(text in "[a-z0-9.\\[\\]:]{0,24}:[0-9]{1,5}") {
            if let Ok(destination) = Destination::from_authority(text.as_bytes()) {
                let printed = destination.to_string();
                prop_assert_eq!(Destination::from_authority(printed.as_bytes()), Ok(destination));
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Destination::from_authority(&bytes);
            let _ = Destination::from_authority_or(&bytes, Port::HTTP);
            let _ = Destination::from_parts(&bytes, 1);
        }

        #[test]
        fn every_address_reads_back(address: IpAddr, port in 1..=u16::MAX) {
            let destination = Destination::from_socket(SocketAddr::new(address, port)).unwrap();
            prop_assert_eq!(Destination::from_authority(destination.to_string().as_bytes()), Ok(destination));
        }
    }
}
