//! `tidegate explain`: the decision about one attempt with its steps, by the very code that serves.

use std::net::IpAddr;
use std::sync::Arc;

use clap::Args;
use policy::approval::{Approvals, Approved};
use policy::decide::View;
use policy::explain::Explanation;
use policy::gate::Resolved;
use policy::{Answer, Ask, Destination, Hostname, LocalAddresses, Port, QType, Reason, SandboxId};
use prometheus::Registry;
use serde_json::json;

use super::approved::approved;
use super::output::{complain, print};
use super::{ConfigArgs, Outcome};
use crate::config::{self, Config};
use crate::{error_chain, host, lookup};

const EXAMPLE: &str = "Example:
  tidegate explain --sandbox agent-7 --resolve https://api.github.com/
  tidegate explain --sandbox agent-7 --method POST http://issues.example.com/repos/a/b/issues
  tidegate explain --sandbox agent-7 git.example.com:22
  tidegate explain --sandbox agent-7 --type TXT example.com
  tidegate explain --sandbox agent-7 --captured 203.0.113.9:443

Exit status: 0 allow, 1 deny, 3 ask, 2 usage or config.";

/// Tell whether a sandbox may reach a URL, HOST:PORT or NAME, by which rule, and why
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Explain {
    #[command(flatten)]
    config: ConfigArgs,
    /// Whose attempt it is
    #[arg(long, value_name = "ID")]
    sandbox: String,
    /// The method of a plain HTTP request (of an http URL: GET)
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// The record type of a look-up (of a NAME: A)
    #[arg(long = "type", value_name = "TYPE")]
    qtype: Option<String>,
    /// Resolve what is allowed, and judge each address; what is denied is never resolved
    #[arg(long)]
    resolve: bool,
    /// Judge as a connection captured in a namespace: of an address that no rule lists, the name decides that it shows,
    /// and this tells what becomes of one that shows none
    #[arg(long)]
    captured: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// A URL, HOST:PORT (a stream), or NAME (a look-up)
    what: String,
}

impl Explain {
    pub(super) fn run(self) -> Outcome {
        match self.explain() {
            Ok((told, asked)) => {
                if self.json {
                    print(format_args!("{}\n", record(&told, &self.sandbox, &asked)));
                } else {
                    print(shown(&told, &asked));
                }
                match told.answer {
                    Answer::Allow => Outcome::Done,
                    Answer::Deny => Outcome::Failed,
                    Answer::Ask => Outcome::Asks,
                }
            }
            Err(complaint) => {
                complain("explain", complaint);
                Outcome::Usage
            }
        }
    }

    /// The explanation, and what it is about.
    fn explain(&self) -> Result<(Explanation, String), String> {
        let ask = self.ask()?;
        let path = config::find(self.config.config.clone()).map_err(|error| error.to_string())?;
        let local = host::local_addresses().map_err(|error| error_chain(&error))?;
        let config = config::load(&path, dns::clock::now(), &local).map_err(|error| error.to_string())?;
        let sandbox = self.sandbox(&config)?;
        let approvals = Arc::new(approved(&path, &sandbox));
        let view = View {
            policy: &config.policy,
            local: &local,
            now: dns::clock::now(),
            approved: Approved::standing(&approvals),
        };
        let mut told = match self.captured {
            true => view.explain_captured(&sandbox, &ask),
            false => view.explain(&sandbox, &ask),
        };
        if told.reason.is_none() {
            if let Some(known) = told.known_addresses.clone() {
                view.explain_resolved(&mut told, &sandbox, &ask, Resolved { chain: &[], addresses: &known });
            } else if self.resolve {
                let standing = Arc::clone(&approvals);
                resolve(&config, &local, standing, &view, &mut told, (&sandbox, &ask))?;
            }
        }
        Ok((told, describe(&ask)))
    }

