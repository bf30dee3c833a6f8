//! What a run tells at its end: which destinations were contacted, which were denied, and what would let those through.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use policy::{Answer, Ask, Event, Observer, Reason, Receipt};
use serde_json::json;

/// Destinations that are counted by name; further ones are counted together.
const NAMED: usize = 1000;

/// Rows that are shown of each kind.
const SHOWN: usize = 20;

/// Notes what happens during a run.
#[derive(Debug, Default)]
pub(crate) struct Summary(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    contacts: BTreeMap<Destination, Contact>,
    /// Attempts at destinations beyond the named ones.
    others: u64,
}

/// A destination as it is shown; look-ups have no port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Destination {
    host: String,
    port: Option<u16>,
}

#[derive(Debug, Default)]
struct Contact {
    allowed: u64,
    denied: u64,
    would_deny: u64,
    reason: Option<Reason>,
    /// Whether a rule could let it through.
    can_be_listed: bool,
}

impl Observer for Summary {
    fn record(&self, event: &Event<'_>) -> Receipt {
        if let Event::Decision(decision) = event {
            let mut counts = self.counts();
            let mut named = counts.contacts.len();
            let at = Destination::of(&decision.attempt.ask);
            named += usize::from(!counts.contacts.contains_key(&at));
            if named > NAMED {
                counts.others += 1;
                return Receipt::written();
            }
            let contact = counts.contacts.entry(at).or_default();
            let reason = decision.would_deny.or(decision.reason);
            match decision.answer {
                Answer::Allow => {
                    contact.allowed += 1;
                    contact.would_deny += u64::from(decision.would_deny.is_some());
                }
                Answer::Deny => contact.denied += 1,
                // What is sent there is another attempt.
                Answer::Ask => {}
            }
            if let Some(reason) = reason {
                contact.reason = Some(reason);
                let is_destination = !matches!(decision.attempt.ask, Ask::Unreadable { .. });
                contact.can_be_listed |= is_destination && lists(reason);
            }
        }
        Receipt::written()
    }
}

/// Whether an entry on the command line answers the reason.
const fn lists(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NotListed | Reason::PortNotAllowed | Reason::AddressLiteralNotListed | Reason::SpecialUseName
    )
}

impl Summary {
    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A few lines for a person; empty where nothing happened.
    pub(crate) fn text(&self) -> String {
        let counts = self.counts();
        let of = |wanted: fn(&Contact) -> u64| {
            let mut rows: Vec<_> =
                counts.contacts.iter().filter(|(_, contact)| wanted(contact) > 0).collect();
            rows.sort_by_key(|(at, contact)| (std::cmp::Reverse(wanted(contact)), (*at).clone()));
            rows
        };
        // A look-up that was allowed is no contact; one that was denied is an attempt.
        let allowed: Vec<_> =
            of(|contact| contact.allowed).into_iter().filter(|(at, _)| at.port.is_some()).collect();
        let denied = of(|contact| contact.denied);
        let mut text = String::new();
        if allowed.is_empty() && denied.is_empty() && counts.others == 0 {
            return text;
        }
        let _ = writeln!(
            text,
            "tidegate: contacted {}, denied {}",
            destinations(allowed.len()),
            destinations(denied.len())
        );
        for (at, contact) in allowed.iter().take(SHOWN) {
            let note = match contact.would_deny {
                0 => contact.reason.map(|reason| format!("  {}", reason.code())),
                count => Some(format!("  {count} would be denied without --learn")),
            };
            let note = note.unwrap_or_default();
            let _ = writeln!(text, "  allowed {:>5}  {}{note}", contact.allowed, at.shown());
        }
        more(&mut text, allowed.len());
        for (at, contact) in denied.iter().take(SHOWN) {
            let reason = contact.reason.map_or("", Reason::code);
            let _ = writeln!(text, "  denied  {:>5}  {}  {reason}", contact.denied, at.shown());
        }
        more(&mut text, denied.len());
        if counts.others > 0 {
            let _ = writeln!(text, "  {:>13}  attempts at further destinations", counts.others);
        }
        let entries = counts.entries();
        if !entries.is_empty() {
            let listed: Vec<String> =
                entries.iter().take(SHOWN).map(|entry| format!("--allow {entry}")).collect();
            let _ = writeln!(text, "tidegate: to let them through: {}", listed.join(" "));
        }
        text
    }

    /// Everything for a program.
    pub(crate) fn json(&self, sandbox: &str, status: u8) -> serde_json::Value {
        let counts = self.counts();
        let rows: Vec<_> = counts
            .contacts
            .iter()
            .map(|(at, contact)| {
                json!({
                    "host": at.host, "port": at.port, "allowed": contact.allowed, "denied": contact.denied,
                    "would_deny": contact.would_deny, "reason": contact.reason.map(Reason::code),
                })
            })
            .collect();
        json!({
            "sandbox": sandbox, "status": status, "destinations": rows, "others": counts.others,
            "allow": counts.entries(),
        })
    }
}

impl Counts {
    /// What `--allow` would say, without what another of them covers.
    fn entries(&self) -> Vec<String> {
        let wanted = |contact: &Contact| contact.can_be_listed && contact.denied + contact.would_deny > 0;
        let listed = self.contacts.iter().filter(|(_, contact)| wanted(contact));
        let listed: Vec<&Destination> = listed.map(|(at, _)| at).collect();
        let is_covered = |at: &Destination| {
            at.port.is_none()
                && self.contacts.keys().any(|other| other.host == at.host && other.port.is_some())
        };
        listed.into_iter().filter(|at| !is_covered(at)).map(Destination::entry).collect()
    }
}

impl Destination {
    fn of(ask: &Ask) -> Self {
        match ask {
            Ask::Stream(destination) | Ask::Request { destination, .. } => {
                Self { host: destination.host.to_string(), port: Some(destination.port.get()) }
            }
            Ask::Lookup { name, .. } => Self { host: name.to_string(), port: None },
            Ask::Unreadable { shown } => Self { host: format!("{shown:?}"), port: None },
        }
    }

    /// As an entry of a policy: a bare host is port 443.
    fn entry(&self) -> String {
        match self.port {
            None => self.host.clone(),
            Some(443) if !self.host.contains(':') && self.host.parse::<std::net::IpAddr>().is_err() => {
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
