//! What the rest of the gateway may see and do of a running tunnel: count its bytes, and end it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use policy::Reason;
use tokio::time::Instant;

use crate::limits::{Account, Allowance};

/// The live side of one tunnel, shared by the task that copies and by whoever watches it.
#[derive(Debug, Default)]
pub struct Meter {
    up: AtomicU64,
    down: AtomicU64,
    order: Mutex<Order>,
    /// What the bytes count against.
    accounts: Option<Counted>,
    /// When the tunnel's own time is over.
    ends: Option<Instant>,
}

/// What the bytes of a tunnel count against.
#[derive(Debug)]
pub(crate) struct Counted {
    /// What its sandbox carries.
    pub(crate) sandbox: Arc<Account>,
    /// What its sandbox carries under the rule that let it through, where that has limits.
    pub(crate) rule: Option<Arc<Account>>,
}

#[derive(Debug, Default)]
struct Order {
    killed: bool,
    held: bool,
    waker: Option<Waker>,
}

impl Meter {
    /// A meter of a tunnel that counts against limits and may last as long as `lifetime`.
    pub(crate) fn of(accounts: Counted, lifetime: Option<Duration>) -> Self {
        let ends = lifetime.and_then(|lifetime| Instant::now().checked_add(lifetime));
        Self { accounts: Some(accounts), ends, ..Self::default() }
    }

    /// When the tunnel's own time is over.
    pub(crate) const fn ends(&self) -> Option<Instant> {
        self.ends
    }

    /// The direction from the client.
    pub(crate) fn upward(&self) -> Gauge<'_> {
        Gauge {
            bytes: &self.up,
            allowances: self.allowances(|account| &account.up),
            limit: Reason::LimitUpload,
        }
    }

    /// The direction from the upstream.
    pub(crate) fn downward(&self) -> Gauge<'_> {
        let allowances = self.allowances(|account| &account.down);
        Gauge { bytes: &self.down, allowances, limit: Reason::LimitDownload }
    }

    fn allowances(&self, of: impl Fn(&Account) -> &Allowance) -> Allowances<'_> {
        let accounts = self.accounts.as_ref();
        Allowances {
            sandbox: accounts.map(|accounts| of(&accounts.sandbox)),
            rule: accounts.and_then(|accounts| accounts.rule.as_deref()).map(of),
        }
    }

    /// Bytes taken from the client so far.
    pub fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    /// Bytes taken from the upstream so far.
    pub fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }

    /// Ends the tunnel now: both sides are reset, nothing that is still inside is delivered. A tunnel that
    /// starts later with this meter ends before it moves a byte.
    pub fn kill(&self) {
        let waker = {
            let mut order = self.order();
            order.killed = true;
            order.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Has the tunnel stand still: what it has taken stays with it, and it takes nothing more.
    pub fn hold(&self) {
        self.order().held = true;
    }

    /// Lets it go on.
    pub fn release(&self) {
        let waker = {
            let mut order = self.order();
            let was_held = std::mem::replace(&mut order.held, false);
            order.waker.take_if(|_| was_held)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether it stands still. To be asked after [`Meter::poll_killed`], which sees to it that the task hears when that
    /// is over.
    pub(crate) fn is_held(&self) -> bool {
        self.order().held
    }

    /// Whether [`Meter::kill`] was called.
    pub fn killed(&self) -> bool {
        self.order().killed
    }

    pub(crate) fn poll_killed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut order = self.order();
        if order.killed {
            return Poll::Ready(());
        }
        match &order.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => order.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Counts bytes from the client that have been taken already.
    pub(crate) fn add_up(&self, bytes: usize) {
        self.upward().add(bytes);
    }

    /// Counts bytes from the upstream that have been taken already.
    pub(crate) fn add_down(&self, bytes: usize) {
        self.downward().add(bytes);
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        // No code runs under the lock that could leave the two fields at odds.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One direction: what has passed, and what may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauge<'m> {
    bytes: &'m AtomicU64,
    allowances: Allowances<'m>,
    limit: Reason,
}

/// What is left of the quotas that one direction counts against: the least of them is what may pass.
#[derive(Clone, Copy, Debug)]
struct Allowances<'m> {
    sandbox: Option<&'m Allowance>,
    rule: Option<&'m Allowance>,
}

impl<'m> Allowances<'m> {
    fn reserve(self, most: usize) -> usize {
        let room = self.sandbox.map_or(most, |sandbox| sandbox.reserve(most));
        let Some(rule) = self.rule.filter(|_| room > 0) else { return room };
        let narrower = rule.reserve(room);
        if let Some(sandbox) = self.sandbox {
            sandbox.give_back(room - narrower);
        }
        narrower
    }

    fn each(self) -> impl Iterator<Item = &'m Allowance> {
        [self.sandbox, self.rule].into_iter().flatten()
    }
}

/// Nothing more may pass, for this limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over(pub(crate) Reason);

/// Room for bytes that are about to be taken; what is not taken of it is given back.
#[derive(Debug)]
pub(crate) struct Reserved<'m> {
    gauge: Gauge<'m>,
    room: usize,
    taken: usize,
}

impl<'m> Gauge<'m> {
    /// Reserves at most `most` bytes.
    ///
    /// # Errors
    /// Where not one is left.
    pub(crate) fn reserve(self, most: usize) -> Result<Reserved<'m>, Over> {
        match self.allowances.reserve(most) {
            0 if most > 0 => Err(Over(self.limit)),
            room => Ok(Reserved { gauge: self, room, taken: 0 }),
        }
    }

    fn add(self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.allowances.each().for_each(|allowance| allowance.charge(bytes));
    }
}

impl Reserved<'_> {
    pub(crate) const fn room(&self) -> usize {
        self.room
    }

    /// Notes bytes that were taken of it.
    pub(crate) fn took(&mut self, bytes: usize) {
        self.taken += bytes;
        self.gauge.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let left = self.room.saturating_sub(self.taken);
        self.gauge.allowances.each().for_each(|allowance| allowance.give_back(left));
    }
}
