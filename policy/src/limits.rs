//! Limits: how much a sandbox may do, as its table says, and how much of that under one rule. What counts against them
//! lives with the inbounds; whoever is over one is refused through [`crate::Gate`].

use std::fmt;
use std::time::Duration;

use crate::file::{duration, size};

/// The limits of a sandbox, or of a rule for each sandbox that uses it. `None` is "unlimited": for a sandbox it is
/// written, and what is not written has a default; a rule has no limits but those that are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients that are connected at once.
    pub connections: Option<u32>,
    /// Streams that are asked for in a second, refused ones too.
    pub new_connections_per_second: Option<u32>,
    /// Plain requests in a second, refused ones too.
    pub requests_per_second: Option<u32>,
    /// DNS questions in a second, refused ones too.
    pub dns_per_second: Option<u32>,
    /// Names in a minute that a wildcard allows and that were not asked for lately, over all inbounds: data can be
    /// carried out in names.
    pub new_names_per_minute: Option<u32>,
    /// Bytes from the sandbox, all its streams together.
    pub upload: Option<Quota>,
    /// Bytes to the sandbox, all its streams together.
    pub download: Option<Quota>,
    /// A stream is cut when it is so old.
    pub lifetime: Option<Duration>,
    /// A stream with no byte either way for this long is closed; `None` is what `[timeouts]` says.
    pub idle: Option<Duration>,
}

/// So many bytes in so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The bytes.
    pub bytes: u64,
    /// The time.
    pub window: Duration,
}

const HOUR: Duration = Duration::from_secs(60 * 60);

impl Limits {
    /// Nothing is limited.
    pub const NONE: Self = Self {
        connections: None,
        new_connections_per_second: None,
        requests_per_second: None,
        dns_per_second: None,
        new_names_per_minute: None,
        upload: None,
        download: None,
        lifetime: None,
        idle: None,
    };
}

/// As the config writes them, those that limit something: `connections = 4, upload = 200MiB/h`.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |limit: Option<u32>| limit.map(|limit| limit.to_string());
        let quota = |limit: Option<Quota>| limit.map(|limit| limit.to_string());
        let limits = [
            ("connections", number(self.connections)),
            ("new_connections_per_second", number(self.new_connections_per_second)),
            ("requests_per_second", number(self.requests_per_second)),
            ("dns_per_second", number(self.dns_per_second)),
            ("new_names_per_minute", number(self.new_names_per_minute)),
            ("upload", quota(self.upload)),
            ("download", quota(self.download)),
            ("lifetime", self.lifetime.map(duration::show)),
            ("idle", self.idle.map(duration::show)),
        ];
        let mut between = "";
        for (key, limit) in limits.iter().filter_map(|(key, limit)| Some((key, limit.as_ref()?))) {
            write!(f, "{between}{key} = {limit}")?;
            between = ", ";
        }
        if between.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = duration::show(self.window);
        // The config writes the unit alone.
        write!(f, "{}/{}", size::show(self.bytes), window.strip_prefix('1').unwrap_or(&window))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Browsers hold at most this many.
            connections: Some(256),
            // Installers and browsers open some dozens within a second, and then use them.
            new_connections_per_second: Some(200),
            // Package managers that fetch over plain HTTP come to some hundreds.
            requests_per_second: Some(1000),
            dns_per_second: Some(500),
            new_names_per_minute: Some(60),
            upload: Some(Quota { bytes: 200 << 20, window: HOUR }),
            download: Some(Quota { bytes: 20 << 30, window: HOUR }),
            lifetime: None,
            idle: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_writes_is_what_the_docs_say() {
        let hour = Duration::from_secs(3600);
        let limits = Limits::default();
        assert_eq!(limits.upload, Some(Quota { bytes: 209_715_200, window: hour }));
        assert_eq!(limits.download, Some(Quota { bytes: 21_474_836_480, window: hour }));
    }
}