    fn sandbox(&self, config: &Config) -> Result<SandboxId, String> {
        let known = SandboxId::parse(&self.sandbox).filter(|id| config.policy.sandbox(id).is_some());
        known.ok_or_else(|| {
            let mut all: Vec<_> = config.policy.sandboxes.keys().map(SandboxId::as_str).collect();
            all.sort_unstable();
            let hint = match all.len() {
                0 => "the config knows none".to_owned(),
                1..=20 => format!("the config knows {}", all.join(", ")),
                count => format!("the config knows {count} others"),
            };
            format!("there is no sandbox {:?}; {hint}", self.sandbox)
        })
    }

    fn ask(&self) -> Result<Ask, String> {
        let method = self.method.as_deref().unwrap_or("GET");
        if method.is_empty() || !method.bytes().all(is_token) {
            return Err(format!("{method:?} is no HTTP method"));
        }
        let what = self.what.as_str();
        if let Some((scheme, rest)) = what.split_once("://") {
            return url(scheme, rest, method);
        }
        if what.parse::<IpAddr>().is_ok() {
            let shown = if what.contains(':') { format!("[{what}]:443") } else { format!("{what}:443") };
            return Err(format!("an address is looked up by nobody: write a port too, such as {shown}"));
        }
        if what.contains(':') || what.starts_with('[') {
            let destination = Destination::from_authority(what.as_bytes());
            return Ok(match (destination, &self.method) {
                (Ok(destination), Some(method)) => request(destination, method, "/"),
                (Ok(destination), None) => Ask::Stream(destination),
                (Err(_), _) => Ask::unreadable(what.as_bytes()),
            });
        }
        let qtype = self.qtype.as_deref().unwrap_or("A");
        let qtype =
            QType::parse(qtype).ok_or_else(|| format!("{qtype:?} is no record type such as A or TYPE65"))?;
        Ok(match Hostname::parse(what) {
            Ok(name) => Ask::Lookup { name, qtype },
            Err(_) => Ask::unreadable(what.as_bytes()),
        })
    }
}

/// An http URL is a request as the proxy sees it; of an https URL it sees host and port.
fn url(scheme: &str, rest: &str, method: &str) -> Result<Ask, String> {
    let (authority, path) =
        rest.split_at_checked(rest.find(['/', '?', '#']).unwrap_or(rest.len())).unwrap_or((rest, ""));
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let path = if path.is_empty() { "/" } else { path };
    let port = match scheme {
        "http" => Port::HTTP,
        "https" => Port::HTTPS,
        _ => {
            return Err(format!(
                "{scheme:?} is no scheme that the gateway reads; write HOST:PORT for a stream"
            ));
        }
    };
    Ok(match Destination::from_authority_or(authority.as_bytes(), port) {
        Ok(destination) if port == Port::HTTP => request(destination, method, path),
        Ok(destination) => Ask::Stream(destination),
        Err(_) => Ask::unreadable(authority.as_bytes()),
    })
}

