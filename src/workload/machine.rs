//! What a plan needs to know of this machine: files, sockets, users, and the files that tell programs where names are
//! resolved.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::identity::Identity;
use super::mounts::Text;
use super::view::{Kind, Machine};

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThisMachine;

impl Machine for ThisMachine {
    fn kind(&self, path: &Path) -> Option<Kind> {
        let held = path.symlink_metadata().ok()?;
        match held.file_type() {
            kind if kind.is_symlink() => None,
            kind if kind.is_dir() => Some(Kind::Folder),
            _ => Some(Kind::File),
        }
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        path.canonicalize().ok()
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let table = fs::read("/proc/net/unix").unwrap_or_default();
        socket_paths(&String::from_utf8_lossy(&table))
    }
}

/// The bound paths of a /proc/net/unix (proc(5)): the eighth column, where it begins with a slash.
fn socket_paths(table: &str) -> Vec<PathBuf> {
    let paths = table.lines().skip(1).filter_map(|line| {
        let mut rest = line;
        for _ in 0..7 {
            rest = rest.trim_start();
            rest = rest.get(rest.find(' ')?..)?;
        }
        let path = rest.trim_start();
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    let mut seen = HashSet::new();
    paths.filter(|path| seen.insert(path.clone())).collect()
}

/// A user of /etc/passwd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: OsString,
    pub(crate) home: PathBuf,
}

impl User {
    /// The user with this number, if there is one.
    pub(crate) fn find(uid: u32) -> Option<Self> {
        Self::find_in(&fs::read_to_string("/etc/passwd").ok()?, uid)
    }

    fn find_in(passwd: &str, uid: u32) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            match fields.as_slice() {
                [name, _, number, _, _, home, ..] if number.parse() == Ok(uid) => {
                    Some(Self { name: (*name).into(), home: (*home).into() })
                }
                _ => None,
            }
        })
    }
}

/// The name of a workload's user that is nobody else's.
pub(crate) const USER: &str = "tidegate";

/// The files of /etc that are others inside: the gateway resolves, by DNS alone, whatever the host does.
pub(crate) fn texts(identity: Identity, home: Option<&Path>) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut add = |path: &str, text: String| {
        if let Some(at) = leads_to(Path::new(path)) {
            texts.push(Text { at, text });
        }
    };
    // Whatever the address, questions to port 53 go to the gateway. A resolver takes this one for a local one, as it is.
    add("/etc/resolv.conf", "nameserver 127.0.0.1\n".to_owned());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    add(
        "/etc/hosts",
        format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.0.1 {host}\n"),
    );
    if let Ok(switch) = fs::read_to_string("/etc/nsswitch.conf") {
        add("/etc/nsswitch.conf", by_files_and_dns(&switch));
    }
    if identity.is_free {
        let Identity { uid, gid, .. } = identity;
        let home = home.unwrap_or(Path::new("/")).display();
        if let Ok(users) = fs::read_to_string("/etc/passwd") {
            add("/etc/passwd", format!("{}\n{USER}:x:{uid}:{gid}::{home}:/bin/sh\n", users.trim_end()));
        }
        if let Ok(groups) = fs::read_to_string("/etc/group") {
            add("/etc/group", format!("{}\n{USER}:x:{gid}:\n", groups.trim_end()));
        }
    }
    texts
}

/// Where a file of /etc lies, also where its link leads to nothing: `/etc/resolv.conf` often leads into /run.
fn leads_to(path: &Path) -> Option<PathBuf> {
    if let Ok(real) = path.canonicalize() {
        return Some(real);
    }
    let target = fs::read_link(path).ok()?;
    let joined = path.parent()?.join(target);
    Some(joined.parent()?.canonicalize().ok()?.join(joined.file_name()?))
}

/// An nsswitch.conf(5) with hosts by files and DNS only: other services ask programs of the host.
fn by_files_and_dns(switch: &str) -> String {
    let lines = switch
        .lines()
        .map(|line| if line.trim_start().starts_with("hosts:") { "hosts: files dns" } else { line });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_sockets_are_read_off_the_kernels_table() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12345 /run/docker.sock\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12346 @/tmp/abstract\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 12347\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01   777 /home/u/a b.sock\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 12349 /run/docker.sock\n";
        assert_eq!(socket_paths(table), [Path::new("/run/docker.sock"), Path::new("/home/u/a b.sock")]);
    }

    #[test]
    fn hosts_are_looked_up_by_files_and_dns_whatever_else_the_file_says() {
        let switch =
            "passwd: files systemd\n hosts: mymachines resolve [!UNAVAIL=return] files myhostname dns\n";
        assert_eq!(by_files_and_dns(switch), "passwd: files systemd\nhosts: files dns\n");
    }

    #[test]
    fn users_are_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nu:x:1000:100:,,,:/home/u:/bin/sh\nbroken\n";
        let user = User { name: "u".into(), home: "/home/u".into() };
        assert_eq!(User::find_in(passwd, 1000), Some(user));
        assert_eq!(User::find_in(passwd, 1), None);
    }
}
