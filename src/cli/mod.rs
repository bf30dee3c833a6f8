//! The command line: one file a verb. `tidegate help VERB` shows an example of each.

mod admin;
mod approvals;
mod approved;
mod attach;
mod bridge;
mod check;
mod client;
mod connect;
mod demo;
mod domains;
mod end;
mod explain;
mod healthcheck;
mod history;
mod log;
mod output;
mod probe;
mod registration;
mod registries;
mod run;
mod sandbox;
mod serve;
mod status;
mod tls;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::log::row as log_row;

/// An egress gateway for sandboxes: exactly what the policy lists, every contact in the log, no other way out.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(serve::Serve),
    Attach(attach::Attach),
    Run(Box<run::Run>),
    Check(check::Check),
    Log(log::Log),
    Domains(domains::Domains),
    Explain(explain::Explain),
    Connect(connect::Connect),
    Bridge(bridge::Bridge),
    Sandbox(sandbox::Sandbox),
    Approvals(approvals::Approvals),
    Status(status::Status),
    Registries(registries::Registries),
    Probe(probe::Probe),
    Demo(demo::Demo),
    Healthcheck(healthcheck::Healthcheck),
}

/// Which config a verb reads.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// The config: a file, or a directory of *.toml files. Without it: $TIDEGATE_CONFIG, then
    /// $XDG_CONFIG_HOME/tidegate/tidegate.toml, then /etc/tidegate/tidegate.toml.
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

/// How a verb ended, as its exit status tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It did what was asked, or the answer is yes.
    Done,
    /// It could not, or the answer is no.
    Failed,
    /// The command line or the config makes no sense.
    Usage,
    /// The answer is that a person must say.
    Asks,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
            Outcome::Usage => 2,
            Outcome::Asks => 3,
        })
    }
}

/// Runs the verb that the command line names. Wrong usage ends the program with 2.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    let outcome = match cli.verb {
        Verb::Run(verb) => return verb.run(),
        Verb::Serve(verb) => verb.run(),
        Verb::Attach(verb) => verb.run(),
        Verb::Check(verb) => verb.run(),
        Verb::Log(verb) => verb.run(),
        Verb::Domains(verb) => verb.run(),
        Verb::Explain(verb) => verb.run(),
        Verb::Connect(verb) => verb.run(),
        Verb::Bridge(verb) => verb.run(),
        Verb::Sandbox(verb) => verb.run(),
        Verb::Approvals(verb) => verb.run(),
        Verb::Status(verb) => verb.run(),
        Verb::Registries(verb) => verb.run(),
        Verb::Probe(verb) => verb.run(),
        Verb::Demo(verb) => verb.run(),
        Verb::Healthcheck(verb) => verb.run(),
    };
    outcome.into()
}

/// Shows what is wrong with the command line, or the help that it asks for.
fn misused(error: &clap::Error) -> ExitCode {
    // Where nobody reads, nobody needs to know.
    let _ = error.print();
    let is_run = std::env::args_os().nth(1).is_some_and(|verb| verb == "run");
    match error.use_stderr() {
        false => ExitCode::SUCCESS,
        // 2 could be the command's own.
        true if is_run => ExitCode::from(run::FAILED),
        true => Outcome::Usage.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_shows_an_example() {
        for verb in Cli::command().get_subcommands() {
            let example = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.contains(&format!("tidegate {}", verb.get_name())), "{}", verb.get_name());
        }
    }
}
