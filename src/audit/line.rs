//! Audit lines as they are read back. Fields of later versions are passed over.

use serde::Deserialize;

/// One line of the log, as docs/audit.schema.json describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Line {
    /// When, as RFC 3339.
    pub ts: String,
    /// `decision`, `close`, `repeated`, `sandbox`, `reload` or `enforcement`.
    pub event: String,
    /// The attempt.
    pub id: Option<String>,
    /// Whose it was.
    pub sandbox: Option<String>,
    /// The way it came in.
    pub inbound: Option<String>,
    /// The destination's host.
    pub host: Option<String>,
    /// The destination's port.
    pub port: Option<u16>,
    /// The request's method.
    pub method: Option<String>,
    /// The request's path.
    pub path: Option<String>,
    /// The look-up's record type.
    pub qtype: Option<String>,
    /// `allow` or `deny`.
    pub decision: Option<String>,
    /// Why it was denied, failed or was cut.
    pub reason: Option<String>,
    /// Why it would have been denied.
    pub would_deny: Option<String>,
    /// The rule that decided.
    pub rule: Option<String>,
    /// The address that was dialled.
    pub addr: Option<String>,
    /// The name in the ClientHello.
    pub sni: Option<String>,
    /// The response code of the look-up.
    pub rcode: Option<String>,
    /// The policy in force.
    pub policy_generation: Option<u64>,
    /// Bytes to the destination.
    pub bytes_up: Option<u64>,
    /// Bytes from the destination.
    pub bytes_down: Option<u64>,
    /// How long the tunnel was open.
    pub duration_ms: Option<u64>,
    /// How many attempts the line stands for.
    pub count: Option<u64>,
    /// When the first of them came.
    pub first: Option<String>,
    /// When the last of them came.
    pub last: Option<String>,
    /// What happened to the sandbox.
    pub change: Option<String>,
    /// The status with which its workload ended.
    pub status: Option<u8>,
    /// Whether it went well.
    pub ok: Option<bool>,
    /// What was checked.
    pub check: Option<String>,
    /// What went wrong, or was seen.
    pub detail: Option<String>,
}

impl Line {
    /// Reads one line; `None` where it is none of ours, such as half a line before a full disk.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok().filter(|line: &Self| !line.event.is_empty())
    }

    /// Whether something was refused or cut.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.decision.as_deref() == Some("deny")
    }
}
