//! One query, from its bytes to its reply.
//!
//! [`Handler::begin`] decides without waiting; only a name that is allowed, unknown and not kept needs
//! [`Handler::finish`]. A reply is written when its event is: see [`Outcome::settle`].

mod bound;

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use policy::{
    Ask, Attempt, Decision, Denial, Failure, Gate, Generation, Hostname, Inbound, Peer, Pending, Permit,
    QType, Reason, Resolved, SandboxId, Unsettled, VettedAddrs,
};

use crate::answer::Answer;
use crate::cache::Key;
use crate::clock;
use crate::config::Limits;
use crate::error::LookupError;
use crate::limits::{Asked, Wait};
use crate::meter::{Meter, Slot};
use crate::metrics::Metrics;
use crate::question::{Edns, Head, Message, Refusal};
use crate::reply::{DENIAL_TTL, Extended, Transport, Writer};
use crate::resolver::Resolver;
use crate::scrub::{Scrubbed, judged_chain};
use crate::wire::{HEADER, rcode, rrtype, write_name};

/// Extended errors (RFC 8914 section 4).
const FORGED: u16 = 4;
const BLOCKED: u16 = 15;
const PROHIBITED: u16 = 18;

/// The seconds for which what is known by definition may be kept.
const DEFINED_TTL: u32 = 3600;

/// The seconds for which the answer to ANY may be kept.
const ANY_TTL: u32 = 60;

/// Answers queries; shared by every listener.
#[derive(Debug)]
pub(crate) struct Handler {
    gate: Arc<Gate>,
    resolver: Resolver,
    metrics: Metrics,
    under_way: Arc<Meter<SandboxId>>,
    asked: Arc<Asked>,
}

/// How far a query got without waiting.
#[expect(clippy::large_enum_variant, reason = "on the way for every query: a box costs more than the move")]
pub(crate) enum Begun<'m> {
    /// It gets no answer.
    Silent,
    /// It is decided.
    Ended(Query<'m>, Outcome),
    /// An upstream must be asked.
    Open(Query<'m>, Box<Open>),
}

/// What the reply to a query needs to know of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'m> {
    head: Head<'m>,
    qtype: Option<QType>,
}

/// An allowed question that an upstream must answer.
#[derive(Debug)]
pub(crate) struct Open {
    permit: Permit,
    key: Key,
    /// The type that was asked for.
    qtype: QType,
    _slot: Slot<SandboxId>,
}

/// What a query came to. Its event is told, and perhaps not yet written.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// With the extended error that the reply carries.
    Denied(Unsettled<Denial>, Option<u16>),
    Answered(Unsettled<VettedAddrs>, Content),
    /// What stands for a name that a person must approve.
    Asked(Unsettled<Pending>, Option<IpAddr>),
    Failed(Unsettled<Failure>, LookupError),
}

/// What a query came to, on record.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "on the way for every query: a box costs more than the move")]
pub(crate) enum Settled {
    Denied(Denial, Option<u16>),
    Answered(VettedAddrs, Content),
    Asked(Generation, Option<IpAddr>),
    Failed(LookupError),
}

/// What an allowed query is answered with.
#[derive(Debug)]
pub(crate) enum Content {
    /// What upstreams said, or the policy knows.
    Answer(Arc<Answer>),
    /// Nothing of value: ANY is answered so (RFC 8482 section 4.2).
    Any,
    /// Nothing: reverse names are never asked for.
    NoName,
    /// The address that stands for the name in its namespace, or none where another type was asked for.
    Bound(Option<IpAddr>),
    /// The name behind a bound address.
    Name(Hostname),
}

impl Content {
    fn rcode(&self) -> u16 {
        match self {
            Self::Answer(answer) if !answer.exists => rcode::NXDOMAIN,
            Self::Answer(_) | Self::Any | Self::Bound(_) | Self::Name(_) => rcode::NOERROR,
            Self::NoName => rcode::NXDOMAIN,
        }
    }
}

