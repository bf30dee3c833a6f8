//! Inherited descriptors: a socket of another network namespace, a folder, a namespace that somebody forgot to close.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Line;

/// The tables of the sockets of this network namespace, each with the column of its inodes (proc_net(5)).
const TABLES: [(&str, usize); 9] = [
    ("tcp", 9),
    ("tcp6", 9),
    ("udp", 9),
    ("udp6", 9),
    ("raw", 9),
    ("raw6", 9),
    ("unix", 6),
    ("netlink", 9),
    ("packet", 8),
];

/// Devices that lead nowhere.
const HARMLESS: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The descriptors that this process was started with. It must not have opened any itself.
pub(super) fn found() -> Option<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").ok()? {
        let entry = entry.ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        // The one by which the folder is read is gone before it is looked at.
        if let Ok(target) = fs::read_link(entry.path()) {
            found.push((number, target));
        }
    }
    found.retain(|(number, target)| *number <= 2 || !is_listing(target));
    Some(found)
}

fn is_listing(target: &Path) -> bool {
    let text = target.to_string_lossy();
    text.starts_with("/proc/") && text.ends_with("/fd")
}

pub(super) fn line(found: Option<Vec<(u32, PathBuf)>>) -> Line {
    const WAY: &str = "inherited descriptors";
    let Some(found) = found else { return Line::unproven(WAY, "/proc/self/fd cannot be read") };
    let here = sockets();
    for (number, target) in &found {
        let shown = target.display();
        let inode =
            target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        match inode {
            Some(inode) if here.contains(&inode) => {}
            Some(_) => {
                return Line::escaped(
                    WAY,
                    format!("descriptor {number} is a socket of another network namespace ({shown})"),
                );
            }
            // Standard input, output and error are what they are.
            None if *number <= 2 => {}
            None if HARMLESS.iter().any(|device| target == Path::new(device)) => {}
            None => return Line::unproven(WAY, format!("descriptor {number} leads to {shown}")),
        }
    }
    let more = found.iter().filter(|(number, _)| *number > 2).count();
    match more {
        0 => Line::contained(WAY, "standard input, output and error alone"),
        more => Line::contained(
            WAY,
            format!("{more} more, sockets of this network namespace and devices that lead nowhere"),
        ),
    }
}

fn sockets() -> HashSet<u64> {
    let mut all = HashSet::new();
    for (table, column) in TABLES {
        let text = fs::read(format!("/proc/self/net/{table}")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        all.extend(text.lines().filter_map(|line| line.split_whitespace().nth(column)?.parse::<u64>().ok()));
    }
    all
}
