//! `tidegate check`: reads the config as `serve` would, and reports every mistake.

use clap::Args;
use policy::file::Mistake;
use serde_json::json;

use super::output::{complain, print};
use super::{ConfigArgs, Outcome};
use crate::config::{self, Config, ConfigError};
use crate::error_chain;
use crate::host;
use crate::weakening::Weakening;

const EXAMPLE: &str = "Example:
  tidegate check --config /etc/tidegate/tidegate.toml && systemctl reload tidegate

Exit status: 0 right, 1 mistakes, 2 usage or no config.";

/// Validate the config: every mistake at once, with file, line and column
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Check {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(super) fn run(self) -> Outcome {
        let path = match config::find(self.config.config) {
            Ok(path) => path,
            Err(error) => {
                complain("check", error);
                return Outcome::Usage;
            }
        };
        let local = match host::local_addresses() {
            Ok(local) => local,
            Err(error) => {
                complain("check", error_chain(&error));
                return Outcome::Usage;
            }
        };
        match config::load(&path, dns::clock::now(), &local) {
            Ok(config) if self.json => {
                let publishing = config.policy.open_to_publishing();
                let report = json!({
                    "ok": true,
                    "mistakes": [],
                    "weakenings": weakenings(&config),
                    "publishing": publishing,
                });
                print(format_args!("{report}\n"));
                Outcome::Done
            }
            Ok(config) => {
                print(summary(&config));
                Outcome::Done
            }
            Err(ConfigError::Mistakes(mistakes)) if self.json => {
                let mistakes: Vec<_> = mistakes.iter().map(record).collect();
                print(format_args!("{}\n", json!({ "ok": false, "mistakes": mistakes })));
                Outcome::Failed
            }
            Err(error) => {
                print(format_args!("{error}\n"));
                Outcome::Failed
            }
        }
    }
}

fn record(mistake: &Mistake) -> serde_json::Value {
    json!({
        "file": &*mistake.file,
        "line": mistake.line,
        "column": mistake.column,
        "at": mistake.at,
        "what": mistake.what,
        "hint": mistake.hint,
    })
}

fn weakenings(config: &Config) -> Vec<&'static str> {
    let mut kinds: Vec<_> = Weakening::of(&config.policy).into_iter().map(Weakening::label).collect();
    kinds.sort_unstable();
    kinds
}

fn summary(config: &Config) -> String {
    let sandboxes = &config.policy.sandboxes;
    let rules: usize =
        sandboxes.values().flat_map(|sandbox| &sandbox.sets).map(|set| set.rules().len()).sum();
    let mut text = format!("the config is right; sandboxes: {}, rules: {rules}\n", sandboxes.len());
    if sandboxes.is_empty() {
        text.push_str("note: no sandbox is known, so everything is denied\n");
    }
    if config.listen.all().next().is_none() {
        text.push_str("note: nothing listens, so `serve` would refuse to start\n");
    }
    for same in weakenings(config).chunk_by(|a, b| a == b) {
        if let Some(kind) = same.first() {
            text.push_str(&format!("weakening: {kind}, places: {}\n", same.len()));
        }
    }
    for registry in config.policy.open_to_publishing() {
        text.push_str(&format!(
            "{registry}: publishing possible: only its host and port are known of what is sent\n"
        ));
    }
    text
}
