//! What all inbounds of one gateway share, and what happens to open streams when the policy changes or it stops.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dns::Resolver;
use dns::clock::now;
use dns::limits::{Accounts, Asked};
use policy::{Gate, Limits, Namespace, Peer, Reason, Timestamp};
use prometheus::Registry;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::config::{Approvers, Config, Timeouts};
use crate::desk::Desk;
use crate::http::pool::Pool;
use crate::limits::{Account, Crowd, Over, Seat, Slot};
use crate::live::Streams;
use crate::metrics::Metrics;
use crate::via::UpstreamProxy;

/// An expiry is looked for at least this often, so that a clock that was set forward is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The shared part of every inbound.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) gate: Arc<Gate>,
    pub(crate) resolver: Resolver,
    pub(crate) timeouts: Timeouts,
    pub(crate) upstream: Option<UpstreamProxy>,
    pub(crate) metrics: Metrics,
    pub(crate) streams: Arc<Streams>,
    /// Where attempts wait for a person, if one can be asked.
    pub(crate) desk: Arc<Desk>,
    pub(crate) approvers: Approvers,
    pub(crate) pool: Arc<Pool>,
    /// What each sandbox has open and has carried.
    pub(crate) accounts: Accounts<Account>,
    /// What each sandbox has asked for, here and by DNS.
    pub(crate) asked: Arc<Asked>,
    crowd: Arc<Crowd>,
    clients: AtomicUsize,
    changed: Notify,
    idle: Notify,
    stopping: watch::Sender<bool>,
    /// Tells that some namespace was closed.
    closings: watch::Sender<()>,
}

/// One connected client, from its acceptance to its end.
#[derive(Debug)]
pub(crate) struct Client {
    gateway: Arc<Gateway>,
    _seat: Seat,
    /// Its place among the clients of the sandbox that it is of; none before it has asked for something.
    slot: Mutex<Option<Slot>>,
    /// Its place among those of the rule that let its latest attempt through, where that has limits.
    rule_slot: Mutex<Option<Slot>>,
}

impl Gateway {
    /// A gateway that serves nobody yet, with its counters registered.
    ///
    /// # Errors
    /// Where the registry holds one of their names already.
    pub fn new(
        gate: Arc<Gate>,
        resolver: Resolver,
        asked: Arc<Asked>,
        config: Config,
        registry: &Registry,
    ) -> Result<Arc<Self>, prometheus::Error> {
        let streams = Arc::new(Streams::new(Arc::clone(&gate)));
        let answered = Metrics::answered()?;
        let desk = Arc::new(Desk::new(Arc::clone(&gate), answered.clone()));
        let metrics = Metrics::new(Arc::clone(&streams), Arc::clone(&desk), answered)?;
        metrics.register(registry)?;
        Ok(Arc::new(Self {
            gate,
            resolver,
            timeouts: config.timeouts,
            upstream: config.upstream,
            metrics,
            streams,
            desk,
            approvers: config.approvers,
            pool: Arc::default(),
            accounts: Accounts::default(),
            asked,
            crowd: Crowd::new(config.clients.0),
            clients: AtomicUsize::new(0),
            changed: Notify::new(),
            idle: Notify::new(),
            stopping: watch::Sender::new(false),
            closings: watch::Sender::new(()),
        }))
    }

    /// The open streams.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Where attempts wait for a person.
    pub fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// To be called after the host's addresses have changed: ends what is no longer allowed before it returns.
    pub fn addresses_changed(&self) {
        self.pool.clear();
        self.policy_changed();
    }

    /// To be called after another policy has been put in force, or something was approved or revoked: ends what is no
    /// longer allowed before it returns, and wakes whoever need not wait any more.
    pub fn policy_changed(&self) {
        self.judge_anew();
        let policy = self.gate.policy();
        self.accounts.renew(&policy, |account, limits| account.renew(limits.unwrap_or(&Limits::NONE)));
        self.asked.renew(&policy);
        self.changed.notify_one();
    }

