//! `tidegate domains`: one row for each destination that the audit log knows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use serde_json::json;

use super::Outcome;
use super::history::{HistoryArgs, bytes, destination, unreadable};
use super::output::{complain, print};
use crate::audit::Line;
use crate::error_chain;

const EXAMPLE: &str = "Example:
  tidegate domains --sandbox agent-7

Exit status: 0 read, 1 the log cannot be read, 2 usage or config.";

/// List every contacted destination: how often it was allowed and denied, when, and how many bytes went
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Domains {
    #[command(flatten)]
    history: HistoryArgs,
    /// Print a JSON array, one object a destination
    #[arg(long)]
    json: bool,
}

/// What was asked for: a look-up has no port; `None` stands for many hosts.
type Destination = (Option<String>, Option<u16>);

#[derive(Debug, Default)]
struct Contacts(BTreeMap<Destination, Contact>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Contact {
    allowed: u64,
    denied: u64,
    reasons: BTreeMap<String, u64>,
    first: String,
    last: String,
    bytes_up: u64,
    bytes_down: u64,
}

impl Domains {
    pub(super) fn run(self) -> Outcome {
        let mut history = match self.history.open() {
            Ok(history) => history,
            Err(error) => {
                complain("domains", error_chain(&error));
                return error.outcome();
            }
        };
        let mut contacts = Contacts::default();
        loop {
            match history.next_line() {
                Ok(Some(text)) => {
                    if let Some(line) = Line::parse(text).filter(|line| self.history.wants(line)) {
                        contacts.add(line);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    complain("domains", unreadable(&error));
                    return Outcome::Failed;
                }
            }
        }
        print(if self.json { format!("{}\n", contacts.json()) } else { contacts.table() });
        Outcome::Done
    }
}

impl Contacts {
    fn add(&mut self, line: Line) {
        if !matches!(line.event.as_str(), "decision" | "repeated" | "close") {
            return;
        }
        let denied = line.is_denied();
        let first = line.first.unwrap_or_else(|| line.ts.clone());
        let last = line.last.unwrap_or(line.ts);
        let contact = self.0.entry((line.host, line.port)).or_default();
        // Times of one format and zone compare as text.
        if contact.first.is_empty() || first < contact.first {
            contact.first = first;
        }
        if last > contact.last {
            contact.last = last;
        }
        contact.bytes_up = contact.bytes_up.saturating_add(line.bytes_up.unwrap_or(0));
        contact.bytes_down = contact.bytes_down.saturating_add(line.bytes_down.unwrap_or(0));
        let count = line.count.unwrap_or(1);
        if let Some(reason) = line.reason {
            *contact.reasons.entry(reason).or_default() += count;
        }
        // A close is the end of an attempt that its decision has counted.
        if line.event != "close" {
            let counted = if denied { &mut contact.denied } else { &mut contact.allowed };
            *counted = counted.saturating_add(count);
        }
    }

    fn json(&self) -> serde_json::Value {
        let rows = self.0.iter().map(|((host, port), contact)| {
            json!({
                "host": host, "port": port, "allowed": contact.allowed, "denied": contact.denied,
                "reasons": contact.reasons, "first": contact.first, "last": contact.last,
                "bytes_up": contact.bytes_up, "bytes_down": contact.bytes_down,
            })
        });
        rows.collect()
    }

    fn table(&self) -> String {
        let named = |(host, port): &Destination| match (host, port) {
            (Some(host), None) => format!("{} (look-up)", destination(host, None)),
            (Some(host), port) => destination(host, *port),
            (None, _) => "(many)".to_owned(),
        };
        let rows: Vec<(String, &Contact)> =
            self.0.iter().map(|(key, contact)| (named(key), contact)).collect();
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).clamp(11, 64);
        let mut table = format!(
            "{:<width$}  {:>7}  {:>7}  {:>10}  {:>10}  {:<24}  {:<24}  REASONS\n",
            "DESTINATION", "ALLOWED", "DENIED", "UP", "DOWN", "FIRST", "LAST"
        );
        for (name, contact) in rows {
            let reasons: Vec<String> = contact
                .reasons
                .iter()
                .map(|(reason, count)| format!("{} {count}", reason.escape_default()))
                .collect();
            let _ = writeln!(
                table,
                "{name:<width$}  {:>7}  {:>7}  {:>10}  {:>10}  {:<24}  {:<24}  {}",
                contact.allowed,
                contact.denied,
                bytes(contact.bytes_up),
                bytes(contact.bytes_down),
                contact.first.escape_default().to_string(),
                contact.last.escape_default().to_string(),
                reasons.join(", ")
            );
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contacts(lines: &[&str]) -> Contacts {
        let mut contacts = Contacts::default();
        lines.iter().for_each(|line| contacts.add(Line::parse(line.as_bytes()).expect("a line")));
        contacts
    }

    #[test]
    fn a_destination_is_one_row_with_its_counts_times_and_bytes() {
        let contacts = contacts(&[
            r#"{"ts":"2","event":"decision","host":"a.example","port":443,"decision":"allow","count":1}"#,
            r#"{"ts":"5","event":"close","host":"a.example","port":443,"decision":"deny","reason":"sni_mismatch","bytes_up":3,"bytes_down":4}"#,
            r#"{"ts":"9","event":"repeated","host":"a.example","port":443,"decision":"deny","reason":"denied_by_rule","count":7,"first":"1","last":"8"}"#,
            r#"{"ts":"3","event":"decision","host":"a.example","qtype":"A","decision":"allow","count":1}"#,
            r#"{"ts":"4","event":"reload","ok":true}"#,
        ]);
        assert_eq!(
            contacts.json(),
            json!([
                {"host": "a.example", "port": null, "allowed": 1, "denied": 0, "reasons": {}, "first": "3",
                 "last": "3", "bytes_up": 0, "bytes_down": 0},
                {"host": "a.example", "port": 443, "allowed": 1, "denied": 7,
                 "reasons": {"denied_by_rule": 7, "sni_mismatch": 1}, "first": "1", "last": "8", "bytes_up": 3,
                 "bytes_down": 4},
            ])
        );
    }

    #[test]
    fn the_table_holds_no_byte_of_a_client_raw() {
        let hostile =
            contacts(&[r#"{"ts":"\u001b","event":"decision","host":"\u001b[2J\u202e","reason":"\u0007"}"#]);
        let table = hostile.table();
        assert!(table.bytes().all(|byte| matches!(byte, 0x20..=0x7e | b'\n')), "{table:?}");
        assert_eq!(table.lines().count(), 2);
    }
}
