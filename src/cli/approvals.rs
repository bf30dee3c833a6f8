//! `tidegate approvals`: what waits for a person, and the person's answer, through the admin socket of a running gateway.

use clap::{Args, Subcommand};
use policy::{AttemptId, SandboxId};
use serde_json::{Value, json};

use super::Outcome;
use super::admin::{AdminArgs, Failed};
use super::output::{complain, harmless, print};

const EXAMPLE: &str = "Examples:
  tidegate approvals watch
  tidegate approvals list --sandbox agent-7
  tidegate approvals approve 01KBCD4Q3H0000000000000007 --for 1h --path /repos/
  tidegate approvals deny 01KBCD4Q3H0000000000000007
  tidegate approvals revoke 01KBCD4Q3H0000000000000007

Exit status: 0 done, 1 refused or not reachable, 2 usage or config.";

/// Show and answer what sandboxes may do only with a person's approval
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Approvals {
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
    #[command(flatten)]
    Request(Request),
    /// Follow what comes to wait and how that ends, until interrupted
    Watch,
}

#[derive(Debug, Subcommand)]
enum Request {
    /// List what waits, and what was approved and holds
    List {
        /// Only those of one sandbox
        #[arg(long, value_name = "ID")]
        sandbox: Option<String>,
    },
    /// Let what waits go on
    Approve {
        /// Its id
        id: String,
        /// once, session, or a time such as 90s, 1h or 7d
        #[arg(long = "for", value_name = "TERM", default_value = "once")]
        term: String,
        /// Of a request: also for every path below this one, which must lie above the one that was asked for
        #[arg(long, value_name = "PATH")]
        path: Option<String>,
    },
    /// Refuse what waits
    Deny {
        /// Its id
        id: String,
    },
    /// Take an approval back: what it let through is cut
    Revoke {
        /// Its id
        id: String,
    },
}

impl Approvals {
    pub(super) fn run(self) -> Outcome {
        let Self { admin, json, what } = self;
        let admin = match admin.find() {
            Ok(admin) => admin,
            Err(complaint) => return usage(&complaint),
        };
        let asked = match what {
            What::Request(request) => request.into_asked(),
            What::Watch => {
                return match admin.follow("/v1/approvals/events", |name, data| watched(name, data, json)) {
                    Ok(()) => refused("the gateway has ended the stream"),
                    Err(failed) => refused(failed),
                };
            }
        };
        let asked = match asked {
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
            Err(failed) => return refused(failed),
        }
        Outcome::Done
    }
}

fn usage(complaint: &str) -> Outcome {
    complain("approvals", complaint);
    Outcome::Usage
}

fn refused(why: impl std::fmt::Display) -> Outcome {
    complain("approvals", why);
    Outcome::Failed
}

/// A request, and how its answer is shown.
struct Asked {
    method: &'static str,
    path: String,
    body: Option<Value>,
    show: fn(&Value),
}

impl Request {
    fn into_asked(self) -> Result<Asked, String> {
        let asked = |method, path: String, body, show| Ok(Asked { method, path, body, show });
        match self {
            Self::List { sandbox: None } => asked("GET", "/v1/approvals".to_owned(), None, list),
            Self::List { sandbox: Some(sandbox) } => match SandboxId::parse(&sandbox) {
                Some(id) => asked("GET", format!("/v1/approvals?sandbox={id}"), None, list),
                None => Err(format!("{sandbox:?} is no name for a sandbox")),
            },
            Self::Approve { id, term, path } => {
                let body = match path {
                    Some(path) => json!({ "for": term, "path": path }),
                    None => json!({ "for": term }),
                };
                asked("POST", at(&id)? + "/approve", Some(body), |answer| {
                    show("approved", &answer["approval"])
                })
            }
            Self::Deny { id } => {
                asked("POST", at(&id)? + "/deny", None, |answer| show("denied", &answer["denied"]))
            }
            Self::Revoke { id } => {
                asked("DELETE", at(&id)?, None, |answer| show("revoked", &answer["revoked"]))
            }
        }
    }
}

fn at(id: &str) -> Result<String, String> {
    match AttemptId::parse(id) {
        Some(id) => Ok(format!("/v1/approvals/{id}")),
        None => Err(format!("{id:?} is no id; tidegate approvals list shows them")),
    }
}

