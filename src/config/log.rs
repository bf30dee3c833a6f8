//! `[log]`: the program's own log on stderr, which is not the audit.

use policy::file::Config;
use tracing::Level;

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["level"];

/// The levels as the config writes them.
const LEVELS: [(&str, Level); 5] = [
    ("error", Level::ERROR),
    ("warn", Level::WARN),
    ("info", Level::INFO),
    ("debug", Level::DEBUG),
    ("trace", Level::TRACE),
];

/// Reads the table: what is logged at most.
pub(super) fn read(config: &mut Config<'_>) -> Level {
    let Some(mut table) = config.table("log") else { return Level::INFO };
    let level = table.take("level").and_then(|item| item.one_of(&LEVELS)).unwrap_or(Level::INFO);
    table.finish();
    level
}
