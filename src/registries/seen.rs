//! What would name another index and is not used: the files of the project in the working directory, and variables.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::asker::Surroundings;
use super::url::Url;
use super::{Client, urls};

/// What is read of a file of a project at most.
const SIZE_LIMIT: u64 = 4 * 1024 * 1024;

/// More than this of one client would hide what matters.
const LIMIT: usize = 20;

/// Proxies: whoever sets them sees which packages are asked for.
const PROXIES: [&str; 3] = ["http_proxy", "https_proxy", "all_proxy"];

/// Something that was seen and not used.
#[derive(Debug, PartialEq)]
pub struct Seen {
    /// `$PIP_INDEX_URL`, or `/home/u/project/.npmrc:3`.
    pub place: String,
    /// Where it leads; `None` for a variable that names a config file.
    pub url: Option<Url>,
}

pub(super) fn seen(client: &Client, around: &Surroundings) -> Vec<Seen> {
    let mut seen = variables(client, around);
    for path in project_files(client, around) {
        let Some(text) = read(&path) else { continue };
        let mut hosts: Vec<Url> = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            for url in urls(line) {
                // A lock file names one host a thousand times.
                if seen.len() < LIMIT && !hosts.iter().any(|known| known.same_host(&url)) {
                    hosts.push(url.clone());
                    seen.push(Seen { place: format!("{}:{number}", path.display()), url: Some(url) });
                }
            }
        }
    }
    seen
}

fn variables(client: &Client, around: &Surroundings) -> Vec<Seen> {
    let mut seen = Vec::new();
    for (name, value) in around.variables() {
        let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
        let lower = name.to_ascii_lowercase();
        let place = format!("${name}");
        if client.file_variables.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            seen.push(Seen { place, url: None });
        } else if PROXIES.contains(&&*lower)
            || client.variables.iter().any(|prefix| lower.starts_with(prefix))
        {
            seen.extend(urls(value).map(|url| Seen { place: place.clone(), url: Some(url) }));
        }
    }
    seen.truncate(LIMIT);
    seen
}

/// The files in the working directory and in the folders above it, where clients look too. The home folder is not a
/// project: its files were used.
fn project_files(client: &Client, around: &Surroundings) -> Vec<PathBuf> {
    let home = around.variable("HOME").map(Path::new).and_then(|home| home.canonicalize().ok());
    let folders = around.working().ancestors().enumerate().filter(|(depth, folder)| {
        *folder != Path::new("/") && (*depth == 0 || Some(*folder) != home.as_deref())
    });
    folders.flat_map(|(_, folder)| client.project_files.iter().map(|file| folder.join(file))).collect()
}

/// Reads a regular file; what stands there may be anything, and must neither block nor fill the memory.
fn read(path: &Path) -> Option<String> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = File::options().read(true).custom_flags(i32::try_from(flags).ok()?).open(path).ok()?;
    file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut bytes = Vec::new();
    file.take(SIZE_LIMIT).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
