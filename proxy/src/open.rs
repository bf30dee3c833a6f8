//! From an attempt to an open stream that is on record: the steps that every inbound shares.
//!
//! ```text
//! decide (hold) ─▶ Permit ─▶ connect (resolve, vet, dial) ─▶ Reached ─▶ register (record, admit) ─▶ Session
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use dns::clock::now;
use dns::limits::Wait;
use policy::{Attempt, Decision, Denial, Failure, Hostname, Permit, Reason, VettedAddrs};

use crate::dial::{Dialled, dial};
use crate::gateway::{Client, Gateway};
use crate::limits::Over;
use crate::live::Session;
use crate::stream::Stream;
use crate::tunnel::{Counted, Meter};

/// Why there is no stream. Either is on record.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The policy says no.
    Denied(Denial),
    /// The policy says yes, and the destination could not be reached.
    Failed(Box<Failure>),
}

/// A destination that has answered. Nothing has been sent to it.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) vetted: VettedAddrs,
    pub(crate) stream: Stream,
    pub(crate) address: SocketAddr,
    /// What it has said already.
    pub(crate) early: Vec<u8>,
    /// The aliases that led there, without the first name.
    pub(crate) chain: Vec<Hostname>,
}

/// A stream that may carry bytes.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) upstream: Stream,
    /// What the upstream has said already.
    pub(crate) early: Vec<u8>,
    pub(crate) session: Session,
}

impl Gateway {
    /// All the steps. The caller answers its client after this, and not before.
    /// `gone` resolves when the client leaves: one that a person must approve is held for as long as it stays.
    pub(crate) async fn open(
        self: &Arc<Self>,
        attempt: Attempt,
        client: &Client,
        gone: impl Future<Output = ()>,
    ) -> Result<Opened, Refused> {
        let permit = self.decide(attempt, client, gone).await?;
        self.open_permitted(permit).await
    }

    /// The steps that follow a permit.
    pub(crate) async fn open_permitted(self: &Arc<Self>, permit: Permit) -> Result<Opened, Refused> {
        let Reached { vetted, stream, address, early, .. } = self.connect(permit).await?;
        let session = self.register(vetted, address).await?;
        Ok(Opened { upstream: stream, early, session })
    }

    /// Asks the gate, and a person where the gate says so; before it the rates of the client's sandbox are looked at,
    /// behind it what the sandbox has open, and the limits of the rule.
    pub(crate) async fn decide(
        &self,
        attempt: Attempt,
        client: &Client,
        gone: impl Future<Output = ()>,
    ) -> Result<Permit, Refused> {
        let decision = match self.check(attempt) {
            Decision::Ask(pending) => Box::pin(self.hold(pending, client, gone)).await,
            decision => decision,
        };
        self.admitted(decision, client).await
    }

    /// The same, but nobody is asked.
    pub(crate) async fn decide_at_once(&self, attempt: Attempt, client: &Client) -> Result<Permit, Refused> {
        let decision = self.check(attempt);
        self.admitted(decision, client).await
    }

    fn check(&self, attempt: Attempt) -> Decision {
        if let Some(sandbox) = attempt.sandbox().and_then(|id| self.gate.sandbox(id))
            && let Err(over) = self.accounts.of(&sandbox.id).attempt(&sandbox.limits, attempt.inbound)
        {
            return Decision::Deny(self.gate.refuse_over(attempt, over.reason, over.wait));
        }
        self.gate.check(attempt)
    }

    async fn admitted(&self, decision: Decision, client: &Client) -> Result<Permit, Refused> {
        let denial = match decision {
            Decision::Allow(permit) => match self.admit(&permit, client) {
                Ok(()) => return Ok(permit),
                Err(over) => self.gate.refuse_permit_over(permit, over.reason, over.wait),
            },
            Decision::Ask(pending) => self.gate.refuse_pending(pending, Reason::ApprovalPending, now()),
            Decision::Deny(denial) => denial,
        };
        Err(Refused::Denied(denial.settle().await))
    }

    fn admit(&self, permit: &Permit, client: &Client) -> Result<(), Over> {
        let sandbox = permit.sandbox();
        let account = self.accounts.of(&sandbox.id);
        client.belongs_to(&account, sandbox.limits.connections)?;
        account.may_carry(&sandbox.limits)?;
        let of_rule = self.accounts.of_rule(permit);
        client.comes_by(of_rule.as_ref().map(|(account, limits)| (account, limits.connections)))?;
        if let Some((account, limits)) = of_rule {
            account.may_carry(limits)?;
            account.attempt(limits, permit.attempt().inbound)?;
        }
        self.asked.name(permit).map_err(|Wait(wait)| Over { reason: Reason::LimitNames, wait })
    }

    /// Resolves, has the addresses vetted, and dials them.
    pub(crate) async fn connect(&self, permit: Permit) -> Result<Reached, Refused> {
        let under_way = self.gate.under_way(&permit, Reason::UpstreamDnsFailed);
        let looked_up = self.resolver.lookup(&self.gate, &permit).await;
        under_way.over();
        let found = match looked_up {
            Ok(found) => found,
            Err(error) => return Err(self.failed(permit, error.reason()).await),
        };
        let vetted = match self.gate.vet(permit, found.resolved(), now()) {
            Ok(vetted) => vetted,
            Err(denial) => return Err(Refused::Denied(denial.settle().await)),
        };
        if vetted.addresses().is_empty() {
            return Err(self.unreachable(vetted, Reason::UpstreamDnsFailed).await);
        }
        let started = Instant::now();
        let under_way = self.gate.under_way(vetted.permit(), Reason::UpstreamConnectFailed);
        let dialled = dial(&vetted, self.upstream.as_ref(), self.timeouts.connect).await;
        under_way.over();
        self.metrics.connect_seconds.observe(started.elapsed().as_secs_f64());
        match dialled {
            Ok(Dialled { stream, address, early }) => {
                Ok(Reached { vetted, stream, address, early, chain: found.chain })
            }
            Err(error) => Err(self.unreachable(vetted, error.reason()).await),
        }
    }

    /// Has the opening recorded, and takes the stream in among the open ones.
    pub(crate) async fn register(
        self: &Arc<Self>,
        vetted: VettedAddrs,
        address: SocketAddr,
    ) -> Result<Session, Refused> {
        let opened = match self.gate.opened(vetted, address, now()) {
            Ok(opened) => opened.settle().await,
            Err(denial) => Err(denial.settle().await),
        };
        let live = opened.map_err(Refused::Denied)?;
        let (sandbox, of_rule) = (live.permit().sandbox(), self.accounts.of_rule(live.permit()));
        let lifetimes = [sandbox.limits.lifetime, of_rule.as_ref().and_then(|(_, limits)| limits.lifetime)];
        let accounts =
            Counted { sandbox: self.accounts.of(&sandbox.id), rule: of_rule.map(|(rule, _)| rule) };
        let meter = Meter::of(accounts, lifetimes.into_iter().flatten().min());
        Ok(self.streams.admit(live, meter, now()))
    }

    async fn failed(&self, permit: Permit, reason: Reason) -> Refused {
        Refused::Failed(Box::new(self.gate.failed(permit, reason, None, now()).settle().await))
    }

    async fn unreachable(&self, vetted: VettedAddrs, reason: Reason) -> Refused {
        Refused::Failed(Box::new(self.gate.unreachable(vetted, reason, now()).settle().await))
    }
}
