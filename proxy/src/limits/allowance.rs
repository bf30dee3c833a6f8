//! Bytes that a sandbox may carry one way within a time, counted so that not one more passes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dns::limits::{Wait, monotonic};
use policy::limits::Quota;

/// No limit.
const ALL: u64 = u64::MAX;

/// What is left of a quota. The time begins with the first byte and anew with the first one after its end.
///
/// A read reserves what it may take and gives back what it did not: two operations on one word, so that the streams of a
/// sandbox on several threads never take more than there is.
#[derive(Debug)]
pub(crate) struct Allowance {
    used: AtomicU64,
    bytes: AtomicU64,
    window: AtomicU64,
    /// When the time is over; 0 before the first byte.
    until: AtomicU64,
}

impl Default for Allowance {
    fn default() -> Self {
        let (used, until, window) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { used, until, window, bytes: AtomicU64::new(ALL) }
    }
}

impl Allowance {
    /// Sets the quota, which a reload may have changed; what was used stays used.
    pub(crate) fn set(&self, quota: Option<Quota>) {
        let (bytes, window) = quota.map_or((ALL, 0), |quota| (quota.bytes, nanos(quota.window)));
        self.window.store(window, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Reserves at most `most` bytes; 0 where nothing is left.
    pub(crate) fn reserve(&self, most: usize) -> usize {
        let bytes = self.bytes.load(Ordering::Relaxed);
        if bytes == ALL {
            return most;
        }
        match self.try_reserve(bytes, most) {
            0 if self.begin_anew(monotonic()) => self.try_reserve(bytes, most),
            reserved => reserved,
        }
    }

    fn try_reserve(&self, bytes: u64, most: usize) -> usize {
        let room = |used: u64| bytes.saturating_sub(used).min(most as u64);
        let more = |used: u64| Some(used + room(used)).filter(|_| room(used) > 0);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            // No more than `most`.
            Ok(used) => room(used) as usize,
            Err(_) => 0,
        }
    }

    /// Gives back what was reserved and not taken.
    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes > 0 && self.bytes.load(Ordering::Relaxed) != ALL {
            self.take_off(bytes as u64);
        }
    }

    fn take_off(&self, bytes: u64) {
        // Another time may have begun since it was reserved.
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Counts bytes that have passed already, with a request's head.
    pub(crate) fn charge(&self, bytes: usize) {
        if self.bytes.load(Ordering::Relaxed) != ALL {
            self.used.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Whether anything is left.
    ///
    /// # Errors
    /// Where not: how long it takes until there is.
    pub(crate) fn is_left(&self) -> Result<(), Wait> {
        let now = monotonic();
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 || now >= until {
            self.begin_anew(now);
            return Ok(());
        }
        let is_left = self.used.load(Ordering::Relaxed) < self.bytes.load(Ordering::Relaxed);
        if is_left { Ok(()) } else { Err(Wait(Duration::from_nanos(until - now))) }
    }

    /// Begins another time where the last one is over; whether it was.
    fn begin_anew(&self, now: u64) -> bool {
        let window = self.window.load(Ordering::Relaxed);
        let next = |until: u64| (now >= until).then(|| now.saturating_add(window));
        let begun = self.until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
        if begun {
            self.used.store(0, Ordering::Relaxed);
        }
        begun
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota { bytes: 1000, window: Duration::from_secs(3600) };

    #[test]
    fn not_one_byte_more_is_reserved() {
        let allowance = Allowance::default();
        assert_eq!(allowance.reserve(usize::MAX), usize::MAX, "nothing is limited yet");
        allowance.set(Some(QUOTA));
        assert_eq!(allowance.is_left(), Ok(()));
        assert_eq!([700, 700, 700].map(|most| allowance.reserve(most)), [700, 300, 0]);
        assert!(matches!(allowance.is_left(), Err(Wait(wait)) if wait <= QUOTA.window));
        allowance.give_back(10);
        assert_eq!((allowance.is_left(), allowance.reserve(64)), (Ok(()), 10));
        allowance.charge(5);
        allowance.give_back(5);
        assert_eq!(allowance.reserve(1), 0);
    }

    #[test]
    fn streams_on_many_threads_share_it_to_the_byte() {
        let allowance = Allowance::default();
        allowance.set(Some(Quota { bytes: 1_000_003, ..QUOTA }));
        assert_eq!(allowance.is_left(), Ok(()));
        let carry = || {
            let mut carried = 0;
            loop {
                let reserved = allowance.reserve(97);
                if reserved == 0 {
                    return carried;
                }
                let taken = reserved.min(31);
                allowance.give_back(reserved - taken);
                carried += taken;
            }
        };
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(carry)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // A thread may find nothing left while others hold more than they take.
        assert!((1_000_003 - 4 * 97..=1_000_003).contains(&total), "{total}");
    }

    #[test]
    fn another_time_begins_once_the_last_is_over() {
        let allowance = Allowance::default();
        allowance.set(Some(Quota { window: Duration::ZERO, ..QUOTA }));
        for _ in 0..3 {
            assert_eq!((allowance.reserve(1000), allowance.is_left()), (1000, Ok(())));
        }
        allowance.set(Some(QUOTA));
        assert_eq!(allowance.is_left(), Ok(()));
        assert_eq!(allowance.reserve(2000), 1000);
        assert_eq!((allowance.begin_anew(monotonic()), allowance.reserve(1)), (false, 0));
        assert!(allowance.begin_anew(monotonic() + 2 * nanos(QUOTA.window)));
        assert_eq!(allowance.reserve(1), 1);
    }
}
