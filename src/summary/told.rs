//! A summary as it is told: to a person, to a program, and by a gateway to the run that it serves.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::net::IpAddr;

use policy::Reason;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

use crate::probe;

/// Rows that are shown of each kind.
const SHOWN: usize = 20;

/// What became of each destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) destinations: Vec<Row>,
    /// Attempts at destinations beyond those.
    pub(crate) others: u64,
}

/// What became of one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// As it is shown: printable ASCII.
    pub(crate) host: String,
    /// None for look-ups.
    pub(crate) port: Option<u16>,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
    #[serde(serialize_with = "write_reason", deserialize_with = "read_reason")]
    pub(crate) reason: Option<Reason>,
    /// Whether a rule could let it through.
    pub(crate) can_be_listed: bool,
}

impl Told {
    /// Reads what a gateway tells. It is shown on a terminal: whatever could move a cursor is taken out.
    pub(crate) fn read(text: &str) -> Result<Self, serde_json::Error> {
        let mut told: Self = serde_json::from_str(text)?;
        for row in &mut told.destinations {
            row.host.retain(|letter| letter.is_ascii_graphic() || letter == ' ');
        }
        Ok(told)
    }

    /// Offers nothing to be listed: what was tried was tried to be refused.
    pub(crate) fn offer_nothing(&mut self) {
        self.destinations.iter_mut().for_each(|row| row.can_be_listed = false);
    }

    /// A few lines for a person; empty where nothing happened.
    pub(crate) fn text(&self) -> String {
        let of = |wanted: fn(&Row) -> u64| {
            let mut rows: Vec<_> = self.destinations.iter().filter(|row| wanted(row) > 0).collect();
            rows.sort_by_key(|row| (Reverse(wanted(row)), &row.host, row.port));
            rows
        };
        // A look-up that was allowed is no contact; one that was denied is an attempt.
        let allowed: Vec<_> = of(|row| row.allowed).into_iter().filter(|row| row.port.is_some()).collect();
        let denied = of(|row| row.denied);
        let mut text = String::new();
        if allowed.is_empty() && denied.is_empty() && self.others == 0 {
            return text;
        }
        let _ = writeln!(
            text,
            "tidegate: contacted {}, denied {}",
            destinations(allowed.len()),
            destinations(denied.len())
        );
        for row in allowed.iter().take(SHOWN) {
            let note = match row.would_deny {
                0 => row.reason.map(|reason| format!("  {}", reason.code())),
                count => Some(format!("  {count} would be denied without --learn")),
            };
            let note = note.unwrap_or_default();
            let _ = writeln!(text, "  allowed {:>5}  {}{note}", row.allowed, row.shown());
        }
        more(&mut text, allowed.len());
        for row in denied.iter().take(SHOWN) {
            let reason = row.reason.map_or("", Reason::code);
            let _ = writeln!(text, "  denied  {:>5}  {}  {reason}", row.denied, row.shown());
        }
        more(&mut text, denied.len());
        if self.others > 0 {
            let _ = writeln!(text, "  {:>13}  attempts at further destinations", self.others);
        }
        let entries = self.entries();
        if !entries.is_empty() {
            let listed: Vec<String> =
                entries.iter().take(SHOWN).map(|entry| format!("--allow {entry}")).collect();
            let _ = writeln!(text, "tidegate: to let them through: {}", listed.join(" "));
        }
        text
    }

    /// Everything for a program.
    pub(crate) fn json(&self, sandbox: &str, status: u8) -> serde_json::Value {
        let rows: Vec<_> = self
            .destinations
            .iter()
            .map(|row| {
                json!({
                    "host": row.host, "port": row.port, "allowed": row.allowed, "denied": row.denied,
                    "would_deny": row.would_deny, "reason": row.reason.map(Reason::code),
                })
            })
            .collect();
        json!({
            "sandbox": sandbox, "status": status, "destinations": rows, "others": self.others,
            "allow": self.entries(),
        })
    }

