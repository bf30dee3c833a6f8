//! The unix sockets by which sandboxes are known: opened, described anew and closed as the config says, and as sandboxes
//! come and go at run time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use policy::{SandboxId, Socket};
use tokio::task::AbortHandle;

use crate::listeners::{BindError, OwnFile, describe, make_folder, open_socket};

/// The doors of one gateway.
#[derive(Debug)]
pub(crate) struct Doors {
    gateway: Arc<proxy::Gateway>,
    open: Mutex<BTreeMap<Arc<str>, Door>>,
}

/// For whom a socket is open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// The sandboxes of the config.
    Config,
    /// One that was added at run time.
    Sandbox(SandboxId),
}

/// One socket that is served. Clients that have come in stay when it closes.
#[derive(Debug)]
struct Door {
    socket: Socket,
    /// It closes with the last of them.
    holders: BTreeSet<Holder>,
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

/// Sockets that are bound and not served yet: what is refused leaves neither a socket nor a folder behind.
#[derive(Debug, Default)]
pub(crate) struct Bound(Vec<Opened>);

#[derive(Debug)]
struct Opened {
    socket: Socket,
    listener: proxy::Listener,
    // In this order, so that the folder is empty when it is removed.
    file: OwnFile,
    folder: Option<MadeFolder>,
}

/// A folder that was made for a socket. Removed when dropped, if nothing else stands in it.
#[derive(Debug)]
struct MadeFolder {
    path: PathBuf,
    /// It is of use: it may be mounted into a sandbox, and outlives the gateway.
    stays: bool,
}

impl Drop for MadeFolder {
    fn drop(&mut self) {
        if !self.stays {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

impl Bound {
    /// The folders that were made for these sockets.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter_map(|opened| Some(opened.folder.as_ref()?.path.as_path()))
    }
}

impl Doors {
    pub(crate) fn new(gateway: Arc<proxy::Gateway>) -> Self {
        Self { gateway, open: Mutex::default() }
    }

    /// Binds those of a holder's sockets that are not open yet, and describes the files of the others as it says. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// The first that cannot be: the holder is not to be put in force. The file of a socket that somebody else holds is
    /// described by the config, or else by who came first.
    pub(crate) fn bind(&self, holder: &Holder, sockets: &[Socket]) -> Result<Bound, BindError> {
        let mut open = self.open();
        let mut bound = Bound::default();
        for socket in sockets {
            match open.get_mut(&socket.path) {
                Some(door) if door.socket == *socket => {}
                Some(door)
                    if *holder == Holder::Config || door.holders.iter().all(|other| other == holder) =>
                {
                    describe(socket)?;
                    door.socket = socket.clone();
                }
                Some(_) => {
                    let why =
                        io::Error::other("its mode and owner are written otherwise for another sandbox");
                    return Err(BindError::of(socket, why));
                }
                None => {
                    let folder = make_folder(socket)?.map(|path| MadeFolder { path, stays: false });
                    let (listener, file) = open_socket(socket)?;
                    bound.0.push(Opened { socket: socket.clone(), listener, file, folder });
                }
            }
        }
        Ok(bound)
    }

    /// Serves what was bound for a holder, and closes what is none of its `sockets` any more and nobody else's. Needs a
    /// tokio runtime.
    pub(crate) fn serve(&self, holder: &Holder, Bound(bound): Bound, sockets: &[Socket]) {
        let mut open = self.open();
        open.retain(|path, door| {
            if sockets.iter().any(|socket| socket.path == *path) {
                door.holders.insert(holder.clone());
            } else {
                door.holders.remove(holder);
            }
            !door.holders.is_empty()
        });
        for Opened { socket, listener, file, folder } in bound {
            if let Some(mut folder) = folder {
                folder.stays = true;
            }
            let serving = Serving(tokio::spawn(listener.run(Arc::clone(&self.gateway))).abort_handle());
            let (path, holders) = (Arc::clone(&socket.path), BTreeSet::from([holder.clone()]));
            open.insert(path, Door { socket, holders, _serving: serving, _file: file });
        }
    }

    /// Closes what only this holder has.
    pub(crate) fn release(&self, holder: &Holder) {
        self.serve(holder, Bound::default(), &[]);
    }

    /// Closes all of them.
    pub(crate) fn close(&self) {
        self.open().clear();
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Door>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
