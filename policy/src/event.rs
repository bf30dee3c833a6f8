//! Events: what the gate tells its observers. The audit line and the metric are made from the same value.

use std::net::IpAddr;
use std::sync::Arc;

use crate::approval::Approval;
use crate::attempt::Attempt;
use crate::gate::Generation;
use crate::hostname::Hostname;
use crate::policy::Sandbox;
use crate::reason::Reason;
use crate::receipt::Receipt;
use crate::rule::RuleRef;
use crate::time::Timestamp;

/// The answers that an attempt can end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It was let through.
    Allow,
    /// It was refused.
    Deny,
    /// A look-up was answered with an address that leads nowhere until a person has approved what it stands for.
    Ask,
}

impl Answer {
    /// The public word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// An attempt was answered: exactly one for each attempt.
    Decision(DecisionEvent<'a>),
    /// A stream that was let through has ended: exactly one for each.
    Close(CloseEvent<'a>),
}

/// An attempt was answered.
#[derive(Clone, Debug)]
pub struct DecisionEvent<'a> {
    /// The attempt.
    pub attempt: &'a Attempt,
    /// When it was answered.
    pub at: Timestamp,
    /// The sandbox as the policy of that moment knew it; `None` for a stranger.
    pub sandbox: Option<&'a Arc<Sandbox>>,
    /// What was said. A failure upstream is an allow with an `upstream_*` reason.
    pub answer: Answer,
    /// Why it was denied or failed.
    pub reason: Option<Reason>,
    /// In learn mode: what would have denied it.
    pub would_deny: Option<Reason>,
    /// The rule that decided, or the nearest miss.
    pub rule: Option<&'a RuleRef>,
    /// The approval without which the rule would have asked.
    pub approval: Option<&'a Arc<Approval>>,
    /// The policy generation that decided.
    pub generation: Generation,
    /// The address that was dialled.
    pub address: Option<IpAddr>,
    /// For look-ups: the response code that the client gets (RFC 1035 section 4.1.1, RFC 6895).
    pub rcode: Option<u16>,
}

/// A stream that was let through has ended.
#[derive(Clone, Debug)]
pub struct CloseEvent<'a> {
    /// The attempt that opened it.
    pub attempt: &'a Attempt,
    /// When it ended.
    pub at: Timestamp,
    /// The sandbox as the policy knew it when the stream was opened.
    pub sandbox: Option<&'a Arc<Sandbox>>,
    /// Why it was cut; `None` where one of its ends closed it.
    pub reason: Option<Reason>,
    /// The rule under which it was opened.
    pub rule: Option<&'a RuleRef>,
    /// The policy generation under which it was opened.
    pub generation: Generation,
    /// The address that was dialled.
    pub address: Option<IpAddr>,
    /// The name that its ClientHello showed.
    pub sni: Option<&'a Hostname>,
    /// Bytes from the client to the destination.
    pub bytes_up: u64,
    /// Bytes from the destination to the client.
    pub bytes_down: u64,
    /// Nanoseconds since it was opened.
    pub duration: u64,
}

/// Writes down what happens. Real ones are the audit, the metrics and the tests' recorder.
pub trait Observer: Send + Sync {
    /// Notes an event. What must be on record before anybody is answered is told by the receipt.
    fn record(&self, event: &Event<'_>) -> Receipt;

    /// Whether events that must be kept are being kept, as far as is known. While not, nothing is resolved or dialled
    /// for anybody: it would be a contact without a line.
    fn keeps(&self) -> bool {
        true
    }
}