/// A query that outlives the buffer it was read into.
#[derive(Debug)]
pub(crate) struct OwnedQuery {
    id: u16,
    flags: u16,
    edns: Option<Edns>,
    qtype: Option<QType>,
    question: Box<[u8]>,
}

impl Query<'_> {
    pub(crate) fn to_owned(self) -> OwnedQuery {
        let Head { id, flags, question, edns } = self.head;
        OwnedQuery { id, flags, edns, qtype: self.qtype, question: question.into() }
    }
}

impl OwnedQuery {
    pub(crate) fn borrow(&self) -> Query<'_> {
        let Self { id, flags, edns, qtype, question } = self;
        Query { head: Head { id: *id, flags: *flags, question, edns: *edns }, qtype: *qtype }
    }
}

impl Outcome {
    /// Whether settling it will not wait.
    pub(crate) const fn is_settled(&self) -> bool {
        match self {
            Self::Denied(denial, _) => denial.is_settled(),
            Self::Answered(vetted, _) => vetted.is_settled(),
            Self::Asked(pending, _) => pending.is_settled(),
            Self::Failed(failure, _) => failure.is_settled(),
        }
    }

    /// Waits in place, for who holds several: once it is ready, settling does not wait.
    pub(crate) fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Denied(denial, _) => denial.poll_settled(cx),
            Self::Answered(vetted, _) => vetted.poll_settled(cx),
            Self::Asked(pending, _) => pending.poll_settled(cx),
            Self::Failed(failure, _) => failure.poll_settled(cx),
        }
    }

    /// Waits until the event is written. An answer whose event is lost becomes a denial.
    pub(crate) async fn settle(self) -> Settled {
        match self {
            Self::Denied(denial, extended) => Settled::Denied(denial.settle().await, extended),
            Self::Answered(vetted, content) => match vetted.settle().await {
                Ok(vetted) => Settled::Answered(vetted, content),
                Err(denial) => Settled::Denied(denial, Some(BLOCKED)),
            },
            Self::Asked(pending, address) => match pending.settle().await {
                Ok(pending) => Settled::Asked(pending.generation(), address),
                Err(denial) => Settled::Denied(denial, Some(BLOCKED)),
            },
            Self::Failed(failure, error) => {
                failure.settle().await;
                Settled::Failed(error)
            }
        }
    }
}

impl Handler {
    pub(crate) fn new(
        gate: Arc<Gate>,
        resolver: Resolver,
        metrics: Metrics,
        limits: Limits,
        asked: Arc<Asked>,
    ) -> Self {
        Self { gate, resolver, metrics, under_way: Meter::new(limits.in_flight_per_sandbox), asked }
    }

