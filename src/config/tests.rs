//! The tables of this folder: what they take, and what they say about mistakes.

use std::time::Duration;

use proxy::Timeouts;

use super::*;

fn read(text: &str) -> Result<Config, Vec<String>> {
    let document = Document::new("f", text.as_bytes()).expect("text");
    let now = Timestamp::from_secs(1_800_000_000);
    parse(&[document], now, &LocalAddresses::default(), &Beside::default(), None)
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
}

/// The one mistake of a text, without its hint.
fn mistake(text: &str) -> String {
    let mistakes = read(text).map(|_| ()).expect_err(text);
    let [mistake] = mistakes.as_slice() else { panic!("one mistake is expected: {mistakes:#?}") };
    mistake.split(" — ").next().unwrap_or_default().to_owned()
}

#[test]
fn an_empty_config_listens_nowhere_and_has_every_default() {
    let config = read("").expect("an empty config");
    assert_eq!(config.listen, Listen::default());
    assert_eq!(config.audit, Audit { path: None, required: true, rotation: None });
    assert_eq!(config.dns.upstreams, [::dns::config::Upstream::System]);
    assert_eq!(config.timeouts, Timeouts::default());
    assert!(config.upstream.is_none() && config.policy.sandboxes.is_empty());
}

#[test]
fn the_tables_are_read() {
    let config = read(
        r#"
[listen]
proxy = ["127.0.0.1:3128", "unix:/run/tidegate/s/agent-7/proxy.sock"]
dns = ["127.0.0.1:5353"]
metrics = "127.0.0.1:9464"

[dns]
upstreams = ["udp://192.0.2.53", "https://dns.example/dns-query"]
bootstrap = ["192.0.2.54"]
answers = "real"
zones = { "corp.example" = ["tcp://192.0.2.55:5353"] }

[audit]
path = "/var/log/tidegate/audit.jsonl"
required = false
max_size = "256MiB"
keep = 4

[log]
level = "debug"

[upstream]
proxy = "http://proxy.example:3128/"
except = ["*.corp.example"]
resolve = "here"

[timeouts]
connect = "5s"
head = "2s"
idle = "30m"
drain = "0s"
approval = "1h"

[sandbox.a]
identify = [{ listener = "unix:/run/tidegate/s/agent-7/proxy.sock" }]
"#,
    )
    .expect("a good config");
    let names: Vec<_> = config.listen.all().map(|listener| listener.at.to_string()).collect();
    assert_eq!(names, ["127.0.0.1:3128", "unix:/run/tidegate/s/agent-7/proxy.sock", "127.0.0.1:5353"]);
    assert_eq!(config.listen.metrics, "127.0.0.1:9464".parse().ok());
    assert_eq!((config.dns.upstreams.len(), config.dns.zones.len()), (2, 1));
    let rotation = Some(Rotation { size: 256 << 20, keep: 4 });
    let path = Some("/var/log/tidegate/audit.jsonl".into());
    assert_eq!(config.audit, Audit { path, required: false, rotation });
    assert_eq!(config.log, tracing::Level::DEBUG);
    let upstream = config.upstream.expect("an upstream");
    assert_eq!((upstream.proxy.to_string().as_str(), upstream.except.len()), ("proxy.example:3128", 1));
    assert_eq!(
        config.timeouts,
        Timeouts {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(2),
            idle: Duration::from_secs(30 * 60),
            drain: Duration::ZERO,
            approval: Duration::from_secs(60 * 60),
        }
    );
}

