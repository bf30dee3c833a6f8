//! cargo: `cargo config get` tells what its files say; its own default is the host that it asks for when nothing does.

use std::ffi::OsStr;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, mkdir};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::asker::{AskError, Asker};
use super::url::Url;
use super::{Client, Configured, urls};

pub(super) static CARGO: Client = Client {
    name: "cargo",
    programs: &["cargo"],
    configured,
    // The index configuration of a sparse index ("Registry Index", cargo's reference).
    sample: |index| Some(index.below("config.json")),
    links: Some(links),
    accept: "application/json",
    variables: &["cargo_registries_", "cargo_registry_", "cargo_source_", "cargo_http_"],
    file_variables: &[],
    project_files: &[".cargo/config.toml", ".cargo/config", "Cargo.toml", "Cargo.lock"],
};

/// The source that cargo has built in, by cargo's own name for it.
const BUILT_IN: &str = "crates-io";

/// A chain of replacements longer than this leads nowhere.
const CHAIN_LIMIT: usize = 8;

fn configured(cargo: &Asker<'_>) -> Result<Configured, AskError> {
    // `config get` is there and works, and is called unstable; this variable lets a stable cargo run it.
    let config = |format: &[&str]| {
        let args = ["-Zunstable-options", "config", "get"];
        cargo.ask_with(&[&args, format].concat(), &[("RUSTC_BOOTSTRAP", OsStr::new("1"))])
    };
    let json = config(&["--format", "json"])?;
    let read: Value = serde_json::from_str(&json).map_err(|_| cargo.odd(b"its config is no JSON"))?;
    let origins = config(&["--show-origin"])?;
    let mut told = Configured::default();
    let mut set = Vec::new();
    match replacement(&read) {
        Replacement::None => told.indexes.push((built_in(cargo)?, "cargo's own default".to_owned())),
        Replacement::Index { key, index } => set.push((key, index)),
        Replacement::Local(key) => {
            told.notes.push(format!("{BUILT_IN} is replaced by {key}, which needs no host"))
        }
    }
    let named = read.get("registries").and_then(Value::as_object).into_iter().flatten();
    set.extend(named.filter_map(|(name, registry)| {
        Some((format!("registries.{name}.index"), registry.get("index").and_then(Value::as_str)?))
    }));
    for (key, index) in set {
        let from = format!("{key} in {}", origin(&origins, &key).unwrap_or("its config"));
        match index.strip_prefix("sparse+").and_then(Url::parse) {
            Some(url) if told.indexes.iter().any(|(known, _)| *known == url) => {}
            Some(url) => told.indexes.push((url, from)),
            None => {
                told.notes.push(format!("{from} is no sparse index: pin the host of its repository yourself"))
            }
        }
    }
    told.ca_file = read.pointer("/http/cainfo").and_then(Value::as_str).map(PathBuf::from);
    Ok(told)
}

/// What stands for the built-in source.
#[derive(Debug, PartialEq)]
enum Replacement<'a> {
    None,
    Index {
        key: String,
        index: &'a str,
    },
    /// A directory, or a chain that leads nowhere.
    Local(String),
}

/// Follows `source.X.replace-with`.
fn replacement(config: &Value) -> Replacement<'_> {
    let next = |name: &str| config.pointer(&format!("/source/{name}/replace-with")).and_then(Value::as_str);
    let Some(mut name) = next(BUILT_IN) else { return Replacement::None };
    for _ in 0..CHAIN_LIMIT {
        match next(name) {
            Some(other) => name = other,
            None => break,
        }
    }
    for (group, field) in [("source", "registry"), ("registries", "index")] {
        if let Some(index) = config.pointer(&format!("/{group}/{name}/{field}")).and_then(Value::as_str) {
            return Replacement::Index { key: format!("{group}.{name}.{field}"), index };
        }
    }
    Replacement::Local(format!("source.{name}"))
}

