//! What sandboxes have open and have carried, as a whole and under rules with limits of their own, held against their
//! limits; and what all of them together may hold.

mod allowance;
mod crowd;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dns::limits::{Bucket, Wait};
use policy::{Inbound, Limits, Reason};

pub(crate) use self::allowance::Allowance;
pub(crate) use self::crowd::{Crowd, Seat};

/// A sandbox is over one of its limits, or of a rule's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) reason: Reason,
    /// After how long asking again may help.
    pub(crate) wait: Duration,
}

const SECOND: Duration = Duration::from_secs(1);

/// What one sandbox has open and has carried, or one sandbox under one rule.
#[derive(Debug, Default)]
pub(crate) struct Account {
    clients: AtomicUsize,
    streams: Bucket,
    requests: Bucket,
    pub(crate) up: Allowance,
    pub(crate) down: Allowance,
}

/// One connected client that counts in an account; dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Account>);

impl Account {
    /// Counts an attempt against the rates.
    pub(crate) fn attempt(&self, limits: &Limits, inbound: Inbound) -> Result<(), Over> {
        let (bucket, limit) = match inbound {
            Inbound::Connect | Inbound::Socks5 | Inbound::Tcp => {
                (&self.streams, limits.new_connections_per_second)
            }
            Inbound::Http | Inbound::Tls => (&self.requests, limits.requests_per_second),
            // The DNS server counts its own.
            Inbound::Dns => return Ok(()),
        };
        let Some(limit) = limit else { return Ok(()) };
        bucket.take(limit, SECOND).map_err(|Wait(wait)| Over { reason: Reason::LimitRate, wait })
    }

    /// Sets the quotas, which another policy may have changed; what was used stays used.
    pub(crate) fn renew(&self, limits: &Limits) {
        self.up.set(limits.upload);
        self.down.set(limits.download);
    }

    /// Judges whether an allowed attempt may still carry bytes.
    pub(crate) fn may_carry(&self, limits: &Limits) -> Result<(), Over> {
        self.renew(limits);
        for (allowance, reason) in [(&self.up, Reason::LimitUpload), (&self.down, Reason::LimitDownload)] {
            allowance.is_left().map_err(|Wait(wait)| Over { reason, wait })?;
        }
        Ok(())
    }

    /// Takes in a client, unless there are `most` already.
    pub(crate) fn enter(self: &Arc<Self>, most: usize) -> Result<Slot, Over> {
        let more = |open: usize| (open < most).then_some(open + 1);
        match self.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Slot(Arc::clone(self))),
            Err(_) => Err(Over { reason: Reason::LimitConnections, wait: SECOND }),
        }
    }
}

impl Slot {
    pub(crate) fn is_of(&self, account: &Arc<Account>) -> bool {
        Arc::ptr_eq(&self.0, account)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}