    fn judge_anew(&self) {
        self.pool.retain(&self.gate.policy(), now());
        self.streams.judge_anew(now());
        self.desk.judge_anew(now());
    }

    /// Ends streams when what allows them ends by itself (`until`). Runs for the life of the gateway.
    pub async fn watch_expiry(&self) {
        let mut next = self.next_expiry();
        loop {
            let Some(expiry) = next else {
                self.changed.notified().await;
                next = self.next_expiry();
                continue;
            };
            let wait = Duration::from_nanos(expiry.since(now())).min(LOOK_EVERY);
            let changed = timeout(wait, self.changed.notified()).await.is_ok();
            if changed || now() >= expiry {
                next = self.next_expiry();
            }
        }
    }

    /// When something ends next; what has ended by now is seen to.
    fn next_expiry(&self) -> Option<Timestamp> {
        // In this order, so that nothing can end unseen between the two.
        let next = self.gate.next_expiry(now());
        self.judge_anew();
        next
    }

    /// Sends clients that ask nothing away, and waits until all have gone, for as long as a drain may take; then resets
    /// what is still open. The listeners must have been closed.
    pub async fn drain(&self) {
        self.stopping.send_replace(true);
        let gone = async {
            while self.clients() > 0 {
                self.idle.notified().await;
            }
        };
        if timeout(self.timeouts.drain, gone).await.is_err() {
            self.streams.end_all();
        }
    }

    /// Closes a namespace: nobody is known by it any more, and whatever its clients have open ends at once. `reason` is
    /// what their records say. Its listeners are the caller's to drop.
    pub fn close_namespace(&self, namespace: &Namespace, reason: Option<Reason>) {
        namespace.close();
        self.closings.send_replace(());
        self.streams.end_namespace(namespace, reason);
    }

    /// Tells when a namespace is closed.
    pub(crate) fn closings(&self) -> watch::Receiver<()> {
        self.closings.subscribe()
    }

    /// Ends every stream at once.
    pub fn end_streams(&self) {
        self.streams.end_all();
    }

    /// Tells when the gateway drains.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Takes a client in; `None` where there is no room for another one from where it comes from.
    pub(crate) fn client(self: &Arc<Self>, peer: &Peer) -> Option<Client> {
        let whose = self.gate.identify(peer).ok().and_then(|id| self.gate.sandbox(&id));
        let seat = self.crowd.enter(peer, whose.as_deref())?;
        self.clients.fetch_add(1, Ordering::Relaxed);
        Some(Client {
            gateway: Arc::clone(self),
            _seat: seat,
            slot: Mutex::default(),
            rule_slot: Mutex::default(),
        })
    }
}

impl Client {
    pub(crate) const fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Counts it among the `most` clients that a sandbox may have; once, whatever it asks for.
    pub(crate) fn belongs_to(&self, account: &Arc<Account>, most: Option<u32>) -> Result<(), Over> {
        take_place(&self.slot, account, most)
    }

    /// Counts it among the clients that a sandbox may have under a rule, in the place of the one before.
    pub(crate) fn comes_by(&self, rule: Option<(&Arc<Account>, Option<u32>)>) -> Result<(), Over> {
        match rule {
            Some((account, most)) => take_place(&self.rule_slot, account, most),
            None => {
                drop(self.rule_slot.lock().unwrap_or_else(PoisonError::into_inner).take());
                Ok(())
            }
        }
    }
}

fn take_place(slot: &Mutex<Option<Slot>>, account: &Arc<Account>, most: Option<u32>) -> Result<(), Over> {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if !slot.as_ref().is_some_and(|slot| slot.is_of(account)) {
        *slot = Some(account.enter(most.map_or(usize::MAX, |most| most as usize))?);
    }
    Ok(())
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.gateway.clients.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.gateway.idle.notify_one();
        }
    }
}
