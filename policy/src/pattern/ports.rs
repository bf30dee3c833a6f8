//! Sets of ports: `443`, `443,8443,9000-9010`, `*`.

use std::fmt;

use super::EntryError;
use crate::destination::Port;

/// A set of ports, never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortSet {
    /// Inclusive. Nearly every set has this one only, so it stands in the rule itself.
    first: (u16, u16),
    /// Those behind it, sorted; all are apart from one another by more than one.
    rest: Option<Box<[(u16, u16)]>>,
}

impl PortSet {
    /// Every port.
    pub fn any() -> PortSet {
        PortSet { first: (1, u16::MAX), rest: None }
    }

    /// Reads a comma list of ports and closed ranges, or `*` alone. No spaces, signs, leading zeros or names.
    pub fn parse(text: &str) -> Result<PortSet, EntryError> {
        if text == "*" {
            return Ok(PortSet::any());
        }
        if text.is_empty() {
            return Err(EntryError::ports("nothing after the colon", "write a port, or leave the colon out"));
        }
        let ranges = text.split(',').map(range).collect::<Result<Vec<_>, _>>()?;
        PortSet::from_ranges(merged(ranges)).ok_or_else(|| bad_port(text))
    }

    /// The set of some ports; `None` if there are none, because an empty set would read as "any" somewhere.
    pub fn from_ports(ports: impl IntoIterator<Item = Port>) -> Option<PortSet> {
        PortSet::from_ranges(merged(ports.into_iter().map(|port| (port.get(), port.get())).collect()))
    }

    fn from_ranges(merged: Vec<(u16, u16)>) -> Option<PortSet> {
        let (first, rest) = merged.split_first()?;
        Some(PortSet { first: *first, rest: (!rest.is_empty()).then(|| rest.into()) })
    }

    fn ranges(&self) -> impl Iterator<Item = (u16, u16)> {
        std::iter::once(self.first).chain(self.rest.iter().flatten().copied())
    }

    /// This set and the other's ports.
    pub fn union(&self, other: &PortSet) -> PortSet {
        PortSet::from_ranges(merged(self.ranges().chain(other.ranges()).collect()))
            .unwrap_or_else(PortSet::any)
    }

    /// Whether the union of `others` holds every port of this set.
    pub fn is_covered_by<'a>(&self, others: impl IntoIterator<Item = &'a PortSet>) -> bool {
        let all = merged(others.into_iter().flat_map(PortSet::ranges).collect());
        self.ranges().all(|(first, last)| all.iter().any(|&(low, high)| low <= first && last <= high))
    }

    /// Whether every port of the other set is in this one.
    pub fn covers(&self, other: &PortSet) -> bool {
        // Ranges of a set are apart, so that one of them holds what all hold.
        other.ranges().all(|(first, last)| self.ranges().any(|(low, high)| low <= first && last <= high))
    }

    /// Whether the port is in the set.
    pub fn contains(&self, port: Port) -> bool {
        let port = port.get();
        self.ranges().any(|(first, last)| first <= port && port <= last)
    }

    /// Whether the sets have a port in common.
    pub fn overlaps(&self, other: &PortSet) -> bool {
        self.ranges().any(|a| other.ranges().any(|b| a.0 <= b.1 && b.0 <= a.1))
    }

    /// How many ports are in the set, 1–65535.
    #[expect(clippy::len_without_is_empty, reason = "a set of ports is never empty")]
    pub fn len(&self) -> usize {
        self.ranges().map(|(first, last)| usize::from(last - first) + 1).sum()
    }

    /// Whether every port is in the set.
    pub fn is_any(&self) -> bool {
        self.first == (1, u16::MAX)
    }
}

/// Sorts ranges, and joins those that overlap or follow one another.
fn merged(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if u32::from(first) <= u32::from(before.1) + 1 => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

impl From<Port> for PortSet {
    fn from(port: Port) -> PortSet {
        PortSet { first: (port.get(), port.get()), rest: None }
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_any() {
            return f.write_str("*");
        }
        for (n, (first, last)) in self.ranges().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

fn range(text: &str) -> Result<(u16, u16), EntryError> {
    let one = |text: &str| Port::parse(text).map(Port::get);
    let Some((first, last)) = text.split_once('-') else {
        return match one(text) {
            Some(port) => Ok((port, port)),
            None => Err(bad_port(text)),
        };
    };
    let hint = "write the lower port first, as in `9000-9010`";
    match (one(first), one(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        (Some(_), Some(_)) => Err(EntryError::ports("the port range runs backwards", hint)),
        _ if first.is_empty() || last.is_empty() => Err(EntryError::ports("the port range is open", hint)),
        (None, _) => Err(bad_port(first)),
        (_, None) => Err(bad_port(last)),
    }
}

fn bad_port(text: &str) -> EntryError {
    let hint = match text {
        "https" => "write `443`",
        "http" => "write `80`",
        "ssh" => "write `22`",
        "*" => "`*` stands alone: every port",
        _ => "write `443`, `443,8443`, `9000-9010` or `*`",
    };
    let what = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        "service names are not read: they differ between machines"
    } else {
        "a port is a plain decimal number from 1 to 65535"
    };
    EntryError::ports(what, hint)
}