    /// Decides a query as far as that needs no upstream.
    pub(crate) fn begin<'m>(&self, peer: &Peer, message: &'m [u8]) -> Begun<'m> {
        match Message::read(message) {
            Message::Silent => {
                self.metrics.dropped();
                Begun::Silent
            }
            Message::Refused(head, refusal) => {
                let outcome = self.refuse(peer, &refusal, message);
                Begun::Ended(Query { head, qtype: None }, outcome)
            }
            Message::Question(head, name, qtype) => {
                let query = Query { head, qtype: Some(qtype) };
                match self.decide(peer, name, qtype) {
                    Ok(outcome) => Begun::Ended(query, outcome),
                    Err(open) => Begun::Open(query, open),
                }
            }
        }
    }

    fn refuse(&self, peer: &Peer, refusal: &Refusal, message: &[u8]) -> Outcome {
        let ask = match refusal {
            Refusal::Transfer(name, qtype) => Ask::Lookup { name: name.clone(), qtype: *qtype },
            Refusal::Meta(shown) | Refusal::Name(shown, _) => Ask::unreadable(shown.as_bytes()),
            Refusal::Root => Ask::unreadable(b"."),
            Refusal::Malformed | Refusal::Opcode | Refusal::Version => {
                Ask::unreadable(message.get(HEADER..).unwrap_or_default())
            }
        };
        let attempt = match self.within_rate(self.gate.attempt(clock::now(), peer, Inbound::Dns, ask)) {
            Ok(attempt) => attempt,
            Err(over) => return Outcome::Denied(over, Some(BLOCKED)),
        };
        Outcome::Denied(self.gate.refuse_message(attempt, refusal.rcode()), refusal.extended())
    }

    fn decide(&self, peer: &Peer, name: Hostname, qtype: QType) -> Result<Outcome, Box<Open>> {
        let ask = Ask::Lookup { name: name.clone(), qtype };
        let attempt = match self.within_rate(self.gate.attempt(clock::now(), peer, Inbound::Dns, ask)) {
            Ok(attempt) => attempt,
            Err(over) => return Ok(Outcome::Denied(over, Some(BLOCKED))),
        };
        if let Some(forward) = bound::forward(peer, &name, qtype) {
            return Ok(match self.gate.check_reverse(attempt, &forward) {
                Decision::Allow(permit) => self.deliver(permit, Content::Name(forward), qtype),
                Decision::Ask(pending) => self.refuse_pending(pending, Reason::ApprovalPending),
                Decision::Deny(denial) => Outcome::Denied(denial, Some(BLOCKED)),
            });
        }
        let permit = match self.gate.check(attempt) {
            Decision::Allow(permit) => permit,
            Decision::Ask(pending) => return Ok(self.decide_pending(pending, &name, qtype)),
            Decision::Deny(denial) => return Ok(Outcome::Denied(denial, Some(BLOCKED))),
        };
        let over = self.asked.question(&permit).map_err(|wait| (Reason::LimitRate, wait));
        let over = over.and_then(|()| self.asked.name(&permit).map_err(|wait| (Reason::LimitNames, wait)));
        if let Err((limit, Wait(wait))) = over {
            let denial = self.gate.refuse_permit_over(permit, limit, wait);
            return Ok(Outcome::Denied(denial, Some(BLOCKED)));
        }
        if qtype == QType::ANY {
            return Ok(self.deliver(permit, Content::Any, qtype));
        }
        // Reverse names are a leak of who is talked to, and a tunnel: whatever a rule says, nobody is asked.
        if name.is_at_or_below("in-addr.arpa") || name.is_at_or_below("ip6.arpa") {
            return Ok(self.deliver(permit, Content::NoName, qtype));
        }
        if bound::is_for(&permit, qtype) {
            return self.decide_bound(permit, name, qtype);
        }
        if let Some(addresses) = permit.known_addresses() {
            // The host port of an internal table is the gateway's loopback; in the sandbox it would be its own.
            let told = addresses.into_iter().filter(|address| !address.is_loopback()).collect();
            let answer = Arc::new(Answer::known(told, qtype, Instant::now()));
            return Ok(self.deliver(permit, Content::Answer(answer), qtype));
        }
        let key = Key::new(&permit, name, qtype);
        match self.resolver.cached(&key) {
            Some(answer) => Ok(self.deliver(permit, Content::Answer(answer), qtype)),
            None => self.open(permit, key, qtype),
        }
    }

    /// Leaves a question to upstreams, as many as the sandbox may have there at once.
    fn open(&self, permit: Permit, key: Key, qtype: QType) -> Result<Outcome, Box<Open>> {
        match self.under_way.enter(&permit.sandbox().id) {
            Some(slot) => Err(Box::new(Open { permit, key, qtype, _slot: slot })),
            None => Ok(self.fail(permit, LookupError::Overloaded)),
        }
    }

    /// Counts a question against its sandbox's rate; over it the answer is a refusal.
    fn within_rate(&self, attempt: Attempt) -> Result<Attempt, Unsettled<Denial>> {
        let sandbox = attempt.sandbox().and_then(|id| self.gate.sandbox(id));
        let limit = sandbox.and_then(|sandbox| Some((sandbox.limits.dns_per_second?, sandbox)));
        let Some((limit, sandbox)) = limit else { return Ok(attempt) };
        match self.asked.of(&sandbox.id).questions.take(limit, Duration::from_secs(1)) {
            Ok(()) => Ok(attempt),
            Err(Wait(wait)) => Err(self.gate.refuse_over(attempt, Reason::LimitRate, wait)),
        }
    }

    /// Asks upstreams for what [`Handler::begin`] left open.
    pub(crate) async fn finish(&self, open: Open) -> Outcome {
        let Open { permit, key, qtype, _slot } = open;
        // The server may end meanwhile.
        let under_way = self.gate.under_way(&permit, Reason::UpstreamDnsFailed);
        let resolved = self.resolver.resolve(&self.gate.alias_judge(&permit), key).await;
        under_way.over();
        match resolved {
            Ok(answer) if bound::is_for(&permit, qtype) => self.deliver_bound(permit, answer, qtype),
            Ok(answer) => self.deliver(permit, Content::Answer(answer), qtype),
            Err(error) => self.fail(permit, error),
        }
    }

    fn fail(&self, permit: Permit, error: LookupError) -> Outcome {
        let failure = self.gate.failed(permit, error.reason(), Some(rcode::SERVFAIL), clock::now());
        Outcome::Failed(failure, error)
    }

    /// Vets what is to be answered and tells the event.
    fn deliver(&self, permit: Permit, content: Content, qtype: QType) -> Outcome {
        let now = clock::now();
        let vetted = match &content {
            Content::Answer(answer) if answer.data.is_empty() => {
                let resolved = Resolved { chain: &answer.chain, addresses: &answer.addresses };
                self.gate.vet(permit, resolved, now)
            }
            Content::Answer(answer) => {
                let chain = judged_chain(answer, qtype);
                self.gate.vet(permit, Resolved { chain: &chain, addresses: &[] }, now)
            }
            Content::Any | Content::NoName | Content::Bound(_) | Content::Name(_) => {
                self.gate.vet(permit, Resolved::default(), now)
            }
        };
        match vetted {
            Ok(vetted) => Outcome::Answered(self.gate.answered(vetted, content.rcode(), now), content),
            Err(denial) => Outcome::Denied(denial, Some(BLOCKED)),
        }
    }

    /// Writes the reply to a query behind whatever `out` holds, and counts it.
    pub(crate) fn reply(&self, query: Query<'_>, settled: &Settled, transport: Transport, out: &mut Vec<u8>) {
        let code = match settled {
            Settled::Denied(denial, extended) => write_denial(query, denial, *extended, transport, out),
            Settled::Answered(vetted, content) => self.write_answer(query, vetted, content, transport, out),
            Settled::Asked(generation, address) => {
                write_bound(query, *address, *generation, transport, out);
                rcode::NOERROR
            }
            Settled::Failed(error) => {
                let (code, text) = error.extended();
                Writer::new(out, query.head, transport, Some(Extended { code, text }))
                    .finish(rcode::SERVFAIL);
                rcode::SERVFAIL
            }
        };
        self.metrics.answered(query.qtype, code);
    }

    fn write_answer(
        &self,
        query: Query<'_>,
        vetted: &VettedAddrs,
        content: &Content,
        transport: Transport,
        out: &mut Vec<u8>,
    ) -> u16 {
        let generation = vetted.permit().generation();
        let code = content.rcode();
        match content {
            Content::Any => {
                let mut writer = Writer::new(out, query.head, transport, None);
                writer.data(rrtype::HINFO, ANY_TTL, b"\x07RFC8482\0");
                writer.finish(code);
            }
            Content::NoName => {
                let mut writer = Writer::new(out, query.head, transport, None);
                writer.synthetic_soa(generation, ANY_TTL);
                writer.finish(code);
            }
            Content::Bound(address) => write_bound(query, *address, generation, transport, out),
            Content::Name(name) => {
                let mut data = Vec::with_capacity(name.as_str().len() + 2);
                write_name(&mut data, name);
                let mut writer = Writer::new(out, query.head, transport, None);
                writer.data(QType::PTR.0, bound::NAME_TTL, &data);
                writer.finish(code);
            }
            Content::Answer(answer) => {
                let qtype = query.qtype.unwrap_or(QType::A);
                let scrubbed = Scrubbed::new(answer, &self.gate, vetted, qtype);
                let text = match vetted.dropped() {
                    0 => Cow::Borrowed("edited by policy"),
                    count => Cow::Owned(format!("{count} addresses removed")),
                };
                let edited = scrubbed.edited || vetted.dropped() > 0;
                let extended = edited.then_some(Extended { code: FORGED, text: &text });
                let ttl = answer.remaining(Instant::now()).unwrap_or(1);
                let mut writer = Writer::new(out, query.head, transport, extended);
                writer.chain(&answer.chain, ttl);
                let aliases = writer.answers();
                writer.addresses(vetted.addresses(), qtype, ttl);
                scrubbed.write(&mut writer, qtype, ttl);
                if writer.answers() == aliases && !writer.is_truncated() {
                    match &answer.soa {
                        Some(soa) => writer.upstream_soa(soa, ttl),
                        None => writer.synthetic_soa(generation, ttl.min(DENIAL_TTL)),
                    }
                }
                writer.finish(code);
            }
        }
        code
    }
}

