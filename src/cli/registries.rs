//! `tidegate registries`: the package registries that the clients of this machine use, as tables to pin.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use policy::LocalAddresses;
use serde_json::json;

use super::Outcome;
use super::output::{complain, harmless, print};
use crate::registries::{AskError, CLIENTS, Client, Found, Pinned, Reach, Surroundings, discover, pin};
use crate::{config, error_chain, host};

const EXAMPLE: &str = "Example:
  tidegate registries discover pip npm
  tidegate registries discover --json";

const DISCOVER_EXAMPLE: &str = "Example:
  tidegate registries discover pip npm > pins.toml
  tidegate registries discover --offline --json

What is printed is TOML: read it, and put the tables that are meant into the config.
Exit status: 0 all of them answered, 1 some did not, 2 usage.";

/// Find the package registries that this machine's clients use
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE, arg_required_else_help = true)]
pub(super) struct Registries {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Discover(Discover),
}

/// Ask the clients which index they use, and the index for its download hosts
///
/// The clients are started in / with an environment of our own: the files of the machine and of the user count, those of
/// the working directory and variables are reported and not used.
#[derive(Debug, Args)]
#[command(after_help = DISCOVER_EXAMPLE)]
struct Discover {
    /// The clients to ask: pip, npm, cargo, apt. Without one: all that are installed
    #[arg(value_name = "CLIENT", value_parser = client)]
    clients: Vec<&'static Client>,
    /// Contact nobody: show the indexes, and not where they point to
    #[arg(long)]
    offline: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn client(name: &str) -> Result<&'static Client, String> {
    let known = CLIENTS.into_iter().find(|client| client.name == name);
    known.ok_or_else(|| format!("write {}", CLIENTS.map(|client| client.name).join(", ")))
}

impl Registries {
    pub(super) fn run(self) -> Outcome {
        match self.verb {
            Verb::Discover(verb) => verb.run(),
        }
    }
}

impl Discover {
    fn run(self) -> Outcome {
        let (local, working) = match (host::local_addresses(), std::env::current_dir()) {
            (Ok(local), Ok(working)) => (local, working),
            (Err(error), _) => return usage(error_chain(&error)),
            (_, Err(error)) => return usage(format!("the working directory is not known: {error}")),
        };
        let around = Surroundings::new(config::variables(), working);
        let reach = if self.offline { Reach::Nothing } else { Reach::Indexes };
        let all = self.clients.is_empty();
        let asked = if all { CLIENTS.to_vec() } else { self.clients };
        let (mut outcome, mut answers) = (Outcome::Done, Vec::new());
        for client in asked {
            match discover(client, &around, reach) {
                Ok(found) => answers.push(Answer::new(found, &local)),
                Err(AskError::Missing(_)) if all => {}
                Err(error) => {
                    complain(
                        "registries",
                        harmless(format!("{}: {}", client.name, error_chain(&error)).as_bytes()),
                    );
                    outcome = Outcome::Failed;
                }
            }
        }
        if answers.iter().flat_map(|answer| &answer.found.indexes).any(|index| index.unread.is_some()) {
            outcome = Outcome::Failed;
        }
        if self.json {
            let clients: Vec<_> = answers.iter().map(Answer::record).collect();
            print(format_args!("{}\n", json!({ "clients": clients })));
        } else {
            let texts: Vec<_> = answers.iter().map(Answer::text).collect();
            print(texts.join("\n"));
        }
        outcome
    }
}

fn usage(complaint: String) -> Outcome {
    complain("registries", complaint);
    Outcome::Usage
}

/// What is shown of one client.
struct Answer {
    found: Found,
    tables: Vec<Pinned>,
    notes: Vec<String>,
}

impl Answer {
    fn new(found: Found, local: &LocalAddresses) -> Self {
        let (tables, more) = pin(&found, local);
        let notes = found.notes.iter().cloned().chain(more).collect();
        Self { found, tables, notes }
    }

    /// Comments for the person, and the tables.
    fn text(&self) -> String {
        let Found { client, program, indexes, seen, .. } = &self.found;
        let mut lines = vec![format!("{client} ({})", program.display())];
        for index in indexes {
            lines.push(format!("  index {} ({})", index.url, index.from));
            let further = index
                .hosts
                .iter()
                .skip(1)
                .map(|host| format!("  which points to {}", host.url.destination()));
            lines.extend(further);
            lines.extend(index.unread.iter().map(|why| format!("  where it points to is not known: {why}")));
        }
        lines.extend(self.notes.iter().map(|note| format!("  note: {note}")));
        lines.extend(seen.iter().map(|seen| match &seen.url {
            Some(url) => format!("  seen, not used: {} names {}", seen.place, url.destination()),
            None => format!("  seen, not used: {} names a config file", seen.place),
        }));
        let mut text = String::new();
        for line in lines {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "# {}", harmless(line.as_bytes()));
        }
        for table in &self.tables {
            let _ = write!(text, "{table}");
        }
        text
    }

    fn record(&self) -> serde_json::Value {
        let Found { client, program, indexes, seen, .. } = &self.found;
        let indexes: Vec<_> = indexes
            .iter()
            .map(|index| {
                let hosts: Vec<_> = index.hosts.iter().map(|host| host.url.destination().to_string()).collect();
                json!({ "url": index.url.to_string(), "from": index.from, "hosts": hosts, "unread": index.unread })
            })
            .collect();
        let seen: Vec<_> = seen
            .iter()
            .map(|seen| {
                let host = seen.url.as_ref().map(|url| url.destination().to_string());
                json!({ "place": seen.place, "host": host })
            })
            .collect();
        let tables: Vec<_> = self
            .tables
            .iter()
            .map(|table| {
                json!({
                    "name": table.name,
                    "hosts": table.hosts,
                    "ports": table.port.map(|port| [port]),
                    "addresses": table.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "methods": table.reads_only.then_some(["GET", "HEAD"]),
                    "from": table.from,
                })
            })
            .collect();
        json!({
            "client": client,
            "program": PathBuf::from(program),
            "indexes": indexes,
            "notes": self.notes,
            "seen_not_used": seen,
            "tables": tables,
        })
    }
}