fn list(answer: &Value) {
    for (key, word) in [("pending", "waits"), ("approvals", "approved")] {
        for item in answer[key].as_array().into_iter().flatten() {
            show(word, item);
        }
    }
}

fn watched(name: &str, data: &Value, as_json: bool) {
    if as_json {
        print(format_args!("{}\n", json!({ "event": name, "data": data })));
        return;
    }
    match name {
        "pending" => show("waits", data),
        _ => show(&text(&data["outcome"]), &data["question"]),
    }
}

fn show(word: &str, item: &Value) {
    print(format_args!("{}\n", row(word, item)));
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => harmless(text.as_bytes()),
        other => other.to_string(),
    }
}

/// One line: the word, the id, whose it is and what it binds, and for how long.
fn row(word: &str, item: &Value) -> String {
    let host = text(&item["host"]);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let what = match item["method"].as_str() {
        Some(_) => format!("{} {host}:{}{}", text(&item["method"]), item["port"], text(&item["path"])),
        None => format!("{host}:{}", item["port"]),
    };
    let mut row = format!("{word:<10} {} {:<16} {what}", text(&item["id"]), text(&item["sandbox"]));
    match (item["term"].as_str(), item["until"].as_str()) {
        (Some("until"), Some(_)) => row.push_str(&format!("  until {}", text(&item["until"]))),
        (Some(_), _) => row.push_str(&format!("  for {}", text(&item["term"]))),
        (None, _) => row.push_str(&format!("  asked {}", text(&item["asked"]))),
    }
    if item["by"].is_number() {
        row.push_str(&format!(" by uid {}", item["by"]));
    }
    if item["by_certificate"].is_string() {
        row.push_str(&format!(" by certificate {}", text(&item["by_certificate"])));
    }
    row
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        approvals: Approvals,
    }

    fn request(line: &str) -> Result<(&'static str, String, Value), String> {
        let line = Line::try_parse_from(std::iter::once("approvals").chain(line.split(' ')));
        let What::Request(request) = line.map_err(|error| error.to_string())?.approvals.what else {
            return Err("watch".to_owned());
        };
        let asked = request.into_asked()?;
        Ok((asked.method, asked.path, asked.body.unwrap_or_default()))
    }

    #[test]
    fn each_verb_is_one_request() {
        const ID: &str = "01KBCD4Q3H0000000000000007";
        for (line, method, path, body) in [
            ("list".to_owned(), "GET", "/v1/approvals".to_owned(), Value::Null),
            ("list --sandbox a".to_owned(), "GET", "/v1/approvals?sandbox=a".to_owned(), Value::Null),
            (
                format!("approve {ID}"),
                "POST",
                format!("/v1/approvals/{ID}/approve"),
                json!({ "for": "once" }),
            ),
            (
                format!("approve {ID} --for 1h --path /a/"),
                "POST",
                format!("/v1/approvals/{ID}/approve"),
                json!({ "for": "1h", "path": "/a/" }),
            ),
            (format!("deny {ID}"), "POST", format!("/v1/approvals/{ID}/deny"), Value::Null),
            (format!("revoke {ID}"), "DELETE", format!("/v1/approvals/{ID}"), Value::Null),
        ] {
            assert_eq!(request(&line), Ok((method, path, body)), "{line}");
        }
        for line in ["watch", "approve", "approve x", "deny ../x", "list --sandbox a/b", "revoke"] {
            assert!(request(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_row_says_who_wants_what() {
        let asked = json!({
            "id": "ID", "sandbox": "agent-7", "host": "web.example.com", "port": 80, "method": "GET",
            "path": "/a\u{1b}b", "asked": "THEN",
        });
        assert_eq!(
            row("waits", &asked),
            "waits      ID agent-7          GET web.example.com:80/a\\u{1b}b  asked THEN"
        );
        let given = json!({
            "id": "ID", "sandbox": "s", "host": "2001:db8::1", "port": 443, "term": "until", "until": "THEN", "by": 0,
        });
        assert_eq!(
            row("approved", &given),
            "approved   ID s                [2001:db8::1]:443  until THEN by uid 0"
        );
    }
}
