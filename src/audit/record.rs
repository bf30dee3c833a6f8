//! The audit line, version 1: what docs/audit.schema.json says, made from the events of the policy crate.
//!
//! Fields are added, never renamed or given another type. A line stays below 4096 bytes: that much reaches a pipe in one
//! piece (POSIX `PIPE_BUF`).

use std::net::SocketAddr;

use policy::{
    Answer, Ask, Attempt, AttemptId, Binding, CloseEvent, DecisionEvent, Event, Generation, Host, Port,
    Reason, RuleRef, Sandbox, SandboxId, Term, Timestamp,
};

use super::budget::Repeated;
use super::by::By;
use super::json::Encoder;

/// Bytes that a value may take between its quotes. Their sum, with every key and number, is below 4096.
mod limit {
    pub(super) const ID: usize = 64;
    pub(super) const LABEL: usize = 128;
    pub(super) const LABELS: usize = 768;
    pub(super) const CLIENT: usize = 64;
    pub(super) const CERTIFICATE: usize = 256;
    pub(super) const HOST: usize = 768;
    pub(super) const METHOD: usize = 64;
    pub(super) const PATH: usize = 1024;
    pub(super) const RULE: usize = 256;
    pub(super) const DETAIL: usize = 1024;
}

/// Something that happened to the gateway or a sandbox, beside attempts.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// A sandbox came, went or changed.
    Sandbox {
        /// Whose.
        sandbox: &'a Sandbox,
        /// What happened to it.
        change: SandboxChange<'a>,
        /// Who asked; `None` where the gateway did it by itself.
        by: Option<&'a By>,
    },
    /// A person has answered what a rule asks, or has taken the answer back.
    Approval {
        /// The approval, or the question that was declined.
        id: AttemptId,
        /// What it binds.
        binding: &'a Binding,
        /// Whose it is, where the policy still knows it.
        sandbox: Option<&'a Sandbox>,
        /// What was said.
        change: ApprovalChange,
        /// When it was asked.
        asked_at: Timestamp,
        /// Who said it.
        by: &'a By,
    },
    /// The policy was loaded, or could not be.
    Reload {
        /// The generation in force now.
        generation: Generation,
        /// Why the old one stays, where it does.
        error: Option<&'a str>,
        /// Who asked through the admin API.
        by: Option<&'a By>,
    },
    /// The gateway checked whether it is the only way out.
    Enforcement {
        /// Whose way out it is about; `None` where it is everybody's.
        sandbox: Option<&'a SandboxId>,
        /// What was checked.
        check: &'a str,
        /// Whether it holds.
        holds: bool,
        /// Why it does not.
        reason: Option<Reason>,
        /// What was seen.
        detail: &'a str,
    },
}

/// What a person says to what rules ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalChange {
    /// It is approved, for so long.
    Approve(Term),
    /// It is declined.
    Deny,
    /// What was approved is so no longer.
    Revoke,
}

impl ApprovalChange {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Approve(_) => "approve",
            Self::Deny => "deny",
            Self::Revoke => "revoke",
        }
    }
}

/// What happens to sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxChange<'a> {
    /// Its workload starts.
    Start,
    /// Its workload has ended, with this status.
    Exit {
        /// The exit status, 128 and the number of a signal that ended it; none where nobody told.
        status: Option<u8>,
    },
    /// It was added at run time.
    Add,
    /// What it may do was changed at run time.
    Update,
    /// It is paused: nothing is let through.
    Pause,
    /// It goes on.
    Resume,
    /// Its time is over.
    Expiry,
    /// It was removed at run time.
    Remove,
    /// One of its tunnels was ended.
    EndTunnel {
        /// The id of the attempt that opened it.
        id: &'a str,
    },
}

impl SandboxChange<'_> {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Exit { .. } => "exit",
            Self::Add => "add",
            Self::Update => "update",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Expiry => "expiry",
            Self::Remove => "remove",
            Self::EndTunnel { .. } => "end_tunnel",
        }
    }
}

/// The line for what the gate tells.
pub(super) fn event<'e>(to: &'e mut Encoder, event: &Event<'_>) -> &'e [u8] {
    match event {
        Event::Decision(event) => decision(to, event),
        Event::Close(event) => close(to, event),
    }
}

