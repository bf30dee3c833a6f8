//! The environment of the workload: the caller's, with what leads clients to the gateway and without what leads elsewhere.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::hidden;

/// What decides about it.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings<'a> {
    /// `127.0.0.1:3128`, as it is inside.
    pub(crate) proxy: std::net::SocketAddr,
    pub(crate) sandbox: &'a str,
    pub(crate) local_peers: &'a [String],
    pub(crate) directory: &'a Path,
    /// Where the workload is another user than the caller: its home and name.
    pub(crate) user: Option<(PathBuf, OsString)>,
    /// Whether what the hidden variables name is hidden.
    pub(crate) is_contained: bool,
}

/// Variables that name a proxy which the workload cannot reach, each by what sets it.
const OTHER_PROXIES: &[&str] = &[
    "ALL_PROXY",
    "all_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "RSYNC_PROXY",
    "SOCKS_PROXY",
    "socks_proxy",
    "PIP_PROXY",
    "CARGO_HTTP_PROXY",
    "GLOBAL_AGENT_HTTP_PROXY",
    "GLOBAL_AGENT_HTTPS_PROXY",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
    "NPM_CONFIG_NOPROXY",
    "no_grpc_proxy",
];

/// Variables with the proxy's URL. Both cases: curl, wget, git and apt read the lower one of `http_proxy` alone, some
/// others the upper ones.
const PROXY: &[&str] = &[
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "grpc_proxy",
    "npm_config_proxy",
    "npm_config_https_proxy",
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",
];

const NO_PROXY: &[&str] = &["NO_PROXY", "no_proxy", "npm_config_noproxy"];

/// Makes it from the caller's.
pub(crate) fn compose(
    caller: impl IntoIterator<Item = (OsString, OsString)>,
    around: &Surroundings<'_>,
) -> Vec<(OsString, OsString)> {
    let proxy = format!("http://{}", around.proxy);
    let mut set: Vec<(OsString, OsString)> =
        PROXY.iter().map(|name| ((*name).into(), (&proxy).into())).collect();
    // The only forms that all clients agree on are exact hosts and addresses, without spaces.
    let local: Vec<&str> = ["localhost", "127.0.0.1", "::1"]
        .into_iter()
        .chain(around.local_peers.iter().map(|peer| host(peer)))
        .collect();
    set.extend(NO_PROXY.iter().map(|name| ((*name).into(), local.join(",").into())));
    // Node from 24 (and late 22) reads the variables only where this says so; Electron where that does.
    set.push(("NODE_USE_ENV_PROXY".into(), "1".into()));
    set.push(("ELECTRON_GET_USE_PROXY".into(), "1".into()));
    set.push(("TIDEGATE_ACTIVE".into(), "1".into()));
    set.push(("TIDEGATE_SANDBOX_ID".into(), around.sandbox.into()));
    set.push(("PWD".into(), around.directory.into()));
    if let Some((home, name)) = &around.user {
        set.push(("HOME".into(), home.into()));
        set.push(("USER".into(), name.clone()));
        set.push(("LOGNAME".into(), name.clone()));
    }

    let mut kept: Vec<(OsString, OsString)> = Vec::new();
    let mut java = None;
    for (name, value) in caller {
        if name == "JAVA_TOOL_OPTIONS" {
            java = Some(value);
        } else if is_passed(&name, around.is_contained) && set.iter().all(|(other, _)| *other != name) {
            // What it names need not be there in a /tmp of its own.
            let is_temporary =
                around.is_contained && ["TMPDIR", "TMP", "TEMP"].iter().any(|one| name == *one);
            kept.push((name, if is_temporary { "/tmp".into() } else { value }));
        }
    }
    set.push(("JAVA_TOOL_OPTIONS".into(), java_options(java.as_deref(), around, &local)));
    kept.extend(set);
    kept
}

fn is_passed(name: &OsStr, is_contained: bool) -> bool {
    let is = |names: &[&str]| names.iter().any(|other| name == *other);
    !(is(OTHER_PROXIES)
        || name.as_bytes().starts_with(b"TIDEGATE_")
        || (is_contained && is(hidden::VARIABLES)))
}

