//! Decisions as values: what the gate hands out, and nobody else can make.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::approval::Approval;
use crate::attempt::{Ask, Attempt};
use crate::decide::port_to_dial;
use crate::destination::{Destination, Host};
use crate::gate::Generation;
use crate::hostname::Hostname;
use crate::identity::Stranger;
use crate::limits::Limits;
use crate::pattern::HostView;
use crate::pending::Pending;
use crate::policy::{Finding, Grant, Need, Sandbox};
use crate::reason::Reason;
use crate::receipt::Receipt;
use crate::rule::{Internal, RuleRef};
use crate::special::{SpecialUse, special_use_name};
use crate::time::Timestamp;

/// What the gate says to an attempt.
#[derive(Debug)]
pub enum Decision {
    /// It may go on to resolving and dialling.
    Allow(Permit),
    /// A person must approve it first; nothing is recorded yet.
    Ask(Pending),
    /// It may not; already recorded.
    Deny(Unsettled<Denial>),
}

/// A value that must not be acted upon before its event is written.
#[derive(Debug)]
#[must_use = "settle it, then act"]
pub struct Unsettled<T> {
    pub(crate) value: T,
    pub(crate) receipt: Receipt,
}

impl<T> Unsettled<T> {
    pub(crate) const fn new(value: T, receipt: Receipt) -> Self {
        Self { value, receipt }
    }

    /// Whether settling it will not wait.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.receipt.is_written()
    }

    /// Waits for the record in place, for who holds several: once it is ready, settling does not wait.
    pub fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.receipt.poll_settled(cx)
    }
}

impl Unsettled<Denial> {
    /// Waits until the denial is on record. Where it cannot be, it stays a denial and says so.
    pub async fn settle(self) -> Denial {
        match self.receipt.await {
            Ok(()) => self.value,
            Err(_) => self.value.unrecorded(),
        }
    }
}

impl Unsettled<Failure> {
    /// Waits until the failure is on record.
    pub async fn settle(self) -> Failure {
        // A failure lets nothing through, so that a lost record changes nothing for the client.
        let _ = self.receipt.await;
        self.value
    }
}

impl Unsettled<Live> {
    /// Waits until the opening is on record.
    ///
    /// # Errors
    /// Where it cannot be and must be: the stream is not to be used.
    pub async fn settle(self) -> Result<Live, Denial> {
        match self.receipt.await {
            Ok(()) => Ok(self.value),
            Err(_) => Err(self.value.permit.into_denial(Finding::bare(Reason::AuditUnavailable))),
        }
    }
}

impl Unsettled<VettedAddrs> {
    /// Waits until the answer to a look-up is on record.
    ///
    /// # Errors
    /// Where it cannot be and must be: the answer is not to be sent.
    pub async fn settle(self) -> Result<VettedAddrs, Denial> {
        match self.receipt.await {
            Ok(()) => Ok(self.value),
            Err(_) => Err(self.value.permit.into_denial(Finding::bare(Reason::AuditUnavailable))),
        }
    }
}

/// The gate's word that an attempt may go on, under one generation of the policy.
#[derive(Debug)]
pub struct Permit {
    pub(crate) attempt: Attempt,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) grant: Grant,
    pub(crate) generation: Generation,
    /// The name that a tunnel to a literal showed: a later policy may deny it.
    pub(crate) shown: OnceLock<Hostname>,
}

/// What a permit says of the first bytes of a tunnel (docs/policy.md, step 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// They pass unchecked.
    Raw,
    /// They must be a TLS ClientHello (port 443).
    Tls,
    /// Plain HTTP is decided request by request; TLS is judged by its ClientHello (port 80, narrowed hosts).
    Http,
    /// Either side may speak first; a ClientHello is judged if it comes.
    Any,
}

impl Permit {
    /// The attempt that it permits.
    #[must_use]
    pub const fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// The generation under which it holds.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The rule that allows it, or that asked for it; `None` in learn mode.
    #[must_use]
    pub const fn rule(&self) -> Option<&RuleRef> {
        self.grant.rule.as_ref()
    }

    /// The limits of that rule, if it has some.
    #[must_use]
    pub fn rule_limits(&self) -> Option<&Limits> {
        self.grant.rule.as_ref().and_then(|rule| rule.rule().limits())
    }

    /// The approval without which the rule would ask for it.
    pub(crate) const fn approval(&self) -> Option<&Arc<Approval>> {
        match &self.grant.approval {
            Need::Given(approval) => Some(approval),
            Need::Free | Need::Wanted => None,
        }
    }

