//! The environment variables that the program reads: here and nowhere else.
#![expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// Where the config is looked for, in this order: `--config` or `$TIDEGATE_CONFIG` alone where given, else the user's
/// folder and then the system's. Never the working directory, which a workload may write.
#[must_use]
pub fn config_candidates(named: Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(path) = named.or_else(|| path("TIDEGATE_CONFIG")) {
        return vec![path];
    }
    // Relative paths in $XDG_CONFIG_HOME are to be ignored (XDG Base Directory Specification).
    let user = path("XDG_CONFIG_HOME").filter(|home| home.is_absolute());
    let user = user.map(|home| home.join("tidegate/tidegate.toml"));
    user.into_iter().chain([PathBuf::from("/etc/tidegate/tidegate.toml")]).collect()
}

/// The proxy that clients on this machine are told to use for `https`: the lower-case name first, as curl does.
#[must_use]
pub fn https_proxy() -> Option<String> {
    let names = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    names.iter().filter_map(|name| env::var(name).ok()).find(|value| !value.is_empty())
}

/// Every variable, for programs that are asked for their configuration: a few folders are passed on, the rest is told.
#[must_use]
pub fn variables() -> Vec<(OsString, OsString)> {
    env::vars_os().collect()
}

fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_config_is_the_only_candidate() {
        assert_eq!(config_candidates(Some("a.toml".into())), [PathBuf::from("a.toml")]);
    }
}
