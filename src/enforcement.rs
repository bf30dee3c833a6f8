//! Whether the gateway is the only way out of its sandboxes, as far as it knows: told to log, audit and metric alike.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use policy::{Reason, SandboxId};

use crate::audit::{Audit, Notice};
use crate::metrics::Metrics;

/// What was found not to hold, and for whom. The metric is 1 while that is nothing.
#[derive(Debug)]
pub struct Enforcement {
    audit: Arc<Audit>,
    metrics: Metrics,
    broken: Mutex<HashSet<(SandboxId, &'static str)>>,
}

impl Enforcement {
    pub(crate) fn new(audit: Arc<Audit>, metrics: Metrics) -> Self {
        metrics.enforced(true);
        Self { audit, metrics, broken: Mutex::default() }
    }

    /// Notes that a check of a sandbox holds. It is told where it did not hold before.
    pub async fn holds(&self, sandbox: &SandboxId, check: &'static str, detail: &str) {
        if self.change(|broken| broken.remove(&(sandbox.clone(), check))) {
            let notice =
                Notice::Enforcement { sandbox: Some(sandbox), check, holds: true, reason: None, detail };
            self.tell(notice).await;
        }
    }

    /// Notes that a check of a sandbox does not hold. It is told every time.
    pub async fn broken(&self, sandbox: &SandboxId, check: &'static str, reason: Reason, detail: &str) {
        self.change(|broken| broken.insert((sandbox.clone(), check)));
        tracing::error!(%sandbox, check, detail, "a sandbox may have another way out; it is shut off");
        let reason = Some(reason);
        let notice = Notice::Enforcement { sandbox: Some(sandbox), check, holds: false, reason, detail };
        self.tell(notice).await;
    }

    fn change(&self, how: impl FnOnce(&mut HashSet<(SandboxId, &'static str)>) -> bool) -> bool {
        // One insertion or removal: whole, whatever panicked elsewhere.
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = how(&mut broken);
        self.metrics.enforced(broken.is_empty());
        changed
    }

    async fn tell(&self, notice: Notice<'_>) {
        // A lost audit has a voice of its own, and what was to be shut off is shut off already.
        let _ = self.audit.note(notice).await;
    }
}
