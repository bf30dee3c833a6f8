//! `tidegate status`: what the running gateway says of itself.

use clap::Args;

use super::healthcheck::{Page, PageArgs};
use super::output::{complain, harmless, print};
use super::{ConfigArgs, Outcome};

const EXAMPLE: &str = "Example:
  tidegate status --json

Exit status: 0 ready, 1 not ready or not reachable, 2 usage or config.";

/// Show whether the gateway is ready, its policy generation and how its last reload went
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Status {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    page: PageArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(self) -> Outcome {
        let page = match Page::find(self.page, self.config) {
            Ok(page) => page,
            Err(complaint) => {
                complain("status", complaint);
                return Outcome::Usage;
            }
        };
        match page.get(if self.json { "application/json" } else { "text/plain" }) {
            Ok((status, body)) => {
                for line in body.lines() {
                    print(format_args!("{}\n", harmless(line.as_bytes())));
                }
                if status == 200 { Outcome::Done } else { Outcome::Failed }
            }
            Err(error) => {
                complain("status", error);
                Outcome::Failed
            }
        }
    }
}
