//! The gate: the one place where attempts are decided, addresses vetted and everything recorded.
//!
//! ```text
//! attempt ─check─▶ Permit ─vet─▶ VettedAddrs ─(dial)─ opened ─▶ Live ─close─▶
//!            ├──▶ Denial    └──▶ Denial   └─ failed ─▶ Failure
//!            └──▶ Pending ─(a person)─ resume ─▶ Permit | Denial
//! ```
//!
//! [`Permit`], [`VettedAddrs`], [`Live`] and [`Denial`] have no public constructor: "forgot to check", "resolved again"
//! and "refused without a record" do not compile.

mod alias;
mod approvals;
mod clients;
mod in_force;
mod inside;
mod shown;
mod under_way;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

pub use self::alias::AliasJudge;
pub use self::approvals::{Awaits, NotApproved};
use self::clients::recognized;
use self::in_force::InForce;
pub use self::inside::ByName;
pub use self::shown::Shown;
pub use self::under_way::UnderWay;
use crate::attempt::{Ask, Attempt, AttemptId, Inbound};
use crate::decide::Silent;
use crate::decision::{Decision, Denial, Ending, Failure, Live, Permit, Unsettled, VettedAddrs};
use crate::destination::{Destination, Host, Port};
use crate::event::{Answer, CloseEvent, DecisionEvent, Event, Observer};
use crate::hostname::Hostname;
use crate::life::{Flow, Meanwhile, Stage};
use crate::pending::Pending;
use crate::policy::{Finding, Policy, Verdict};
use crate::reason::Reason;
use crate::receipt::Receipt;
use crate::sandbox::Peer;
use crate::special::LocalAddresses;
use crate::time::Timestamp;

/// Counts the policies that a gateway has had in force, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// The count.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a resolver found for a name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resolved<'a> {
    /// The names that aliases led through, without the first.
    pub chain: &'a [Hostname],
    /// The addresses at its end.
    pub addresses: &'a [IpAddr],
}

/// The one gate of a gateway.
pub struct Gate {
    in_force: ArcSwap<InForce>,
    observer: Arc<dyn Observer>,
    run: u32,
    attempts: AtomicU64,
    /// The latest time seen, in nanoseconds: what has ended stays ended when the clock steps back.
    latest: AtomicU64,
}

impl Gate {
    /// A gate with its first policy in force. `run` should differ between runs of the program: it is part of ids.
    #[must_use]
    pub fn new(
        policy: Arc<Policy>,
        local: Arc<LocalAddresses>,
        observer: Arc<dyn Observer>,
        run: u32,
    ) -> Self {
        let approvals = Arc::default();
        let in_force = InForce { policy, local, approvals, generation: Generation(1) };
        Self {
            in_force: ArcSwap::from_pointee(in_force),
            observer,
            run,
            attempts: AtomicU64::new(0),
            latest: AtomicU64::new(0),
        }
    }

    /// Puts another policy in force. Live streams are then to be judged anew with [`Gate::still_allows`]. Approvals of
    /// what no rule asks for any more are gone.
    pub fn install(&self, policy: Arc<Policy>) -> Generation {
        self.replace(|held| {
            let approvals = held.approvals_under(&policy, self.now());
            InForce { policy: Arc::clone(&policy), approvals, ..held.next() }
        })
    }

    /// Tells the gate the addresses of its host. Live streams are then to be judged anew.
    pub fn set_local_addresses(&self, local: Arc<LocalAddresses>) -> Generation {
        self.replace(|held| InForce { local: Arc::clone(&local), ..held.next() })
    }

    fn replace(&self, next: impl Fn(&InForce) -> InForce) -> Generation {
        Generation(self.in_force.rcu(|held| next(held)).generation.0 + 1)
    }

