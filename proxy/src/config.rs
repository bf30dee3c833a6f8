//! What the inbounds are told: how long they wait, and which way leads out.

use std::time::Duration;

use crate::via::UpstreamProxy;

/// What a gateway is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The `[timeouts]` table.
    pub timeouts: Timeouts,
    /// The `[upstream]` table, if there is one.
    pub upstream: Option<UpstreamProxy>,
    /// Whether somebody can be asked for an approval.
    pub approvers: Approvers,
    /// So many clients may be connected at once, each with a descriptor here and one upstream.
    pub clients: Clients,
}

/// Whether somebody can be asked for an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Approvers {
    /// Nobody: what a person must approve is denied at once.
    #[default]
    Nobody,
    /// Somebody, who may take his time.
    Somebody,
}

/// How many clients may be connected at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients(pub usize);

impl Default for Clients {
    fn default() -> Self {
        // Half of what a process may open by default (getrlimit(2)), less what it opens for itself.
        Self(384)
    }
}

/// The `[timeouts]` table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first attempt to reach a destination to the last, all its addresses together: then it is
    /// `upstream_timeout`.
    pub connect: Duration,
    /// A request head, a SOCKS5 handshake or a ClientHello must be whole after this, counted from its beginning,
    /// so that a byte now and then does not extend it. A client of HTTP is then told 408.
    pub head: Duration,
    /// A tunnel or an exchange with no byte either way for this long is closed. Long-lived streams must keep alive
    /// below it.
    pub idle: Duration,
    /// What is still open this long after the gateway was told to stop is reset.
    pub drain: Duration,
    /// An attempt for which a person has not answered by then is `approval_timeout`.
    pub approval: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            head: Duration::from_secs(10),
            // MCP and database sessions rest for half an hour and more.
            idle: Duration::from_secs(3600),
            drain: Duration::from_secs(30),
            // Long enough for somebody who watches; most clients wait as long, curl and undici twice so.
            approval: Duration::from_secs(120),
        }
    }
}