fn request(destination: Destination, method: &str, path: &str) -> Ask {
    Ask::Request { destination, method: method.into(), path: path.into() }
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Resolves by the gateway's own resolver, and judges what it finds.
fn resolve(
    config: &Config,
    local: &LocalAddresses,
    approvals: Arc<Approvals>,
    view: &View<'_>,
    told: &mut Explanation,
    (sandbox, ask): (&SandboxId, &Ask),
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime to resolve with: {error}"))?;
    let found = runtime.block_on(async {
        let metrics = dns::Metrics::new(&Registry::new()).map_err(|error| error_chain(&error))?;
        let resolver = dns::Resolver::new(&config.dns, metrics).map_err(|error| error_chain(&error))?;
        let local = Arc::new(local.clone());
        let found = lookup::resolve(&resolver, &config.policy, local, approvals, sandbox, ask.clone()).await;
        Ok::<_, String>(found)
    })?;
    match found {
        Some(Ok(found)) if found.addresses.is_empty() && found.chain.is_empty() => {
            told.steps.push("resolve: the name has no address".to_owned());
            told.reason = ask.destination().map(|_| Reason::UpstreamDnsFailed);
        }
        Some(Ok(found)) => view.explain_resolved(told, sandbox, ask, found.resolved()),
        Some(Err(error)) => {
            told.steps.push(format!("resolve: {}", error_chain(&error)));
            told.reason = Some(error.reason());
        }
        // Something ended since it was explained.
        None => {
            told.answer = Answer::Deny;
            told.reason = Some(Reason::PolicyChanged);
        }
    }
    Ok(())
}

fn describe(ask: &Ask) -> String {
    match ask {
        Ask::Stream(destination) => format!("a stream to {destination}"),
        Ask::Request { destination, method, path } => {
            format!("{method} {} on {destination}", path.escape_debug())
        }
        Ask::Lookup { name, qtype } => format!("a look-up of {name} {qtype}"),
        Ask::Unreadable { shown } => format!("{shown:?}, which is no destination"),
    }
}

fn record(told: &Explanation, sandbox: &str, asked: &str) -> serde_json::Value {
    let place = told.rule.as_ref().map(|rule| {
        let place = rule.place();
        json!({ "file": &*place.file, "line": place.line, "column": place.column })
    });
    json!({
        "decision": told.answer.as_str(),
        "reason": told.reason.map(Reason::code),
        "would_deny": told.would_deny.map(Reason::code),
        "rule": told.rule.as_ref().map(ToString::to_string),
        "place": place,
        "approval": told.approval.as_ref().map(|approval| approval.id.to_string()),
        "sandbox": sandbox,
        "asked": asked,
        "steps": told.steps,
    })
}

fn shown(told: &Explanation, asked: &str) -> String {
    let mut text = format!("{}: {asked}\n", told.answer.as_str());
    if let Some(reason) = told.reason {
        text.push_str(&format!("reason: {reason}, {}\n", reason.text()));
    }
    if let Some(reason) = told.would_deny {
        text.push_str(&format!("would be denied without learn mode: {reason}\n"));
    }
    if let Some(rule) = &told.rule {
        let place = rule.place();
        text.push_str(&format!("rule: {rule} ({}:{})\n", place.file, place.line));
    }
    if let Some(approval) = &told.approval {
        text.push_str(&format!("approved by {}: {}\n", approval.by, approval.id));
    }
    for step in &told.steps {
        text.push_str(&format!("  {step}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        explain: Explain,
    }

    fn asked(arguments: &[&str]) -> Result<String, String> {
        let line = ["explain", "--sandbox", "s"].iter().chain(arguments);
        Line::try_parse_from(line).expect("a command line").explain.ask().map(|ask| describe(&ask))
    }

    #[test]
    fn what_is_asked_is_read_as_the_inbounds_read_it() {
        for (arguments, expected) in [
            (&["https://API.example.com/a/b?c"][..], "a stream to api.example.com:443"),
            (&["http://api.example.com"], "GET / on api.example.com:80"),
            (&["--method", "POST", "http://api.example.com:8080/a?b#c"], "POST /a on api.example.com:8080"),
            (&["[2001:db8::1]:443"], "a stream to [2001:db8::1]:443"),
            (&["--method", "GET", "api.example.com:80"], "GET / on api.example.com:80"),
            (&["api.example.com"], "a look-up of api.example.com A"),
            (&["--type", "TYPE65", "api.example.com"], "a look-up of api.example.com HTTPS"),
            (&["0x7f000001"], "\"0x7f000001\", which is no destination"),
            (&["http://user@api.example.com/"], "\"***@api.example.com\", which is no destination"),
            (&["\u{1b}[2J:1"], "\"\\u{1b}[2J:1\", which is no destination"),
        ] {
            assert_eq!(asked(arguments).as_deref(), Ok(expected), "{arguments:?}");
        }
    }

    #[test]
    fn what_no_inbound_reads_is_wrong_usage() {
        for arguments in [
            &["ftp://a.example/"][..],
            &["192.0.2.1"],
            &["2001:db8::1"],
            &["--method", "G T", "http://a.example/"],
            &["--type", "AAAAA", "a.example"],
        ] {
            assert!(asked(arguments).is_err(), "{arguments:?}");
        }
    }
}
