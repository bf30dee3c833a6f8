//! The unix sockets by which sandboxes are known: opened, described anew and closed as the policy in force says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use policy::Socket;
use tokio::task::AbortHandle;

use crate::listeners::{BindError, OwnFile, describe, open_socket};

/// The doors of one gateway.
#[derive(Debug)]
pub(crate) struct Doors {
    gateway: Arc<proxy::Gateway>,
    open: Mutex<BTreeMap<Arc<str>, Door>>,
}

/// One socket that is served. Clients that have come in stay when it closes.
#[derive(Debug)]
struct Door {
    socket: Socket,
    _serving: Serving,
    _file: OwnFile,
}

/// Ends the accepting when dropped.
#[derive(Debug)]
struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sockets that are bound and not served yet: a policy that is refused leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Bound(Vec<(Socket, proxy::Listener, OwnFile)>);

impl Doors {
    pub(crate) fn new(gateway: Arc<proxy::Gateway>) -> Self {
        Self { gateway, open: Mutex::default() }
    }

    /// Binds those of a policy's sockets that are not open yet, and describes the files of the others as it says.
    ///
    /// # Errors
    /// The first that cannot be: the policy is not to be put in force.
    pub(crate) fn bind(&self, sockets: &[Socket]) -> Result<Bound, BindError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bound = Vec::new();
        for socket in sockets {
            match open.get_mut(&socket.path) {
                Some(door) if door.socket == *socket => {}
                Some(door) => {
                    describe(socket)?;
                    door.socket = socket.clone();
                }
                None => {
                    let (listener, file) = open_socket(socket)?;
                    bound.push((socket.clone(), listener, file));
                }
            }
        }
        Ok(Bound(bound))
    }

    /// Serves what was bound, and closes what is none of a policy's `sockets`. Needs a tokio runtime.
    pub(crate) fn serve(&self, Bound(bound): Bound, sockets: &[Socket]) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|path, _| sockets.iter().any(|socket| socket.path == *path));
        for (socket, listener, file) in bound {
            let serving = Serving(tokio::spawn(listener.run(Arc::clone(&self.gateway))).abort_handle());
            open.insert(Arc::clone(&socket.path), Door { socket, _serving: serving, _file: file });
        }
    }

    /// Closes all of them.
    pub(crate) fn close(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
