//! What the workload sees of the file system: planned as a value, from what was asked for and what is there.
//!
//! ```text
//!   /                read-only            (--fs host: as it is)
//!   /tmp /run …      empty, its own       sockets of other programs live there
//!   $HOME            the real one below, writes go to memory; credentials are not there
//!   working dir      the real one, as --rw PATH; --ro PATH shows what is hidden, --hide PATH hides what is shown
//!   Tidegate's own   hidden, whatever else was asked for
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::hidden::CREDENTIALS;

/// How much of the host's file system the workload may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FileSystem {
    /// The working directory and what --rw names; the rest is read-only or thrown away
    Workspace,
    /// Everything that its user may write
    Host,
}

/// What was asked for. All paths are absolute and without links.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    pub(crate) files: FileSystem,
    pub(crate) directory: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// The home directory of the same user by /etc/passwd, where $HOME names another: credentials lie there too.
    pub(crate) other_home: Option<PathBuf>,
    pub(crate) runtime: Option<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) hide: Vec<PathBuf>,
    pub(crate) sockets: Vec<PathBuf>,
    pub(crate) own: Own,
}

/// Tidegate's own files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    /// Config, lists, secrets, keys, audit, state, sockets: not to be seen.
    pub(crate) hidden: Vec<PathBuf>,
    /// What is run on the host: not to be written.
    pub(crate) programs: Vec<PathBuf>,
    /// Where a config would be found if somebody put one there.
    pub(crate) reserved: Vec<PathBuf>,
}

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    /// A file, a socket: anything but a folder.
    File,
}

/// What the plan needs to know of the machine.
pub(crate) trait Machine {
    /// What stands at a path; `None` for a link too, because plans name what links lead to.
    fn kind(&self, path: &Path) -> Option<Kind>;
    /// Where a path leads, with every link followed.
    fn real(&self, path: &Path) -> Option<PathBuf>;
    /// Where unix sockets of programs outside are bound.
    fn sockets(&self) -> Vec<PathBuf>;
}

/// One thing to do to the mount tree, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is written but where a later step says so.
    ReadOnly,
    /// A `/dev` with the devices that every program may want and no other.
    Devices,
    /// An empty folder in memory.
    Private { at: PathBuf, mode: u32 },
    /// The home directory with its writes in memory, without these places.
    Home { at: PathBuf, without: Vec<PathBuf> },
    /// The host's own file or folder.
    Open { at: PathBuf, access: Access },
    /// An empty file or folder in its place.
    Hide { at: PathBuf, kind: Kind },
    /// A mount point of what is there: it cannot be renamed away from under what it holds.
    Pin { at: PathBuf },
}

/// What may be done to something that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A plan that would not keep its promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ViewError {
    /// An option names nothing.
    #[error("{option} {}: there is nothing", path.display())]
    Missing { option: &'static str, path: PathBuf },
    /// The workload would be given credentials to write.
    #[error("the working directory lies in {}, which is hidden because it holds credentials; work elsewhere, or open it with --rw .", path.display())]
    InCredentials { path: PathBuf },
    /// The workload could put a config there that a later Tidegate reads.
    #[error("{} is not there yet, so that the workload could create it: create it first, or work in another directory", path.display())]
    Reserved { path: PathBuf },
}

/// A plan, and what its user should know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) steps: Vec<Step>,
    pub(crate) notes: Vec<String>,
}

