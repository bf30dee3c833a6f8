//! The unix sockets by which sandboxes are known: where each is, and who may use its file.

use std::sync::Arc;

use crate::sandbox::ListenerName;

/// A unix socket that the gateway opens for sandboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its path, absolute.
    pub path: Arc<str>,
    /// The mode of its file: whoever may write to it may connect (unix(7)).
    pub mode: u32,
    /// Whom its file belongs to; `None` is the gateway's user.
    pub owner: Option<Owner>,
}

/// Whom a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group; `None` leaves the gateway's.
    pub gid: Option<u32>,
}

impl Socket {
    /// Anybody who reaches the file may connect: what is mounted or granted is its folder, and the workload's uid is
    /// unknown here.
    pub const OPEN: u32 = 0o666;

    /// The socket as a listener.
    #[must_use]
    pub fn name(&self) -> ListenerName {
        format!("unix:{}", self.path).into()
    }
}
