//! The audit: one JSON line for every contact, on record before anybody is answered.
//!
//! ```text
//! Gate ──Event──▶ budget ──▶ record ──line──▶ commit (group commit) ──▶ sink ──▶ file, stdout
//!                    └─ counts ── each second ──▶ `repeated` lines ──┘
//! ```
//!
//! docs/audit.md describes the log for whoever reads it.

mod budget;
mod by;
mod commit;
mod history;
mod json;
mod line;
mod metrics;
mod record;
mod sink;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use policy::{Event, Observer, Receipt, SandboxId};
use prometheus::Registry;

use budget::{Budget, Spent};
use commit::Queue;
use json::Encoder;
use metrics::Metrics;

pub use by::By;
pub use history::History;
pub use line::Line;
pub use record::{ApprovalChange, Notice, SandboxChange};
pub use sink::{Place, Rotation};

/// Counted denials wait at most this long for their line.
const REPEATED_EVERY: Duration = Duration::from_secs(1);

/// What the config says of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where it is written.
    pub place: Place,
    /// What cannot be recorded is denied. Otherwise it is counted as lost.
    pub required: bool,
    /// When the file is put aside; `None` leaves that to somebody else, who then sends SIGHUP.
    pub rotation: Option<Rotation>,
}

/// The audit of a gateway.
///
/// Dropping it writes what is left.
#[derive(Debug)]
pub struct Audit {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    queue: Arc<Queue>,
    budget: Mutex<Budget>,
    metrics: Metrics,
}

thread_local! {
    static ENCODER: RefCell<Encoder> = RefCell::default();
}

impl Audit {
    /// Opens the audit and registers its counters.
    ///
    /// # Errors
    /// Where the place cannot be opened for writing, or is not safe to write to.
    pub fn open(settings: &Settings, registry: &Registry) -> Result<Self, OpenError> {
        let sink = sink::Sink::open(settings.place.clone(), settings.rotation)?;
        let opened = Self::over(sink, settings.required, registry);
        opened.map_err(|why| OpenError { path: settings.place.path().to_owned(), why })
    }

    fn over(sink: sink::Sink, required: bool, registry: &Registry) -> io::Result<Self> {
        let metrics = Metrics::new(registry).map_err(io::Error::other)?;
        let queue = Arc::new(Queue::new(sink, required, metrics.clone()));
        let shared = Arc::new(Shared { queue, budget: Mutex::default(), metrics });
        let worker = Arc::clone(&shared);
        let life = move || worker.queue.run(|| worker.write_repeated());
        let thread = thread::Builder::new().name("audit".into()).spawn(life)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Opens the file anew: SIGHUP, after it was moved away.
    ///
    /// # Errors
    /// Where that fails. The old file then stays in use.
    pub fn reopen(&self) -> Result<(), OpenError> {
        self.shared.queue.reopen()
    }

    /// Opens the file anew where somebody has removed it, without a word to the gateway: the lines of a log that is gone
    /// are lost as well.
    ///
    /// # Errors
    /// Where there can be no other file.
    pub fn look(&self) -> Result<(), OpenError> {
        if !self.shared.queue.is_gone() {
            return Ok(());
        }
        tracing::error!("the audit log was removed; it begins anew");
        self.reopen()
    }

    /// Whether it is required and cannot be written: everything is then denied.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.shared.queue.keeps()
    }

    /// Records something beside attempts.
    pub fn note(&self, notice: Notice<'_>) -> Receipt {
        let at = dns::clock::now();
        let whose = match notice {
            Notice::Sandbox { sandbox, .. } => Some(&sandbox.id),
            Notice::Approval { binding, .. } => Some(&binding.sandbox),
            Notice::Enforcement { sandbox, .. } => sandbox,
            Notice::Reload { .. } => None,
        };
        self.shared.write(whose, 1, |encoder| record::notice(encoder, at, notice))
    }

    /// Writes everything that was recorded, the counts of what repeats too, and returns when it is written.
    pub fn finish(&self) {
        self.shared.queue.end();
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the audit's thread has panicked");
        }
        self.shared.write_repeated();
        self.shared.queue.flush();
    }
}

impl Observer for Audit {
    fn record(&self, event: &Event<'_>) -> Receipt {
        if let Event::Decision(decision) = event
            && let Spent::Counted { first } = lock(&self.shared.budget).spend(decision)
        {
            self.shared.metrics.repeated.inc();
            if first {
                self.shared.queue.do_chores_within(REPEATED_EVERY);
            }
            return Receipt::written();
        }
        let attempt = match event {
            Event::Decision(decision) => decision.attempt,
            Event::Close(close) => close.attempt,
        };
        self.shared.write(attempt.sandbox(), 1, |encoder| record::event(encoder, event))
    }

    fn keeps(&self) -> bool {
        self.shared.queue.keeps()
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn write(
        &self,
        whose: Option<&SandboxId>,
        weight: u64,
        line: impl FnOnce(&mut Encoder) -> &[u8],
    ) -> Receipt {
        let written = ENCODER.with_borrow_mut(|encoder| self.queue.append(line(encoder), whose, weight));
        match written {
            Some(written) => Receipt::waiting(written),
            None if self.queue.is_required() => Receipt::lost(),
            None => Receipt::written(),
        }
    }

    fn write_repeated(&self) {
        let now = dns::clock::now();
        let repeated = lock(&self.budget).take(now);
        for repeated in repeated {
            // Nobody waits for it: a receipt that is dropped leaves its line to the next write.
            drop(self.write(repeated.id.as_ref(), repeated.count, |encoder| {
                record::repeated(encoder, now, &repeated)
            }));
        }
    }
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Self::Stdout => Path::new("-"),
            Self::File(path) => path,
            Self::Nowhere => Path::new(sink::NOWHERE),
        }
    }
}

/// The audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log `{}`", path.display())]
pub struct OpenError {
    path: PathBuf,
    #[source]
    why: io::Error,
}

impl OpenError {
    fn of(path: &Path, why: io::Error) -> Self {
        Self { path: path.to_owned(), why }
    }
}

/// A panic elsewhere does not take the audit along.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