    /// Whether the rule names the host itself: not by a wildcard, and not in learn mode.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.grant.rule.as_ref().is_some_and(|rule| matches!(rule.rule().host(), HostView::Exact(_)))
    }

    /// The sandbox, as the policy knew it when it decided.
    #[must_use]
    pub const fn sandbox(&self) -> &Arc<Sandbox> {
        &self.sandbox
    }

    /// The host that was allowed.
    #[must_use]
    pub fn host(&self) -> Option<Host> {
        self.attempt.ask.host()
    }

    /// The destination that was allowed, for streams and requests.
    #[must_use]
    pub const fn destination(&self) -> Option<&Destination> {
        self.attempt.ask.destination()
    }

    pub(crate) fn internal(&self) -> Option<&Internal> {
        self.grant.rule.as_ref().and_then(|rule| rule.rule().internal())
    }

    /// The addresses to vet without a look-up: those of a literal, or the pinned ones of an internal table.
    #[must_use]
    pub fn known_addresses(&self) -> Option<Vec<IpAddr>> {
        match self.host()? {
            Host::Address(address) => Some(vec![address]),
            Host::Name(_) => self.internal()?.pinned(),
        }
    }

    /// What the first bytes of a tunnel under this permit must be.
    #[must_use]
    pub fn first_bytes(&self) -> FirstBytes {
        self.grant.first_bytes(&self.attempt.ask)
    }

    /// Whether an encrypted ClientHello is refused.
    #[must_use]
    pub fn refuses_ech(&self) -> bool {
        self.grant.refuses_ech()
    }

    /// Whether headers that override the method must be stripped from requests.
    #[must_use]
    pub fn limits_methods(&self) -> bool {
        self.grant.rule.as_ref().is_some_and(|rule| rule.rule().limits_methods())
    }

    /// Whether headers that override the URL must be stripped from requests.
    #[must_use]
    pub fn limits_paths(&self) -> bool {
        self.grant.rule.as_ref().is_some_and(|rule| rule.rule().limits_paths())
    }

    pub(crate) fn into_denial(self, finding: Finding) -> Denial {
        Denial::new(self.attempt, Some(self.sandbox), finding, self.generation)
    }
}

/// Addresses that were judged for one permit: the only thing that the dialler takes.
#[derive(Debug)]
pub struct VettedAddrs {
    pub(crate) permit: Permit,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) dropped: usize,
    /// The aliases that led there.
    pub(crate) chain: Box<[Hostname]>,
}

impl VettedAddrs {
    /// The permit for which they were judged.
    #[must_use]
    pub const fn permit(&self) -> &Permit {
        &self.permit
    }

    /// The addresses that may be dialled, in the resolver's order.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The permit alone: what was judged is not used.
    #[must_use]
    pub fn into_permit(self) -> Permit {
        self.permit
    }

    /// How many addresses were dropped as forbidden.
    #[must_use]
    pub const fn dropped(&self) -> usize {
        self.dropped
    }

    /// The socket addresses to dial, for streams and requests.
    pub fn sockets(&self) -> impl Iterator<Item = SocketAddr> {
        let port = port_to_dial(self.permit.rule().map(RuleRef::rule), &self.permit.attempt.ask);
        self.addresses.iter().filter_map(move |address| Some(SocketAddr::new(*address, port?)))
    }
}

/// A stream that was let through and is on record. It ends with [`crate::Gate::close`].
#[derive(Debug)]
pub struct Live {
    pub(crate) permit: Permit,
    pub(crate) address: SocketAddr,
    pub(crate) opened: Timestamp,
    /// The aliases that led there: a later policy may deny one.
    pub(crate) chain: Box<[Hostname]>,
}

impl Live {
    /// The permit under which it was opened.
    #[must_use]
    pub const fn permit(&self) -> &Permit {
        &self.permit
    }

    /// The address that was dialled.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// When it was opened.
    #[must_use]
    pub const fn opened(&self) -> Timestamp {
        self.opened
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending<'a> {
    /// Why it was cut; `None` where one of its ends closed it.
    pub reason: Option<Reason>,
    /// Bytes from the client to the destination.
    pub bytes_up: u64,
    /// Bytes from the destination to the client.
    pub bytes_down: u64,
    /// The name that its ClientHello showed.
    pub sni: Option<&'a Hostname>,
}

/// An attempt that was refused. The inbound only translates it into its own protocol.
#[derive(Debug)]
pub struct Denial(Box<Parts>);

#[derive(Debug)]
struct Parts {
    attempt: Attempt,
    sandbox: Option<Arc<Sandbox>>,
    finding: Finding,
    generation: Generation,
    /// For DNS messages that were refused before there was a question to decide.
    rcode: Option<u16>,
    /// For limits: after how long asking again may help.
    wait: Option<Duration>,
}

impl Denial {
    pub(crate) fn new(
        attempt: Attempt,
        sandbox: Option<Arc<Sandbox>>,
        finding: Finding,
        generation: Generation,
    ) -> Self {
        Self(Box::new(Parts { attempt, sandbox, finding, generation, rcode: None, wait: None }))
    }

