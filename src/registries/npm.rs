//! npm: `npm config list` tells what holds, its own default and the registries of scopes too.

use serde_json::Value;

use super::asker::{AskError, Asker};
use super::url::Url;
use super::{Client, Configured};

pub(super) static NPM: Client = Client {
    name: "npm",
    programs: &["npm"],
    configured,
    // npm is a package of its own registry, and `latest` the least that can be asked of one.
    sample: |registry| Some(registry.below("npm/latest")),
    links: Some(links),
    accept: "application/json",
    variables: &["npm_config_"],
    file_variables: &["npm_config_userconfig", "npm_config_globalconfig"],
    project_files: &[".npmrc", "package.json", "package-lock.json"],
};

fn configured(npm: &Asker<'_>) -> Result<Configured, AskError> {
    let json = npm.ask(&["config", "list", "--json"])?;
    let Ok(Value::Object(all)) = serde_json::from_str(&json) else { return Err(npm.odd(json.as_bytes())) };
    let origins = npm.ask(&["config", "list"])?;
    let mut told = Configured::default();
    for (key, value) in &all {
        // `registry`, and `@scope:registry`
        let (true, Some(value)) = (key == "registry" || key.ends_with(":registry"), value.as_str()) else {
            continue;
        };
        let from = match origin(&origins, key) {
            Some(file) => format!("{key} in {file}"),
            None => "npm's own default".to_owned(),
        };
        match Url::parse(value) {
            Some(url) if key == "registry" => told.indexes.insert(0, (url, from)),
            Some(url) => told.indexes.push((url, from)),
            None => told.notes.push(format!("{from} is no URL of a host")),
        }
    }
    if told.indexes.is_empty() && told.notes.is_empty() {
        return Err(npm.odd(b"no registry in its config"));
    }
    told.ca_file = all.get("cafile").and_then(Value::as_str).map(Into::into);
    Ok(told)
}

/// The file under whose heading a key stands, as in `; "user" config from /home/u/.npmrc`.
fn origin<'a>(list: &'a str, key: &str) -> Option<&'a str> {
    let mut file = None;
    for line in list.lines() {
        if let Some((_, from)) =
            line.strip_prefix(';').and_then(|heading| heading.split_once(" config from "))
        {
            file = Some(from.trim_matches('"'));
        } else if line.strip_prefix(key).is_some_and(|rest| rest.starts_with(" = ")) {
            return file;
        }
    }
    None
}

/// `{"dist": {"tarball": …}}`
fn links(document: &str) -> Vec<String> {
    let read: Option<Value> = serde_json::from_str(document).ok();
    let tarball = read.as_ref().and_then(|read| read.pointer("/dist/tarball")).and_then(Value::as_str);
    tarball.map(str::to_owned).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_key_is_that_of_its_heading() {
        let list = "; \"global\" config from /usr/etc/npmrc\n\ncafile = \"/x\"\n; registry = \"https://a\" ; overridden by user\n\n\
            ; \"user\" config from /home/u/.npmrc\n\n@corp:registry = \"https://corp.example/\"\nregistry = \"https://npm.example/\"\n";
        assert_eq!(origin(list, "registry"), Some("/home/u/.npmrc"));
        assert_eq!(origin(list, "@corp:registry"), Some("/home/u/.npmrc"));
        assert_eq!(origin(list, "cafile"), Some("/usr/etc/npmrc"));
        assert_eq!(origin(list, "other"), None);
    }

    #[test]
    fn a_version_tells_its_tarball() {
        assert_eq!(
            links(r#"{"dist": {"tarball": "https://files.example/npm.tgz"}}"#),
            ["https://files.example/npm.tgz"]
        );
        assert!(links("<html>").is_empty());
    }
}
