//! `[sandbox.X.limits]`, and `limits` of a rule.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::mistake::quoted;
use super::reader::{Item, Table};
use super::{duration, size};
use crate::limits::{Limits, Quota};

/// The keys of the table.
pub(super) const KEYS: &[&str] = &[
    "connections",
    "new_connections_per_second",
    "requests_per_second",
    "dns_per_second",
    "new_names_per_minute",
    "upload",
    "download",
    "lifetime",
    "idle",
];

const UNLIMITED: &str = "unlimited";

/// What is not written, and what is wrong, stays as it is in `limits`.
pub(super) fn read(mut table: Table<'_>, mut limits: Limits) -> Limits {
    for (key, slot) in [
        ("connections", &mut limits.connections),
        ("new_connections_per_second", &mut limits.new_connections_per_second),
        ("requests_per_second", &mut limits.requests_per_second),
        ("dns_per_second", &mut limits.dns_per_second),
        ("new_names_per_minute", &mut limits.new_names_per_minute),
    ] {
        take(&mut table, key, slot, |item| number(item, key));
    }
    take(&mut table, "upload", &mut limits.upload, quota);
    take(&mut table, "download", &mut limits.download, quota);
    let (second, week) = (Duration::from_secs(1), Duration::from_secs(60 * 60 * 24 * 7));
    take(&mut table, "lifetime", &mut limits.lifetime, |item| time(item, second..=week * 52));
    if let Some(idle) = table.take("idle").and_then(|item| time(&item, second..=week)) {
        limits.idle = Some(idle);
    }
    table.finish();
    limits
}

fn take<'a, T>(
    table: &mut Table<'a>,
    key: &'static str,
    slot: &mut Option<T>,
    read: impl Fn(&Item<'a>) -> Option<T>,
) {
    let Some(item) = table.take(key) else { return };
    if item.as_string() == Some(UNLIMITED) {
        *slot = None;
    } else if let Some(limit) = read(&item) {
        *slot = Some(limit);
    }
}

fn number(item: &Item<'_>, key: &str) -> Option<u32> {
    if !item.is_number() {
        item.mistake("a whole number is expected", format!("write {key} = 100, or \"{UNLIMITED}\""));
        return None;
    }
    // Zero would be a sandbox that reaches nothing; a sandbox without policies says so better.
    u32::try_from(item.number(1..=1_000_000)?).ok()
}

/// `200MiB/h`: a size and a unit of time.
fn quota(item: &Item<'_>) -> Option<Quota> {
    let text = item.string()?;
    let parts = text.split_once('/').and_then(|(bytes, per)| Some((size::parse(bytes)?, window(per)?)));
    let found = parts.filter(|(bytes, _)| (1..=1 << 60).contains(bytes));
    if found.is_none() {
        let hint = format!("write \"200MiB/h\" (B, KiB, MiB or GiB; s, m, h or d), or \"{UNLIMITED}\"");
        item.mistake(format!("{} is no size for a time", quoted(text)), hint);
    }
    found.map(|(bytes, window)| Quota { bytes, window })
}

fn window(per: &str) -> Option<Duration> {
    let seconds = match per {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 60 * 60 * 24,
        _ => return None,
    };
    Some(Duration::from_secs(seconds))
}

fn time(item: &Item<'_>, range: RangeInclusive<Duration>) -> Option<Duration> {
    duration::read(item, range)
}
