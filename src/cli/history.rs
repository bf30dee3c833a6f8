//! What `log` and `domains` share: which log they read, which lines, and how they show what came from the network.

use std::path::PathBuf;

use clap::Args;

use super::{ConfigArgs, Outcome};
use crate::audit::{History, Line};
use crate::config::{self, ConfigError};
use crate::error_chain;
use crate::host::{self, HostError};

/// Which lines of which log.
#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The audit log, where it is not the one that the config names
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Only lines of this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
}

/// Why there is nothing to read.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoHistory {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("the audit goes to the standard output of the gateway; name a file that holds it with --file")]
    Stdout,
    #[error("cannot read the audit log `{}`; is it its place, and may you read it?", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
}

impl NoHistory {
    /// How a verb ends that has nothing to read.
    pub(super) const fn outcome(&self) -> Outcome {
        match self {
            Self::Config(_) | Self::Host(_) | Self::Stdout => Outcome::Usage,
            Self::Unreadable { .. } => Outcome::Failed,
        }
    }
}

impl HistoryArgs {
    /// Opens the log.
    pub(super) fn open(&self) -> Result<History, NoHistory> {
        let path = match &self.file {
            Some(path) => path.clone(),
            None => self.configured()?,
        };
        History::open(&path).map_err(|source| NoHistory::Unreadable { path, source })
    }

    fn configured(&self) -> Result<PathBuf, NoHistory> {
        let path = config::find(self.config.config.clone())?;
        let config = config::load(&path, dns::clock::now(), &host::local_addresses()?)?;
        config.audit.path.ok_or(NoHistory::Stdout)
    }

    /// Whether a line is among those asked for.
    pub(super) fn wants(&self, line: &Line) -> bool {
        self.sandbox.is_none() || line.sandbox == self.sandbox
    }
}

/// Says what went wrong while reading.
pub(super) fn unreadable(error: &std::io::Error) -> String {
    format!("cannot read on in the audit log: {}", error_chain(error))
}

/// A text that came from the network, for a terminal: as it is where it can only be a name, a path or a number, else in
/// quotes with everything escaped that is not printable ASCII.
pub(super) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:/[]%*~+,=".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("\"{}\"", text.escape_default())
}

/// A destination as one writes it: brackets around IPv6.
pub(super) fn destination(host: &str, port: Option<u16>) -> String {
    let is_v6 = host.parse::<std::net::Ipv6Addr>().is_ok();
    let host = if is_v6 { format!("[{host}]") } else { quoted(host) };
    match port {
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

/// A number of bytes for a reader.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut tenths = u128::from(count) * 10;
    let mut unit = "B";
    for next in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = next;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_quoted_and_escaped() {
        assert_eq!(quoted("api.example.com"), "api.example.com");
        assert_eq!(quoted(""), "\"\"");
        assert_eq!(quoted("\u{1b}[2J\" \u{202e}"), "\"\\u{1b}[2J\\\" \\u{202e}\"");
        assert_eq!(destination("2001:db8::1", Some(443)), "[2001:db8::1]:443");
        assert_eq!(destination("a b", Some(1)), "\"a b\":1");
    }

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_is_not_below_one() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_572_864, "1.5 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
    }
}
