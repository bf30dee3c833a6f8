//! `tidegate probe`: run inside a sandbox, it tries every known way out.

use clap::Args;
use serde_json::json;

use super::Outcome;
use super::output::{harmless, print};
use crate::probe::{Known, Report, Verdict, probe};

const EXAMPLE: &str = "Example:
  tidegate run --allow api.example.com --probe
  tidegate probe --json

Exit status: 0 contained, 1 escaped, 2 unproven.";

/// Try every known way out of the sandbox in which this runs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Probe {
    /// Servers outside that must not be reached, as whoever started them tells
    #[arg(long, value_name = "ADDRESS:PORT,NAME,PATH,NONCE,NAMESPACE")]
    controls: Option<Known>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Probe {
    pub(super) fn run(self) -> Outcome {
        let report = probe(self.controls.as_ref());
        if self.json {
            print(format_args!("{}\n", record(&report)));
        } else {
            print(shown(&report));
        }
        match report.verdict() {
            Verdict::Contained => Outcome::Done,
            Verdict::Escaped => Outcome::Failed,
            Verdict::Unproven => Outcome::Usage,
        }
    }
}

fn shown(report: &Report) -> String {
    let line = |line: &crate::probe::Line| {
        let evidence = harmless(line.evidence.as_bytes());
        format!("{:9}  {}: {evidence}\n", line.verdict, line.way)
    };
    let count = |verdict| report.lines.iter().filter(|line| line.verdict == verdict).count();
    let all: String = report.lines.iter().map(line).collect();
    format!(
        "{all}{}: {} contained, {} escaped, {} unproven\n",
        report.verdict().word(),
        count(Verdict::Contained),
        count(Verdict::Escaped),
        count(Verdict::Unproven)
    )
}

fn record(report: &Report) -> serde_json::Value {
    let lines: Vec<_> = report
        .lines
        .iter()
        .map(|line| json!({ "way": line.way, "verdict": line.verdict.word(), "evidence": line.evidence }))
        .collect();
    json!({ "verdict": report.verdict().word(), "lines": lines })
}
