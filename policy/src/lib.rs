//! The policy of an egress gateway as pure values and functions: no I/O, no clock, no environment.
//!
//! ```text
//! config text ──file──▶ Source ──compile──▶ Policy ──┐
//!                                                    ▼
//! bytes ──parse──▶ Destination ──▶ Attempt ──▶ Gate::check ──▶ Permit | Pending | Denial
//!                                     [IpAddr] ──▶ Gate::vet ──▶ VettedAddrs | Denial
//! ```
//!
//! Every type that crosses a boundary of the program lives here. The other crates parse bytes into [`Attempt`]s, ask
//! the [`Gate`], and act on what it hands out.

pub mod approval;
pub mod attempt;
pub mod bound;
pub mod compile;
pub mod decide;
pub mod decision;
pub mod destination;
pub mod event;
pub mod explain;
pub mod file;
pub mod gate;
pub mod hostname;
pub mod identity;
pub mod life;
pub mod limits;
pub mod list;
pub mod names;
pub mod namespace;
pub mod path;
pub mod pattern;
pub mod pending;
pub mod policy;
pub mod reason;
pub mod receipt;
pub mod roster;
pub mod rule;
pub mod ruleset;
pub mod sandbox;
pub mod shared;
pub mod socket;
pub mod source;
pub mod special;
pub mod tables;
pub mod time;
pub mod unreadable;

pub use approval::{Approval, Approver, Binding, Consent, PathPrefix, Term};
pub use attempt::{Ask, Attempt, AttemptId, Inbound, QType};
pub use bound::Bound;
pub use decision::{
    Decision, Denial, Ending, Failure, FirstBytes, Live, Permit, Remedy, Unsettled, VettedAddrs,
};
pub use destination::{BadDestination, Destination, Host, Port};
pub use event::{Answer, CloseEvent, DecisionEvent, Event, Observer};
pub use gate::{AliasJudge, ByName, Gate, Generation, Resolved, Shown, UnderWay};
pub use hostname::{BadHost, Hostname};
pub use identity::{Certificate, Credentials, Means, Stranger, TokenHash};
pub use limits::Limits;
pub use list::List;
pub use namespace::Namespace;
pub use pending::Pending;
pub use policy::{Mode, Policy, Sandbox, Version};
pub use reason::Reason;
pub use receipt::{AuditLost, Receipt};
pub use rule::{RuleId, RuleRef};
pub use sandbox::{Entrance, ListenerName, Peer, SandboxId, User};
pub use socket::{Owner, Socket};
pub use special::LocalAddresses;
pub use time::Timestamp;
pub use unreadable::CutMark;
