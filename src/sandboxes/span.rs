//! Which sandboxes a caller may touch, and what it may give them: all and everything, or what a tenant may.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::identity::Evidence;
use policy::policy::Mode;
use policy::source::SandboxSource;

use super::change::Refusal;
use super::table::Table;
use crate::config::Tenant;

/// The label that tells whose a sandbox is.
const LABEL: &str = "tenant";

/// The keys that a tenant may write. The rest would widen what its policies give.
const KEYS: [&str; 5] = ["policies", "identify", "labels", "local_peers", "hints"];

/// A caller's reach.
#[derive(Clone, Debug, Default)]
pub struct Span(Option<Arc<Tenant>>);

impl Span {
    /// Everything.
    #[must_use]
    pub const fn all() -> Self {
        Self(None)
    }

    /// A tenant's.
    #[must_use]
    pub const fn of(tenant: Arc<Tenant>) -> Self {
        Self(Some(tenant))
    }

    /// Whether a sandbox with these labels is there for the caller.
    #[must_use]
    pub fn covers(&self, labels: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
        let Some(tenant) = &self.0 else { return true };
        labels.get(LABEL).is_some_and(|label| *label == tenant.name)
    }

    /// Labels a tenant's table as its own, where it does not say whose it is.
    pub(super) fn mark(&self, table: &mut Table) {
        if let Some(tenant) = &self.0
            && let Some(labels) =
                table.entry("labels").or_insert_with(|| serde_json::json!({})).as_object_mut()
        {
            labels.entry(LABEL).or_insert_with(|| (*tenant.name).into());
        }
    }

    /// Whether the caller may have such a sandbox.
    pub(super) fn permits(&self, table: &Table, source: &SandboxSource) -> Result<(), Refusal> {
        let Some(tenant) = &self.0 else { return Ok(()) };
        let refuse = |what: String| Err(Refusal::NotPermitted(format!("a tenant {what}")));
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return refuse(format!("may not write `{key}`"));
        }
        if !self.covers(&source.labels) {
            return refuse(format!("has sandboxes with the label {LABEL} = {:?} only", tenant.name));
        }
        if let Some(policy) = source.policies.iter().find(|name| !tenant.policies.contains(name)) {
            return refuse(format!(
                "gives the policies of [admin.tenant.{}] only, not {policy:?}",
                tenant.name
            ));
        }
        let by_token = |evidence: &Evidence| matches!(evidence, Evidence::All(keys) if keys.token.is_some());
        if !source.identify.iter().all(by_token) {
            return refuse("has its sandboxes known by a token".to_owned());
        }
        if let Some(socket) = source.sockets.first() {
            return refuse(format!("has no sockets opened, such as {}", socket.path));
        }
        match source.mode {
            Mode::Enforce => Ok(()),
            Mode::Learn { .. } => refuse("may not have a sandbox learn".to_owned()),
        }
    }
}