#[test]
fn mistakes_say_where_and_what() {
    for (text, expected) in [
        ("[listen]\nproxi = []", "f:2:1: unknown key `proxi` (listen.proxi)"),
        (
            "[listen]\nproxy = [\"localhost:3128\"]",
            "f:2:10: `localhost:3128` is no address with a port (listen.proxy[0])",
        ),
        (
            "[listen]\nproxy = [\"127.0.0.1:0\"]",
            "f:2:10: `127.0.0.1:0` is no address with a port (listen.proxy[0])",
        ),
        (
            "[listen]\nproxy = [\"unix:proxy.sock\"]",
            "f:2:10: a unix socket needs an absolute path of at most 107 bytes (listen.proxy[0])",
        ),
        ("[listen]\ndns = [\"unix:/d\"]", "f:2:8: DNS has no unix sockets (listen.dns[0])"),
        (
            "[listen]\nproxy = [\"127.0.0.1:1\", \"127.0.0.1:1\"]",
            "f:2:25: `127.0.0.1:1` is listed twice (listen.proxy[1])",
        ),
        (
            "[listen]\nmetrics = \"0.0.0.0:9464\"",
            "f:2:11: the metrics listener would be open on every network of this host (listen.metrics)",
        ),
        ("[listen]\nadmin = \"127.0.0.1:1\"", "f:2:9: the admin socket is a unix socket (listen.admin)"),
        (
            "[listen]\nproxy = [\"unix:/r/p.sock\"]\nadmin = \"unix:/r/a.sock\"",
            "f:3:9: it stands in the folder of a sandbox's socket, which is mounted whole (listen.admin)",
        ),
        (
            "[listen]\nproxy = [\"https://127.0.0.1:1\"]",
            "f:2:9: an https listener needs a certificate (listen.proxy)",
        ),
        ("[listen]\ndns = [\"https://127.0.0.1:1\"]", "f:2:8: DNS is not served over TLS (listen.dns[0])"),
        (
            "[sandbox.s]\nidentify = [{ cn = \"a\" }]",
            "f:2:13: no listener asks its clients for certificates (sandbox.s.identify[0])",
        ),
        (
            "[listen]\nproxy = [\"127.0.0.1:1\"]\n[sandbox.s]\nidentify = [{ listener = \"127.0.0.1:1\", cn = \"a\" }]",
            "f:4:13: clients of this listener show no certificate (sandbox.s.identify[0])",
        ),
        (
            "[admin]\nreader_certificates = [\"*.example.com\"]",
            "f:2:24: `*.example.com`: the host name has a character that host names do not have (admin.reader_certificates[0])",
        ),
        ("[admin]\nreaders = [7]\noperators = [7]", "f:3:14: uid 7 has a role already (admin.operators[0])"),
        ("[dns]\nupstreams = []", "f:2:13: the list is empty, so no name could be resolved (dns.upstreams)"),
        ("[dns]\nupstreams = [\"192.0.2.1\"]", "f:2:14: `192.0.2.1` is no upstream (dns.upstreams[0])"),
        (
            "[dns]\nupstreams = [\"https://dns.example/q\"]",
            "f:2:14: an https upstream needs the addresses of its name: nobody could be asked for them (dns.upstreams[0])",
        ),
        ("[dns]\nanswers = \"bound\"", "f:2:11: bound addresses: not built yet (dns.answers)"),
        ("[audit]\npath = \"audit.jsonl\"", "f:2:8: an absolute path is expected (audit.path)"),
        ("[audit]\nkeep = 3", "f:2:8: `keep` counts the files that `max_size` puts aside (audit.keep)"),
        ("[audit]\nmax_size = \"1MiB\"", "f:2:12: the standard output is not put aside (audit.max_size)"),
        ("[log]\nlevel = \"loud\"", "f:2:9: unknown value `loud` (log.level)"),
        (
            "[upstream]\nproxy = \"socks5://p\"",
            "f:2:9: `socks5` is no scheme for an upstream proxy (upstream.proxy)",
        ),
        (
            "[upstream]\nproxy = \"http://u:p@p\"",
            "f:2:9: credentials stand in a file, not in the config (upstream.proxy)",
        ),
        ("[timeouts]\nidle = \"10\"", "f:2:8: `10` is no duration (timeouts.idle)"),
        ("[timeouts]\nhead = \"1h\"", "f:2:8: a duration from 100ms to 5m is expected (timeouts.head)"),
        (
            "[sandbox.a]\nidentify = [{ listener = \"127.0.0.1:9\" }]",
            "f:2:13: there is no listener `127.0.0.1:9` (sandbox.a.identify[0])",
        ),
        ("[lisen]", "f:1:2: unknown key `lisen` (lisen)"),
    ] {
        assert_eq!(mistake(text), expected, "{text}");
    }
}

#[test]
fn mistakes_of_every_table_come_at_once() {
    let text = "[listen]\nproxi = 1\n[timeouts]\nidle = 1\n[policy.p]\nallow = [\"http://a\", \"*.com\"]\n[log]\nlevel = 1\n";
    let mistakes = read(text).map(|_| ()).expect_err("five mistakes");
    assert_eq!(mistakes.len(), 5, "{mistakes:#?}");
}

