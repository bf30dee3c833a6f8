//! A sandbox's network namespace: no wire leads out of it, and whatever is sent in it arrives at the gateway's sockets.
//!
//! ```text
//! Plan ──open_here──▶ Sockets ──handover──▶ Offered ──check──▶ Checked ──▶ the gateway accepts, and dials in its own
//!          lo, AnyIP routes, rules, listeners    SCM_RIGHTS                 namespace
//! ```
//!
//! The namespace holds `lo` alone. Every address is local there, nf_tables sends streams and questions to the gateway's
//! listeners, and those were created inside and handed over: no veth, no forwarding, nothing on the host to clean up.

mod cookie;
pub mod enter;
pub mod handover;
mod kernel;
mod nftables;
mod plan;
mod remedy;
pub mod ruleset;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

pub use self::cookie::NamespaceId;
pub use self::plan::{CAPTURED_PORT, DNS_PORT, Family, PROXY_PORT, Place, Plan, Role};
pub use self::remedy::{Remedy, UserNamespaces};

/// The gateway's sockets in a namespace that is set up.
#[derive(Debug)]
pub struct Sockets {
    listeners: Vec<OwnedFd>,
    /// Told of every link that comes.
    links: OwnedFd,
}

/// A namespace that cannot be set up. What was done of it until then leads nowhere.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}{}", remedy.as_ref().map(|remedy| format!(" ({remedy})")).unwrap_or_default())]
pub struct SetupError {
    /// What was to be done.
    pub step: Box<str>,
    /// Why it failed.
    pub source: io::Error,
    /// What to do about it, where that is known.
    pub remedy: Option<Remedy>,
}

/// Sets the network namespace of the calling thread up. It needs CAP_NET_ADMIN over that namespace and, for the time of
/// the call, /proc with /proc/sys writable. Sockets that it opens stay in the namespace for life, wherever the thread
/// goes then.
///
/// # Errors
/// The first step that fails, and where another link than `lo` is there.
pub fn open_here(plan: &Plan) -> Result<Sockets, SetupError> {
    kernel::apply(plan)
}

/// The step that failed, without the text of its rules.
fn first_line(step: &impl fmt::Display) -> Box<str> {
    step.to_string().lines().next().unwrap_or_default().into()
}
