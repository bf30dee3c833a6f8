//! `tidegate sandbox`: live identities, through the admin socket of a running gateway.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use policy::SandboxId;
use serde_json::{Map, Value, json};

use super::Outcome;
use super::admin::{AdminArgs, Failed};
use super::output::{complain, harmless, print};

const EXAMPLE: &str = "Examples:
  TOKEN=$(tidegate sandbox add agent-7 --policy base --label workspace=w-12 --ttl 8h)
  tidegate sandbox pause agent-7 --cut
  tidegate sandbox list --state expired
  tidegate sandbox remove --expired

Exit status: 0 done, 1 refused or not reachable, 2 usage or config.";

/// Show and change the sandboxes of the running gateway
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Sandbox {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print the gateway's answer as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the sandboxes with their state, policies and open tunnels
    List {
        /// Only those that are active, paused, expired or shadowed
        #[arg(long)]
        state: Option<String>,
    },
    /// Show one sandbox
    Show {
        /// Its name
        id: String,
        /// Show what it was denied last
        #[arg(long)]
        denials: bool,
    },
    /// Add a sandbox; its token is printed once, and nothing else is on stdout
    Add {
        /// Its name; without one a name is made up
        id: Option<String>,
        #[command(flatten)]
        keys: Keys,
    },
    /// Change a sandbox that was added
    Update {
        /// Its name
        id: String,
        #[command(flatten)]
        keys: Keys,
        /// Issue another token; the one before opens nothing any more
        #[arg(long, conflicts_with = "source")]
        new_token: bool,
    },
    /// Let nothing through until it is resumed
    Pause {
        /// Its name
        id: String,
        /// Cut its open tunnels; without it they stand still
        #[arg(long)]
        cut: bool,
    },
    /// Let a paused sandbox go on
    Resume {
        /// Its name
        id: String,
    },
    /// Remove a sandbox that was added: its tunnels are cut
    Remove {
        /// Its name
        #[arg(required_unless_present = "expired")]
        id: Option<String>,
        /// Remove every sandbox whose time is over
        #[arg(long, conflicts_with = "id")]
        expired: bool,
    },
}

/// What is written of a sandbox.
#[derive(Debug, Args)]
struct Keys {
    /// A [policy.NAME] that it gets; once for each
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
    /// An [internal.NAME] that it gets; once for each
    #[arg(long, value_name = "NAME")]
    internal: Vec<String>,
    /// A label; once for each
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// A limit, as in connections=64 or upload=200MiB/h; once for each
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = pair)]
    limits: Vec<(String, String)>,
    /// The token is good from this network only
    #[arg(long, value_name = "NET")]
    source: Option<String>,
    /// Open this unix socket for it and know it by that: it has no token
    #[arg(long, value_name = "PATH", conflicts_with = "source")]
    unix: Option<String>,
    /// How long it lives from now: 90s, 8h, 7d
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
    /// It is over once it made no attempt and moved no byte for so long
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<String>,
    /// A file with the keys of a [sandbox.X] table as JSON; options come on top
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Keys {
    fn into_body(self) -> Result<Map<String, Value>, String> {
        let mut body = match &self.from {
            Some(path) => {
                let shown = path.display();
                let text =
                    fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
                serde_json::from_str(&text)
                    .map_err(|error| format!("{shown} holds no JSON object: {error}"))?
            }
            None => Map::new(),
        };
        let lists = [("policies", self.policies), ("internal", self.internal)];
        for (key, names) in lists.into_iter().filter(|(_, names)| !names.is_empty()) {
            body.insert(key.to_owned(), names.into());
        }
        let tables = [("labels", self.labels), ("limits", self.limits)];
        for (key, pairs) in tables.into_iter().filter(|(_, pairs)| !pairs.is_empty()) {
            let is_limit = key == "limits";
            let read = |(name, text): (String, String)| {
                let number = text.parse::<u64>().ok().filter(|_| is_limit);
                (name, number.map_or(Value::String(text), Value::from))
            };
            body.insert(key.to_owned(), Value::Object(pairs.into_iter().map(read).collect()));
        }
        if let Some(source) = self.source {
            body.insert("identify".to_owned(), json!([{ "token": true, "source": source }]));
        }
        if let Some(unix) = self.unix {
            body.insert("identify".to_owned(), json!([{ "unix": unix }]));
        }
        for (key, time) in [("ttl", self.ttl), ("idle_timeout", self.idle_timeout)] {
            if let Some(time) = time {
                body.insert(key.to_owned(), time.into());
            }
        }
        Ok(body)
    }
}

