//! `[timeouts]`: how long the gateway waits for whom.

use std::time::Duration;

use policy::file::{Config, duration};
use proxy::Timeouts;

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["connect", "head", "idle", "drain", "approval"];

/// Reads the table; what it leaves out is what [`Timeouts`] holds by default.
pub(super) fn read(config: &mut Config<'_>) -> Timeouts {
    let mut held = Timeouts::default();
    let Some(mut table) = config.table("timeouts") else { return held };
    let (tenth, minute) = (Duration::from_millis(100), Duration::from_secs(60));
    let (hour, day) = (minute * 60, minute * 60 * 24);
    for (key, slot, range) in [
        ("connect", &mut held.connect, tenth..=minute * 5),
        ("head", &mut held.head, tenth..=minute * 5),
        // Shorter ones break event streams, which keep alive every 15 to 60 seconds.
        ("idle", &mut held.idle, Duration::from_secs(1)..=day * 7),
        ("drain", &mut held.drain, Duration::ZERO..=hour),
        ("approval", &mut held.approval, Duration::from_secs(1)..=day),
    ] {
        if let Some(duration) = table.take(key).and_then(|item| duration::read(&item, range)) {
            *slot = duration;
        }
    }
    table.finish();
    held
}
