//! What a plan needs to know of this machine: files, sockets, users, and the files that tell programs where names are
//! resolved.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
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
        let (mut own, mut paths) = (HashMap::new(), Vec::new());
        for (inode, path) in bound(&table) {
            if path.is_absolute() && !path.starts_with(SELF) {
                paths.push(path);
            } else {
                own.insert(inode, path);
            }
        }
        if !own.is_empty() {
            paths.extend(by_their_holders(&own));
        }
        paths
    }
}

/// The paths of a process that other processes read as their own (proc(5)).
const SELF: &str = "/proc/self";

/// The bound sockets of a /proc/net/unix (proc(5)), each with its inode: the seventh column, and the eighth, which holds
/// the path as it was bound. Abstract ones begin with `@` and belong to the network namespace.
fn bound(table: &[u8]) -> impl Iterator<Item = (u64, PathBuf)> {
    table.split(|&byte| byte == b'\n').skip(1).filter_map(|line| {
        let mut rest = line;
        let mut inode = 0;
        for column in 0..7 {
            rest = rest.trim_ascii_start();
            let (word, behind) = rest.split_at(rest.iter().position(|&byte| byte == b' ')?);
            if column == 6 {
                inode = str::from_utf8(word).ok()?.parse().ok()?;
            }
            rest = behind;
        }
        let path = rest.strip_prefix(b" ").filter(|path| !path.is_empty() && !path.starts_with(b"@"))?;
        Some((inode, Path::new(OsStr::from_bytes(path)).to_owned()))
    })
}

/// Where sockets lie that were bound by a path of their program's own: from its working directory, or through one of its
/// descriptors, as is usual where a path is longer than the 107 bytes of a socket's (unix(7)). Programs of other users
/// are not seen by who is not root.
fn by_their_holders(bound: &HashMap<u64, PathBuf>) -> Vec<PathBuf> {
    let processes = Path::new("/proc").read_dir().into_iter().flatten().flatten();
    let is_number = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    let processes = processes.filter(|entry| is_number(&entry.file_name())).map(|entry| entry.path());
    let mut found = Vec::new();
    for process in processes {
        let descriptors = process.join("fd").read_dir().into_iter().flatten().flatten();
        let links = descriptors.filter_map(|entry| entry.path().read_link().ok());
        for path in links.filter_map(|link| bound.get(&socket_inode(&link)?)) {
            found.push(match path.strip_prefix(SELF) {
                Ok(rest) => process.join(rest),
                Err(_) => process.join("cwd").join(path),
            });
        }
    }
    found
}

/// The inode of what a descriptor's link says: `socket:[25748199]`.
fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
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
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12345 /run/docker.sock\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12346 @/tmp/abstract\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 12347\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01   777 /home/u/a b.sock\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12348 ./app.sock\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12349 /srv/\xff.sock\n";
        let found: Vec<_> = bound(table).map(|(inode, path)| (inode, path.into_os_string())).collect();
        let expected = [
            (12345, &b"/run/docker.sock"[..]),
            (777, b"/home/u/a b.sock"),
            (12348, b"./app.sock"),
            (12349, b"/srv/\xff.sock"),
        ];
        assert_eq!(found, expected.map(|(inode, path)| (inode, OsStr::from_bytes(path).to_owned())));
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
