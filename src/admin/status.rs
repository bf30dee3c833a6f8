//! What `/readyz` tells: the phase of the gateway, the policy in force and how its last reload went.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use policy::{Generation, Timestamp};
use serde::{Deserialize, Serialize};

use crate::audit::Audit;

/// Where a gateway is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Listeners are not all bound yet.
    Starting,
    /// It serves.
    Ready,
    /// It takes nothing new and waits for what is open.
    Draining,
    /// It serves, and denies everything: the audit is required and cannot be written.
    AuditLost,
}

/// How the last reload went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    /// Whether what it read is in force.
    pub ok: bool,
    /// When, as RFC 3339.
    pub at: String,
    /// Why the old policy stays in force, or what of the new config waits for a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The page as a program reads it. Fields are only ever added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether new connections are served.
    pub ready: bool,
    /// The phase behind that.
    pub phase: Phase,
    /// The version of the program.
    pub version: String,
    /// Counts the policies that have been in force, from 1.
    pub policy_generation: u64,
    /// The last reload, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload: Option<Reload>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.phase {
            Phase::Starting => "not ready: starting\n",
            Phase::Ready => "ready\n",
            Phase::Draining => "not ready: draining\n",
            Phase::AuditLost => {
                "not ready: the audit log is required and cannot be written, so everything is denied\n"
            }
        })?;
        writeln!(f, "tidegate {}, policy generation {}", self.version, self.policy_generation)?;
        let Some(reload) = &self.reload else { return Ok(()) };
        let outcome = if reload.ok { "in force" } else { "refused, the old policy stays" };
        write!(f, "last reload at {}: {outcome}", reload.at)?;
        match &reload.detail {
            Some(detail) => writeln!(f, "; {detail}"),
            None => writeln!(f),
        }
    }
}

/// The state behind the pages.
#[derive(Debug, Default)]
pub struct Status {
    held: Mutex<Held>,
    audit: Option<Arc<Audit>>,
}

#[derive(Debug)]
struct Held {
    phase: Phase,
    generation: u64,
    reload: Option<Reload>,
}

impl Default for Held {
    fn default() -> Self {
        Self { phase: Phase::Starting, generation: 0, reload: None }
    }
}

impl Status {
    /// The state of a gateway with this audit, while it starts.
    #[must_use]
    pub fn new(audit: Arc<Audit>) -> Self {
        Self { held: Mutex::default(), audit: Some(audit) }
    }

    /// Notes the phase.
    pub fn enter(&self, phase: Phase) {
        self.held().phase = phase;
    }

    /// Notes the generation in force.
    pub fn generation(&self, generation: Generation) {
        self.held().generation = generation.get();
    }

    /// Notes how a reload went.
    pub fn reloaded(&self, ok: bool, at: Timestamp, detail: Option<String>) {
        self.held().reload = Some(Reload { ok, at: at.to_string(), detail });
    }

    /// What the page tells now.
    #[must_use]
    pub fn report(&self) -> Report {
        let held = self.held();
        let lost = held.phase == Phase::Ready && self.audit.as_ref().is_some_and(|audit| audit.is_lost());
        let phase = if lost { Phase::AuditLost } else { held.phase };
        Report {
            ready: phase == Phase::Ready,
            phase,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            policy_generation: held.generation,
            reload: held.reload.clone(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Each change is one assignment, so what a panic left behind is whole.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_reload_is_told_and_leaves_the_gateway_ready() {
        let status = Status::default();
        status.enter(Phase::Ready);
        status.reloaded(false, Timestamp::from_secs(0), Some("tidegate.toml:3:1".to_owned()));
        let report = status.report();
        assert!(report.ready);
        assert_eq!(
            report.to_string(),
            format!(
                "ready\ntidegate {}, policy generation 0\n\
                 last reload at 1970-01-01T00:00:00.000Z: refused, the old policy stays; tidegate.toml:3:1\n",
                env!("CARGO_PKG_VERSION")
            )
        );
    }

    #[test]
    fn a_report_is_read_as_it_is_written() {
        let status = Status::default();
        status.reloaded(true, Timestamp::from_secs(7), None);
        let report = status.report();
        let text = serde_json::to_string(&report).expect("a report is plain data");
        assert_eq!(serde_json::from_str::<Report>(&text).expect("what was written"), report);
    }
}
