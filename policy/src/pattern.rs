//! What a rule's author writes for hosts and ports, and what it matches.

mod error;
mod ports;
mod script;
mod view;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub use self::error::{EntryError, EntryErrorKind};
pub use self::ports::PortSet;
pub use self::view::HostView;
use crate::hostname::{BadHost, Hostname};
use crate::special;

/// The hosts that a rule covers. A name pattern never matches a literal address, a range never a name; a wildcard
/// never matches a name of one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// `api.example.com`
    Exact(Hostname),
    /// `*.example.com`: any depth below, not the apex.
    Below(Hostname),
    /// `.example.com`: the apex and any depth below.
    ApexAndBelow(Hostname),
    /// `ec2.*.example.com`: exactly one label at the star. Rare, so that it need not make every rule larger.
    InnerStar(Box<InnerStar>),
    /// `*`: every name.
    Any,
    /// A literal address or a range, without host bits; IPv4-mapped ranges do not occur.
    Net(IpNet),
}

/// A star between labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InnerStar {
    /// The labels in front of the star: `ec2`.
    pub before: Box<str>,
    /// The name behind it: `example.com`.
    pub after: Hostname,
}

impl InnerStar {
    /// What stands in front of `after` in a name below it.
    fn front<'n>(&self, name: &'n str) -> Option<&'n str> {
        name.strip_suffix(self.after.as_str())?.strip_suffix('.')
    }

    fn matches(&self, name: &str) -> bool {
        let label = self.front(name).and_then(|front| front.strip_prefix(&*self.before)?.strip_prefix('.'));
        label.is_some_and(|label| !label.is_empty() && !label.contains('.'))
    }

    /// Whether names that match lie below `name`: for `a.b.*.example.com`, `x.example.com` and `b.x.example.com`.
    pub(crate) fn lies_below(&self, name: &Hostname) -> bool {
        self.front(name.as_str()).is_some_and(|front| match front.rsplit_once('.') {
            None => true,
            Some((inner, _)) => self.before.strip_suffix(inner).is_some_and(|rest| rest.ends_with('.')),
        })
    }
}

/// How closely a pattern names a host. Of several rules that allow, the most specific one's attributes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Specificity {
    /// `*`
    Any,
    /// `*.example.com`, `.example.com`, a range.
    Suffix,
    /// `ec2.*.example.com`
    OneStar,
    /// One name or one address.
    Exact,
}

/// Why a pattern may only be used with `broad = true`, as it is said behind the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Broadness {
    /// `*`
    #[error("covers every name")]
    AnyName,
    /// `*.com`, `*.github.io`: names that strangers can register.
    #[error("covers every name under a public suffix, which anyone can register")]
    PublicSuffix,
    /// Wider than /24 or /64.
    #[error("is a private range wider than /24 (IPv4) or /64 (IPv6)")]
    PrivateRange,
    /// Wider than /16 or /32.
    #[error("is a range wider than /16 (IPv4) or /32 (IPv6)")]
    PublicRange,
}

impl HostPattern {
    /// Reads a pattern without a port, as `host = "…"` holds it. IPv6 stands in brackets, with its length inside.
    pub fn parse(text: &str) -> Result<HostPattern, EntryError> {
        error::not_a_host(text)?;
        if let Some(inside) = text.strip_prefix('[') {
            let inside = inside.strip_suffix(']').ok_or_else(|| EntryError::brackets(text))?;
            return parse_v6(inside);
        }
        if text.contains(':') {
            let net = text.parse::<Ipv6Net>().is_ok() || text.parse::<Ipv6Addr>().is_ok();
            return Err(if net { EntryError::unbracketed(text) } else { EntryError::port_in_host() });
        }
        if let Some((address, len)) = text.split_once('/') {
            return parse_v4(address, Some(len));
        }
        if text.parse::<Ipv4Addr>().is_ok() {
            return parse_v4(text, None);
        }
        parse_name(text)
    }

