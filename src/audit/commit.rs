//! Group commit: lines of many tasks go out in one write, and each task waits for the write that holds its line.
//!
//! ```text
//! record ──line──▶ waiting ──┬─ a task that awaits its line, once nobody writes ──▶ write(2) ──▶ all who wait
//!                            └─ the thread: pipes, slow disks, lines nobody awaits ─▶
//! ```
//!
//! A task that awaits its line lets the tasks that are ready go first, once; they record their own lines. Then it writes
//! what has gathered. A write to a file ends in the page cache, so that this costs less than waking a thread
//! (docs/adr/0003-write-before-reply.md has the measurement). Where a write may wait for a reader, or took long, the thread does it.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use policy::{AuditLost, SandboxId};

use super::metrics::Metrics;
use super::sink::{Outcome, Sink};
use super::{OpenError, lock};

/// More than this is not kept for a sink that takes nothing: what comes then is lost.
const ROOM: usize = 8 << 20;

/// From this much on a sandbox may add only so much more: whoever floods a slow sink is refused alone.
const CROWDED: usize = 1 << 20;
const SHARE: usize = 2 << 20;

/// A buffer that grew beyond this in a rush is given back.
const KEPT: usize = 256 << 10;

/// Lines that nobody awaits are written this much later at the latest, usually with somebody's line.
const UNAWAITED: Duration = Duration::from_millis(20);

/// Whoever finds somebody writing looks again this much later.
const BUSY: Duration = Duration::from_millis(1);

/// A write that takes longer has met a slow disk, or a busy processor: the thread writes, not the runtime's tasks, until
/// so many writes were quick.
const SLOW: Duration = Duration::from_millis(5);
const QUICK_ENOUGH: u32 = 16;

/// The lines of one write, as those who wait for it see it.
#[derive(Debug)]
struct Batch {
    /// How many lines, from the first, were written; [`PENDING`] until then.
    written: AtomicU32,
}

const PENDING: u32 = u32::MAX;

impl Batch {
    fn new() -> Arc<Self> {
        Arc::new(Self { written: AtomicU32::new(PENDING) })
    }
}

#[derive(Debug)]
struct State {
    /// Whole lines that no write has taken yet, and whose batch they are.
    waiting: Vec<u8>,
    batch: Arc<Batch>,
    lines: u32,
    /// What each sandbox has added since it became crowded.
    crowd: HashMap<Option<SandboxId>, usize>,
    /// The lines among them that stand for more than one attempt.
    heavy: Vec<(u32, u64)>,
    /// The buffer of the write before, for the next.
    spare: Vec<u8>,
    writing: bool,
    wakers: Vec<Waker>,
    /// Counts how often `wakers` was emptied: a task knows by it whether it is still in there.
    rounds: u64,
    /// So many quick writes are wanted of the thread before tasks write again.
    wanted_quick: u32,
    /// When the thread must write, or do its housekeeping.
    write_due: Option<Instant>,
    chores_due: Option<Instant>,
    /// Until when the thread sleeps; `None` while it is awake, and where it sleeps until it is woken.
    asleep: Option<Option<Instant>>,
    ending: bool,
}

impl State {
    fn has_room(&mut self, more: usize, whose: Option<&SandboxId>) -> bool {
        let waits = self.waiting.len();
        if waits < CROWDED {
            return true;
        }
        let added = self.crowd.entry(whose.cloned()).or_default();
        *added += more;
        *added <= SHARE && waits + more <= ROOM
    }
}

/// The queue of lines before one sink.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    turn: Condvar,
    sink: Mutex<Sink>,
    /// The thread writes, whoever waits: the sink may wait for a reader, or was slow of late.
    by_thread: AtomicBool,
    may_wait: AtomicBool,
    /// The last write lost lines.
    failing: AtomicBool,
    required: bool,
    metrics: Metrics,
}

impl Queue {
    pub(super) fn new(sink: Sink, required: bool, metrics: Metrics) -> Self {
        let may_wait = sink.may_wait();
        let state = State {
            waiting: Vec::new(),
            batch: Batch::new(),
            lines: 0,
            crowd: HashMap::new(),
            heavy: Vec::new(),
            spare: Vec::new(),
            writing: false,
            wakers: Vec::new(),
            rounds: 0,
            wanted_quick: 0,
            write_due: None,
            chores_due: None,
            asleep: None,
            ending: false,
        };
        Self {
            state: Mutex::new(state),
            turn: Condvar::new(),
            sink: Mutex::new(sink),
            by_thread: AtomicBool::new(may_wait),
            may_wait: AtomicBool::new(may_wait),
            failing: AtomicBool::new(false),
            required,
            metrics,
        }
    }

    /// Whether what cannot be recorded is denied.
    pub(super) const fn is_required(&self) -> bool {
        self.required
    }

