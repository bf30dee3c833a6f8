//! A host pattern that somebody else holds: what it matches is written down here, once for every way to store it.

use std::fmt;

use ipnet::IpNet;

use super::InnerStar;
use crate::hostname::{is_at_or_below, is_below, is_single_label};

/// A [`super::HostPattern`] whose names are borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostView<'a> {
    /// `api.example.com`
    Exact(&'a str),
    /// `*.example.com`
    Below(&'a str),
    /// `.example.com`
    ApexAndBelow(&'a str),
    /// `ec2.*.example.com`
    InnerStar(&'a InnerStar),
    /// `*`
    Any,
    /// An address or a range.
    Net(IpNet),
}

impl HostView<'_> {
    /// Whether a canonical name is covered.
    #[must_use]
    pub fn matches_name(self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Below(domain) => is_below(name, domain),
            Self::ApexAndBelow(domain) => {
                is_below(name, domain) || (name == domain && !is_single_label(name))
            }
            Self::InnerStar(star) => star.matches(name),
            Self::Any => !is_single_label(name),
            Self::Net(_) => false,
        }
    }

    /// Whether every host that `other` covers is covered by this pattern too.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        match (self, other) {
            (Self::Net(wide), Self::Net(narrow)) => wide.contains(&narrow),
            (_, Self::Exact(name)) => self.matches_name(name),
            (Self::Any, _) => !matches!(other, Self::Net(_)),
            (Self::Below(wide), Self::ApexAndBelow(narrow)) => is_below(narrow, wide),
            (
                Self::Below(wide) | Self::ApexAndBelow(wide),
                Self::Below(narrow) | Self::ApexAndBelow(narrow),
            ) => is_at_or_below(narrow, wide),
            (Self::Below(wide) | Self::ApexAndBelow(wide), Self::InnerStar(narrow)) => {
                narrow.after.is_at_or_below(wide)
            }
            (Self::InnerStar(star), Self::InnerStar(other)) => star == other,
            _ => false,
        }
    }

    /// Whether it is too broad to open a special-use name: `*`, or a suffix of one label.
    #[must_use]
    pub fn is_broad(self) -> bool {
        match self {
            Self::Any => true,
            Self::Below(suffix) | Self::ApexAndBelow(suffix) => is_single_label(suffix),
            Self::InnerStar(star) => star.after.is_single_label(),
            Self::Exact(_) | Self::Net(_) => false,
        }
    }
}

impl fmt::Display for HostView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Below(domain) => write!(f, "*.{domain}"),
            Self::ApexAndBelow(domain) => write!(f, ".{domain}"),
            Self::InnerStar(star) => write!(f, "{}.*.{}", star.before, star.after),
            Self::Any => f.write_str("*"),
            Self::Net(IpNet::V4(net)) if net.prefix_len() == 32 => write!(f, "{}", net.addr()),
            Self::Net(IpNet::V4(net)) => write!(f, "{net}"),
            Self::Net(IpNet::V6(net)) if net.prefix_len() == 128 => write!(f, "[{}]", net.addr()),
            Self::Net(IpNet::V6(net)) => write!(f, "[{net}]"),
        }
    }
}