#[test]
fn metrics_are_kept_off_networks_of_sandboxes() {
    let config = |proxy: &str, metrics: &str, source: &str| {
        read(&format!(
            "[listen]\nproxy = [\"{proxy}:3128\"]\nmetrics = \"{metrics}:9464\"\n\
             [sandbox.a]\nidentify = [{{ source = \"{source}\" }}]\n"
        ))
    };
    for (proxy, metrics, source) in [
        ("10.88.0.1", "10.88.0.1", "10.88.0.7/32"),
        ("0.0.0.0", "10.88.0.1", "10.88.0.7/32"),
        ("10.88.0.1", "10.99.0.1", "10.99.0.0/24"),
    ] {
        assert!(config(proxy, metrics, source).is_err(), "{proxy} {metrics} {source}");
    }
    for (proxy, metrics, source) in [
        ("127.0.0.1", "127.0.0.1", "10.88.0.7/32"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.2/32"),
        ("10.88.0.1", "10.99.0.1", "10.88.0.7/32"),
    ] {
        assert!(config(proxy, metrics, source).is_ok(), "{proxy} {metrics} {source}");
    }
}

#[test]
fn a_host_port_never_opens_a_listener_of_the_gateway() {
    let config = |proxy: &str| {
        read(&format!(
            "[listen]\nproxy = [\"{proxy}\"]\n\
             [internal.x]\nhost = \"model.test\"\nhost_port = \"127.0.0.1:3128\"\n"
        ))
    };
    for proxy in ["127.0.0.1:3128", "0.0.0.0:3128", "[::]:3128"] {
        let mistakes = config(proxy).map(|_| ()).expect_err(proxy);
        assert!(
            mistakes.iter().any(|mistake| mistake.contains("listener of the gateway itself")),
            "{mistakes:?}"
        );
    }
    assert!(config("127.0.0.1:3129").is_ok(), "{:?}", config("127.0.0.1:3129").err());
}

#[test]
fn what_only_a_restart_changes_is_named() {
    let held = read("").expect("a config");
    let other = read(
        "[listen]\nproxy = [\"127.0.0.1:1\"]\n[timeouts]\nhead = \"1s\"\n[log]\nlevel = \"warn\"\n[policy.p]\nallow = []\n",
    );
    assert_eq!(other.expect("a config").needs_restart(&held), ["listen", "timeouts"]);
}

#[test]
fn a_config_that_is_nowhere_says_where_it_was_looked_for() {
    let error = find(Some("/nonexistent/tidegate.toml".into())).expect_err("nothing is there");
    assert_eq!(
        error.to_string(),
        "there is no config at /nonexistent/tidegate.toml; write one, or name it with --config"
    );
}

#[test]
fn every_key_that_is_listed_is_read() {
    // The readers report what they do not know, so a key that is listed and not read shows as unknown.
    for (table, keys) in keys().filter(|(table, _)| !table.contains("NAME")) {
        for key in keys {
            let mistakes = read(&format!("[{table}]\n{key} = 1979-05-27\n")).map(|_| ()).expect_err(key);
            assert!(
                !mistakes.iter().any(|mistake| mistake.contains("unknown key")),
                "{table}.{key}: {mistakes:?}"
            );
        }
    }
}

/// Seen by reading: a reload that also changed [listen] was held against the new table, while the old listeners stayed.
#[test]
fn a_host_port_is_none_of_the_listeners_in_use() {
    let table = "[internal.x]\nhost = \"x.example\"\nhost_port = \"127.0.0.1:3128\"\n";
    let changed =
        read(&format!("[listen]\nproxy = [\"127.0.0.1:3129\"]\n{table}")).expect("its own are others");
    let in_use = read("[listen]\nproxy = [\"0.0.0.0:3128\"]\n").expect("a config").listen;
    assert_eq!(in_use.taken(&changed.host_ports), "127.0.0.1:3128".parse().ok());
    assert_eq!(changed.listen.taken(&changed.host_ports), None);
}

#[test]
fn the_admin_listener_is_out_of_reach_and_asks_for_certificates() {
    let with = |address: &str, more: &str, rest: &str| {
        let files = "cert_file = \"/none/c\"\nkey_file = \"/none/k\"";
        read(&format!("{rest}\n[listen.admin_https]\naddress = {address:?}\n{files}\n{more}"))
            .expect_err("no files")
            .join("\n")
    };
    let ca = "client_ca_file = \"/none/a\"";
    for (address, more, rest, told) in [
        ("0.0.0.0:9443", ca, "", "the admin listener would be open on every network of this host"),
        ("admin.example:9443", ca, "", "`admin.example:9443` is no address with a port"),
        ("10.9.0.1:9443", "", "", "without client_ca_file everybody could call"),
        ("10.9.0.1:9443", ca, "[listen]\nproxy = [\"10.9.0.1:9443\"]", "another listener has this address"),
        (
            "10.9.0.1:9443",
            ca,
            "[listen]\nproxy = [\"10.9.0.1:3128\"]\n[sandbox.s]\nidentify = [{ source = \"10.1.0.0/16\" }]",
            "sandboxes that are known by their source address would reach the admin listener",
        ),
        (
            "10.9.0.1:9443",
            ca,
            "[sandbox.s]\nidentify = [{ source = \"10.9.0.0/16\" }]",
            "sandboxes that are known by their source address would reach the admin listener",
        ),
        (
            "127.0.0.1:9443",
            ca,
            "[internal.a]\nhost = \"a.corp.example\"\nhost_port = \"127.0.0.1:9443\"",
            "127.0.0.1:9443 is a listener of the gateway itself",
        ),
    ] {
        let mistakes = with(address, more, rest);
        assert!(mistakes.contains(told), "{told}: {mistakes}");
    }
}
