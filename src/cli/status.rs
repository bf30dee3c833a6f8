//! `tidegate status`: what the running gateway says of itself.

use clap::Args;
use serde_json::Value;

use super::Outcome;
use super::admin::{Admin, AdminArgs};
use super::healthcheck::{Page, PageArgs};
use super::output::{complain, harmless, print};
use crate::admin::Report;
use crate::config;

const EXAMPLE: &str = "Example:
  tidegate status --json

Exit status: 0 ready, 1 not ready or not reachable, 2 usage or config.";

/// Show whether the gateway is ready, its policy generation, its sandboxes and how its last reload went
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Status {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    page: PageArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(self) -> Outcome {
        if self.admin.is_named() {
            return self.ask();
        }
        // The admin socket tells more than the page of the metrics listener, to those who may ask it.
        if !self.page.is_named()
            && let Ok(path) = config::find(self.admin.config.config.clone())
            && let Ok(Some(admin)) = Admin::of_config(&path)
            && let Ok(answer) = admin.ask("GET", "/v1/status", None)
        {
            return show(&answer, self.json);
        }
        let page = match Page::find(self.page, self.admin.config) {
            Ok(page) => page,
            Err(complaint) => {
                complain("status", complaint);
                return Outcome::Usage;
            }
        };
        match page.get(if self.json { "application/json" } else { "text/plain" }) {
            Ok((status, body)) => {
                show_lines(&body);
                if status == 200 { Outcome::Done } else { Outcome::Failed }
            }
            Err(error) => {
                complain("status", error);
                Outcome::Failed
            }
        }
    }

    /// Asks the gateway that the command line names, and no other.
    fn ask(self) -> Outcome {
        let Self { admin, json, .. } = self;
        let admin = match admin.find() {
            Ok(admin) => admin,
            Err(complaint) => {
                complain("status", complaint);
                return Outcome::Usage;
            }
        };
        match admin.ask("GET", "/v1/status", None) {
            Ok(answer) => show(&answer, json),
            Err(failed) => {
                complain("status", failed);
                Outcome::Failed
            }
        }
    }
}

fn show(answer: &Value, json: bool) -> Outcome {
    if json {
        print(format_args!("{answer}\n"));
    } else if let Ok(report) = serde_json::from_value::<Report>(answer.clone()) {
        let sandboxes = &answer["sandboxes"];
        show_lines(&format!(
            "{report}{} sandboxes of the config, {} added; {} paused, {} expired\n{} tunnels of {} clients\n\
             {} approvals, {} questions waiting for one\n",
            sandboxes["config"],
            sandboxes["run_time"],
            sandboxes["paused"],
            sandboxes["expired"],
            answer["tunnels"],
            answer["clients"],
            answer["approvals"],
            answer["pending"]
        ));
    }
    if answer["ready"] == true { Outcome::Done } else { Outcome::Failed }
}

fn show_lines(text: &str) {
    for line in text.lines() {
        print(format_args!("{}\n", harmless(line.as_bytes())));
    }
}