    /// What `--allow` would say, without what another of them covers.
    fn entries(&self) -> Vec<String> {
        let wanted = |row: &&Row| {
            row.can_be_listed && row.denied + row.would_deny > 0 && !probe::is_its_own(&row.host)
        };
        let is_covered = |row: &Row| {
            row.port.is_none()
                && self.destinations.iter().any(|other| other.host == row.host && other.port.is_some())
        };
        let listed = self.destinations.iter().filter(wanted);
        listed.filter(|row| !is_covered(row)).map(Row::entry).collect()
    }
}

impl Row {
    /// As an entry of a policy: a bare host is port 443.
    fn entry(&self) -> String {
        match self.port {
            None => self.host.clone(),
            Some(443) if !self.host.contains(':') && self.host.parse::<IpAddr>().is_err() => {
                self.host.clone()
            }
            Some(port) => self.with_port(port),
        }
    }

    fn shown(&self) -> String {
        match self.port {
            Some(port) => self.with_port(port),
            None => format!("{} (look-up)", self.host),
        }
    }

    fn with_port(&self, port: u16) -> String {
        if self.host.contains(':') && !self.host.starts_with('[') {
            format!("[{}]:{port}", self.host)
        } else {
            format!("{}:{port}", self.host)
        }
    }
}

fn destinations(count: usize) -> String {
    match count {
        1 => "1 destination".to_owned(),
        count => format!("{count} destinations"),
    }
}

fn more(text: &mut String, rows: usize) {
    if let Some(rest) = rows.checked_sub(SHOWN).filter(|rest| *rest > 0) {
        let _ = writeln!(text, "  … and {rest} more (--summary FILE has all)");
    }
}

fn write_reason<S: Serializer>(reason: &Option<Reason>, to: S) -> Result<S::Ok, S::Error> {
    reason.map(Reason::code).serialize(to)
}

/// A reason that this program does not know is none: the gateway may be newer.
fn read_reason<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Reason>, D::Error> {
    let code = Option::<String>::deserialize(from)?;
    Ok(code.as_deref().and_then(Reason::from_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(host: &str, port: Option<u16>, allowed: u64, denied: u64) -> Row {
        let reason = (denied > 0).then_some(Reason::NotListed);
        let can_be_listed = denied > 0;
        Row { host: host.into(), port, allowed, denied, would_deny: 0, reason, can_be_listed }
    }

    fn told(rows: Vec<Row>) -> Told {
        Told { destinations: rows, others: 0 }
    }

    #[test]
    fn what_was_denied_is_offered_once_and_as_an_entry_is_written() {
        let told = told(vec![
            row("a.example", None, 0, 1),
            row("a.example", Some(443), 0, 1),
            row("a.example", Some(8443), 0, 1),
            row("b.example", None, 0, 2),
            row("c.example", Some(443), 5, 0),
            row("2001:db8::1", Some(443), 0, 1),
            row("203.0.113.5", Some(443), 0, 1),
        ]);
        assert_eq!(
            told.entries(),
            ["a.example", "a.example:8443", "b.example", "[2001:db8::1]:443", "203.0.113.5:443"]
        );
    }

    #[test]
    fn what_the_probe_tries_is_not_offered() {
        let rows = vec![
            row("tidegate-probe.example", None, 0, 2),
            row("198.51.100.7", Some(80), 0, 1),
            row("other.example", Some(80), 0, 1),
        ];
        assert_eq!(told(rows.clone()).entries(), ["other.example:80"]);
        let mut all = told(rows);
        all.offer_nothing();
        assert!(all.entries().is_empty() && all.text().contains("other.example:80  not_listed"));
    }

    #[test]
    fn what_a_gateway_tells_is_read_as_it_was_and_cannot_move_a_cursor() {
        let sent = told(vec![row("a.example", Some(80), 3, 1)]);
        assert_eq!(Told::read(&serde_json::to_string(&sent).expect("JSON")).expect("a summary"), sent);
        let odd = told(vec![row("a\x1b[2J\u{202e}.example", Some(80), 3, 1)]);
        let read = Told::read(&serde_json::to_string(&odd).expect("JSON")).expect("a summary");
        assert_eq!(read.destinations[0].host, "a[2J.example");
        let newer = serde_json::to_string(&sent).expect("JSON").replace("not_listed", "of_the_future");
        assert_eq!(Told::read(&newer).expect("a summary").destinations[0].reason, None);
    }
}
