//! apt: `apt-get update --print-uris` tells what its source lists lead to, and contacts nobody.

use std::fs;
use std::path::{Path, PathBuf};

use super::asker::{AskError, Asker};
use super::url::{Url, without_secrets};
use super::{Client, Configured};

pub(super) static APT: Client = Client {
    name: "apt",
    programs: &["apt-get"],
    configured,
    // A repository has its packages itself; whether it sends its clients elsewhere shows with any document.
    sample: |release| Some(release.clone()),
    links: None,
    accept: "*/*",
    variables: &["apt_"],
    file_variables: &["APT_CONFIG"],
    project_files: &[],
};

/// The document that apt asks a repository for first (deb822 repositories, Debian's RepositoryFormat).
const RELEASE: &str = "InRelease";

fn configured(apt: &Asker<'_>) -> Result<Configured, AskError> {
    let printed = apt.ask(&["update", "--print-uris"])?;
    let lists = lists(apt).unwrap_or_default();
    let mut told = Configured::default();
    // 'http://…/dists/stable/InRelease' local_name 0
    let quoted = printed.lines().filter_map(|line| line.strip_prefix('\'')?.split('\'').next());
    for document in quoted.filter(|document| document.ends_with(RELEASE)) {
        match Url::parse(document) {
            Some(url) if told.indexes.iter().any(|(known, _)| known.same_host(&url)) => {}
            Some(url) => {
                let from = named_in(&lists, &url);
                told.indexes.push((url, from));
            }
            None => {
                let document = without_secrets(document);
                told.notes
                    .push(format!("its source lists name {document}, which is no http or https repository"));
            }
        }
    }
    if told.indexes.is_empty() {
        told.notes.push("its source lists name no repository of a host".to_owned());
    }
    Ok(told)
}

/// The source lists with their texts.
fn lists(apt: &Asker<'_>) -> Option<Vec<(PathBuf, String)>> {
    let config = apt.beside("apt-config")?;
    // LIST='/etc/apt/sources.list'
    let names = ["shell", "LIST", "Dir::Etc::sourcelist/f", "PARTS", "Dir::Etc::sourceparts/d"];
    let shell = config.ask(&names).ok()?;
    let value = |name: &str| {
        let line = shell.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("='"))?;
        Some(PathBuf::from(line.strip_suffix('\'')?))
    };
    let parts = value("PARTS").and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut files: Vec<_> = value("LIST").into_iter().chain(parts.map(|entry| entry.path())).collect();
    files.retain(|file| has_ending(file));
    files.sort();
    Some(files.into_iter().filter_map(|file| Some((file.clone(), fs::read_to_string(file).ok()?))).collect())
}

/// apt reads no other files (sources.list(5)).
fn has_ending(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "list" || ending == "sources")
}

fn named_in(lists: &[(PathBuf, String)], url: &Url) -> String {
    let host = url.destination().host.to_string();
    let naming = lists.iter().filter(|(_, text)| text.contains(&host));
    let files: Vec<_> = naming.map(|(file, _)| file.display().to_string()).collect();
    if files.is_empty() { "its source lists".to_owned() } else { files.join(", ") }
}
