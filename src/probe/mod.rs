//! `tidegate probe`: from inside a sandbox, every known way out is tried, and each is told as contained, escaped or
//! unproven with what shows it.
//!
//! ```text
//! Ground (links, capabilities, listeners, controls) ──▶ attempts ──▶ Line { way, verdict, evidence } ──▶ Report
//! ```
//!
//! That a request failed proves nothing: a server may be down, a name may be wrong. So a line is contained only where it
//! cannot be otherwise (a namespace whose only link is `lo`, a system call that needs a capability that nobody has), or
//! where a [`Controls`] outside, shown to work there, was tried from inside and was not reached. It is escaped where
//! something was reached, or a packet left over a link. Everything else is unproven.
//!
//! Where the namespace has another link than `lo`, only documentation addresses (RFC 5737, RFC 3849) are sent to.

mod controls;
mod descriptors;
mod device;
mod families;
mod files;
mod gateway;
mod ground;
mod listeners;
mod namespaces;
mod network;
mod seal;
mod socket;
mod unix;

use std::fmt;
use std::net::IpAddr;

pub use self::controls::{Controls, Known};
use self::ground::Ground;
pub(crate) use self::seal::ways_out;

/// What came of one way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It leads nowhere, and that is shown.
    Contained,
    /// Nothing came of it, which proves nothing.
    Unproven,
    /// It leads out.
    Escaped,
}

impl Verdict {
    /// As it is printed.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Contained => "contained",
            Self::Unproven => "unproven",
            Self::Escaped => "escaped",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// One way out, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The way.
    pub way: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// What shows it.
    pub evidence: String,
}

impl Line {
    fn contained(way: &'static str, evidence: impl Into<String>) -> Self {
        Self { way, verdict: Verdict::Contained, evidence: evidence.into() }
    }

    fn unproven(way: &'static str, evidence: impl Into<String>) -> Self {
        Self { way, verdict: Verdict::Unproven, evidence: evidence.into() }
    }

    fn escaped(way: &'static str, evidence: impl Into<String>) -> Self {
        Self { way, verdict: Verdict::Escaped, evidence: evidence.into() }
    }
}

/// Everything that was tried.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order in which it was tried.
    pub lines: Vec<Line>,
}

impl Report {
    /// The worst of all lines.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.lines.iter().map(|line| line.verdict).max().unwrap_or(Verdict::Unproven)
    }
}

/// Whether a host, as it is shown, is one that the probe asks for and nobody has.
pub(crate) fn is_its_own(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == socket::NOBODY
        || address
            .is_ok_and(|address| [socket::NOBODY_V4.into(), socket::NOBODY_V6.into()].contains(&address))
}

/// Tries every way out of where this process is. `known` are controls that work outside.
#[must_use]
pub fn probe(known: Option<&Known>) -> Report {
    // First of all, before anything of our own is open.
    let descriptors = descriptors::found();
    let ground = Ground::look(known);
    let mut lines = vec![ground.links_line()];
    lines.extend(network::lines(&ground));
    lines.extend(families::lines(&ground));
    lines.extend(listeners::lines(&ground));
    lines.extend(unix::lines(&ground));
    lines.push(descriptors::line(descriptors));
    lines.extend(namespaces::lines(&ground));
    lines.extend(device::lines(&ground));
    lines.extend(gateway::lines(&ground));
    lines.extend(files::lines(&ground));
    Report { lines }
}
