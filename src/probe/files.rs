//! Files by which the gateway is directed: a sandbox that can write one of them has directed it.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::Line;
use super::ground::Ground;
use crate::config;

/// Folders of the gateway's own.
const FOLDERS: [&str; 4] = ["/etc/tidegate", "/run/tidegate", "/var/lib/tidegate", "/var/log/tidegate"];

pub(super) fn lines(ground: &Ground<'_>) -> Vec<Line> {
    vec![controls(), program(), variables(), privileges(ground)]
}

fn controls() -> Line {
    const WAY: &str = "the gateway's config, state and audit";
    let files = config::config_candidates(None).into_iter().chain(FOLDERS.map(PathBuf::from));
    let all: Vec<PathBuf> =
        files.flat_map(|path| [path.parent().map(Path::to_owned), Some(path)]).flatten().collect();
    // The folders above /etc/tidegate are the machine's.
    let own = all.iter().filter(|path| path.to_string_lossy().contains("tidegate") && path.exists());
    let (mut there, mut open) = (0, None);
    for path in own {
        there += 1;
        if access(path, Access::WRITE_OK).is_ok() {
            open = open.or(Some(path));
        }
    }
    match (open, there) {
        (Some(path), _) => Line::escaped(WAY, format!("{} can be written", path.display())),
        (None, 0) => Line::contained(WAY, "none of them is seen here"),
        (None, count) => Line::contained(WAY, format!("{count} are seen here, none can be written")),
    }
}

fn program() -> Line {
    const WAY: &str = "the gateway's program";
    match fs::read_link("/proc/self/exe") {
        Err(_) => Line::unproven(WAY, "/proc/self/exe cannot be read"),
        Ok(path) if !path.exists() => Line::contained(WAY, "it is not seen here"),
        Ok(path) if access(&path, Access::WRITE_OK).is_ok() => {
            Line::escaped(WAY, format!("{} can be written", path.display()))
        }
        Ok(path) => Line::contained(WAY, format!("{} cannot be written", path.display())),
    }
}

/// What a launcher tells clients to reach without a proxy must be the sandbox's own.
fn variables() -> Line {
    const WAY: &str = "NO_PROXY as the sandbox was given it";
    let all = config::variables();
    let listed = all
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("no_proxy"))
        .filter_map(|(_, value)| value.to_str());
    let wide = |entry: &str| {
        entry == "*" || entry.contains('/') || (entry.starts_with('.') && entry.matches('.').count() == 1)
    };
    match listed.flat_map(|list| list.split(',')).map(str::trim).find(|entry| wide(entry)) {
        // A hint to clients, which the namespace does not heed.
        Some(entry) => Line::unproven(
            WAY,
            format!("it has {entry:?}: clients go around the proxy, and meet the namespace alone"),
        ),
        None => Line::contained(WAY, "no network, no star and no whole domain in it"),
    }
}

fn privileges(ground: &Ground<'_>) -> Line {
    const WAY: &str = "privileges, setuid and file capabilities";
    match (ground.capabilities, ground.no_new_privileges) {
        (0, true) => Line::contained(WAY, "no capability is held, and execve adds none (no_new_privs)"),
        (held, gains) => {
            Line::unproven(WAY, format!("capabilities {held:#x}, no_new_privs {}", u8::from(gains)))
        }
    }
}
