//! What the demo shows in the end.

use std::fmt::{self, Write as _};
use std::time::Duration;

use policy::approval::Approved;
use policy::decide::View;
use policy::{Ask, Destination, Hostname, QType, SandboxId};

use super::Shown;
use super::stage::Stage;
use super::steps::{Asks, POLICY, STEPS, Step};
use crate::audit::Line;
use crate::cli::log_row;
use crate::{config, error_chain, host};

/// What the demo has to show, as text.
#[derive(Debug)]
pub struct Report {
    text: String,
    as_expected: bool,
}

impl Report {
    pub(super) fn new(stage: &Stage, shown: Vec<Shown>, lines: Vec<Line>, took: Duration) -> Self {
        let mut text = String::from("The policy:\n\n");
        for line in POLICY.lines() {
            let _ = writeln!(text, "{}", format!("    {line}").trim_end());
        }
        text.push_str("\nWhat the clients asked for and got:\n\n");
        text.push_str(&table(&shown));
        let mut as_expected = shown.iter().all(|shown| shown.reason == shown.step.expected);
        if let Some(unavailable) = stage.unavailable() {
            let _ = write!(
                text,
                "\nThis machine permits no namespaces ({}), so that there is no stand-in internet: only what is denied \
                 before\na look-up was tried, over the loopback. What `tidegate explain` says of the rest:\n\n{}",
                error_chain(unavailable),
                explained(stage)
            );
        }
        if let Some(why) = stage.no_sandbox() {
            let _ = writeln!(text, "\nCaptured connections are not shown: {}", error_chain(why));
        }
        text.push_str("\nThe audit log, as `tidegate log` shows it:\n\n");
        for line in &lines {
            let _ = writeln!(text, "{}", log_row(line));
        }
        if let Some(dns) = stage.upstream_dns() {
            let (all, denied) = (dns.asked(), dns.asked_under("attacker.test").len());
            let _ = writeln!(
                text,
                "\nThe DNS server of the stand-in internet was asked {} questions, {denied} of them for attacker.test: a \
                 denied name is never resolved.",
                all.len()
            );
            as_expected &= denied == 0;
        }
        let verdict = if as_expected { "as the policy says" } else { "NOT as the policy says" };
        let _ = writeln!(text, "{} steps, {verdict}, in {:.1} s.", shown.len(), took.as_secs_f64());
        Self { text, as_expected }
    }

    /// Whether every decision was the one that the policy asks for.
    #[must_use]
    pub const fn is_as_expected(&self) -> bool {
        self.as_expected
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn table(shown: &[Shown]) -> String {
    let rows: Vec<[String; 3]> = shown
        .iter()
        .map(|Shown { step, client, .. }| {
            // The id stands in the log below.
            let client = client.split_once(", id ").map_or(client.as_str(), |(before, _)| before);
            [step.asks.inbound().to_owned(), step.asks.to_string(), client.escape_default().to_string()]
        })
        .collect();
    let width = |column: fn(&[String; 3]) -> &str, head: &str| {
        rows.iter().map(|row| column(row).len()).chain([head.len()]).max().unwrap_or(0)
    };
    let (asked, saw) = (width(|row| &row[1], "ASKED"), width(|row| &row[2], "THE CLIENT SAW"));
    let mut table =
        format!("{:<7}  {:<asked$}  {:<saw$}  DECISION  REASON\n", "INBOUND", "ASKED", "THE CLIENT SAW");
    for ([inbound, what, client], Shown { step, reason, .. }) in rows.iter().zip(shown) {
        let decision = if reason.is_some() { "deny" } else { "allow" };
        let mark = if *reason == step.expected { "" } else { "  (unexpected)" };
        let reason = reason.map_or("", policy::Reason::code);
        let row = format!("{inbound:<7}  {what:<asked$}  {client:<saw$}  {decision:<8}  {reason}{mark}");
        let _ = writeln!(table, "{}", row.trim_end());
    }
    table
}

/// The steps that could not be played, by the code that decides, without any look-up.
fn explained(stage: &Stage) -> String {
    let mut text = String::new();
    let now = dns::clock::now();
    let local = host::local_addresses().unwrap_or_default();
    let (Ok(config), Some(agent)) = (config::load(&stage.config(), now, &local), SandboxId::parse("agent"))
    else {
        return text;
    };
    let view = View { policy: &config.policy, local: &local, now, approved: Approved::NONE };
    for step in STEPS.iter().filter(|step| !stage.can_play(step)) {
        let Some(ask) = ask(step) else { continue };
        let told = view.explain(&agent, &ask);
        let decision = match (told.reason, &told.rule) {
            (Some(reason), _) => format!("deny   {reason}"),
            (None, Some(rule)) => format!("allow  by {rule}, if its addresses are public"),
            (None, None) => "allow".to_owned(),
        };
        let _ = writeln!(text, "{:<7}  {:<40}  {decision}", step.asks.inbound(), step.asks.to_string());
    }
    text
}

fn ask(step: &Step) -> Option<Ask> {
    let stream = |authority: &str| Destination::from_authority(authority.as_bytes()).ok();
    Some(match &step.asks {
        Asks::Connect { to, .. } => Ask::Stream(stream(to)?),
        Asks::Socks5 { host } => Ask::Stream(stream(&format!("{host}:443"))?),
        Asks::Http { method, host, path } => Ask::Request {
            destination: stream(&format!("{host}:80"))?,
            method: (*method).into(),
            path: path.split('?').next().unwrap_or_default().into(),
        },
        // It is judged by what it shows, which is seen in a network of its own only.
        Asks::Captured { .. } => return None,
        Asks::Lookup { name } => Ask::Lookup { name: Hostname::parse(name).ok()?, qtype: QType::A },
    })
}

impl Asks {
    const fn inbound(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Http { .. } => "http",
            Self::Socks5 { .. } => "socks5",
            Self::Captured { .. } => "tcp",
            Self::Lookup { .. } => "dns",
        }
    }
}

impl fmt::Display for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { to, sni } | Self::Captured { to, sni }
                if sni.is_empty() || to.starts_with(sni) =>
            {
                f.write_str(to)
            }
            Self::Connect { to, sni } | Self::Captured { to, sni } => write!(f, "{to}, SNI {sni}"),
            Self::Http { method, host, path } => write!(f, "{method} http://{host}{path}"),
            Self::Socks5 { host } => write!(f, "{host}:443"),
            Self::Lookup { name } => write!(f, "{name} A"),
        }
    }
}