impl Sandbox {
    pub(super) fn run(self) -> Outcome {
        let Self { admin, json, what } = self;
        let admin = match admin.find() {
            Ok(admin) => admin,
            Err(complaint) => return usage(&complaint),
        };
        let asked = match what.request() {
            Ok(asked) => asked,
            Err(complaint) => return usage(&complaint),
        };
        match admin.ask(asked.method, &asked.path, asked.body.as_ref()) {
            Ok(answer) if json => print(format_args!("{answer}\n")),
            Ok(answer) => (asked.show)(&answer),
            Err(Failed::Refused(problem)) if json => {
                print(format_args!("{problem}\n"));
                return Outcome::Failed;
            }
            Err(failed) => {
                complain("sandbox", failed);
                return Outcome::Failed;
            }
        }
        Outcome::Done
    }
}

fn usage(complaint: &str) -> Outcome {
    complain("sandbox", complaint);
    Outcome::Usage
}

/// A request, and how its answer is shown.
struct Asked {
    method: &'static str,
    path: String,
    body: Option<Value>,
    show: fn(&Value),
}

impl What {
    fn request(self) -> Result<Asked, String> {
        let asked = |method, path: String, body, show| Ok(Asked { method, path, body, show });
        match self {
            Self::List { state: None } => asked("GET", "/v1/sandboxes".to_owned(), None, list),
            Self::List { state: Some(state) } => {
                let is_word = state.bytes().all(|byte| byte.is_ascii_lowercase());
                let complaint = || format!("{state:?} is no state");
                let state = is_word.then_some(&state).ok_or_else(complaint)?;
                asked("GET", format!("/v1/sandboxes?state={state}"), None, list)
            }
            Self::Show { id, denials: false } => asked("GET", at(&id)?, None, show),
            Self::Show { id, denials: true } => asked("GET", at(&id)? + "/denials", None, denials),
            Self::Add { id, keys } => {
                let mut body = keys.into_body()?;
                if let Some(id) = id {
                    body.insert("id".to_owned(), id.into());
                }
                asked("POST", "/v1/sandboxes".to_owned(), Some(body.into()), told)
            }
            Self::Update { id, keys, new_token } => {
                let mut body = keys.into_body()?;
                if new_token {
                    body.insert("identify".to_owned(), json!([{ "token": true }]));
                }
                if body.is_empty() {
                    return Err("nothing to change; see tidegate sandbox update --help".to_owned());
                }
                asked("PATCH", at(&id)?, Some(body.into()), told)
            }
            Self::Pause { id, cut } => {
                let tunnels = if cut { "cut" } else { "keep" };
                asked("POST", at(&id)? + "/pause", Some(json!({ "tunnels": tunnels })), show)
            }
            Self::Resume { id } => asked("POST", at(&id)? + "/resume", None, show),
            Self::Remove { id: Some(id), .. } => asked("DELETE", at(&id)?, None, removed),
            Self::Remove { id: None, .. } => {
                asked("DELETE", "/v1/sandboxes?state=expired".to_owned(), None, removed)
            }
        }
    }
}

fn at(id: &str) -> Result<String, String> {
    match SandboxId::parse(id) {
        Some(id) => Ok(format!("/v1/sandboxes/{id}")),
        None => Err(format!("{id:?} is no name for a sandbox")),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => harmless(text.as_bytes()),
        Value::Null => "-".to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        other => harmless(other.to_string().as_bytes()),
    }
}

fn items<'a>(answer: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    answer[key].as_array().into_iter().flatten()
}

