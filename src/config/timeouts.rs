//! `[timeouts]`: how long the gateway waits for whom.

use std::time::Duration;

use policy::file::{Config, duration};

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["connect", "head", "idle", "drain"];

/// The `[timeouts]` table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A destination that has not accepted by then is `upstream_timeout`.
    pub connect: Duration,
    /// A client that has not sent its whole request head by then is told 408.
    pub head: Duration,
    /// A tunnel with no byte either way for this long is closed. Long-lived streams must keep alive below it.
    pub idle: Duration,
    /// How long SIGTERM waits for open tunnels before it closes them.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(60 * 60),
            drain: Duration::from_secs(30),
        }
    }
}

impl Timeouts {
    pub(super) fn read(config: &mut Config<'_>) -> Self {
        let mut held = Self::default();
        let Some(mut table) = config.table("timeouts") else { return held };
        let (tenth, minute) = (Duration::from_millis(100), Duration::from_secs(60));
        let (hour, day) = (minute * 60, minute * 60 * 24);
        for (key, slot, range) in [
            ("connect", &mut held.connect, tenth..=minute * 5),
            ("head", &mut held.head, tenth..=minute * 5),
            // Shorter ones break event streams, which keep alive every 15 to 60 seconds.
            ("idle", &mut held.idle, Duration::from_secs(1)..=day * 7),
            ("drain", &mut held.drain, Duration::ZERO..=hour),
        ] {
            if let Some(duration) = table.take(key).and_then(|item| duration::read(&item, range)) {
                *slot = duration;
            }
        }
        table.finish();
        held
    }
}
