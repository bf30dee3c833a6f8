//! `[admin]`: who may do what through the admin socket, by the uid of whoever connects.

use std::sync::Arc;

use policy::file::{Config, Item, Table, quoted};

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["readers", "operators", "tenant"];

/// The keys of a tenant's table.
pub(super) const TENANT_KEYS: &[&str] = &["uids", "policies"];

/// The `[admin]` table. Root and the gateway's own user may do everything and stand in no list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// Uids that may see everything and change nothing.
    pub readers: Vec<u32>,
    /// Uids that may do everything.
    pub operators: Vec<u32>,
    /// Those who see and change their own sandboxes only.
    pub tenants: Vec<Tenant>,
}

/// An `[admin.tenant.NAME]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name: what its sandboxes carry as the label `tenant`.
    pub name: Arc<str>,
    /// The uids that act for it.
    pub uids: Vec<u32>,
    /// The policies that it may give to its sandboxes.
    pub policies: Vec<Arc<str>>,
}

impl Admin {
    pub(super) fn read(config: &mut Config<'_>) -> Self {
        let Some(mut table) = config.table("admin") else { return Self::default() };
        let mut seen = Vec::new();
        let readers = table.take("readers").map(|item| uids(&item, &mut seen)).unwrap_or_default();
        let operators = table.take("operators").map(|item| uids(&item, &mut seen)).unwrap_or_default();
        let named = table.take("tenant").and_then(|item| item.table());
        let named = named.map(Table::into_entries).unwrap_or_default();
        let tenants = named.into_iter().filter_map(|(name, item)| tenant(name, &item, &mut seen)).collect();
        table.finish();
        Self { readers, operators, tenants }
    }

    /// Whether a uid is named anywhere.
    #[must_use]
    pub fn names_anybody(&self) -> bool {
        let tenants = self.tenants.iter().any(|tenant| !tenant.uids.is_empty());
        tenants || !self.readers.is_empty() || !self.operators.is_empty()
    }
}

fn tenant(name: &str, item: &Item<'_>, seen: &mut Vec<u32>) -> Option<Tenant> {
    let mut table = item.table()?;
    // It is compared with a label, whose values are free; a name that needs quoting is a slip.
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        item.mistake(
            format!("{} is no name for a tenant", quoted(name)),
            "use letters, digits, `.`, `_` and `-`",
        );
    }
    let uids = table.take("uids").map(|item| uids(&item, seen)).unwrap_or_default();
    let policies = table.take("policies").and_then(|item| item.strings()).unwrap_or_default();
    let policies = policies.into_iter().map(|(name, _)| name.into()).collect();
    table.finish();
    Some(Tenant { name: name.into(), uids, policies })
}

/// Reads a list of uids. One uid has one role: which of two would hold is not to be guessed.
fn uids(item: &Item<'_>, seen: &mut Vec<u32>) -> Vec<u32> {
    let Some(listed) = item.list() else { return Vec::new() };
    let mut found = Vec::new();
    for item in listed {
        // The last one is what the kernel shows for a user that it does not know (user_namespaces(7)).
        let Some(uid) = item.number(1..=u64::from(u32::MAX) - 1) else { continue };
        let Ok(uid) = u32::try_from(uid) else { continue };
        if seen.contains(&uid) {
            item.mistake(format!("uid {uid} has a role already"), "one uid, one role");
            continue;
        }
        seen.push(uid);
        found.push(uid);
    }
    found
}
