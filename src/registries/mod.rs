//! Package registries as the clients of this machine are configured to use them: asked of the clients, never known here.
//!
//! ```text
//! Client ──asker──▶ its indexes ──fetch──▶ the hosts that each points to ──pin──▶ [registry.X] tables for a person
//! working directory, environment ──seen──▶ "seen, not used"
//! ```
//!
//! A client is one file here and its line in [`CLIENTS`]: how it is asked for its indexes, which document of an index
//! tells where packages are downloaded from, and which files and variables could name another index. Clients are started
//! in `/` with an environment of our own, so that nothing that a workload can write is read. Documents of an index are
//! fetched by curl: this process opens no connection besides those that its policy judges.

mod apt;
mod asker;
mod cargo;
mod fetch;
mod npm;
mod pin;
mod pip;
mod seen;
mod url;

use std::net::IpAddr;
use std::path::PathBuf;

pub use self::asker::{AskError, Surroundings};
pub use self::pin::{Pinned, pin};
pub use self::seen::Seen;
pub use self::url::Url;

use self::asker::Asker;
use self::fetch::Fetcher;

/// Every client that can be asked.
pub static CLIENTS: [&Client; 4] = [&pip::PIP, &npm::NPM, &cargo::CARGO, &apt::APT];

/// More hosts than this are no registry; an index that names so many is cut off.
const HOST_LIMIT: usize = 32;

/// A package client: what must be known of it to find its registries.
#[derive(Debug)]
pub struct Client {
    /// What it is called here.
    pub name: &'static str,
    /// The programs that are it, the preferred one first.
    programs: &'static [&'static str],
    /// Asks it for its indexes.
    configured: fn(&Asker<'_>) -> Result<Configured, AskError>,
    /// The document of an index that shows where packages are downloaded from.
    sample: fn(&Url) -> Option<Url>,
    /// The links in such a document; `None` where it says nothing and what counts is who answers.
    links: Option<fn(&str) -> Vec<String>>,
    /// The media type to ask for.
    accept: &'static str,
    /// What its own variables begin with, in lower case.
    variables: &'static [&'static str],
    /// Its variables that name a config file.
    file_variables: &'static [&'static str],
    /// The files of a project that could name another index, relative to it.
    project_files: &'static [&'static str],
}

/// What a client says of itself.
#[derive(Debug, Default)]
struct Configured {
    indexes: Vec<(Url, String)>,
    /// The authorities that it trusts instead of the machine's.
    ca_file: Option<PathBuf>,
    notes: Vec<String>,
}

/// What was found out of one client.
#[derive(Debug)]
pub struct Found {
    /// The client.
    pub client: &'static str,
    /// The program that was asked.
    pub program: PathBuf,
    /// Its indexes.
    pub indexes: Vec<Index>,
    /// What a person should know of them.
    pub notes: Vec<String>,
    /// What would have named another host, had it been used.
    pub seen: Vec<Seen>,
}

/// One index that a client uses.
#[derive(Debug)]
pub struct Index {
    /// Where it is.
    pub url: Url,
    /// Where the client has it from: a file, or its own default.
    pub from: String,
    /// The hosts that it takes: its own first, then those that its documents point to.
    pub hosts: Vec<Reached>,
    /// Why the hosts that it points to are not known.
    pub unread: Option<String>,
}

/// A host that a registry needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    /// Where it is; the path counts for nothing.
    pub url: Url,
    /// The address that it has here, where it was asked for.
    pub address: Option<IpAddr>,
}

/// Whether indexes are fetched to see where they point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One document of each index, and the head of one file at each further host.
    Indexes,
    /// Nothing is contacted.
    Nothing,
}

/// Asks one client for its registries.
///
/// # Errors
/// Where it is not there, or does not answer as it should.
pub fn discover(client: &'static Client, around: &Surroundings, reach: Reach) -> Result<Found, AskError> {
    let asker = around.find(client.programs)?;
    let mut told = (client.configured)(&asker)?;
    if around.distrusts_home() {
        let why = "the home folder lies in the working directory, or everybody may write it: its files were not used";
        told.notes.push(why.to_owned());
    }
    let fetcher = match reach {
        Reach::Indexes => match around.find(fetch::PROGRAMS) {
            Ok(curl) => Some(Fetcher::new(curl, told.ca_file.take())),
            Err(error) => {
                told.notes.push(format!("no index was fetched: {error}"));
                None
            }
        },
        Reach::Nothing => None,
    };
    let indexes = told.indexes.into_iter().map(|(url, from)| index(client, url, from, fetcher.as_ref()));
    let indexes: Vec<_> = indexes.collect();
    let known =
        |url: &Url| indexes.iter().any(|index| index.hosts.iter().any(|host| host.url.same_host(url)));
    let mut seen = seen::seen(client, around);
    seen.retain(|seen| seen.url.as_ref().is_none_or(|url| !known(url)));
    Ok(Found { client: client.name, program: asker.program().to_owned(), indexes, notes: told.notes, seen })
}

/// Looks at one document of an index, and at one file of each host that it points to.
fn index(client: &Client, url: Url, from: String, fetcher: Option<&Fetcher<'_>>) -> Index {
    let own = Reached { url: url.clone(), address: None };
    let mut index = Index { url, from, hosts: vec![own], unread: None };
    let Some(fetcher) = fetcher else { return index };
    let Some(sample) = (client.sample)(&index.url) else {
        index.unread = Some("no document is known that would show where its packages are".to_owned());
        return index;
    };
    let document = match fetcher.get(&sample, client.accept) {
        Ok(document) => document,
        Err(error) => {
            index.unread = Some(format!("{sample}: {error}"));
            return index;
        }
    };
    // Of a redirected request curl tells the last address alone.
    let moved = !document.url.same_host(&index.url);
    let at_index = if moved {
        fetcher.head(&index.url).ok().filter(|head| head.url.same_host(&index.url))
    } else {
        None
    };
    if let Some(own) = index.hosts.first_mut() {
        own.address = if moved { at_index.and_then(|head| head.address) } else { document.address };
    }
    if moved {
        index.hosts.push(Reached { url: document.url.clone(), address: document.address });
    }
    let Some(links) = client.links else { return index };
    if !(200..300).contains(&document.status) {
        index.unread = Some(format!("{sample}: the answer is {}", document.status));
        return index;
    }
    for link in links(&document.body) {
        let Some(link) = document.url.join(&link) else { continue };
        if index.hosts.iter().any(|host| host.url.same_host(&link)) {
            continue;
        }
        if index.hosts.len() >= HOST_LIMIT {
            index.unread = Some(format!("{sample} points to more than {HOST_LIMIT} hosts"));
            break;
        }
        let address = fetcher.head(&link).ok().and_then(|head| head.address);
        index.hosts.push(Reached { url: link, address });
    }
    index
}

/// Splits a text into the URLs and other words that quotes, spaces and brackets part.
fn urls(text: &str) -> impl Iterator<Item = Url> {
    let words = text.split(|letter: char| letter.is_whitespace() || "\"'`<>()[]{},;".contains(letter));
    // `key=https://…` and `sparse+https://…`
    let starts = words
        .filter_map(|word| ["https://", "http://"].iter().find_map(|scheme| word.get(word.find(scheme)?..)));
    starts.filter_map(Url::parse)
}