    /// Whether what must be recorded is being recorded. The lines of denials go on being tried, and tell when it is again.
    pub(super) fn keeps(&self) -> bool {
        !(self.required && self.failing.load(Ordering::Relaxed))
    }

    /// Adds a line that stands for `weight` attempts; `None` where there is no room, and it is counted as lost.
    pub(super) fn append(
        self: &Arc<Self>,
        line: &[u8],
        whose: Option<&SandboxId>,
        weight: u64,
    ) -> Option<Written> {
        let mut state = lock(&self.state);
        if !state.has_room(line.len(), whose) {
            self.metrics.lost.inc_by(weight);
            return None;
        }
        state.waiting.extend_from_slice(line);
        let place = state.lines;
        state.lines += 1;
        if weight != 1 {
            state.heavy.push((place, weight));
        }
        let batch = Arc::clone(&state.batch);
        Some(Written { queue: Arc::clone(self), batch, place, state: Waiting::New })
    }

    /// Writes everything that waits, in this thread.
    pub(super) fn flush(&self) {
        let mut state = lock(&self.state);
        while state.writing {
            state = self.turn.wait_timeout(state, BUSY).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.write(state);
    }

    /// Opens the sink anew, after what was recorded for the old one.
    pub(super) fn reopen(&self) -> Result<(), OpenError> {
        self.flush();
        let mut sink = lock(&self.sink);
        sink.reopen()?;
        self.may_wait.store(sink.may_wait(), Ordering::Relaxed);
        self.by_thread.store(sink.may_wait(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether what is written goes to a file that has been removed.
    pub(super) fn is_gone(&self) -> bool {
        // While somebody writes there is another moment to look.
        self.sink.try_lock().is_ok_and(|sink| sink.is_gone())
    }

    /// Asks the thread to call its `chores` within `delay`.
    pub(super) fn do_chores_within(&self, delay: Duration) {
        let mut state = lock(&self.state);
        let due = Instant::now() + delay;
        if state.chores_due.is_none_or(|held| due < held) {
            state.chores_due = Some(due);
            self.wake_thread(&state, due);
        }
    }

    /// Lets the thread write what it has and end.
    pub(super) fn end(&self) {
        lock(&self.state).ending = true;
        self.turn.notify_all();
    }

    fn write_within(&self, state: &mut State, delay: Duration) {
        let due = Instant::now() + delay;
        if state.write_due.is_none_or(|held| due < held) {
            state.write_due = Some(due);
            self.wake_thread(state, due);
        }
    }

    fn wake_thread(&self, state: &State, due: Instant) {
        if state.asleep.is_some_and(|until| until.is_none_or(|until| due < until)) {
            self.turn.notify_all();
        }
    }

    /// The thread's life: writes that are due, and `chores` when they are.
    pub(super) fn run(&self, chores: impl Fn()) {
        let mut state = lock(&self.state);
        while !state.ending {
            let now = Instant::now();
            if state.chores_due.is_some_and(|due| due <= now) {
                state.chores_due = None;
                drop(state);
                chores();
                state = lock(&self.state);
            } else if state.write_due.is_some_and(|due| due <= now) {
                // A task that writes now takes everything that waits with it, but not what comes meanwhile.
                state.write_due = state.writing.then(|| now + BUSY);
                if !state.writing {
                    self.write(state);
                    state = lock(&self.state);
                }
            } else {
                state = self.sleep(state, now);
            }
        }
        drop(state);
        chores();
        self.flush();
    }

    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let until = [state.write_due, state.chores_due].into_iter().flatten().min();
        state.asleep = Some(until);
        state = match until {
            None => self.turn.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_duration_since(now);
                self.turn.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.asleep = None;
        state
    }

    /// Takes what waits and writes it. Nobody else may be writing.
    fn write(&self, mut state: MutexGuard<'_, State>) {
        if state.lines == 0 {
            return;
        }
        let spare = std::mem::take(&mut state.spare);
        let mut lines = std::mem::replace(&mut state.waiting, spare);
        let batch = std::mem::replace(&mut state.batch, Batch::new());
        let count = std::mem::take(&mut state.lines);
        let heavy = std::mem::take(&mut state.heavy);
        state.crowd.clear();
        state.writing = true;
        drop(state);

        let began = Instant::now();
        let outcome = lock(&self.sink).write(&lines);
        let took = began.elapsed();
        let written = match outcome {
            Outcome::Written => count,
            Outcome::Lost { after, .. } => u32::try_from(after).map_or(count, |after| after.min(count)),
        };
        batch.written.store(written, Ordering::Release);
        self.count(written, count, &heavy);

        lines.clear();
        lines.shrink_to(KEPT);
        let mut state = lock(&self.state);
        state.spare = lines;
        state.writing = false;
        self.note(&mut state, &outcome, took);
        let wakers = std::mem::take(&mut state.wakers);
        state.rounds += 1;
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn count(&self, written: u32, count: u32, heavy: &[(u32, u64)]) {
        self.metrics.written.inc_by(u64::from(written));
        if written == count {
            return;
        }
        let extra = heavy.iter().filter(|(place, _)| *place >= written).map(|(_, weight)| weight - 1);
        self.metrics.lost.inc_by(u64::from(count - written) + extra.sum::<u64>());
    }

    /// Remembers that the sink is slow, and says when it begins and ceases to fail.
    fn note(&self, state: &mut State, outcome: &Outcome, took: Duration) {
        if took > SLOW {
            state.wanted_quick = QUICK_ENOUGH;
            self.by_thread.store(true, Ordering::Relaxed);
        } else if state.wanted_quick > 0 {
            state.wanted_quick -= 1;
            if state.wanted_quick == 0 {
                self.by_thread.store(self.may_wait.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        let failed = self.failing.swap(matches!(outcome, Outcome::Lost { .. }), Ordering::Relaxed);
        match outcome {
            Outcome::Lost { error, .. } if !failed => self.say_failing(error),
            Outcome::Written if failed => tracing::info!("the audit log can be written again"),
            Outcome::Lost { .. } | Outcome::Written => {}
        }
    }

    fn say_failing(&self, error: &io::Error) {
        let effect = if self.required { "everything is denied" } else { "traffic goes on unrecorded" };
        tracing::error!(%error, "cannot write the audit log: {effect}");
    }
}

/// A line on its way. Resolves when the write that holds it has returned.
#[derive(Debug)]
pub(super) struct Written {
    queue: Arc<Queue>,
    batch: Arc<Batch>,
    place: u32,
    state: Waiting,
}

#[derive(Debug)]
enum Waiting {
    New,
    /// Has let the others go first.
    Yielded,
    /// Its waker is among the queue's, of this round.
    Registered(u64, Waker),
    Done,
}

impl Written {
    fn result(&self) -> Option<Result<(), AuditLost>> {
        match self.batch.written.load(Ordering::Acquire) {
            PENDING => None,
            written if self.place < written => Some(Ok(())),
            _ => Some(Err(AuditLost)),
        }
    }

    fn finish(&mut self, result: Result<(), AuditLost>) -> Poll<Result<(), AuditLost>> {
        self.state = Waiting::Done;
        Poll::Ready(if self.queue.required { result } else { Ok(()) })
    }
}

impl Future for Written {
    type Output = Result<(), AuditLost>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(result) = this.result() {
            return this.finish(result);
        }
        if matches!(this.state, Waiting::New) {
            this.state = Waiting::Yielded;
            if !this.queue.by_thread.load(Ordering::Relaxed) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        let queue = Arc::clone(&this.queue);
        let mut state = lock(&queue.state);
        // The thread that has ended writes no more.
        let by_thread = queue.by_thread.load(Ordering::Relaxed) && !state.ending;
        if let Some(result) = this.result() {
            return this.finish(result);
        }
        if !state.writing && !by_thread {
            queue.write(state);
            // This line was among those that waited: what could take it was taken with the lock held.
            let result = this.result().unwrap_or(Err(AuditLost));
            return this.finish(result);
        }
        let registered = match &this.state {
            Waiting::Registered(round, waker) => *round == state.rounds && waker.will_wake(cx.waker()),
            _ => false,
        };
        if !registered {
            state.wakers.push(cx.waker().clone());
            this.state = Waiting::Registered(state.rounds, cx.waker().clone());
        }
        if by_thread {
            queue.write_within(&mut state, Duration::ZERO);
        }
        Poll::Pending
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if !matches!(self.state, Waiting::Done) && self.result().is_none() {
            let mut state = lock(&self.queue.state);
            self.queue.write_within(&mut state, UNAWAITED);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::super::sink::Place;
    use super::*;

    #[test]
    fn a_sandbox_that_floods_a_stuck_sink_is_refused_alone() {
        let sink = Sink::open(Place::File("/dev/null".into()), None).expect("it opens");
        let metrics = Metrics::new(&Registry::new()).expect("counters");
        let lost = metrics.lost.clone();
        // Nobody writes: no thread runs, and nothing is awaited.
        let queue = Arc::new(Queue::new(sink, true, metrics));
        let (flooder, other) = (SandboxId::parse("flooder"), SandboxId::parse("other"));
        let line = [b'x'; 1024];
        let mut added = 0;
        while let Some(written) = queue.append(&line, flooder.as_ref(), 1) {
            std::mem::forget(written);
            added += line.len();
        }
        assert_eq!(added, CROWDED + SHARE);
        assert_eq!(lost.get(), 1);
        assert!(queue.append(&line, other.as_ref(), 1).is_some(), "another sandbox has room");
        queue.flush();
        assert!(queue.append(&line, flooder.as_ref(), 1).is_some(), "and all have it again after a write");
    }
}
