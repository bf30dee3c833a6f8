//! `tidegate run`: a command in a sandbox whose only way out is the gateway that runs it.
//!
//! ```text
//!  G gateway: policy, audit, proxy, DNS          outside, all its threads
//!  └─ H helper (launch): namespaces, sockets     outside the pid namespace, inside the network namespace
//!     └─ P first process (init): mounts, reaping pid 1 inside, no right, no descriptor but three
//!        └─ W the command (start)               no capability, no new privilege, seccomp
//! ```
//!
//! Each follows its parent's death, and the kernel ends everything in the pid namespace with P: whichever of them is
//! killed, nothing goes on and nothing is left. Whatever fails before the command is named, and the command never starts.

mod door;
mod environment;
mod hidden;
mod identity;
mod idmap;
mod init;
mod launch;
mod machine;
mod mounts;
mod own;
mod plan;
mod publish;
mod report;
mod seccomp;
mod session;
mod start;
mod step;
mod terminal;
mod view;

pub(crate) use launch::Helper;
pub(crate) use plan::{Options, PlanError, Prepared, Served, prepare};
pub(crate) use publish::Published;
pub(crate) use session::{Outcome, RunError, Session, eprint};
pub(crate) use terminal::of_this_process as terminal;
pub(crate) use view::FileSystem;