fn decision<'e>(to: &'e mut Encoder, event: &DecisionEvent<'_>) -> &'e [u8] {
    open(to, event.at, "decision");
    attempt(to, event.attempt, event.sandbox.map(|sandbox| &**sandbox));
    to.text("decision", event.answer.as_str(), limit::ID);
    reason(to, event.reason);
    if let Some(denied) = event.would_deny {
        to.text("would_deny", denied.code(), limit::ID);
    }
    rule(to, event.rule);
    if let Some(approval) = event.approval {
        to.shown("approval", &approval.id, limit::ID);
    }
    if let Some(address) = event.address {
        to.shown("addr", &address, limit::ID);
    }
    if let Some(code) = event.rcode {
        rcode(to, code);
    }
    to.number("policy_generation", event.generation.get());
    // A line of its own stands for one attempt, as a `repeated` one for many: the sum is that of all attempts.
    to.number("count", 1);
    to.close()
}

fn close<'e>(to: &'e mut Encoder, event: &CloseEvent<'_>) -> &'e [u8] {
    open(to, event.at, "close");
    attempt(to, event.attempt, event.sandbox.map(|sandbox| &**sandbox));
    let answer = if event.reason.is_some() { Answer::Deny } else { Answer::Allow };
    to.text("decision", answer.as_str(), limit::ID);
    reason(to, event.reason);
    rule(to, event.rule);
    match event.address {
        Some(address) => to.shown("addr", &address, limit::ID),
        None => to.null("addr"),
    }
    match event.sni {
        Some(name) => to.text("sni", name.as_str(), limit::HOST),
        None => to.null("sni"),
    }
    to.number("policy_generation", event.generation.get());
    to.number("bytes_up", event.bytes_up);
    to.number("bytes_down", event.bytes_down);
    to.number("duration_ms", event.duration / 1_000_000);
    to.close()
}

/// The line for denials that were counted.
pub(super) fn repeated<'e>(to: &'e mut Encoder, at: Timestamp, repeated: &Repeated) -> &'e [u8] {
    open(to, at, "repeated");
    whose(to, repeated.id.as_ref(), repeated.sandbox.as_deref());
    to.text("inbound", repeated.key.inbound.as_str(), limit::ID);
    destination(to, repeated.key.host.as_ref(), repeated.key.port);
    to.text("decision", Answer::Deny.as_str(), limit::ID);
    reason(to, Some(repeated.key.reason));
    to.number("count", repeated.count);
    to.time("first", repeated.first);
    to.time("last", repeated.last);
    to.close()
}

/// The line for anything else.
pub(super) fn notice<'e>(to: &'e mut Encoder, at: Timestamp, notice: Notice<'_>) -> &'e [u8] {
    match notice {
        Notice::Sandbox { sandbox, change, by: asked_by } => {
            open(to, at, "sandbox");
            whose(to, Some(&sandbox.id), Some(sandbox));
            to.text("change", change.as_str(), limit::ID);
            if let SandboxChange::Exit { status: Some(status) } = change {
                to.number("status", u64::from(status));
            }
            if let SandboxChange::EndTunnel { id } = change {
                to.text("tunnel", id, limit::ID);
            }
            by(to, asked_by);
        }
        Notice::Approval { id, binding, sandbox, change, asked_at, by: said_by } => {
            open(to, at, "approval");
            to.shown("approval", &id, limit::ID);
            whose(to, Some(&binding.sandbox), sandbox);
            to.text("change", change.as_str(), limit::ID);
            destination(to, Some(&binding.host), Some(binding.port));
            if let Some(method) = &binding.method {
                to.text("method", method, limit::METHOD);
            }
            if let Some(path) = &binding.path {
                to.text("path", path.as_str(), limit::PATH);
            }
            to.time("asked", asked_at);
            if let ApprovalChange::Approve(term) = change {
                to.text("term", term.as_str(), limit::ID);
                if let Term::Until(end) = term {
                    to.time("until", end);
                }
            }
            by(to, Some(said_by));
        }
        Notice::Reload { generation, error, by: asked_by } => {
            open(to, at, "reload");
            to.number("policy_generation", generation.get());
            to.flag("ok", error.is_none());
            if let Some(error) = error {
                to.text("detail", error, limit::DETAIL);
            }
            by(to, asked_by);
        }
        Notice::Enforcement { sandbox, check, holds, reason: why, detail } => {
            open(to, at, "enforcement");
            if let Some(sandbox) = sandbox {
                to.text("sandbox", sandbox.as_str(), limit::ID);
            }
            to.text("check", check, limit::LABEL);
            to.flag("ok", holds);
            if why.is_some() {
                reason(to, why);
            }
            to.text("detail", detail, limit::DETAIL);
        }
    }
    to.close()
}