    /// The generation in force.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.in_force.load().generation
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.in_force.load().policy)
    }

    /// The addresses of the gateway's host, as the gate knows them.
    #[must_use]
    pub fn local_addresses(&self) -> Arc<LocalAddresses> {
        Arc::clone(&self.in_force.load().local)
    }

    /// Names an attempt and the sandbox behind it. An address that stands for a name in the client's namespace is that
    /// name, whatever the inbound.
    #[must_use]
    pub fn attempt(&self, at: Timestamp, peer: &Peer, inbound: Inbound, mut ask: Ask) -> Attempt {
        if let Ask::Stream(destination) | Ask::Request { destination, .. } = &mut ask
            && let Some(name) = peer.meant(&destination.host)
        {
            destination.host = name;
        }
        let held = self.in_force.load();
        let (who, means) = recognized(&held.policy.identities, peer);
        let count = self.attempts.fetch_add(1, Ordering::Relaxed);
        let (id, peer, generation) = (AttemptId::new(at, self.run, count), peer.clone(), held.generation);
        Attempt { id, at, who, means, inbound, peer, ask, tunnel: None, generation }
    }

    /// Decides an attempt (steps 1 to 7). A denial is recorded; a permit is when it is opened, answered or failed.
    pub fn check(&self, attempt: Attempt) -> Decision {
        let now = attempt.at;
        self.check_as(attempt, None, now)
    }

    /// Decides an attempt by what `meant` asks, where that is not what the client wrote.
    fn check_as(&self, mut attempt: Attempt, meant: Option<&Ask>, now: Timestamp) -> Decision {
        let held = self.in_force.load();
        if attempt.generation != held.generation {
            (attempt.who, attempt.means) = recognized(&held.policy.identities, &attempt.peer);
            attempt.generation = held.generation;
        }
        let now = self.advance(now);
        let view = held.view_for(&attempt, now);
        let generation = held.generation;
        match view.decide(attempt.identity(), meant.unwrap_or(&attempt.ask), &mut Silent) {
            Verdict::Allow(sandbox, grant) => {
                let permit = Permit { attempt, sandbox, grant, generation, shown: OnceLock::new() };
                if self.observer.keeps() {
                    Decision::Allow(permit)
                } else {
                    Decision::Deny(self.deny_permit(permit, Reason::AuditUnavailable, now))
                }
            }
            Verdict::Ask(sandbox, grant) => {
                let pending = Pending { attempt, sandbox, grant, generation };
                if self.observer.keeps() {
                    Decision::Ask(pending)
                } else {
                    Decision::Deny(self.refuse_pending(pending, Reason::AuditUnavailable, now))
                }
            }
            Verdict::Deny(sandbox, finding) => {
                Decision::Deny(self.deny(Denial::new(attempt, sandbox, finding, generation), now))
            }
        }
    }

    /// Refuses an attempt for a reason that the inbound found: a limit, or a request that could not be read.
    pub fn refuse(&self, attempt: Attempt, reason: Reason) -> Unsettled<Denial> {
        let held = self.in_force.load();
        let now = self.advance(attempt.at);
        let sandbox = attempt.sandbox().and_then(|id| held.policy.sandbox(id)).cloned();
        let finding = Finding::bare(reason);
        self.deny(Denial::new(attempt, sandbox, finding, held.generation), now)
    }

    /// Refuses a DNS message that asks nothing that could be decided: it is malformed, or its opcode, class or type is
    /// never served. The answer carries `rcode`, except that strangers are refused as strangers.
    pub fn refuse_message(&self, attempt: Attempt, rcode: u16) -> Unsettled<Denial> {
        let held = self.in_force.load();
        let now = self.advance(attempt.at);
        let sandbox = attempt.sandbox().and_then(|id| held.policy.sandbox(id)).cloned();
        let reason = match (&sandbox, &attempt.ask) {
            (None, _) => {
                attempt.who.as_ref().err().map_or(Reason::UnknownSandbox, |stranger| stranger.reason())
            }
            (Some(_), Ask::Lookup { .. }) => Reason::QtypeNotAllowed,
            (Some(_), _) => Reason::BadRequest,
        };
        let denial = Denial::new(attempt, sandbox, Finding::bare(reason), held.generation);
        self.deny(denial.with_rcode(rcode), now)
    }

    /// Judges what a name resolved to, or the known addresses of a permit (step 8).
    ///
    /// Forbidden addresses are dropped. A look-up may have no address at all; a stream needs one.
    ///
    /// # Errors
    /// A denial, recorded, where a name on the chain or every address is forbidden, or where the policy has changed
    /// and no longer allows the attempt.
    pub fn vet(
        &self,
        permit: Permit,
        resolved: Resolved<'_>,
        now: Timestamp,
    ) -> Result<VettedAddrs, Unsettled<Denial>> {
        let held = self.in_force.load();
        let now = self.advance(now);
        let permit = self.renewed(permit, &held, now)?;
        let view = held.view_for(&permit.attempt, now);
        match view.vet(&permit.sandbox, permit.rule(), &permit.attempt.ask, resolved, &mut Silent) {
            Ok(addresses) => {
                let dropped = resolved.addresses.len() - addresses.len();
                Ok(VettedAddrs { permit, addresses, dropped, chain: resolved.chain.into() })
            }
            Err(reason) => Err(self.deny_permit(permit, reason, now)),
        }
    }

    /// Judges one address that stands in an answer beside its address records, such as a hint of an HTTPS record.
    ///
    /// # Errors
    /// The reason for which the address must not be shown.
    pub fn judge_hint(&self, vetted: &VettedAddrs, address: IpAddr) -> Result<(), Reason> {
        let held = self.in_force.load();
        let view = held.view(self.now());
        let permit = &vetted.permit;
        view.judge_address(&permit.sandbox, permit.rule(), &permit.attempt.ask, &vetted.chain, address)
    }

    /// Judges a name that an answer points to as another service, such as the target of a SRV record: it must be
    /// allowed by itself.
    #[must_use]
    pub fn allows_target(&self, vetted: &VettedAddrs, target: &Hostname) -> bool {
        let held = self.in_force.load();
        let view = held.view(self.now());
        let ask = Ask::Lookup { name: target.clone(), qtype: crate::attempt::QType::A };
        matches!(view.decide(Ok(&vetted.permit.sandbox.id), &ask, &mut Silent), Verdict::Allow(..))
    }

    /// Judges a port that an answer names for the host that was looked up: a stream to it must be allowed by itself.
    #[must_use]
    pub fn allows_port(&self, vetted: &VettedAddrs, port: Port) -> bool {
        let held = self.in_force.load();
        let view = held.view(self.now());
        let Some(host) = vetted.permit.host() else { return false };
        let ask = Ask::Stream(Destination { host, port });
        matches!(view.decide(Ok(&vetted.permit.sandbox.id), &ask, &mut Silent), Verdict::Allow(..))
    }

    /// Records that a stream was opened, after judging it anew.
    ///
    /// # Errors
    /// A denial, recorded, where the policy has changed and no longer allows it: the socket must be dropped unused.
    pub fn opened(
        &self,
        vetted: VettedAddrs,
        address: SocketAddr,
        now: Timestamp,
    ) -> Result<Unsettled<Live>, Unsettled<Denial>> {
        let held = self.in_force.load();
        let now = self.advance(now);
        let VettedAddrs { permit, chain, .. } = vetted;
        let permit = self.renewed(permit, &held, now)?;
        let view = held.view_for(&permit.attempt, now);
        let judged = view.judge_open(&permit.sandbox, permit.rule(), &permit.attempt.ask, &chain, address);
        if let Err(reason) = judged {
            return Err(self.deny_permit(permit, reason, now));
        }
        let receipt = self.record_allow(&permit, now, None, Some(address.ip()), None);
        Ok(Unsettled::new(Live { permit, address, opened: now, chain }, receipt))
    }

    /// Records that a look-up was answered.
    pub fn answered(&self, vetted: VettedAddrs, rcode: u16, now: Timestamp) -> Unsettled<VettedAddrs> {
        let now = self.advance(now);
        let receipt = self.record_allow(&vetted.permit, now, None, None, Some(rcode));
        Unsettled::new(vetted, receipt)
    }

    /// Records that an attempt was let through and failed upstream. `reason` is one of the `upstream_*` reasons.
    pub fn failed(
        &self,
        permit: Permit,
        reason: Reason,
        rcode: Option<u16>,
        now: Timestamp,
    ) -> Unsettled<Failure> {
        let now = self.advance(now);
        let receipt = self.record_allow(&permit, now, Some(reason), None, rcode);
        Unsettled::new(Failure { attempt: permit.attempt, reason }, receipt)
    }

    /// Records that vetted addresses could not be reached.
    pub fn unreachable(&self, vetted: VettedAddrs, reason: Reason, now: Timestamp) -> Unsettled<Failure> {
        self.failed(vetted.permit, reason, None, now)
    }

    /// Records the end of a stream.
    pub fn close(&self, live: &Live, ending: Ending<'_>, now: Timestamp) -> Receipt {
        let now = self.advance(now);
        let permit = &live.permit;
        self.spend_approval(&permit.attempt);
        self.observer.record(&Event::Close(CloseEvent {
            attempt: &permit.attempt,
            at: now,
            sandbox: Some(&permit.sandbox),
            reason: ending.reason,
            rule: permit.grant.rule.as_ref(),
            generation: permit.generation,
            address: Some(live.address.ip()),
            sni: ending.sni,
            bytes_up: ending.bytes_up,
            bytes_down: ending.bytes_down,
            duration: now.since(live.opened),
        }))
    }

    /// Judges a live stream anew: after a reload, an expiry, a pause, or a change of the host's addresses.
    ///
    /// # Errors
    /// The reason for which it must be closed: `sandbox_expired`, `sandbox_paused`, or else `policy_changed`, whatever
    /// the policy says now.
    pub fn still_allows(&self, live: &Live, now: Timestamp) -> Result<Flow, Reason> {
        let held = self.in_force.load();
        let now = self.advance(now);
        let attempt = &live.permit.attempt;
        let view = held.view_for(attempt, now);
        // Its client may be another sandbox now, or none.
        if held.policy.identities.identify(&attempt.peer).ok() != attempt.sandbox() {
            return Err(Reason::PolicyChanged);
        }
        let sandbox =
            attempt.sandbox().and_then(|id| held.policy.sandbox(id)).ok_or(Reason::PolicyChanged)?;
        let flow = match sandbox.life.at(now) {
            Stage::Active => Flow::Flows,
            Stage::Paused(Meanwhile::Hold) => Flow::Held,
            Stage::Paused(Meanwhile::Cut) => return Err(Reason::SandboxPaused),
            Stage::Over => return Err(Reason::SandboxExpired),
        };
        let Verdict::Allow(sandbox, grant) = view.decide_for(sandbox, &attempt.ask, &mut Silent) else {
            return Err(Reason::PolicyChanged);
        };
        if !grant.asks_no_more_than(&live.permit.grant, &attempt.ask) {
            return Err(Reason::PolicyChanged);
        }
        let shown = live.permit.shown.get().cloned().map(Host::Name);
        let denied =
            shown.is_some_and(|name| view.judge_beside_literal(&sandbox, &name, &attempt.ask).is_err());
        let rule = grant.rule.as_ref();
        let judged = view.judge_open(&sandbox, rule, &attempt.ask, &live.chain, live.address);
        if denied || judged.is_err() { Err(Reason::PolicyChanged) } else { Ok(flow) }
    }

    /// The first moment after `now` at which something ends by itself: live streams are then to be judged anew.
    #[must_use]
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let (held, now) = (self.in_force.load(), self.advance(now));
        [held.policy.next_expiry(now), held.approvals.next_expiry(now)].into_iter().flatten().min()
    }

    /// Renews a permit that was made under another generation or before something ended.
    fn renewed(&self, permit: Permit, held: &InForce, now: Timestamp) -> Result<Permit, Unsettled<Denial>> {
        let ended = permit.grant.rule.as_ref().is_some_and(|rule| !rule.rule().holds_at(now))
            || permit.approval().is_some_and(|approval| !approval.holds_at(now))
            || (permit.grant.would_deny.is_some() && !permit.sandbox.learns_at(now));
        if permit.generation == held.generation && !ended {
            return Ok(permit);
        }
        let view = held.view_for(&permit.attempt, now);
        let attempt = permit.attempt;
        let generation = held.generation;
        if held.policy.identities.identify(&attempt.peer).ok() != attempt.sandbox() {
            let denial =
                Denial::new(attempt, Some(permit.sandbox), Finding::bare(Reason::PolicyChanged), generation);
            return Err(self.deny(denial, now));
        }
        match view.decide(attempt.identity(), &attempt.ask, &mut Silent) {
            Verdict::Allow(sandbox, grant) => {
                Ok(Permit { attempt, sandbox, grant, generation, shown: OnceLock::new() })
            }
            Verdict::Ask(sandbox, grant) => {
                let pending = Pending { attempt, sandbox, grant, generation };
                Err(self.refuse_pending(pending, Reason::ApprovalPending, now))
            }
            Verdict::Deny(sandbox, finding) => {
                Err(self.deny(Denial::new(attempt, sandbox, finding, generation), now))
            }
        }
    }

    fn deny_permit(&self, permit: Permit, reason: Reason, now: Timestamp) -> Unsettled<Denial> {
        let name_exists = matches!(permit.attempt.ask, Ask::Lookup { .. });
        let rule = permit.grant.rule.clone();
        self.deny(permit.into_denial(Finding { reason, rule, name_exists }), now)
    }

    fn deny(&self, denial: Denial, now: Timestamp) -> Unsettled<Denial> {
        self.spend_approval(denial.attempt());
        let receipt = self.observer.record(&Event::Decision(DecisionEvent {
            attempt: denial.attempt(),
            at: now,
            sandbox: denial.sandbox(),
            answer: Answer::Deny,
            reason: Some(denial.reason()),
            would_deny: None,
            rule: denial.rule(),
            approval: None,
            generation: denial.generation(),
            address: None,
            rcode: denial.rcode(),
        }));
        Unsettled::new(denial, receipt)
    }

    fn record_allow(
        &self,
        permit: &Permit,
        now: Timestamp,
        reason: Option<Reason>,
        address: Option<IpAddr>,
        rcode: Option<u16>,
    ) -> Receipt {
        if reason.is_some() {
            self.spend_approval(&permit.attempt);
        }
        self.observer.record(&Event::Decision(DecisionEvent {
            attempt: &permit.attempt,
            at: now,
            sandbox: Some(&permit.sandbox),
            answer: Answer::Allow,
            reason,
            would_deny: permit.grant.would_deny,
            rule: permit.grant.rule.as_ref(),
            approval: permit.approval(),
            generation: permit.generation,
            address,
            rcode,
        }))
    }

    /// The time to judge by: never earlier than any time seen before.
    fn advance(&self, now: Timestamp) -> Timestamp {
        let before = self.latest.fetch_max(now.nanos(), Ordering::Relaxed);
        Timestamp::from_nanos(before.max(now.nanos()))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.latest.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