fn write_bound(
    query: Query<'_>,
    address: Option<IpAddr>,
    generation: Generation,
    transport: Transport,
    out: &mut Vec<u8>,
) {
    let mut writer = Writer::new(out, query.head, transport, None);
    match address {
        Some(address) => writer.addresses(&[address], query.qtype.unwrap_or(QType::A), bound::TTL),
        None => writer.synthetic_soa(generation, DENIAL_TTL),
    }
    writer.finish(rcode::NOERROR);
}

fn write_denial(
    query: Query<'_>,
    denial: &Denial,
    extended: Option<u16>,
    transport: Transport,
    out: &mut Vec<u8>,
) -> u16 {
    let code = denial.rcode().unwrap_or(rcode::SERVFAIL);
    if let Some(address) = localhost(denial, query.qtype) {
        let mut writer = Writer::new(out, query.head, transport, None);
        writer.addresses(&[address], query.qtype.unwrap_or(QType::A), DEFINED_TTL);
        writer.finish(code);
        return code;
    }
    let extended = match denial.reason() {
        Reason::UnknownSandbox
        | Reason::SandboxExpired
        | Reason::SandboxPaused
        | Reason::IdentityMismatch => Some(PROHIBITED),
        Reason::AuditUnavailable => Some(0),
        _ => extended,
    };
    let text = denial.reason().code();
    let extended = extended.map(|code| Extended { code, text });
    let mut writer = Writer::new(out, query.head, transport, extended);
    if matches!(code, rcode::NOERROR | rcode::NXDOMAIN) {
        writer.synthetic_soa(denial.generation(), DENIAL_TTL);
    }
    writer.finish(code);
    code
}

/// The address of localhost, which the client reaches without the gateway (RFC 6761 section 6.3).
fn localhost(denial: &Denial, qtype: Option<QType>) -> Option<IpAddr> {
    let Ask::Lookup { name, .. } = &denial.attempt().ask else { return None };
    if denial.reason() != Reason::SpecialUseName || !name.is_at_or_below("localhost") {
        return None;
    }
    match qtype? {
        QType::A => Some(Ipv4Addr::LOCALHOST.into()),
        QType::AAAA => Some(Ipv6Addr::LOCALHOST.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