fn open(to: &mut Encoder, at: Timestamp, event: &str) {
    to.open();
    to.time("ts", at);
    to.text("event", event, limit::ID);
}

fn attempt(to: &mut Encoder, attempt: &Attempt, sandbox: Option<&Sandbox>) {
    to.shown("id", &attempt.id, limit::ID);
    whose(to, attempt.sandbox(), sandbox);
    if let Some(means) = attempt.means {
        to.text("identified_by", means.as_str(), limit::ID);
    }
    if let Some(certificate) = &attempt.peer.certificate {
        to.shown("certificate", certificate, limit::CERTIFICATE);
    }
    to.text("inbound", attempt.inbound.as_str(), limit::ID);
    if let Some(client) = attempt.peer.address {
        to.shown("client", &client as &SocketAddr, limit::CLIENT);
    }
    if let Ask::Unreadable { shown } = &attempt.ask {
        to.text("host", shown, limit::HOST);
    } else {
        destination(to, attempt.ask.host().as_ref(), attempt.ask.port());
    }
    match &attempt.ask {
        Ask::Request { method, path, .. } => {
            to.text("method", method, limit::METHOD);
            to.text("path", path, limit::PATH);
        }
        Ask::Lookup { qtype, .. } => to.shown("qtype", qtype, limit::ID),
        Ask::Stream(_) | Ask::Unreadable { .. } => {}
    }
}

fn whose(to: &mut Encoder, id: Option<&SandboxId>, sandbox: Option<&Sandbox>) {
    match id {
        Some(id) => to.text("sandbox", id.as_str(), limit::ID),
        None => to.null("sandbox"),
    }
    if let Some(sandbox) = sandbox.filter(|sandbox| !sandbox.labels.is_empty()) {
        let labels = sandbox.labels.iter().map(|(name, value)| (&**name, &**value));
        to.texts("labels", labels, limit::LABEL, limit::LABELS);
    }
}

fn destination(to: &mut Encoder, host: Option<&Host>, port: Option<Port>) {
    match host {
        Some(Host::Name(name)) => to.text("host", name.as_str(), limit::HOST),
        Some(Host::Address(address)) => to.shown("host", address, limit::HOST),
        None => to.null("host"),
    }
    if let Some(port) = port {
        to.number("port", u64::from(port.get()));
    }
}

fn reason(to: &mut Encoder, reason: Option<Reason>) {
    match reason {
        Some(reason) => to.text("reason", reason.code(), limit::ID),
        None => to.null("reason"),
    }
}

/// Who asked, if somebody did: fields are never given another type, so that a certificate has its own.
fn by(to: &mut Encoder, asked: Option<&By>) {
    match asked {
        Some(By::Uid(uid)) => to.number("by", u64::from(*uid)),
        Some(By::Certificate(name)) => to.text("by_certificate", name, limit::CERTIFICATE),
        None => {}
    }
}

fn rule(to: &mut Encoder, rule: Option<&RuleRef>) {
    match rule {
        Some(rule) => to.shown("rule", rule, limit::RULE),
        None => to.null("rule"),
    }
}

/// Mnemonics of RFC 1035 section 4.1.1 and RFC 6895 section 2.3; any other by its number.
fn rcode(to: &mut Encoder, code: u16) {
    match code {
        0 => to.text("rcode", "NOERROR", limit::ID),
        1 => to.text("rcode", "FORMERR", limit::ID),
        2 => to.text("rcode", "SERVFAIL", limit::ID),
        3 => to.text("rcode", "NXDOMAIN", limit::ID),
        4 => to.text("rcode", "NOTIMP", limit::ID),
        5 => to.text("rcode", "REFUSED", limit::ID),
        other => to.shown("rcode", &format_args!("RCODE{other}"), limit::ID),
    }
}