/// `HttpURLConnection` and `HttpClient` read system properties and no variable. A JVM says on stderr that it picked them
/// up.
fn java_options(before: Option<&OsStr>, around: &Surroundings<'_>, local: &[&str]) -> OsString {
    let (host, port) = (around.proxy.ip(), around.proxy.port());
    let peers: String = local.iter().skip(3).map(|peer| format!("|{peer}")).collect();
    let ours = format!(
        "-Dhttp.proxyHost={host} -Dhttp.proxyPort={port} -Dhttps.proxyHost={host} -Dhttps.proxyPort={port} \
         -Dhttp.nonProxyHosts=localhost|127.*|[::1]{peers}"
    );
    let mut all = before.map(OsStr::to_owned).unwrap_or_default();
    if !all.is_empty() {
        all.push(" ");
    }
    all.push(ours);
    all
}

/// A peer without its port: not every client compares ports.
fn host(peer: &str) -> &str {
    match peer.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => peer,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn composed(caller: &[(&str, &str)], peers: &[&str], contained: bool) -> BTreeMap<String, String> {
        let peers: Vec<String> = peers.iter().map(|peer| (*peer).to_owned()).collect();
        let around = Surroundings {
            proxy: "127.0.0.1:3128".parse().unwrap(),
            sandbox: "agent-7",
            local_peers: &peers,
            directory: Path::new("/work"),
            user: None,
            is_contained: contained,
        };
        let caller = caller.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let text = |text: OsString| text.into_string().unwrap();
        let all = compose(caller, &around);
        let count = all.len();
        let map: BTreeMap<_, _> = all.into_iter().map(|(name, value)| (text(name), text(value))).collect();
        assert_eq!(map.len(), count, "no variable is set twice");
        map
    }

    #[test]
    fn both_cases_name_the_proxy_and_every_other_proxy_is_gone() {
        let caller = [
            ("http_proxy", "http://corp.example:8080"),
            ("ALL_PROXY", "socks5h://corp.example"),
            ("PIP_PROXY", "http://corp.example"),
            ("PATH", "/bin"),
        ];
        let all = composed(&caller, &[], true);
        for name in PROXY {
            assert_eq!(all[*name], "http://127.0.0.1:3128", "{name}");
        }
        for name in NO_PROXY {
            assert_eq!(all[*name], "localhost,127.0.0.1,::1", "{name}");
        }
        for name in OTHER_PROXIES {
            assert!(!all.contains_key(*name), "{name}");
        }
        assert_eq!(all["PATH"], "/bin");
        assert_eq!((all["TIDEGATE_ACTIVE"].as_str(), all["TIDEGATE_SANDBOX_ID"].as_str()), ("1", "agent-7"));
        assert_eq!((all["NODE_USE_ENV_PROXY"].as_str(), all["PWD"].as_str()), ("1", "/work"));
    }

    #[test]
    fn what_leads_to_the_host_is_not_told_and_tidegates_own_never_is() {
        let caller = [
            ("SSH_AUTH_SOCK", "/tmp/agent"),
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1/bus"),
            ("TIDEGATE_CONFIG", "/etc/tidegate/x.toml"),
            ("TMPDIR", "/tmp/of-mine"),
        ];
        let inside = composed(&caller, &[], true);
        assert!(!inside.contains_key("SSH_AUTH_SOCK") && !inside.contains_key("DBUS_SESSION_BUS_ADDRESS"));
        assert!(!inside.contains_key("TIDEGATE_CONFIG"));
        assert_eq!(inside["TMPDIR"], "/tmp");
        let bare = composed(&caller, &[], false);
        assert_eq!(bare["SSH_AUTH_SOCK"], "/tmp/agent");
        assert!(!bare.contains_key("TIDEGATE_CONFIG"));
    }

    #[test]
    fn peers_are_named_without_their_ports_and_java_is_told_too() {
        let all =
            composed(&[("JAVA_TOOL_OPTIONS", "-Xmx1g")], &["mcp-gateway:8080", "[::2]:80", "peer"], true);
        assert_eq!(all["NO_PROXY"], "localhost,127.0.0.1,::1,mcp-gateway,[::2],peer");
        assert_eq!(
            all["JAVA_TOOL_OPTIONS"],
            "-Xmx1g -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=3128 -Dhttps.proxyHost=127.0.0.1 \
             -Dhttps.proxyPort=3128 -Dhttp.nonProxyHosts=localhost|127.*|[::1]|mcp-gateway|[::2]|peer"
        );
    }
}
