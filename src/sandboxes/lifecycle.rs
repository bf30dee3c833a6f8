//! Sandboxes whose time is over: their time to live has passed, or they did nothing for as long as their idle timeout.
//!
//! The gate ends a time to live by itself and to the moment. What is done here is what must outlive a restart, and what
//! others are told.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use policy::{Policy, SandboxId, Timestamp};
use tokio::time::sleep;

use super::change::on_disk;
use super::record::Record;
use super::{Sandboxes, in_force};
use crate::audit::SandboxChange;

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Sandboxes {
    /// Looks for sandboxes whose time is over, for the life of the gateway.
    pub async fn watch(self: Arc<Self>) {
        loop {
            sleep(LOOK_EVERY).await;
            let now = dns::clock::now();
            self.look_at_streams(now);
            if !self.due(now).is_empty() {
                self.end_due(now).await;
            }
        }
    }

    /// Notes what the open streams of watched sandboxes have carried.
    fn look_at_streams(&self, now: Timestamp) {
        if !self.parts.activity.watches_some() {
            return;
        }
        let mut sums: HashMap<SandboxId, u64> = HashMap::new();
        self.parts.gateway.streams().each(|live, meter| {
            let id = &live.permit().sandbox().id;
            let bytes = meter.up().wrapping_add(meter.down());
            match sums.get_mut(id) {
                Some(sum) => *sum = sum.wrapping_add(bytes),
                None => drop(sums.insert(id.clone(), bytes)),
            }
        });
        self.parts.activity.carried(&sums, now);
        // A sandbox that is paused cannot do anything, so that its idle time stands still.
        let paused = self.held(|held| {
            let paused = held.entries.iter().filter(|(_, entry)| entry.record.paused.is_some());
            paused.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        });
        paused.iter().for_each(|id| self.parts.activity.excuse(id, now));
    }

    /// Those whose time is over and of whom that is not remembered yet.
    fn due(&self, now: Timestamp) -> Vec<SandboxId> {
        let idle = self.parts.activity.idle(now);
        self.held(|held| {
            let ended = |record: &Record| record.life().ends.is_some_and(|ends| ends <= now);
            let due = held
                .entries
                .iter()
                .filter(|(id, entry)| !entry.record.over && (ended(&entry.record) || idle.contains(id)));
            due.map(|(id, _)| id.clone()).collect()
        })
    }

    async fn end_due(&self, now: Timestamp) {
        let _turn = self.turn.lock().await;
        // What was given more time meanwhile is not due any more.
        let due = self.due(now);
        let mut policy = Policy::clone(&self.parts.gate.policy());
        for id in &due {
            let Some((record, lent_to)) = self.held(|held| {
                let entry = held.entries.get_mut(id)?;
                entry.record.over = true;
                Some((entry.record.clone(), entry.lent_to))
            }) else {
                continue;
            };
            policy.set_life(id, record.life());
            self.parts.activity.watch(id, None, now);
            let written = match self.disk(lent_to) {
                Ok(Some(store)) => on_disk(move || store.write(&record)).await,
                Ok(None) => Ok(()),
                Err(refusal) => Err(refusal),
            };
            if let Err(error) = written {
                // Its time is over all the same; a restart may give one that was idle another timeout.
                tracing::error!(sandbox = %id, %error, "that its time is over cannot be remembered");
            }
        }
        let policy = Arc::new(policy);
        self.put_in_force(&policy);
        for id in &due {
            if let Some(sandbox) = in_force(&policy, id) {
                self.note(&sandbox, SandboxChange::Expiry, None).await;
            }
        }
    }
}
