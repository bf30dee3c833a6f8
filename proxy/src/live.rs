//! The streams that are open now: they are judged anew when the policy changes, and each ends with one record.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use policy::life::Flow;
use policy::{Ending, Gate, Hostname, Live, Namespace, Permit, Reason, Timestamp};

use crate::tunnel::{Cause, Closed, Meter};

/// Every open stream of the gateway.
#[derive(Debug)]
pub struct Streams {
    gate: Arc<Gate>,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    taken: Vec<Option<Arc<Entry>>>,
    free: Vec<usize>,
    /// What the streams that have ended have carried.
    ended_up: u64,
    ended_down: u64,
}

#[derive(Debug)]
struct Entry {
    live: Live,
    meter: Arc<Meter>,
    cut: OnceLock<Reason>,
}

/// One open stream. Dropping it records its end, whatever the way.
#[derive(Debug)]
pub struct Session {
    streams: Arc<Streams>,
    entry: Arc<Entry>,
    slot: usize,
    sni: Option<Hostname>,
}

impl Streams {
    /// Nothing is open yet.
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        Self { gate, slots: Mutex::default() }
    }

    /// How many streams are open.
    pub fn count(&self) -> usize {
        let slots = self.slots();
        slots.taken.len() - slots.free.len()
    }

    /// How many streams are open, and how many bytes all of them, open and ended, have carried up and down.
    pub(crate) fn tally(&self) -> (usize, u64, u64) {
        let slots = self.slots();
        let sums =
            slots.taken.iter().flatten().fold((slots.ended_up, slots.ended_down), |(up, down), entry| {
                (up + entry.meter.up(), down + entry.meter.down())
            });
        (slots.taken.len() - slots.free.len(), sums.0, sums.1)
    }

    /// Takes in a stream that is on record. It is judged once more where the policy has changed since: a change
    /// before this does not find it among the open ones, a change after this does.
    pub(crate) fn admit(self: &Arc<Self>, live: Live, meter: Meter, now: Timestamp) -> Session {
        let entry = Arc::new(Entry { live, meter: Arc::new(meter), cut: OnceLock::new() });
        let slot = self.slots().take(Arc::clone(&entry));
        if self.gate.generation() != entry.live.permit().generation() {
            entry.judge(&self.gate, now);
        }
        Session { streams: Arc::clone(self), entry, slot, sni: None }
    }

    /// Ends what the policy no longer allows: after a reload, an expiry, or a change of the host's addresses.
    pub fn judge_anew(&self, now: Timestamp) {
        for entry in self.open() {
            entry.judge(&self.gate, now);
        }
    }

    /// Ends what clients in a namespace have open.
    pub(crate) fn end_namespace(&self, namespace: &Namespace, reason: Option<Reason>) {
        for entry in self.open() {
            if entry.live.permit().attempt().peer.namespace.as_deref() != Some(namespace) {
                continue;
            }
            match reason {
                Some(reason) => entry.cut(reason),
                None => entry.meter.kill(),
            }
        }
    }

    /// How many streams clients in a namespace have open.
    pub fn count_in(&self, namespace: &Namespace) -> usize {
        let slots = self.slots();
        let inside =
            |entry: &&Arc<Entry>| entry.live.permit().attempt().peer.namespace.as_deref() == Some(namespace);
        slots.taken.iter().flatten().filter(inside).count()
    }

    /// Shows every open stream, in no order.
    pub fn each(&self, mut show: impl FnMut(&Live, &Meter)) {
        for entry in self.open() {
            show(&entry.live, &entry.meter);
        }
    }

    /// Ends the streams that are wanted, for a reason which their records will carry.
    pub fn end_where(&self, reason: Reason, mut wanted: impl FnMut(&Live) -> bool) {
        for entry in self.open() {
            if wanted(&entry.live) {
                entry.cut(reason);
            }
        }
    }

    /// Ends everything.
    pub(crate) fn end_all(&self) {
        for entry in self.open() {
            entry.meter.kill();
        }
    }

    fn open(&self) -> Vec<Arc<Entry>> {
        self.slots().taken.iter().flatten().cloned().collect()
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Nothing that can panic runs under the lock.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn take(&mut self, entry: Arc<Entry>) -> usize {
        match self.free.pop() {
            Some(slot) => {
                if let Some(place) = self.taken.get_mut(slot) {
                    *place = Some(entry);
                }
                slot
            }
            None => {
                self.taken.push(Some(entry));
                self.taken.len() - 1
            }
        }
    }

    fn give_back(&mut self, slot: usize) {
        if let Some(entry) = self.taken.get_mut(slot).and_then(Option::take) {
            self.ended_up += entry.meter.up();
            self.ended_down += entry.meter.down();
            self.free.push(slot);
        }
    }
}

impl Entry {
    fn judge(&self, gate: &Gate, now: Timestamp) {
        match gate.still_allows(&self.live, now) {
            Ok(Flow::Flows) => self.meter.release(),
            Ok(Flow::Held) => self.meter.hold(),
            Err(reason) => self.cut(reason),
        }
    }

    fn cut(&self, reason: Reason) {
        // The first reason is the one that ended it.
        let _ = self.cut.set(reason);
        self.meter.kill();
    }
}

impl Session {
    /// The permit under which the stream was opened.
    pub fn permit(&self) -> &Permit {
        self.entry.live.permit()
    }

    /// The address that was dialled.
    pub fn address(&self) -> SocketAddr {
        self.entry.live.address()
    }

    /// Counts the stream's bytes, and tells when it must end.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.entry.meter
    }

    /// How long it may rest: what its sandbox says, or else `usual`; less where its rule says so.
    pub(crate) fn idle(&self, usual: Duration) -> Duration {
        let permit = self.permit();
        let of_sandbox = permit.sandbox().limits.idle.unwrap_or(usual);
        permit.rule_limits().and_then(|limits| limits.idle).map_or(of_sandbox, |idle| idle.min(of_sandbox))
    }

    /// Ends the stream for a reason, which its record will carry.
    pub fn cut(&self, reason: Reason) {
        self.entry.cut(reason);
    }

    /// Notes how its tunnel has ended.
    pub(crate) fn note(&self, closed: Closed) {
        if let Cause::Over(limit) = closed.cause {
            self.cut(limit);
        }
    }

    /// Why the stream was cut, if it was.
    pub fn reason(&self) -> Option<Reason> {
        self.entry.cut.get().copied()
    }

    /// Notes the name that the stream showed.
    pub(crate) fn shows(&mut self, name: Hostname) {
        self.sni = Some(name);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.streams.slots().give_back(self.slot);
        let ending = Ending {
            reason: self.reason(),
            bytes_up: self.entry.meter.up(),
            bytes_down: self.entry.meter.down(),
            sni: self.sni.as_ref(),
        };
        // Nobody waits for an answer any more, so nobody waits for the record either.
        drop(self.streams.gate.close(&self.entry.live, ending, dns::clock::now()));
    }
}
