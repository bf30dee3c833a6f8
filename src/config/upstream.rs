//! `[upstream]`: a corporate proxy on the way out. Policy applies here first.

use policy::file::{Config, Item, quoted};
use policy::pattern::HostPattern;
use policy::{Destination, Port};

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["proxy", "credentials_file", "ca_file", "except", "resolve"];

/// The `[upstream]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Where the proxy is.
    pub proxy: Destination,
    /// Hosts that are dialled directly.
    pub except: Vec<HostPattern>,
}

impl Upstream {
    pub(super) fn read(config: &mut Config<'_>) -> Option<Self> {
        let mut table = config.table("upstream")?;
        let hint = "write proxy = \"http://proxy.example:3128\", or remove the table";
        let proxy = table.require("proxy", hint).and_then(|item| proxy(&item));
        let except = table.take("except").and_then(|item| item.strings()).unwrap_or_default();
        let except = except.iter().filter_map(|(text, item)| pattern(text, item)).collect();
        for (key, what) in [
            ("credentials_file", "credentials for the upstream proxy"),
            ("ca_file", "TLS to the upstream proxy"),
        ] {
            if let Some(item) = table.take(key) {
                item.not_built_yet(what, "remove it");
            }
        }
        if let Some(item) = table.take("resolve")
            && item.one_of(&[("here", false), ("there", true)]) == Some(true)
        {
            item.not_built_yet("names that the upstream proxy resolves", "write \"here\"");
        }
        table.finish();
        Some(Self { proxy: proxy?, except })
    }
}

/// `http://HOST[:PORT]`; without a port it is 80, as in any http URL.
fn proxy(item: &Item<'_>) -> Option<Destination> {
    let text = item.string()?;
    let hint = "write \"http://proxy.example:3128\"";
    let refuse = |what: String| {
        item.mistake(what, hint);
        None
    };
    let Some((scheme, rest)) = text.split_once("://") else {
        return refuse(format!("{} is no URL of a proxy", quoted(text)));
    };
    match scheme {
        "http" => {}
        "https" => {
            item.not_built_yet("TLS to the upstream proxy", hint);
            return None;
        }
        _ => return refuse(format!("{} is no scheme for an upstream proxy", quoted(scheme))),
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains('@') {
        item.mistake("credentials stand in a file, not in the config", "remove them from the URL");
        return None;
    }
    match Destination::from_authority_or(authority.as_bytes(), Port::HTTP) {
        Ok(destination) => Some(destination),
        Err(why) => refuse(format!("{}: {why}", quoted(authority))),
    }
}

fn pattern(text: &str, item: &Item<'_>) -> Option<HostPattern> {
    match HostPattern::parse(text) {
        Ok(pattern) => Some(pattern),
        Err(why) => {
            item.mistake(format!("{}: {why}", quoted(text)), "write \"*.corp.example\" or \"10.0.0.0/24\"");
            None
        }
    }
}
