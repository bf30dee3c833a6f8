//! What the rest of the gateway may see and do of a running tunnel: count its bytes, and end it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The live side of one tunnel, shared by the task that copies and by whoever watches it.
#[derive(Debug, Default)]
pub struct Meter {
    up: AtomicU64,
    down: AtomicU64,
    order: Mutex<Order>,
}

#[derive(Debug, Default)]
struct Order {
    killed: bool,
    waker: Option<Waker>,
}

impl Meter {
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

    pub(crate) fn add_up(&self, bytes: usize) {
        self.up.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_down(&self, bytes: usize) {
        self.down.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        // No code runs under the lock that could leave the two fields at odds.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
