//! `[admin]`: who may do what through the admin API, by the uid or the certificate of whoever connects.

use std::sync::Arc;

use policy::Hostname;
use policy::file::{Config, Item, Table, quoted};
use policy::identity::check_spiffe;

/// The keys of the table.
pub(super) const KEYS: &[&str] =
    &["readers", "operators", "reader_certificates", "operator_certificates", "tenant"];

/// The keys of a tenant's table.
pub(super) const TENANT_KEYS: &[&str] = &["uids", "certificates", "policies"];

/// The `[admin]` table. Root and the gateway's own user may do everything and stand in no list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// Uids that may see everything and change nothing.
    pub readers: Vec<u32>,
    /// Uids that may do everything.
    pub operators: Vec<u32>,
    /// The names of certificates whose holders may see everything and change nothing.
    pub reader_certificates: Vec<Arc<str>>,
    /// The names of certificates whose holders may do everything.
    pub operator_certificates: Vec<Arc<str>>,
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
    /// The names of certificates whose holders act for it.
    pub certificates: Vec<Arc<str>>,
    /// The policies that it may give to its sandboxes.
    pub policies: Vec<Arc<str>>,
}

impl Admin {
    pub(super) fn read(config: &mut Config<'_>) -> Self {
        let Some(mut table) = config.table("admin") else { return Self::default() };
        let mut seen = Vec::new();
        let readers = table.take("readers").map(|item| uids(&item, &mut seen)).unwrap_or_default();
        let operators = table.take("operators").map(|item| uids(&item, &mut seen)).unwrap_or_default();
        let mut called = Vec::new();
        let mut certificates = |table: &mut Table<'_>, key| {
            table.take(key).map(|item| certificates(&item, &mut called)).unwrap_or_default()
        };
        let reader_certificates = certificates(&mut table, "reader_certificates");
        let operator_certificates = certificates(&mut table, "operator_certificates");
        let named = table.take("tenant").and_then(|item| item.table());
        let named = named.map(Table::into_entries).unwrap_or_default();
        let tenants = named
            .into_iter()
            .filter_map(|(name, item)| tenant(name, &item, &mut seen, &mut called))
            .collect();
        table.finish();
        Self { readers, operators, reader_certificates, operator_certificates, tenants }
    }

    /// Whether a uid is named anywhere.
    #[must_use]
    pub fn names_anybody(&self) -> bool {
        let tenants = self.tenants.iter().any(|tenant| !tenant.uids.is_empty());
        tenants || !self.readers.is_empty() || !self.operators.is_empty()
    }
}

fn tenant(name: &str, item: &Item<'_>, seen: &mut Vec<u32>, called: &mut Vec<Arc<str>>) -> Option<Tenant> {
    let mut table = item.table()?;
    // It is compared with a label, whose values are free; a name that needs quoting is a slip.
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        item.mistake(
            format!("{} is no name for a tenant", quoted(name)),
            "use letters, digits, `.`, `_` and `-`",
        );
    }
    let uids = table.take("uids").map(|item| uids(&item, seen)).unwrap_or_default();
    let certificates = table.take("certificates").map(|item| certificates(&item, called)).unwrap_or_default();
    let policies = table.take("policies").and_then(|item| item.strings()).unwrap_or_default();
    let policies = policies.into_iter().map(|(name, _)| name.into()).collect();
    table.finish();
    Some(Tenant { name: name.into(), uids, certificates, policies })
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

/// Reads the names of certificates: SPIFFE IDs or DNS names. One name has one role.
fn certificates(item: &Item<'_>, called: &mut Vec<Arc<str>>) -> Vec<Arc<str>> {
    let mut found: Vec<Arc<str>> = Vec::new();
    for (text, item) in item.strings().unwrap_or_default() {
        let name: Arc<str> = if text.starts_with("spiffe://") {
            if let Err(why) = check_spiffe(text) {
                item.mistake(
                    format!("{}: {why}", quoted(text)),
                    "write \"spiffe://example.org/dashboard\", whole",
                );
                continue;
            }
            text.into()
        } else {
            match Hostname::parse(text) {
                Ok(name) => name.as_str().into(),
                Err(why) => {
                    let hint = "write a SPIFFE ID or the DNS name in the certificate";
                    item.mistake(format!("{}: {why}", quoted(text)), hint);
                    continue;
                }
            }
        };
        if called.contains(&name) {
            item.mistake(format!("{} has a role already", quoted(text)), "one name, one role");
            continue;
        }
        called.push(Arc::clone(&name));
        found.push(name);
    }
    found
}