    /// The same pattern, borrowed.
    #[must_use]
    pub fn view(&self) -> HostView<'_> {
        match self {
            HostPattern::Exact(name) => HostView::Exact(name.as_str()),
            HostPattern::Below(domain) => HostView::Below(domain.as_str()),
            HostPattern::ApexAndBelow(domain) => HostView::ApexAndBelow(domain.as_str()),
            HostPattern::InnerStar(star) => HostView::InnerStar(star),
            HostPattern::Any => HostView::Any,
            HostPattern::Net(net) => HostView::Net(*net),
        }
    }

    /// Whether a name is covered.
    pub fn matches_name(&self, name: &Hostname) -> bool {
        self.view().matches_name(name.as_str())
    }

    /// Whether a literal address is covered; IPv4-mapped IPv6 is compared as IPv4.
    pub fn matches_address(&self, address: IpAddr) -> bool {
        matches!(self, HostPattern::Net(net) if net.contains(&special::canonical(address)))
    }

    /// How closely it names a host.
    pub fn specificity(&self) -> Specificity {
        match self {
            HostPattern::Exact(_) => Specificity::Exact,
            HostPattern::Net(net) if net.prefix_len() == net.max_prefix_len() => Specificity::Exact,
            HostPattern::InnerStar(_) => Specificity::OneStar,
            HostPattern::Below(_) | HostPattern::ApexAndBelow(_) | HostPattern::Net(_) => Specificity::Suffix,
            HostPattern::Any => Specificity::Any,
        }
    }

    /// Why the pattern needs `broad = true`, if it does.
    pub fn needs_broad(&self) -> Option<Broadness> {
        match self {
            HostPattern::Exact(_) => None,
            HostPattern::Any => Some(Broadness::AnyName),
            HostPattern::Below(domain) | HostPattern::ApexAndBelow(domain) => {
                is_public_suffix(domain).then_some(Broadness::PublicSuffix)
            }
            HostPattern::InnerStar(star) => is_public_suffix(&star.after).then_some(Broadness::PublicSuffix),
            HostPattern::Net(net) => {
                let (private, public) = match net {
                    IpNet::V4(_) => (24, 16),
                    IpNet::V6(_) => (64, 32),
                };
                if net.prefix_len() < public {
                    Some(Broadness::PublicRange)
                } else if net.prefix_len() < private && special::touches_private(*net) {
                    Some(Broadness::PrivateRange)
                } else {
                    None
                }
            }
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

/// The short form of a rule: `host` or `host:ports`. What a missing port means is up to the list it stands in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// The hosts.
    pub host: HostPattern,
    /// The ports, if any are written.
    pub ports: Option<PortSet>,
}

impl Entry {
    /// Reads `host`, `host:443`, `host:443,8443,9000-9010`, `host:*`, `[2001:db8::/64]:443`, `10.0.0.0/24:5432`.
    pub fn parse(text: &str) -> Result<Entry, EntryError> {
        if let Some(entry) = Entry::plain(text) {
            return Ok(entry);
        }
        error::not_a_host(text)?;
        let (host, ports) = match text.find(']') {
            Some(end) if text.starts_with('[') => text.split_at(end + 1),
            _ if text.starts_with('[') => return Err(EntryError::brackets(text)),
            _ if text.bytes().filter(|&byte| byte == b':').count() > 1 => {
                let v6 = text.parse::<Ipv6Net>().is_ok() || text.parse::<Ipv6Addr>().is_ok();
                return Err(if v6 { EntryError::unbracketed(text) } else { EntryError::colons() });
            }
            _ => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let ports = match ports.strip_prefix(':') {
            Some(ports) => Some(ports),
            None if ports.is_empty() => None,
            None => return Err(EntryError::brackets(text)),
        };
        let host = HostPattern::parse(host)?;
        Ok(Entry { host, ports: ports.map(PortSet::parse).transpose()? })
    }

    /// A name in canonical letters, with ports or without: nearly every entry of a long list, and nothing to explain.
    fn plain(text: &str) -> Option<Entry> {
        let end = text.bytes().position(|byte| byte == b':').unwrap_or(text.len());
        let (host, ports) = text.split_at_checked(end)?;
        let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        if host.starts_with('.') || !host.bytes().all(is_plain) {
            return None;
        }
        let ports = match ports.strip_prefix(':') {
            Some(ports) => Some(PortSet::parse(ports).ok()?),
            None => None,
        };
        Some(Entry { host: HostPattern::Exact(Hostname::parse(host).ok()?), ports })
    }

    /// Why the entry needs the long form with `broad = true`, if it does.
    pub fn needs_broad(&self) -> Option<Broadness> {
        self.host.needs_broad()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        self.ports.as_ref().map_or(Ok(()), |ports| write!(f, ":{ports}"))
    }
}

fn parse_name(text: &str) -> Result<HostPattern, EntryError> {
    match text.matches('*').count() {
        0 => {}
        1 => return parse_star(text),
        _ => return Err(EntryError::stars()),
    }
    if let Some(domain) = text.strip_prefix('.') {
        return Ok(HostPattern::ApexAndBelow(name(domain)?));
    }
    Ok(HostPattern::Exact(name(text)?))
}

fn parse_star(text: &str) -> Result<HostPattern, EntryError> {
    if text == "*" {
        return Ok(HostPattern::Any);
    }
    if let Some(domain) = text.strip_prefix("*.") {
        return Ok(HostPattern::Below(name(domain)?));
    }
    let Some((before, after)) = text.split_once(".*.") else {
        return Err(EntryError::part_star());
    };
    let after = name(after)?;
    // Read as a whole, with the star's label as `x`, so that the name's length is that of the shortest match.
    let whole = name(&format!("{before}.x.{after}"))?;
    let before = whole.as_str().strip_suffix(after.as_str()).and_then(|rest| rest.strip_suffix(".x."));
    before
        .map(|before| HostPattern::InnerStar(Box::new(InnerStar { before: before.into(), after })))
        .ok_or_else(EntryError::part_star)
}

fn name(text: &str) -> Result<Hostname, EntryError> {
    let name = Hostname::parse(text).map_err(EntryError::host)?;
    if let Some((one, other)) = script::mixed(text) {
        return Err(EntryError::mixed_script(&name, one, other));
    }
    Ok(name)
}

fn parse_v4(address: &str, len: Option<&str>) -> Result<HostPattern, EntryError> {
    let address: Ipv4Addr = address.parse().map_err(|_| EntryError::host(BadHost::AddressSpelling))?;
    let Some(len) = len else {
        return Ok(HostPattern::Net(IpNet::V4(Ipv4Net::from(address))));
    };
    let net = prefix_len(len).and_then(|len| Ipv4Net::new(address, len).ok());
    let net = net.ok_or_else(|| EntryError::mask(32))?;
    if net != net.trunc() {
        let one = HostPattern::Net(IpNet::V4(Ipv4Net::from(address)));
        return Err(EntryError::host_bits(&one, &HostPattern::Net(IpNet::V4(net.trunc()))));
    }
    Ok(HostPattern::Net(IpNet::V4(net)))
}

fn parse_v6(inside: &str) -> Result<HostPattern, EntryError> {
    let (text, len) = match inside.split_once('/') {
        Some((text, len)) => (text, Some(len)),
        None => (inside, None),
    };
    let address: Ipv6Addr = text.parse().map_err(|_| EntryError::host(BadHost::Ipv6))?;
    let len = match len {
        Some(len) => prefix_len(len).filter(|&len| len <= 128).ok_or_else(|| EntryError::mask(128))?,
        None => 128,
    };
    let net = Ipv6Net::new(address, len).map_err(|_| EntryError::mask(128))?;
    if let IpNet::V4(mapped) = special::canonical_net(IpNet::V6(net)) {
        return Err(EntryError::mapped(&HostPattern::Net(IpNet::V4(mapped))));
    }
    if net != net.trunc() {
        let one = HostPattern::Net(IpNet::V6(Ipv6Net::from(address)));
        return Err(EntryError::host_bits(&one, &HostPattern::Net(IpNet::V6(net.trunc()))));
    }
    let pattern = HostPattern::Net(IpNet::V6(net));
    // One address, one spelling (RFC 5952), so that a search for it finds it.
    if text != address.to_string() {
        return Err(EntryError::not_canonical(&pattern));
    }
    Ok(pattern)
}

fn prefix_len(text: &str) -> Option<u8> {
    let digits = text.as_bytes();
    let plain = !digits.is_empty()
        && digits.iter().all(u8::is_ascii_digit)
        && (digits.len() == 1 || digits.first() != Some(&b'0'));
    if plain { text.parse().ok() } else { None }
}

/// Whether strangers can register names right below `domain`: a single label, or a public suffix, the private
/// section included (`github.io`), or the parent of a rule such as `*.kawasaki.jp`.
fn is_public_suffix(domain: &Hostname) -> bool {
    let listed = |name: &str| {
        psl::suffix(name.as_bytes())
            .is_some_and(|suffix| suffix.is_known() && suffix.as_bytes() == name.as_bytes())
    };
    domain.is_single_label() || listed(domain.as_str()) || listed(&format!("x--x.{domain}"))
}

#[cfg(test)]
mod tests;