/// The file of a key, as in `source.corp.registry = "…" # /home/u/.cargo/config.toml`.
fn origin<'a>(list: &'a str, key: &str) -> Option<&'a str> {
    let line =
        list.lines().find(|line| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(" = ")))?;
    line.rsplit_once(" # ").map(|(_, file)| file)
}

/// Lets cargo search without a config and through a proxy that nobody is, and reads which document it could not get.
fn built_in(cargo: &Asker<'_>) -> Result<Url, AskError> {
    let run = |source| AskError::Run { program: cargo.program().display().to_string(), source };
    // Bound and not listening: a connection is refused, and nobody else can take the port meanwhile.
    let nobody = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(run)?;
    nobody.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).map_err(run)?;
    let port = nobody.local_addr().map_err(run)?.as_socket_ipv4().map_or(0, |address| address.port());
    let home = Scratch::new().map_err(run)?;
    let proxy = format!("http://127.0.0.1:{port}");
    let also = [
        ("CARGO_HOME", home.0.as_os_str()),
        ("CARGO_HTTP_PROXY", OsStr::new(&proxy)),
        ("CARGO_NET_RETRY", OsStr::new("0")),
    ];
    let said = cargo.run(&["search", "nothing"], &also, &[])?;
    let told = String::from_utf8_lossy(&said.stderr);
    let mut documents = urls(&told).filter_map(|url| url.folder_of("config.json"));
    documents.next().ok_or_else(|| cargo.odd(&said.stderr))
}

/// A folder that goes away again.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    /// A name that is taken is not used: it may be a trap.
    fn new() -> std::io::Result<Self> {
        // A hasher's keys are random for each process (std::hash::RandomState).
        let random = RandomState::new().hash_one(std::process::id());
        let path = Path::new("/tmp").join(format!("tidegate-cargo-{random:016x}"));
        mkdir(&path, Mode::RWXU)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is an empty cache of cargo's.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `{"dl": "https://…/{crate}/…"}`
fn links(document: &str) -> Vec<String> {
    let read: Option<Value> = serde_json::from_str(document).ok();
    let downloads = read.as_ref().and_then(|read| read.get("dl")).and_then(Value::as_str);
    downloads.map(str::to_owned).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replacements_are_followed_to_their_end() {
        assert_eq!(replacement(&json!({})), Replacement::None);
        let config = json!({
            "source": { "crates-io": { "replace-with": "a" }, "a": { "replace-with": "b" }, "b": { "registry": "sparse+https://b.example/" } }
        });
        let expected =
            Replacement::Index { key: "source.b.registry".to_owned(), index: "sparse+https://b.example/" };
        assert_eq!(replacement(&config), expected);
        let named = json!({
            "source": { "crates-io": { "replace-with": "corp" } },
            "registries": { "corp": { "index": "sparse+https://corp.example/" } }
        });
        let expected = Replacement::Index {
            key: "registries.corp.index".to_owned(),
            index: "sparse+https://corp.example/",
        };
        assert_eq!(replacement(&named), expected);
        let vendored =
            json!({ "source": { "crates-io": { "replace-with": "v" }, "v": { "directory": "/srv/v" } } });
        assert_eq!(replacement(&vendored), Replacement::Local("source.v".to_owned()));
        let circle =
            json!({ "source": { "crates-io": { "replace-with": "a" }, "a": { "replace-with": "a" } } });
        assert_eq!(replacement(&circle), Replacement::Local("source.a".to_owned()));
    }

    #[test]
    fn the_file_of_a_key_stands_behind_it() {
        let list = "http.cainfo = \"/x\" # /etc/c.toml\nsource.corp.registry = \"sparse+https://a # b/\" # /home/u/.cargo/config.toml\n";
        assert_eq!(origin(list, "source.corp.registry"), Some("/home/u/.cargo/config.toml"));
        assert_eq!(origin(list, "source.corp"), None);
    }
}