fn list(answer: &Value) {
    for sandbox in items(answer, "sandboxes") {
        print(format_args!("{}\n", row(sandbox)));
    }
}

/// The row of one sandbox: name, state, open tunnels, policies, and when it ends.
fn row(sandbox: &Value) -> String {
    let mut row = format!(
        "{:<24} {:<8} {:>5} tunnels  {}",
        text(&sandbox["id"]),
        text(&sandbox["state"]),
        text(&sandbox["tunnels"]),
        text(&sandbox["policies"])
    );
    if sandbox["expires"].is_string() {
        row.push_str(&format!("  until {}", text(&sandbox["expires"])));
    }
    row
}

fn show(answer: &Value) {
    let Some(keys) = answer.as_object() else { return };
    for (key, value) in keys {
        print(format_args!("{key:<13} {}\n", text(value)));
    }
}

fn told(answer: &Value) {
    complain("sandbox", row(&answer["sandbox"]).trim_end());
    if let Some(token) = answer["token"].as_str() {
        print(format_args!("{token}\n"));
    }
}

fn removed(answer: &Value) {
    for id in items(answer, "removed") {
        print(format_args!("{}\n", text(id)));
    }
}

fn denials(answer: &Value) {
    for denial in items(answer, "denials") {
        let port = denial["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
        let to = format!("{}{port}", text(&denial["host"]));
        print(format_args!(
            "{} {:<8} {to} {} {}\n",
            text(&denial["ts"]),
            text(&denial["inbound"]),
            text(&denial["reason"]),
            text(&denial["rule"])
        ));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        sandbox: Sandbox,
    }

    fn request(line: &str) -> Result<(&'static str, String, Value), String> {
        let line = Line::try_parse_from(std::iter::once("sandbox").chain(line.split(' ')));
        let asked = line.map_err(|error| error.to_string())?.sandbox.what.request()?;
        Ok((asked.method, asked.path, asked.body.unwrap_or_default()))
    }

    #[test]
    fn each_verb_is_one_request() {
        for (line, method, path, body) in [
            ("list", "GET", "/v1/sandboxes", Value::Null),
            ("list --state paused", "GET", "/v1/sandboxes?state=paused", Value::Null),
            ("show a", "GET", "/v1/sandboxes/a", Value::Null),
            ("show a --denials", "GET", "/v1/sandboxes/a/denials", Value::Null),
            (
                "add a --policy p --policy q --label k=v=w --limit connections=64 --limit upload=1MiB/h --ttl 8h",
                "POST",
                "/v1/sandboxes",
                json!({
                    "id": "a", "policies": ["p", "q"], "labels": { "k": "v=w" },
                    "limits": { "connections": 64, "upload": "1MiB/h" }, "ttl": "8h",
                }),
            ),
            (
                "add --source 10.0.0.7/32",
                "POST",
                "/v1/sandboxes",
                json!({ "identify": [{ "token": true, "source": "10.0.0.7/32" }] }),
            ),
            (
                "add a --unix /run/s/a/p.sock",
                "POST",
                "/v1/sandboxes",
                json!({ "id": "a", "identify": [{ "unix": "/run/s/a/p.sock" }] }),
            ),
            ("update a --new-token", "PATCH", "/v1/sandboxes/a", json!({ "identify": [{ "token": true }] })),
            ("pause a", "POST", "/v1/sandboxes/a/pause", json!({ "tunnels": "keep" })),
            ("pause a --cut", "POST", "/v1/sandboxes/a/pause", json!({ "tunnels": "cut" })),
            ("resume a", "POST", "/v1/sandboxes/a/resume", Value::Null),
            ("remove a", "DELETE", "/v1/sandboxes/a", Value::Null),
            ("remove --expired", "DELETE", "/v1/sandboxes?state=expired", Value::Null),
        ] {
            assert_eq!(request(line), Ok((method, path.to_owned(), body)), "{line}");
        }
        for line in
            ["remove", "remove a --expired", "show a/b", "update a", "add a --label k", "list --state a&b"]
        {
            assert!(request(line).is_err(), "{line}");
        }
    }
}
