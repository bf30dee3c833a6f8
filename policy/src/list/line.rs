//! One line of a deny list.

use std::net::IpAddr;
use std::str::SplitAsciiWhitespace;

use super::Blocked;
use super::zone::Zone;
use crate::hostname::{BadHost, Hostname};

/// What a line says.
pub(super) enum Line<'l> {
    /// A comment, a title, or a record that blocks nothing.
    Nothing,
    /// One name or suffix.
    Blocks(Blocked),
    /// The names behind the address of a hosts file.
    Hosts(HostNames<'l>),
}

/// The names on a line of a hosts file; an address among them, as in `0.0.0.0 0.0.0.0`, names no host.
pub(super) struct HostNames<'l>(SplitAsciiWhitespace<'l>);

impl<'l> Iterator for HostNames<'l> {
    type Item = &'l str;

    fn next(&mut self) -> Option<&'l str> {
        self.0.find(|name| name.parse::<IpAddr>().is_err())
    }
}

/// Why a line is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Bad {
    #[error("the line is not UTF-8")]
    NotText,
    #[error("{0}")]
    Name(BadHost),
    #[error("an exception: a deny list cannot allow")]
    Exception,
    #[error("an adblock rule that is about more than a name")]
    Adblock,
    #[error("an RPZ trigger that is about more than a name")]
    Trigger,
    #[error("an RPZ action that lets something through")]
    Action,
    #[error("a name outside of the zone")]
    Outside,
    #[error("neither a name, a hosts line, an adblock domain nor an RPZ record")]
    Unknown,
    #[error("the list is too long")]
    TooMany,
}

impl Bad {
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::NotText => "save it as UTF-8",
            Self::Exception | Self::Action => "remove the line; what a list must not block is left out of it",
            Self::Adblock => "write `||ads.example.com^`, or take the list's edition for DNS",
            Self::Trigger => "only names can be blocked: `ads.example.com CNAME .`",
            Self::Outside => "write names relative to the zone, or an $ORIGIN above them",
            Self::Name(_) | Self::Unknown => {
                "write `ads.example.com`, `*.ads.example.com`, `0.0.0.0 ads.example.com` or `||ads.example.com^`"
            }
            Self::TooMany => "4 GiB of names at most",
        }
    }
}

/// Reads one line; `zone` holds what an RPZ file has said before.
pub(super) fn read<'l>(line: &'l str, zone: &mut Zone) -> Result<Line<'l>, Bad> {
    if zone.is_within_parentheses() {
        zone.skip(line);
        return Ok(Line::Nothing);
    }
    let text = line.trim_ascii();
    match text.as_bytes() {
        [] | [b'#' | b'!' | b';', ..] => return Ok(Line::Nothing),
        // `[Adblock Plus 2.0]` heads a list.
        [b'[', .., b']'] => return Ok(Line::Nothing),
        [b'@', b'@', ..] => return Err(Bad::Exception),
        [b'|', b'|', rest @ ..] => return adblock(std::str::from_utf8(rest).unwrap_or_default()),
        _ => {}
    }
    // `#` ends what is said only behind a space: `example.com##.ad` is another kind of rule.
    let text = text.split(" #").next().unwrap_or_default();
    let text = text.split("\t#").next().unwrap_or_default().trim_ascii_end();
    let mut words = text.split_ascii_whitespace();
    let (Some(first), second) = (words.next(), words.clone().next()) else { return Ok(Line::Nothing) };
    if first.starts_with('$') || second.is_some_and(|_| first.parse::<IpAddr>().is_err()) {
        return zone.record(line);
    }
    match second {
        Some(_) => Ok(Line::Hosts(HostNames(words))),
        None if text.bytes().any(|byte| b"#/|^$".contains(&byte)) => Err(Bad::Adblock),
        None => plain(first).map(Line::Blocks),
    }
}

fn plain(text: &str) -> Result<Blocked, Bad> {
    if let Some(suffix) = text.strip_prefix("*.") {
        return name(suffix).map(Blocked::Below);
    }
    match text.strip_prefix('.') {
        Some(suffix) => name(suffix).map(Blocked::ApexAndBelow),
        None => name(text).map(Blocked::Exact),
    }
}

/// `||ads.example.com^`: the name and everything below. Options that say how much it matters change nothing; those that
/// narrow it ask for what is not seen here.
fn adblock<'l>(rest: &'l str) -> Result<Line<'l>, Bad> {
    let (text, options) = rest.split_once('^').ok_or(Bad::Adblock)?;
    if !matches!(options, "" | "|" | "$important" | "$all" | "$document" | "$doc") {
        return Err(Bad::Adblock);
    }
    let blocked = match text.strip_prefix("*.") {
        Some(suffix) => Blocked::Below(name(suffix)?),
        None if text.contains('*') || text.contains('/') => return Err(Bad::Adblock),
        None => Blocked::ApexAndBelow(name(text)?),
    };
    Ok(Line::Blocks(blocked))
}

pub(super) fn name(text: &str) -> Result<Hostname, Bad> {
    Hostname::parse(text).map_err(Bad::Name)
}
