//! The program's own log, on stderr. What sandboxes do stands in the audit, not here.

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

/// Our crates. Others are heard only where something is wrong.
const OURS: [&str; 4] = ["tidegate", "proxy", "dns", "policy"];

/// Changes what is logged while the program runs.
#[derive(Clone, Debug)]
pub struct LogLevel(reload::Handle<Targets, Registry>);

impl LogLevel {
    /// Begins to log. To be called once.
    #[must_use]
    pub fn init(level: Level) -> Self {
        let (filter, handle) = reload::Layer::new(targets(level));
        // Never coloured: whoever reads a log wants the same bytes everywhere.
        let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
        let begun = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
        debug_assert!(begun.is_ok(), "logging begins once");
        Self(handle)
    }

    /// Logs at most this from now on.
    pub fn set(&self, level: Level) {
        if let Err(error) = self.0.reload(targets(level)) {
            tracing::error!(%error, "cannot change the log level");
        }
    }
}

fn targets(level: Level) -> Targets {
    let ours = OURS.map(|target| (target, level));
    Targets::new().with_default(LevelFilter::WARN).with_targets(ours)
}
