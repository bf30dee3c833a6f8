//! pip: `pip config debug` tells what its files say and `pip install --help` the index that holds, its own default too.

use std::collections::BTreeMap;

use super::asker::{AskError, Asker};
use super::url::{Url, without_secrets};
use super::{Client, Configured, urls};

pub(super) static PIP: Client = Client {
    name: "pip",
    programs: &["pip", "pip3"],
    configured,
    // pip is a package of its own index.
    sample: |index| Some(index.below("pip/")),
    links: Some(links),
    // PEP 691: an index may answer in JSON unless HTML is asked for.
    accept: "text/html",
    variables: &["pip_"],
    file_variables: &["PIP_CONFIG_FILE"],
    project_files: &["requirements.txt", "pip.conf", "pyproject.toml"],
};

/// The keys that name an index, in the sections that `pip install` and `pip download` read.
const KEYS: [&str; 3] = ["index-url", "extra-index-url", "find-links"];
const SECTIONS: [&str; 3] = ["global", "install", "download"];

fn configured(pip: &Asker<'_>) -> Result<Configured, AskError> {
    let settings = settings(&pip.ask(&["config", "debug"])?);
    let help = pip.ask(&["install", "--help"])?;
    let in_force = default_index(&help).ok_or_else(|| pip.odd(b"no default of --index-url in its help"))?;
    let mut told = Configured::default();
    for section in SECTIONS {
        for key in KEYS {
            let Some((value, file)) = settings.get(&format!("{section}.{key}")) else { continue };
            for word in value.split_whitespace() {
                match Url::parse(word) {
                    Some(url) => told.indexes.push((url, format!("{key} in {file}"))),
                    None => told
                        .notes
                        .push(format!("{key} in {file} names {}, which is no host", without_secrets(word))),
                }
            }
        }
        if let Some((hosts, file)) = settings.get(&format!("{section}.trusted-host")) {
            told.notes.push(format!("trusted-host in {file}: certificates of {hosts} are not checked"));
        }
    }
    // The help hides passwords, so that the same index is told by its host.
    match Url::parse(&in_force) {
        Some(url) if told.indexes.iter().any(|(known, _)| known.same_host(&url)) => {}
        Some(url) => told.indexes.insert(0, (url, "pip's own default".to_owned())),
        None => told.notes.push(format!("its index is {}, which is no host", without_secrets(&in_force))),
    }
    told.ca_file = settings.get("global.cert").map(|(path, _)| path.into());
    told.indexes.dedup_by(|a, b| a.0 == b.0);
    Ok(told)
}

/// `global.index-url` → its value and the file that holds, of those that set it.
fn settings(debug: &str) -> BTreeMap<String, (String, String)> {
    let mut found: BTreeMap<String, (u8, String, String)> = BTreeMap::new();
    let (mut rank, mut file, mut last) = (0, "", None);
    for line in debug.lines() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim();
        if let ("global:" | "user:" | "site:" | "env:" | "env_var:", 0) = (text, indent) {
            // Later ones win: global, user, site (pip's "Configuration files").
            rank = ["global:", "user:", "site:"]
                .iter()
                .position(|kind| *kind == text)
                .map_or(0, |at| at as u8 + 1);
            last = None;
        } else if let Some((path, _)) = text.split_once(", exists: ") {
            (file, last) = (path, None);
        } else if let Some((key, value)) =
            text.split_once(": ").filter(|(key, _)| is_key(key) && indent == 4 && rank > 0)
        {
            let wins = found.get(key).is_none_or(|(other, ..)| *other <= rank);
            if wins {
                found.insert(key.to_owned(), (rank, value.to_owned(), file.to_owned()));
            }
            last = wins.then(|| key.to_owned());
        } else if let Some((_, value, _)) = last.as_ref().and_then(|key| found.get_mut(key)) {
            // A value of several lines goes on as it stands in the file.
            value.push(' ');
            value.push_str(text);
        }
    }
    found.into_iter().map(|(key, (_, value, file))| (key, (value, file))).collect()
}

fn is_key(text: &str) -> bool {
    let letters = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    text.split_once('.').is_some_and(|(section, key)| letters(section) && letters(key))
}

/// `Base URL of the Python Package Index (default …).`
fn default_index(help: &str) -> Option<String> {
    let (_, from) = help.split_once("--index-url")?;
    let (_, from) = from.split_once("(default")?;
    let (value, _) = from.split_once(')')?;
    // An older pip wraps whatever the width.
    Some(value.split_whitespace().collect())
}

/// The addresses that the links of a page have (PEP 503).
fn links(page: &str) -> Vec<String> {
    let starts = page.match_indices("href=").filter_map(|(at, found)| {
        let rest = page.get(at + found.len()..)?;
        let quote = rest.chars().next().filter(|letter| matches!(letter, '"' | '\''))?;
        rest.get(1..)?.split(quote).next()
    });
    let mut links: Vec<_> = starts.map(str::to_owned).collect();
    // A file list, as find-links may name, holds bare URLs.
    if links.is_empty() {
        links.extend(urls(page).map(|url| url.to_string()));
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBUG: &str = "env_var:\nenv:\nglobal:\n  /etc/xdg/pip/pip.conf, exists: False\n  /etc/pip.conf, exists: True\n    \
        global.cert: /etc/ca.pem\n    global.index-url: https://old.example/simple\nsite:\n  /usr/pip.conf, exists: False\n\
        user:\n  /home/u/.config/pip/pip.conf, exists: True\n    global.index-url: https://u:s@mirror.example/simple\n    \
        global.extra-index-url: https://extra.example/simple\n    https://more.example/simple\n    install.no-deps: true\n";

    #[test]
    fn the_files_of_pip_are_read_with_the_one_that_wins() {
        let settings = settings(DEBUG);
        let value = |key: &str| settings.get(key).map(|(value, file)| (value.as_str(), file.as_str()));
        let user = "/home/u/.config/pip/pip.conf";
        assert_eq!(value("global.index-url"), Some(("https://u:s@mirror.example/simple", user)));
        let extra = "https://extra.example/simple https://more.example/simple";
        assert_eq!(value("global.extra-index-url"), Some((extra, user)));
        assert_eq!(value("global.cert"), Some(("/etc/ca.pem", "/etc/pip.conf")));
        assert_eq!(value("install.no-deps"), Some(("true", user)));
    }

    #[test]
    fn the_index_in_force_stands_in_the_help() {
        let help = "  -i, --index-url <url>  Base URL of the index\n      (default\n      https://index.example/simple). This";
        assert_eq!(default_index(help).as_deref(), Some("https://index.example/simple"));
        assert_eq!(default_index("Usage: pip"), None);
    }

    #[test]
    fn links_of_a_page_are_found_in_either_quotes() {
        let page = "<a href=\"https://files.example/a.whl#x\">a</a><a data-x href='../b.whl'>b</a><a href=c>";
        assert_eq!(links(page), ["https://files.example/a.whl#x", "../b.whl"]);
        assert_eq!(links("https://files.example/a.whl\n"), ["https://files.example/a.whl"]);
    }
}
