//! The config file: from text to tables, and from the tables `policy`, `internal`, `registry`, `sandbox` and
//! `addresses` to a compiled [`Policy`], with every mistake reported at once.
//!
//! ```text
//! bytes ──▶ Document ──▶ Parsed ──▶ Config ──┬─▶ read() ──▶ Policy          (this crate's tables)
//!                                            ├─▶ table("dns") ──▶ …         (the other tables, by their owner)
//!                                            └─▶ finish()                   (tables that nobody knows)
//!                        Parsed::finish(value) ──▶ value, or every mistake
//! ```

mod addresses;
mod document;
pub mod duration;
mod identify;
mod internal;
mod invocation;
mod keys;
mod limits;
mod mistake;
mod overlaps;
mod policies;
mod reader;
mod registry;
mod rules;
mod sandboxes;
pub mod size;
mod terms;
mod time;
mod unix;

use std::net::SocketAddr;
use std::sync::Arc;

pub use self::document::Document;
pub use self::invocation::Invocation;
pub use self::keys::KEYS;
pub use self::mistake::{Mistake, Report, quoted};
pub use self::reader::{Config, Item, Parsed, Spot, Table};
use crate::list::List;
use crate::policy::Policy;
use crate::rule::RuleName;
use crate::sandbox::ListenerName;
use crate::socket::Socket;
use crate::source::{RuleConflict, SandboxSource, Source};
use crate::special::LocalAddresses;
use crate::time::Timestamp;

/// What the policy side of the config says.
#[derive(Debug)]
pub struct Read<'a> {
    /// The compiled policy. Where there was a mistake it may lack something, and must not be served:
    /// [`Parsed::finish`] sees to that.
    pub policy: Policy,
    /// The listeners by which sandboxes are known; each must be one of `[listen]`.
    pub listeners: Vec<(ListenerName, Spot<'a>)>,
    /// The unix sockets by which sandboxes are known.
    pub sockets: Vec<(Socket, Spot<'a>)>,
    /// The entries that ask for a client certificate: the listener that each of them names, and its place.
    pub certificates: Vec<(Option<ListenerName>, Spot<'a>)>,
    /// The loopback ports of the host that `[internal.X] host_port` opens; none may be a listener of the gateway.
    pub host_ports: Vec<(SocketAddr, Spot<'a>)>,
}

/// Gives the deny list at an absolute path, or what is wrong with it.
pub type ReadList<'l> = dyn FnMut(&str) -> Result<Arc<List>, Vec<Mistake>> + 'l;

/// Reads and compiles the tables of this crate. `now` bounds `learn`; `local` are the addresses that no rule opens;
/// `lists` gives the deny list at an absolute path; `invocation` is what a command line adds for one run.
pub fn read<'a>(
    config: &mut Config<'a>,
    now: Timestamp,
    local: &LocalAddresses,
    lists: &mut ReadList<'_>,
    invocation: Option<&Invocation>,
) -> Read<'a> {
    let addresses = addresses::read(config);
    let context = rules::Context { addresses: &addresses, local };
    let registries = registry::read(config, &context);
    let policies = policies::read(config, &context, &registries, lists);
    let (internals, host_ports) = internal::read(config, &context);
    let sandboxes::Read { mut sandboxes, listeners, sockets, certificates } =
        sandboxes::read(config, now, &policies, &internals);
    if let Some(invocation) = invocation {
        invocation.add_to(config, &policies, &mut sandboxes);
    }
    let source = Source { policies, internals, registries, sandboxes, addresses };
    let policy = Policy::compile(source).unwrap_or_else(|conflicts| {
        conflicts.iter().for_each(|conflict| shadowed(config, conflict));
        Policy::default()
    });
    Read { policy, listeners, sockets, certificates, host_ports }
}

/// Reads a config that has the tables of this crate only.
///
/// # Errors
/// Every mistake.
pub fn load(documents: &[Document], now: Timestamp, local: &LocalAddresses) -> Result<Policy, Vec<Mistake>> {
    let parsed = Parsed::new(documents);
    let mut config = parsed.config();
    let mut none = |file: &str| Err(vec![Mistake::of_file(file, "deny lists are not read here", "")]);
    let policy = read(&mut config, now, local, &mut none, None).policy;
    config.finish();
    parsed.finish(policy)
}

/// Reads a sandbox that is to join a policy: a document with one `[sandbox.NAME]` table. What it names must exist in
/// `policy`; without one, names are taken as they are.
///
/// # Errors
/// Every mistake.
pub fn read_sandbox(
    document: &Document,
    now: Timestamp,
    policy: Option<&Policy>,
) -> Result<SandboxSource, Vec<Mistake>> {
    let parsed = Parsed::new([document]);
    let mut config = parsed.config();
    let found = sandboxes::read_one(&mut config, now, policy);
    config.finish();
    let missing = || vec![Mistake::of_file("", "no sandbox can be read there", "")];
    parsed.finish(found)?.ok_or_else(missing)
}

fn shadowed(config: &Config<'_>, conflict: &RuleConflict) {
    let (plain, narrowing) = (&conflict.plain, &conflict.narrowing);
    let place = narrowing.place();
    let path = |rule: &crate::RuleRef| match rule.rule().name() {
        RuleName::Internal | RuleName::Host(_) => rule.to_string(),
        RuleName::List(_) => format!("policy.{rule}"),
        RuleName::Id(_) | RuleName::Listed(..) | RuleName::Unnamed(_) => format!("policy.{rule}"),
    };
    let what = format!(
        "rule_shadowed: {} allows nothing where {} ({}:{}) limits methods or paths",
        plain.rule().host(),
        path(narrowing),
        place.file,
        place.line
    );
    let hint = "remove one of them, or give them different ports";
    config.report().add(Mistake::at(plain.place(), path(plain), what, hint));
}

#[cfg(test)]
mod tests;
