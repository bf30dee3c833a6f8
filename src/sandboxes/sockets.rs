//! The unix sockets of sandboxes that are added at run time: opened and closed with them, and opened again after a restart.

use std::fs;
use std::path::{Path, PathBuf};

use policy::source::SandboxSource;
use policy::{SandboxId, Socket};

use super::Sandboxes;
use super::change::Refusal;
use super::held::Entry;
use crate::doors::{Bound, Doors, Holder};
use crate::error_chain;

/// The sockets of a sandbox that is about to be put in force. What was made for them goes with it, unless they are served.
#[derive(Debug)]
pub(super) struct Opening {
    holder: Holder,
    sockets: Vec<Socket>,
    bound: Bound,
    /// Folders in which the sandbox had sockets before.
    left: Vec<PathBuf>,
}

impl Opening {
    /// Serves them, and closes what the sandbox had before.
    pub(super) fn serve(self, doors: &Doors) {
        let Self { holder, sockets, bound, left } = self;
        doors.serve(&holder, bound, &sockets);
        remove(&left);
    }
}

impl Sandboxes {
    /// Opens and closes sockets as a start or another config has made it right: what is not served has none open. One that
    /// cannot be opened is told in the log, its sandbox is not reached by it, and the rest goes on. Needs a tokio runtime.
    pub(crate) fn settle_doors(&self) {
        let all = self.held(|held| {
            let with_sockets = held.entries.iter().filter_map(|(id, entry)| {
                let source = entry.source.as_ref().filter(|source| !source.sockets.is_empty())?;
                let sockets = if entry.clash.is_none() { source.sockets.clone() } else { Vec::new() };
                Some((id.clone(), sockets))
            });
            with_sockets.collect::<Vec<_>>()
        });
        let doors = &self.parts.doors;
        for (id, sockets) in all {
            let holder = Holder::Sandbox(id.clone());
            match doors.bind(&holder, &sockets) {
                Ok(bound) => doors.serve(&holder, bound, &sockets),
                Err(error) => {
                    doors.release(&holder);
                    tracing::error!(sandbox = %id, error = %error_chain(&error), "a socket cannot be opened");
                }
            }
        }
    }

    /// Binds the sockets of an entry, and notes in its record the folders that were made for them.
    pub(super) fn bind(&self, entry: &mut Entry) -> Result<Opening, Refusal> {
        let sockets = entry.source.as_ref().map(|source| source.sockets.clone()).unwrap_or_default();
        let holder = Holder::Sandbox(entry.record.id.clone());
        let bound = self.parts.doors.bind(&holder, &sockets);
        let bound = bound.map_err(|error| Refusal::Conflict(error_chain(&error)))?;
        let mut left = Vec::new();
        if let Some(added) = &mut entry.record.added {
            let is_used = |folder: &PathBuf| sockets.iter().any(|socket| folder_of(socket) == Some(folder));
            left = added.folders.extract_if(.., |folder| !is_used(folder)).collect();
            added.folders.extend(bound.folders().map(Path::to_owned));
        }
        Ok(Opening { holder, sockets, bound, left })
    }

    /// Closes the sockets of a sandbox that is gone, and removes the folders that were made for them.
    pub(super) fn close(&self, id: &SandboxId, folders: &[PathBuf]) {
        self.parts.doors.release(&Holder::Sandbox(id.clone()));
        remove(folders);
    }

    /// Keeps sandboxes away from the admin socket: what is mounted into one is the folder of its socket.
    pub(super) fn check_sockets(&self, source: &SandboxSource) -> Result<(), Refusal> {
        let admin = self.parts.admin.as_deref();
        let holds_admin = |socket: &&Socket| {
            folder_of(socket).is_some_and(|folder| admin.is_some_and(|admin| admin.starts_with(folder)))
        };
        match source.sockets.iter().find(holds_admin) {
            Some(socket) => Err(Refusal::Conflict(format!(
                "{} is in a folder that holds the admin socket: give the sandbox a socket in a folder of its own",
                socket.path
            ))),
            None => Ok(()),
        }
    }
}

fn folder_of(socket: &Socket) -> Option<&Path> {
    Path::new(&*socket.path).parent()
}

/// Removes folders in which nothing else stands.
fn remove(folders: &[PathBuf]) {
    for folder in folders {
        let _ = fs::remove_dir(folder);
    }
}