/// Where programs leave sockets and temporary files. Each that exists is an empty one for the workload.
const PRIVATE: [(&str, u32); 5] =
    [("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755), ("/var/run", 0o755), ("/dev/shm", 0o1777)];

/// In /run, but neither state nor socket: the system itself, on NixOS.
const SYSTEM_IN_RUN: [&str; 3] = ["/run/current-system", "/run/booted-system", "/run/opengl-driver"];

/// Folders of the system. Nobody works in them who wants them written by a workload.
const SYSTEM: [&str; 14] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/lib",
    "/usr/sbin",
];

/// Where Tidegate's files are by convention.
pub(crate) const CONVENTION: [&str; 4] =
    ["/etc/tidegate", "/var/lib/tidegate", "/var/log/tidegate", "/run/tidegate"];

impl Wishes {
    /// The plan.
    pub(crate) fn plan(&self, machine: &impl Machine) -> Result<View, ViewError> {
        let mut notes = Vec::new();
        let opened = self.opened(machine, &mut notes)?;
        let private = self.private(machine);
        let ground = Ground { wishes: self, opened: &opened, private: &private };
        self.check(machine, &ground)?;

        let mut steps = Vec::new();
        if self.files == FileSystem::Workspace {
            steps.extend([Step::ReadOnly, Step::Devices]);
        }
        steps.extend(private.iter().map(|(at, mode)| Step::Private { at: at.clone(), mode: *mode }));
        steps.extend(self.home_step(machine));
        let mut layers: Vec<Step> =
            opened.iter().map(|(at, access)| Step::Open { at: at.clone(), access: *access }).collect();
        let hidden = self.hide.iter().cloned().chain(self.credentials_in_sight(machine, &opened));
        layers.extend(hidden.filter_map(|at| hide(machine, at)));
        // Outer before inner, and of one place hidden wins.
        layers.sort_by_key(|step| (step.at().components().count(), matches!(step, Step::Hide { .. })));
        steps.extend(layers);
        // A program may have bound its socket through a link: it can be reached by either path, and lies at one place.
        let strangers: BTreeSet<PathBuf> =
            machine.sockets().iter().filter_map(|socket| machine.real(socket)).collect();
        for socket in strangers {
            if ground.shows_sockets(&socket) && !self.sockets.contains(&socket) {
                steps.extend(hide(machine, socket));
            }
        }
        self.shut_own(machine, &ground, &mut steps);
        Ok(View { steps, notes })
    }

    /// What is the host's own, with the access to it.
    fn opened(
        &self,
        machine: &impl Machine,
        notes: &mut Vec<String>,
    ) -> Result<Vec<(PathBuf, Access)>, ViewError> {
        let mut opened = Vec::new();
        let covered = |path: &Path| self.write.iter().any(|root| path.starts_with(root));
        if covered(&self.directory) {
            // Said explicitly, whatever it is.
        } else if let Some(why) = self.keeps_shut(&self.directory) {
            notes.push(format!("the working directory is not written: {why}"));
        } else {
            if let Some(path) = self.credentials().find(|place| self.directory.starts_with(place)) {
                return Err(ViewError::InCredentials { path });
            }
            opened.push((self.directory.clone(), Access::Write));
        }
        // A home directory in /tmp is files of the host too, not what programs leave there.
        let home = self.home.as_ref().filter(|_| self.files == FileSystem::Host);
        opened.extend(
            home.filter(|home| PRIVATE.iter().any(|(path, _)| home.starts_with(path)))
                .map(|home| (home.clone(), Access::Write)),
        );
        for (option, paths, access) in [
            ("--rw", &self.write, Access::Write),
            ("--ro", &self.read, Access::Read),
            ("--unix", &self.sockets, Access::Read),
        ] {
            for path in paths {
                if machine.kind(path).is_none() {
                    return Err(ViewError::Missing { option, path: path.clone() });
                }
                opened.push((path.clone(), access));
            }
        }
        for path in SYSTEM_IN_RUN.map(PathBuf::from) {
            if machine.kind(&path).is_some() {
                opened.push((path, Access::Read));
            }
        }
        Ok(opened)
    }

    /// Why the working directory is not the workload's to write.
    fn keeps_shut(&self, directory: &Path) -> Option<String> {
        if self.files == FileSystem::Host {
            return None;
        }
        let shown = directory.display();
        if let Some(home) = &self.home {
            if directory == home {
                return Some(format!("{shown} is the home directory, whose changes are thrown away"));
            }
            if home.starts_with(directory) {
                return Some(format!("{shown} holds the home directory"));
            }
        }
        let is_system = directory.parent().is_none()
            || directory == Path::new("/usr")
            || directory == Path::new("/var")
            || SYSTEM.iter().any(|system| directory.starts_with(system));
        is_system.then(|| format!("{shown} is a folder of the system; --rw opens it"))
    }

    fn private(&self, machine: &impl Machine) -> Vec<(PathBuf, u32)> {
        let mut private: Vec<(PathBuf, u32)> = Vec::new();
        for (path, mode) in PRIVATE {
            // A link, as /var/run mostly is, leads to another of them.
            let folder = machine.real(Path::new(path)).filter(|at| machine.kind(at) == Some(Kind::Folder));
            if let Some(at) = folder.filter(|at| private.iter().all(|(other, _)| other != at)) {
                private.push((at, mode));
            }
        }
        if self.files == FileSystem::Workspace {
            // The new /dev has it.
            private.retain(|(path, _)| path != Path::new("/dev/shm"));
        }
        if let Some(runtime) = &self.runtime {
            private.push((runtime.clone(), 0o700));
        }
        private
    }

    fn home_step(&self, machine: &impl Machine) -> Option<Step> {
        let home = self.overlaid()?;
        let shut = self.credentials().filter(|place| !self.names(place));
        // Keys may lie elsewhere, with a link to them.
        let shut: Vec<PathBuf> =
            shut.flat_map(|place| [machine.real(&place), Some(place)]).flatten().collect();
        let all = shut.into_iter().chain(self.own.hidden.iter().cloned());
        let mut without: Vec<PathBuf> = all.filter(|path| path.starts_with(home) && path != home).collect();
        without.sort();
        without.dedup();
        Some(Step::Home { at: home.to_owned(), without })
    }

    /// Whether --ro, --rw or --unix names exactly this place.
    fn names(&self, place: &Path) -> bool {
        let named = self.write.iter().chain(&self.read).chain(&self.sockets);
        named.into_iter().any(|path| path == place)
    }

    fn overlaid(&self) -> Option<&Path> {
        let home = self.home.as_deref()?;
        (self.files == FileSystem::Workspace && home.parent().is_some()).then_some(home)
    }

    fn credentials(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let homes = self.home.iter().chain(&self.other_home).filter(|_| self.files == FileSystem::Workspace);
        homes.flat_map(|home| CREDENTIALS.iter().map(move |(place, _)| home.join(place)))
    }

    /// Credentials that lie in something that is open, as where somebody works in ~/.config.
    fn credentials_in_sight(&self, machine: &impl Machine, opened: &[(PathBuf, Access)]) -> Vec<PathBuf> {
        let home = self.overlaid();
        let is_open = |place: &Path| opened.iter().any(|(root, _)| place.starts_with(root) && place != root);
        let shut = self.credentials().filter(|place| !self.names(place));
        let real = shut.filter_map(|place| machine.real(&place));
        // Below the overlay they are taken out of it; elsewhere, or in what lies over it, they are covered.
        real.filter(|real| is_open(real) || home.is_none_or(|home| !real.starts_with(home))).collect()
    }

    fn check(&self, machine: &impl Machine, ground: &Ground<'_>) -> Result<(), ViewError> {
        let taken = |path: &&PathBuf| machine.kind(path).is_none() && ground.is_kept(path);
        // In --fs host everything is kept; there the folder's own rights decide, and the user was told.
        let reserved = self.own.reserved.iter().find(taken);
        match reserved.filter(|_| self.files == FileSystem::Workspace) {
            Some(path) => Err(ViewError::Reserved { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// The last steps, which nothing overrules.
    fn shut_own(&self, machine: &impl Machine, ground: &Ground<'_>, steps: &mut Vec<Step>) {
        let mut pinned = BTreeSet::new();
        let mut pin = |path: &Path, steps: &mut Vec<Step>| {
            for at in ground.loose_above(path) {
                if pinned.insert(at.clone()) {
                    steps.push(Step::Pin { at });
                }
            }
        };
        for path in &self.own.hidden {
            // What lies below the overlay has been taken out of it.
            let shows = matches!(ground.of(path).0, Soil::Kept | Soil::Read);
            if !shows || machine.kind(path).is_none() {
                continue;
            }
            pin(path, steps);
            steps.extend(hide(machine, path.clone()));
        }
        for path in &self.own.programs {
            if ground.is_kept(path) && machine.kind(path).is_some() && self.files == FileSystem::Workspace {
                pin(path, steps);
                steps.push(Step::Open { at: path.clone(), access: Access::Read });
            }
        }
    }
}

/// What has become of each place once everything that was asked for is done.
struct Ground<'a> {
    wishes: &'a Wishes,
    opened: &'a [(PathBuf, Access)],
    private: &'a [(PathBuf, u32)],
}

/// What a place is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Soil {
    /// The host's, and written there.
    Kept,
    /// The host's, and read only.
    Read,
    /// Shows the host's; changes are thrown away.
    Overlaid,
    /// Nothing of the host's.
    Empty,
}

impl Ground<'_> {
    fn of(&self, path: &Path) -> (Soil, &Path) {
        let bottom = if self.wishes.files == FileSystem::Host { Soil::Kept } else { Soil::Read };
        let private = self.private.iter().map(|(root, _)| (root.as_path(), Soil::Empty));
        let home = self.wishes.overlaid().map(|home| (home, Soil::Overlaid));
        let opened = self.opened.iter().map(|(root, access)| {
            let ground = if *access == Access::Write { Soil::Kept } else { Soil::Read };
            (root.as_path(), ground)
        });
        let all = std::iter::once((Path::new("/"), bottom)).chain(private).chain(home).chain(opened);
        let over = all.filter(|(root, _)| path.starts_with(root));
        // Of two of the same depth the later one lies on top.
        let top = over.max_by_key(|(root, _)| root.components().count());
        top.map_or((bottom, Path::new("/")), |(root, ground)| (ground, root))
    }

    /// Whether a socket there could be connected to. One below an overlay cannot: the kernel looks for the very inode
    /// that was bound, and the overlay shows another.
    fn shows_sockets(&self, path: &Path) -> bool {
        matches!(self.of(path).0, Soil::Kept | Soil::Read)
    }

    fn is_kept(&self, path: &Path) -> bool {
        self.of(path).0 == Soil::Kept
    }

    /// The folders above a path that the workload could rename, with what they hold.
    fn loose_above(&self, path: &Path) -> Vec<PathBuf> {
        let (ground, root) = self.of(path);
        if ground != Soil::Kept {
            return Vec::new();
        }
        let above = path.ancestors().skip(1).take_while(|above| *above != root && above.starts_with(root));
        let mut above: Vec<PathBuf> = above.map(Path::to_owned).collect();
        above.reverse();
        above
    }
}

fn hide(machine: &impl Machine, at: PathBuf) -> Option<Step> {
    machine.kind(&at).map(|kind| Step::Hide { at, kind })
}

impl Step {
    /// Where it happens.
    pub(crate) fn at(&self) -> &Path {
        match self {
            Self::ReadOnly => Path::new("/"),
            Self::Devices => Path::new("/dev"),
            Self::Private { at, .. }
            | Self::Home { at, .. }
            | Self::Open { at, .. }
            | Self::Hide { at, .. }
            | Self::Pin { at } => at,
        }
    }
}

#[cfg(test)]
#[path = "view/tests.rs"]
mod tests;
