//! `tidegate demo`: the main job on a stand-in internet.

use clap::Args;

use super::Outcome;
use super::output::{complain, print};
use crate::{demo, error_chain};

const EXAMPLE: &str = "Example:
  tidegate demo

Exit status: 0 every decision was as the policy says, 1 it was not or the demo cannot run.";

/// Show the gateway at work: real requests through every inbound on a stand-in internet, and what the log says
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Demo {}

impl Demo {
    #[expect(clippy::unused_self, reason = "as every verb: it has no options yet")]
    pub(super) fn run(self) -> Outcome {
        match demo::run() {
            Ok(report) => {
                print(&report);
                if report.is_as_expected() { Outcome::Done } else { Outcome::Failed }
            }
            Err(error) => {
                complain("demo", error_chain(&error));
                Outcome::Failed
            }
        }
    }
}