    pub(crate) fn with_rcode(mut self, rcode: u16) -> Self {
        self.0.rcode = Some(rcode);
        self
    }

    pub(crate) fn with_wait(mut self, wait: Duration) -> Self {
        self.0.wait = Some(wait);
        self
    }

    /// For limits: after how long asking again may help.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.0.wait
    }

    /// The attempt that was refused.
    #[must_use]
    pub fn attempt(&self) -> &Attempt {
        &self.0.attempt
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.0.finding.reason
    }

    /// The rule that denies it, or the nearest miss.
    #[must_use]
    pub fn rule(&self) -> Option<&RuleRef> {
        self.0.finding.rule.as_ref()
    }

    /// The policy generation that decided.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.0.generation
    }

    /// For look-ups: whether the name exists as far as the policy tells (NODATA, not NXDOMAIN).
    #[must_use]
    pub fn name_exists(&self) -> bool {
        self.0.finding.name_exists
    }

    /// The sandbox whose attempt it was; `None` for a stranger.
    #[must_use]
    pub fn sandbox(&self) -> Option<&Arc<Sandbox>> {
        self.0.sandbox.as_ref()
    }

    /// Whether right credentials would have named a sandbox, and none or wrong ones were presented.
    #[must_use]
    pub fn wants_credentials(&self) -> bool {
        self.0.attempt.who == Err(Stranger::Unauthenticated)
            && self.0.finding.reason == Reason::UnknownSandbox
    }

    /// What an author could add where to allow this, if a plain entry can; `None` where no rule could lift it.
    ///
    /// Whether the client may see it is the sandbox's `hints`.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        let sandbox = self.0.sandbox.as_ref()?;
        let set = sandbox.sets.iter().find(|set| !set.is_internal())?;
        let entry = match (self.0.finding.reason, &self.0.attempt.ask) {
            (
                Reason::NotListed
                | Reason::PortNotAllowed
                | Reason::AddressLiteralNotListed
                | Reason::SpecialUseName,
                ask,
            ) if !is_never_a_host(ask) => match ask {
                Ask::Stream(to) | Ask::Request { destination: to, .. } => to.to_string(),
                Ask::Lookup { name, .. } => name.to_string(),
                Ask::Unreadable { .. } => return None,
            },
            _ => return None,
        };
        Some(Remedy { entry, policy: set.name().to_owned(), file: set.file().to_owned() })
    }

    /// For DNS: the response code of the answer (docs/dns.md). NXDOMAIN is the only one that neither stalls a
    /// resolver nor breaks allowed names under a search list (measured on glibc, musl, Node and Java).
    #[must_use]
    pub fn rcode(&self) -> Option<u16> {
        const NOERROR: u16 = 0;
        const SERVFAIL: u16 = 2;
        const NXDOMAIN: u16 = 3;
        const REFUSED: u16 = 5;
        let asked = matches!(self.0.attempt.ask, Ask::Lookup { .. });
        if !asked && self.0.rcode.is_none() {
            return None;
        }
        Some(match self.0.finding.reason {
            Reason::UnknownSandbox
            | Reason::SandboxExpired
            | Reason::SandboxPaused
            | Reason::IdentityMismatch
            | Reason::LimitRate => REFUSED,
            Reason::LimitNames => self.0.rcode.unwrap_or(REFUSED),
            Reason::AuditUnavailable => SERVFAIL,
            _ if self.0.finding.name_exists => NOERROR,
            _ => self.0.rcode.unwrap_or(NXDOMAIN),
        })
    }

    fn unrecorded(mut self) -> Self {
        self.0.finding = Finding::bare(Reason::AuditUnavailable);
        self
    }
}

/// Whether it asks for a name that no rule opens, such as localhost.
fn is_never_a_host(ask: &Ask) -> bool {
    matches!(ask.host(), Some(Host::Name(name)) if special_use_name(&name) == Some(SpecialUse::Always))
}

/// What an author could add where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The entry for an `allow` list.
    pub entry: String,
    /// The policy whose list could hold it.
    pub policy: String,
    /// The file where that policy stands.
    pub file: String,
}

/// An attempt that was let through and failed upstream.
#[derive(Debug)]
pub struct Failure {
    pub(crate) attempt: Attempt,
    pub(crate) reason: Reason,
}

impl Failure {
    /// The attempt that failed.
    #[must_use]
    pub const fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// One of the `upstream_*` reasons.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }
}
