mod edges;
mod identities;
mod limits;
mod registries;

use std::collections::BTreeSet;

use super::*;
use crate::attempt::QType;
use crate::policy::Mode;
use crate::rule::Ech;
use crate::sandbox::{Peer, SandboxId};
use crate::special::AddressClass;

const SANDBOX: &str = "\n[sandbox.s1]\npolicies = [\"case\"]\nidentify = [{ default = true }]\n";

fn now() -> Timestamp {
    // 2026-11-29T16:00:00Z
    Timestamp::from_secs(1_795_968_000)
}

fn document(file: &str, text: &str) -> Document {
    Document::new(file, text.as_bytes()).expect("text")
}

fn load_text(text: &str) -> Result<Policy, Vec<Mistake>> {
    let local = LocalAddresses::new(["10.200.0.1/32".parse().expect("net")]);
    load(&[document("t.toml", text)], now(), &local)
}

fn loaded(text: &str) -> Policy {
    load_text(text).unwrap_or_else(|mistakes| panic!("{text}\n{}", report(&mistakes)))
}

fn report(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|mistake| format!("{mistake}\n")).collect()
}

/// Every mistake of a text, one a line.
fn refused(text: &str) -> String {
    report(&load_text(text).map(|_| ()).expect_err(text))
}

/// The one mistake of a text.
fn one_mistake(text: &str) -> Mistake {
    let mut mistakes = load_text(text).map(|_| ()).expect_err(text);
    assert_eq!(mistakes.len(), 1, "{text}\n{}", report(&mistakes));
    mistakes.remove(0)
}

/// The rules of a sandbox, as `host:ports`.
fn rules(policy: &Policy, sandbox: &str) -> Vec<String> {
    let sandbox = policy.sandbox(&SandboxId::parse(sandbox).expect("name")).expect("sandbox");
    let rules = sandbox.sets.iter().flat_map(|set| set.rules());
    rules.map(|rule| format!("{:?} {}:{}", rule.action(), rule.host(), rule.ports())).collect()
}

#[test]
fn the_tables_of_a_whole_config_are_read() {
    let policy = loaded(
        r#"
        [addresses]
        own              = ["198.51.100.7"]
        nat64            = ["2001:db8:64::/96"]
        treat_as_private = ["25.0.0.0/8"]
        treat_as_public  = ["203.0.113.0/24"]

        [policy.base]
        allow = ["api.github.com", "git.example.com:22", "10.20.0.0/24:5432"]
        deny  = ["gist.github.com"]
        ask   = []

        [[policy.issues.rule]]
        id      = "read-issues"
        host    = "issues.example.com"
        ports   = [80, "8080-8081"]
        methods = ["GET", "HEAD"]
        paths   = ["/repos/*/*/issues/**"]
        until   = 2027-01-31T00:00:00Z
        ech     = "deny"
        qtypes  = ["A", "TXT"]

        [[policy.issues.rule]]
        host   = "*"
        ports  = "*"
        broad  = true
        raw    = true

        [[policy.issues.rule]]
        action = "deny"
        host   = "*.zip"

        [internal.billing]
        host      = "billing.corp.example"
        addresses = ["10.0.3.7/32", "10.0.3.8"]
        ports     = [8080]
        methods   = ["GET"]

        [internal.model]
        host      = "model.internal"
        host_port = "127.0.0.1:11434"

        [sandbox.agent-7]
        policies = ["base", "issues"]
        internal = ["billing", "model"]
        identify = [{ source = "10.88.0.7/32" }, { listener = "127.0.0.1:3129" }]
        labels   = { workspace = "w-12", tool = "code-exec" }
        local_peers = ["mcp-gateway:8080"]
        mode     = "learn"
        until    = 2026-11-30T16:00:00Z
        hints    = true
        "#,
    );
    let expected = [
        "Allow api.github.com:443",
        "Allow git.example.com:22",
        "Allow 10.20.0.0/24:5432",
        "Deny gist.github.com:*",
        "Allow issues.example.com:80,8080-8081",
        "Allow *:*",
        "Deny *.zip:*",
        "Allow billing.corp.example:8080",
        "Allow model.internal:11434",
    ];
    assert_eq!(rules(&policy, "agent-7"), expected);
    let id = SandboxId::parse("agent-7").expect("name");
    let sandbox = policy.sandbox(&id).expect("sandbox");
    assert!(sandbox.hints);
    assert_eq!(sandbox.mode, Mode::Learn { until: Timestamp::from_secs(1_796_054_400) });
    assert_eq!(sandbox.labels.get("workspace").map(|value| &**value), Some("w-12"));
    let read_issues = sandbox.sets.get(1).and_then(|set| set.rules().next()).expect("rule");
    let terms = read_issues.terms().expect("terms");
    assert_eq!(terms.until, Some(Timestamp::from_secs(1_801_353_600)));
    assert_eq!((terms.ech, terms.qtypes.as_deref()), (Ech::Deny, Some(&[QType::A, QType::TXT][..])));
    assert!(read_issues.allows_method("HEAD") && !read_issues.allows_method("POST"));
    assert!(read_issues.allows_path("/repos/a/b/issues/1") && !read_issues.allows_path("/x"));
    assert_eq!((read_issues.line(), read_issues.column()), (13, 9));
    let peer = |listener: &str, address: &str| Peer::new(listener.into(), address.parse().ok());
    assert_eq!(policy.identities.identify(&peer("x", "10.88.0.7:1")), Ok(&id));
    assert_eq!(policy.identities.identify(&peer("127.0.0.1:3129", "10.1.1.1:1")), Ok(&id));
    let class = |address: &str| {
        policy.addresses.classify(address.parse().expect("address"), &LocalAddresses::default())
    };
    assert_eq!(class("198.51.100.7"), AddressClass::Gateway);
    assert_eq!(class("2001:db8:64::10.0.0.1"), AddressClass::NotPublic);
    assert_eq!(class("25.1.1.1"), AddressClass::NotPublic);
    assert_eq!(class("203.0.113.10"), AddressClass::Public);
}

#[test]
fn an_empty_config_allows_nothing() {
    assert!(loaded("").sandboxes.is_empty());
    for text in ["[policy.case]", "[policy.case]\nallow = []"] {
        assert!(rules(&loaded(&format!("{text}{SANDBOX}")), "s1").is_empty());
    }
}

#[test]
fn bom_and_crlf_are_tolerated() {
    let text =
        format!("\u{feff}[policy.case]\nallow = [\"api.example.com:443\"]\n{SANDBOX}").replace('\n', "\r\n");
    assert_eq!(rules(&loaded(&text), "s1"), ["Allow api.example.com:443"]);
}

#[test]
fn five_mistakes_are_one_report_with_five_places() {
    let text = r#"[policy.case]
alow = ["api.example.com"]
allow = [
    "https://api.example.com/",
    "10.0.0.1/8:443",
    "*.github.io",
    "web.example.com:80",
]

[[policy.case.rule]]
host = "web.example.com"
ports = [80]
methods = ["GET"]

[sandbox.s1]
policies = ["case"]
identify = [{ default = true }]
"#;
    let mistakes = load_text(text).map(|_| ()).expect_err("mistakes");
    let places: Vec<_> =
        mistakes.iter().map(|mistake| (mistake.line, mistake.column, &*mistake.at)).collect();
    let expected = [
        (2, 1, "policy.case.alow"),
        (4, 5, "policy.case.allow[0]"),
        (5, 5, "policy.case.allow[1]"),
        (6, 5, "policy.case.allow[2]"),
        (7, 5, "policy.case.allow[3]"),
    ];
    assert_eq!(places, expected, "{}", report(&mistakes));
    let lines = report(&mistakes);
    for part in [
        "t.toml:2:1: unknown key `alow` (policy.case.alow) — did you mean `allow`?",
        "write `api.example.com`",
        "`10.0.0.0/8` for the range",
        "public suffix",
        "broad = true",
        "rule_shadowed",
        "policy.case.rule[0] (t.toml:10)",
    ] {
        assert!(lines.contains(part), "{part} in\n{lines}");
    }
}

/// Each says what is wrong, where, and what to write instead.
#[test]
fn mistakes_are_told_in_full() {
    for (text, told) in [
        (
            "[policy.a]\nallow = [\"https://api.example.com:8443/v1\"]",
            "t.toml:2:10: `https://api.example.com:8443/v1`: a URL, where a host is expected (policy.a.allow[0]) — write `api.example.com:8443`; paths go into `paths` of a rule",
        ),
        (
            "[policy.a]\nallow = [\"*.com\"]",
            "t.toml:2:10: `*.com` covers every name under a public suffix, which anyone can register (policy.a.allow[0]) — if that is meant, write a `[[policy.a.rule]]` with host = \"*.com\" and broad = true",
        ),
        (
            "[[policy.a.rule]]\nhost = \"10.0.0.0/8\"",
            "t.toml:2:8: `10.0.0.0/8` is a range wider than /16 (IPv4) or /32 (IPv6) (policy.a.rule[0].host) — if that is meant, add broad = true",
        ),
        (
            "[policy.a]\nallow = [\"a.example.com,b.example.com:443\"]",
            "t.toml:2:10: `a.example.com,b.example.com:443`: several hosts in one entry (policy.a.allow[0]) — write each as an entry of its own",
        ),
        (
            "[policy.a]\nallow = [\"a.example.com:443:80\"]",
            "t.toml:2:10: `a.example.com:443:80`: more than one colon (policy.a.allow[0]) — write `host:443,8443`, or IPv6 in brackets: `[2001:db8::1]:443`",
        ),
        (
            "[policy.a]\ndeny = { \"a.example.com\" = true }",
            "t.toml:2:8: a list is expected, this is a table (policy.a.deny) — write it in square brackets: [ ... ]",
        ),
        (
            "[[policy.a.rule]]\nhost = \"a.example.com\"\nuntil = \"2027-01-31\"",
            "t.toml:3:9: a date and time is expected, this is a string (policy.a.rule[0].until) — write 2027-01-31T00:00:00Z, without quotes",
        ),
        (
            "[[policy.a.rule]]\nhost = \"a.example.com\"\naction = \"deny\"\nmethods = [\"GET\"]",
            "t.toml:4:11: a deny rule has no `methods`: it closes the whole host and port (policy.a.rule[0].methods) — remove it",
        ),
        (
            "[internal.llm]\nhost = \"localhost\"\nhost_port = \"127.0.0.1:11434\"",
            "t.toml:2:8: `localhost`: the name never means a host on the network (internal.llm.host) — choose another name for the API, as in host = \"llm.internal\"",
        ),
        (
            "[sandbox.s]\nidentify = [{ source = \"10.88.0.7/24\" }]",
            "t.toml:2:24: `10.88.0.7/24`: the range has host bits set (sandbox.s.identify[0].source) — write \"10.88.0.7\" for the address, \"10.88.0.0/24\" for the range",
        ),
        (
            "[sandbox.s]\nmode = \"learn\"",
            "t.toml:1:10: `until` is missing (sandbox.s) — write until = 2026-11-30T16:00:00.000Z, or a time before it: 24 hours at most",
        ),
        (
            "[sandbox.s]\nlocal_peers = [\"http://mcp:8080\"]",
            "t.toml:2:16: `http://mcp:8080`: a URL, where a host is expected (sandbox.s.local_peers[0]) — write `mcp:8080`; paths go into `paths` of a rule",
        ),
        (
            "[policy]\nallow = [\"a.example.com\"]",
            "t.toml:2:1: [policy] holds named tables, and `allow` is none (policy.allow) — write [policy.NAME] above it",
        ),
    ] {
        assert_eq!(one_mistake(text).to_string(), told);
    }
}

/// What the corpus calls an error at load, and relatives.
#[test]
fn entries_that_do_not_say_what_they_mean_are_refused() {
    for entry in [
        "",
        "   ",
        "*:443",
        "**:443",
        "*.:443",
        "*.*.*:443",
        ".:443",
        "*",
        "*.github.io:443",
        "*.com",
        "*.*.example.com:443",
        "api.example.com|attacker.test:443",
        "^api.example.com$:443",
        "{api,www}.example.com:443",
        "https://api.example.com/",
        "api.example.com:443/v1",
        "user@api.example.com:443",
        "api.example.com:443?x",
        "api.example.com:443, www.example.com:443",
        "api.example.com:443\\nhttp_access allow all",
        "api.example.com:443 # prod",
        "api.example.com\\u0000:443",
        "api.example.com:9000-8000",
        "api.example.com:8000-",
        "api.example.com:0443",
        "api.example.com:https",
        "10.0.0.0/33:443",
        "10.0.0.1/8:443",
        "010.0.0.1:80",
        "10.1:80",
        "10.0.0.0/255.0.255.0:443",
        "0.0.0.0/0:443",
        "[::]/0:443",
        "[::/0]:443",
        "[::ffff:10.0.0.0]/104:80",
        "169.254.169.254:80",
        "metadata.google.internal:80",
        "*.metadata.google.internal",
        ".instance-data.ec2.internal",
        "a.*.metadata.goog",
        "a.*.localhost",
        "10.200.0.1:9090",
        "xn--api-.example.com:443",
        "\u{430}pi.example.com:443",
        "${API_HOST}:443",
        "10.0.0.0/16:443",
        "127.0.0.1:8080",
        "[::1]:8080",
        "localhost:8080",
        "*.localhost",
        "abc.onion",
        "224.0.0.1:443",
        "168.63.129.16",
        "[fd00:ec2::254]:80",
        "[fe80::1]:80",
        "0.0.0.0:80",
    ] {
        let mistake = one_mistake(&format!("[policy.case]\nallow = [\"{entry}\"]{SANDBOX}"));
        assert_eq!((mistake.line, &*mistake.at), (2, "policy.case.allow[0]"), "{entry}: {mistake}");
        assert!(!mistake.hint.is_empty(), "{entry}: {mistake}");
        assert!(!mistake.to_string().contains(|c: char| c.is_control()), "{entry}: {mistake}");
    }
}

#[test]
fn a_deny_list_may_be_wide() {
    let policy = loaded(&format!(
        "[policy.case]\ndeny = [\"*.zip\", \"10.0.0.0/8:*\", \"169.254.169.254\", \"secret.example.com:443\"]{SANDBOX}"
    ));
    let expected =
        ["Deny *.zip:*", "Deny 10.0.0.0/8:*", "Deny 169.254.169.254:*", "Deny secret.example.com:443"];
    assert_eq!(rules(&policy, "s1"), expected);
    assert!(refused(&format!("[policy.case]\ndeny = [\"*\"]{SANDBOX}")).contains("`*` covers every name"));
}

#[test]
fn unknown_keys_and_tables_are_mistakes_wherever_they_stand() {
    for (text, at, hint) in [
        ("[policy.a]\nalow = []", "policy.a.alow", "did you mean `allow`?"),
        ("[policy.a]\ndenny = []", "policy.a.denny", "did you mean `deny`?"),
        ("[polcy.a]\nallow = []", "polcy", "did you mean `policy`?"),
        (
            "allow = [\"api.example.com\"]",
            "allow",
            "known here: addresses, registry, policy, internal, sandbox",
        ),
        (
            "[[policy.a.rule]]\nhost = \"a.example.com\"\nport = 80",
            "policy.a.rule[0].port",
            "did you mean `ports`?",
        ),
        ("[sandbox.s]\npolicy = []", "sandbox.s.policy", "did you mean `policies`?"),
        (
            "[sandbox.s]\nidentify = [{ sourc = \"10.0.0.1\", default = true }]",
            "sandbox.s.identify[0].sourc",
            "did you mean `source`?",
        ),
        ("[addresses]\nnat46 = []", "addresses.nat46", "did you mean `nat64`?"),
        (
            "[internal.a]\nhost = \"a.example.com\"\naddress = []\naddresses = [\"10.0.0.1\"]",
            "internal.a.address",
            "did you mean `addresses`?",
        ),
        ("[policy.\"a b\"]\nx = 1\n", "policy.\"a b\".x", "known here"),
    ] {
        let lines = load_text(text).map(|_| ()).expect_err(text);
        let found = lines.iter().find(|mistake| mistake.what.starts_with("unknown key"));
        let found = found.unwrap_or_else(|| panic!("{text}\n{}", report(&lines)));
        assert_eq!(found.at, at);
        assert!(found.hint.contains(hint), "{found}");
    }
}

#[test]
fn wrong_types_are_named() {
    for (text, what) in [
        ("[policy.a]\nallow = { api.example.com = 443 }", "a list is expected, this is a table"),
        ("[policy.a]\nallow = \"api.example.com\"", "a list is expected, this is a string"),
        ("[policy.a]\nallow = [443]", "a string is expected, this is a whole number"),
        ("policy = 1", "a table is expected, this is a whole number"),
        ("[policy]\nallow = [\"a.example.com\"]", "[policy] holds named tables, and `allow` is none"),
        ("[[policy.a]]", "the table is written as a list of tables"),
        ("[sandbox.s]\nhints = \"yes\"", "true or false is expected, this is a string"),
        ("[sandbox.s]\nidentify = { default = true }", "a list is expected, this is a table"),
        ("[sandbox.s]\nmode = \"Learn\"", "unknown value `Learn`"),
        ("[sandbox.s]\nlabels = { a = 1 }", "a string is expected, this is a whole number"),
        ("[[policy.a.rule]]\nhost = \"a.example.com\"\nports = [1.5]", "ports are numbers"),
        (
            "[[policy.a.rule]]\nhost = \"a.example.com\"\nports = [0]",
            "a whole number from 1 to 65535 is expected",
        ),
        (
            "[[policy.a.rule]]\nhost = \"a.example.com\"\nports = 65536",
            "a whole number from 1 to 65535 is expected",
        ),
        ("[[policy.a.rule]]\nhost = \"a.example.com\"\nuntil = \"2027-01-31\"", "a date and time"),
        ("[[policy.a.rule]]\nhost = \"a.example.com\"\nuntil = 2027-01-31", "a point in time needs"),
        (
            "[[policy.a.rule]]\nhost = \"a.example.com\"\nraw = 1",
            "true or false is expected, this is a whole number",
        ),
        ("[[policy.a.rule]]\nhost = \"a.example.com\"\nech = \"strip\"", "unknown value `strip`"),
    ] {
        let mistake = one_mistake(text);
        assert!(mistake.what.contains(what), "{text}: {mistake}");
    }
}

#[test]
fn rules_that_could_not_work_are_refused() {
    let rule = |rest: &str| format!("[[policy.a.rule]]\n{rest}");
    for (rest, what) in [
        ("ports = [80]", "`host` is missing"),
        ("host = \"a.example.com\"\nports = []", "`ports` is empty"),
        ("host = \"a.example.com\"\nports = [80]\nmethods = []", "`methods` is empty"),
        ("host = \"a.example.com\"\nports = [80]\npaths = []", "`paths` is empty"),
        ("host = \"a.example.com\"\nqtypes = []", "`qtypes` is empty"),
        ("host = \"a.example.com\"\nports = [80]\nmethods = [\"get\"]", "`get` is no method"),
        ("host = \"a.example.com\"\nports = [80]\nmethods = [\"G ET\"]", "`G ET` is no method"),
        ("host = \"a.example.com\"\nports = [80]\npaths = [\"v1\"]", "starts with `/`"),
        ("host = \"a.example.com\"\nports = [80]\npaths = [\"/a*\"]", "whole segment"),
        ("host = \"a.example.com\"\nqtypes = [\"ANY\"]", "no type that a rule can open"),
        ("host = \"a.example.com\"\nqtypes = [\"a\"]", "no type that a rule can open"),
        ("host = \"a.example.com:443\"", "a host alone is expected"),
        ("host = \"*\"", "covers every name"),
        ("host = \"*.co.uk\"", "public suffix"),
        ("host = \"10.0.0.0/8\"", "wider than /16"),
        ("host = \"169.254.169.254\"\nports = [80]", "metadata endpoint"),
        ("host = \"169.254.0.0/16\"\nbroad = true", "metadata endpoint"),
        ("host = \"a.example.com\"\nid = \"a b\"", "is no name"),
        (
            "host = \"a.example.com\"\nports = [80]\nraw = true\nmethods = [\"GET\"]",
            "a raw tunnel is not read",
        ),
        (
            "host = \"a.example.com\"\naction = \"deny\"\nports = [80]\nmethods = [\"GET\"]",
            "a deny rule has no `methods`",
        ),
        ("host = \"a.example.com\"\naction = \"block\"", "unknown value `block`"),
        ("host = \"a.example.com\"\nports = [\"https\"]", "service names are not read"),
    ] {
        let mistake = one_mistake(&rule(rest));
        assert!(mistake.what.contains(what), "{rest}: {mistake}");
        assert!(mistake.at.starts_with("policy.a.rule[0]"), "{rest}: {mistake}");
    }
    let twice = "[[policy.a.rule]]\nid = \"x\"\nhost = \"a.example.com\"\n[[policy.a.rule]]\nid = \"x\"\nhost = \"b.example.com\"";
    assert!(one_mistake(twice).what.contains("two rules have the id `x`, in lines 1 and 4"));
}

#[test]
fn what_is_not_built_yet_says_so() {
    for text in [
        "[registry.x]\nhosts = [\"a.example.com\"]\ninspect = true",
        "[registry.x]\nhosts = [\"a.example.com:80\", \"b.example.com\"]\nmethods = [\"GET\"]",
        "[[policy.a.rule]]\nhost = \"a.example.com\"\ninspect = true",
        "[[policy.a.rule]]\nhost = \"a.example.com\"\ninject = [{ header = \"A\", value_file = \"/x\" }]",
        "[[policy.a.rule]]\nhost = \"a.example.com\"\nmethods = [\"GET\"]",
        "[[policy.a.rule]]\nhost = \"a.example.com\"\nports = \"*\"\npaths = [\"/**\"]",
        "[internal.a]\nhost = \"a.corp.example\"\naddresses = [\"10.0.0.1\"]\nmethods = [\"GET\"]",
        "[internal.a]\nhost = \"a.corp.example\"\naddresses = [\"10.0.0.1\"]\nca_file = \"/x\"",
        "[sandbox.s]\nidentify = [{ netns = \"x\" }]",
    ] {
        let mistake = one_mistake(text);
        assert!(mistake.what.contains("not built yet"), "{text}: {mistake}");
    }
    // What asks for nothing may stay.
    loaded(
        "[policy.a]\nask = []\nlists = []\nregistries = []\n[[policy.a.rule]]\nhost = \"a.example.com\"\ninspect = false",
    );
}

#[test]
fn rules_that_ask_are_for_ordinary_names_and_public_addresses() {
    loaded(
        "[policy.a]\nask = [\"a.example.com\", \"*\", \"*.b.example.com:80\", \"8.8.8.0/24:53\"]\n\
         [[policy.a.rule]]\nhost = \"*\"\nports = [80]\naction = \"ask\"\nqtypes = [\"A\"]\n\
         [[policy.a.rule]]\nhost = \"*.com\"\nbroad = true\naction = \"ask\"",
    );
    for (entry, what) in [
        ("printer.local", "reserved for special use"),
        ("*.docker.internal", "reserved for special use"),
        ("intranet", "reserved for special use"),
        ("localhost", "never means a host"),
        ("metadata.google.internal", "metadata endpoint"),
        ("10.0.0.1", "not public"),
        ("192.168.0.0/24", "not public"),
        ("[fd00::1]:443", "not public"),
        ("169.254.169.254", "metadata endpoint"),
        ("*.com", "public suffix"),
        ("8.0.0.0/8", "range"),
    ] {
        for text in [
            format!("[policy.a]\nask = [{entry:?}]"),
            format!("[[policy.a.rule]]\nhost = {:?}\naction = \"ask\"", entry.trim_end_matches(":443")),
        ] {
            let mistake = one_mistake(&text);
            assert!(mistake.what.contains(what), "{text}: {mistake}");
        }
    }
    assert!(one_mistake("[policy.a]\nallow = [\"*\"]").hint.contains("broad = true"));
}

#[test]
fn a_plain_entry_beside_a_rule_that_asks_for_methods_is_shadowed() {
    let text = |list: &str| {
        format!(
            "[policy.p]\n{list} = [\"web.example.com:80\"]\n[[policy.p.rule]]\naction = \"ask\"\nhost = \"web.example.com\"\n\
             ports = [80]\nmethods = [\"POST\"]\n[sandbox.s]\npolicies = [\"p\"]\n"
        )
    };
    assert!(one_mistake(&text("allow")).what.contains("rule_shadowed"));
    loaded(&text("ask"));
}

#[test]
fn a_plain_entry_beside_a_narrowing_rule_is_shadowed() {
    let text = |plain: &str, narrow: &str| {
        format!(
            "[policy.wide]\nallow = [\"{plain}\"]\n[[policy.narrow.rule]]\nid = \"n\"\nhost = \"{narrow}\"\nports = [80]\nmethods = [\"GET\"]\n\
             [sandbox.s1]\npolicies = [\"wide\", \"narrow\"]\n[sandbox.s2]\npolicies = [\"narrow\", \"wide\"]\n"
        )
    };
    for (plain, narrow) in [
        ("web.example.com:80", "web.example.com"),
        ("web.example.com:*", "web.example.com"),
        ("web.example.com:80", "*.example.com"),
        ("*.web.example.com:80", "*.example.com"),
    ] {
        let mistake = one_mistake(&text(plain, narrow));
        assert_eq!((mistake.line, &*mistake.at), (2, "policy.wide.allow[0]"), "{mistake}");
        assert!(mistake.what.starts_with("rule_shadowed"), "{mistake}");
        assert!(mistake.what.contains("policy.narrow.n (t.toml:3)"), "{mistake}");
    }
    for (plain, narrow) in [
        ("web.example.com:443", "web.example.com"),
        ("*.example.com:80", "web.example.com"),
        ("api.example.com:80", "web.example.com"),
    ] {
        loaded(&text(plain, narrow));
    }
    // In sandboxes of their own they do not meet.
    let apart = text("web.example.com:80", "web.example.com").replace("[\"wide\", \"narrow\"]", "[\"wide\"]");
    loaded(&apart.replace("[\"narrow\", \"wide\"]", "[\"narrow\"]"));
}

#[test]
fn internal_tables_open_one_name_narrowly() {
    let table = |rest: &str| format!("[internal.a]\n{rest}");
    for (rest, what) in [
        ("addresses = [\"10.0.0.1\"]", "`host` is missing"),
        ("host = \"a.corp.example\"", "`addresses` is missing"),
        ("host = \"a.corp.example\"\naddresses = []", "`addresses` is empty"),
        ("host = \"*.corp.example\"\naddresses = [\"10.0.0.1\"]", "opens one name"),
        ("host = \"10.0.0.1\"\naddresses = [\"10.0.0.1\"]", "an address needs no name"),
        ("host = \"a.corp.example\"\naddresses = [\"10.0.0.0/8\"]", "a network, not an API"),
        ("host = \"a.corp.example\"\naddresses = [\"10.0.0.1/24\"]", "host bits"),
        ("host = \"a.corp.example\"\naddresses = [\"10.0.0\"]", "no address and no range"),
        ("host = \"a.corp.example\"\naddresses = [\"169.254.169.254\"]", "metadata endpoint"),
        ("host = \"a.corp.example\"\naddresses = [\"127.0.0.1\"]", "gateway's own host"),
        ("host = \"a.corp.example\"\naddresses = [\"10.200.0.1\"]", "gateway's own host"),
        ("host = \"metadata.google.internal\"\naddresses = [\"10.0.0.1\"]", "metadata endpoint"),
        ("host = \"localhost\"\nhost_port = \"127.0.0.1:1\"", "never means a host"),
        ("host = \"a.corp.example\"\nhost_port = \"10.0.0.1:80\"", "no loopback address"),
        ("host = \"a.corp.example\"\nhost_port = \"127.0.0.1:0\"", "no loopback address"),
        ("host = \"a.corp.example\"\nhost_port = \"127.0.0.1\"", "no loopback address"),
        (
            "host = \"a.corp.example\"\nhost_port = \"127.0.0.1:1\"\naddresses = [\"10.0.0.1\"]",
            "cannot stand together",
        ),
    ] {
        let mistake = one_mistake(&table(rest));
        assert!(mistake.what.contains(what), "{rest}: {mistake}");
    }
}

#[test]
fn sandboxes_name_what_exists() {
    let text = "[policy.base]\nallow = []\n[internal.billing]\nhost = \"a.corp.example\"\naddresses = [\"10.0.0.1\"]\n\
                [sandbox.s]\npolicies = [\"bse\", \"base\", \"base\"]\ninternal = [\"biling\"]\n[sandbox.\"a b\"]\n";
    let lines = refused(text);
    for part in [
        "there is no [policy.bse] (sandbox.s.policies[0]) — did you mean `base`?",
        "`base` is listed twice (sandbox.s.policies[2])",
        "there is no [internal.biling] (sandbox.s.internal[0]) — did you mean `billing`?",
        "`a b` is no name for a sandbox",
    ] {
        assert!(lines.contains(part), "{part} in\n{lines}");
    }
}

#[test]
fn no_two_sandboxes_are_known_by_the_same_thing() {
    let two = |a: &str, b: &str| format!("[sandbox.a]\nidentify = [{a}]\n[sandbox.b]\nidentify = [{b}]\n");
    for (a, b) in [
        ("{ source = \"10.0.0.0/24\" }", "{ source = \"10.0.0.7/32\" }"),
        ("{ source = \"10.0.0.7\" }", "{ source = \"10.0.0.0/24\" }"),
        ("{ source = \"10.0.0.7\" }", "{ source = \"::ffff:10.0.0.7\" }"),
        ("{ listener = \"127.0.0.1:1\" }", "{ listener = \"127.0.0.1:1\" }"),
        ("{ default = true }", "{ default = true }"),
    ] {
        let mistake = one_mistake(&two(a, b));
        assert!(mistake.what.contains("known as sandbox `a` (t.toml:2)"), "{mistake}");
        assert_eq!(mistake.line, 4);
    }
    let mistake = one_mistake(&two("{ default = true }", "{ source = \"10.0.0.7\" }"));
    assert!(mistake.what.contains("`default` beside sandbox `b`"), "{mistake}");
    for (a, b) in [
        ("{ default = true }", "{ listener = \"127.0.0.1:1\" }"),
        ("{ source = \"10.0.0.7\" }", "{ source = \"10.0.0.8\" }"),
        ("{ source = \"10.0.0.7\" }, { source = \"10.0.0.7/32\" }", ""),
    ] {
        loaded(&two(a, b));
    }
    for (entry, what) in [
        ("{}", "the entry is empty"),
        ("{ default = false }", "knows nobody"),
        ("{ source = \"0.0.0.0/0\" }", "every client"),
        ("{ source = \"10.0.0.1/8\" }", "host bits"),
        ("{ source = \"host\" }", "no address and no range"),
    ] {
        let mistake = one_mistake(&two(entry, ""));
        assert!(mistake.what.contains(what), "{entry}: {mistake}");
    }
}

#[test]
fn learning_ends_within_a_day() {
    let learn = |until: &str| format!("[sandbox.s]\nmode = \"learn\"\n{until}");
    assert!(one_mistake(&learn("")).what.contains("`until` is missing"));
    let late = one_mistake(&learn("until = 2026-11-30T16:00:01Z"));
    assert!(
        late.what.contains("at most 24 hours") && late.hint.contains("2026-11-30T16:00:00.000Z"),
        "{late}"
    );
    // A reload after the end must not fail: the sandbox is held to its policies by then.
    loaded(&learn("until = 2026-11-29T00:00:00Z"));
    assert!(one_mistake("[sandbox.s]\nuntil = 2026-11-30T00:00:00Z").what.contains("does not learn"));
}

#[test]
fn address_lists_are_checked_one_by_one() {
    let lines = refused(
        "[addresses]\nown = [\"10.0.0.1/8\", \"x\"]\nnat64 = [\"2001:db8::/33\", \"10.0.0.0/8\"]\n\
         treat_as_public = [\"10.0.0.0/8\", \"203.0.113.0/24\", \"fd00::/16\"]\n",
    );
    for part in [
        "host bits set (addresses.own[0])",
        "`x` is no address and no range (addresses.own[1])",
        "RFC 6052) (addresses.nat64[0])",
        "a NAT64 prefix is IPv6 (addresses.nat64[1])",
        "10.0.0.0/8 overlaps a range that is never public (addresses.treat_as_public[0])",
        "fd00::/16 overlaps a range that is never public (addresses.treat_as_public[2])",
    ] {
        assert!(lines.contains(part), "{part} in\n{lines}");
    }
    assert_eq!(lines.lines().count(), 6, "{lines}");
}

#[test]
fn files_of_a_folder_share_groups_but_no_table() {
    let one = document(
        "a.toml",
        "[policy.base]\nallow = [\"a.example.com\"]\n[addresses]\nown = [\"192.0.2.1\"]\n",
    );
    let two = document(
        "b.toml",
        "[policy.more]\nallow = [\"b.example.com\"]\n[sandbox.s]\npolicies = [\"base\", \"more\"]\n",
    );
    let local = LocalAddresses::default();
    let policy = load(&[one, two], now(), &local).unwrap_or_else(|mistakes| panic!("{}", report(&mistakes)));
    assert_eq!(rules(&policy, "s"), ["Allow a.example.com:443", "Allow b.example.com:443"]);

    let one = document("a.toml", "[policy.base]\nallow = []\n[addresses]\nown = []\n");
    let two = document("b.toml", "\n[policy.base]\nallow = [\"\"]\n[addresses]\n");
    let mistakes = load(&[one, two], now(), &local).map(|_| ()).expect_err("twice");
    let lines = report(&mistakes);
    assert!(lines.contains("b.toml:2:9: the table already stands in a.toml:1 (policy.base)"), "{lines}");
    assert!(lines.contains("b.toml:4:1: the table already stands in a.toml:3 (addresses)"), "{lines}");
    assert_eq!(mistakes.len(), 2, "{lines}");
}

#[test]
fn broken_toml_is_reported_without_its_echoes() {
    let mistake = one_mistake(&format!("[policy.case]\nallow = [\"api.example.com:443\"{SANDBOX}"));
    assert!(mistake.what.contains("not valid TOML"), "{mistake}");
    // A value that does not parse hides nothing else.
    let lines = refused(
        "[policy.a]\nallow = [\"\"]\ndeny = oops\n[sandbox.s]\nhints = maybe\npolices = []\npolicies = [\"a\"]\n",
    );
    for part in [
        "t.toml:2:10: ",
        "t.toml:3:8: not valid TOML",
        "t.toml:5:9: not valid TOML",
        "did you mean `policies`?",
    ] {
        assert!(lines.contains(part), "{part} in\n{lines}");
    }
    assert_eq!(lines.lines().count(), 4, "{lines}");
    assert!(refused("[policy.a]\nallow = []\nallow = [\"x.example.com\"]\n").contains("duplicate key"));
    assert!(refused("[policy.a]\n[policy.a]\n").contains("duplicate key"));
}

/// The list of keys and the readers say the same, in both directions.
#[test]
fn the_list_of_keys_is_what_the_readers_know() {
    for (table, keys) in KEYS {
        let header = table.replace("NAME", "a");
        let text = match *table {
            "policy.NAME.rule" => "[[policy.a.rule]]\nzzzzzzzz = 1".to_owned(),
            "policy.NAME.rule.limits" => "[[policy.a.rule]]\nlimits = { zzzzzzzz = 1 }".to_owned(),
            "sandbox.NAME.identify" => "[sandbox.a]\nidentify = [{ zzzzzzzz = 1 }]".to_owned(),
            _ => format!("[{header}]\nzzzzzzzz = 1"),
        };
        let mistakes = load_text(&text).map(|_| ()).expect_err("unknown key");
        let unknown = mistakes.iter().find(|mistake| mistake.what.contains("zzzzzzzz")).expect("unknown key");
        let known = unknown.hint.strip_prefix("known here: ").expect("the keys");
        assert_eq!(known.split(", ").collect::<BTreeSet<_>>(), keys.iter().copied().collect(), "{table}");
    }
}

#[test]
fn ten_thousand_entries_load() {
    let entries: String = (0..10_000).map(|n| format!("\"h{n}.example.com:443\",\n")).collect();
    let policy = loaded(&format!("[policy.case]\nallow = [\n{entries}]\n{SANDBOX}"));
    assert_eq!(rules(&policy, "s1").len(), 10_000);
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_without_panic(text in "(\\[|\\]|policy|sandbox|\\.a|\n|=|\"|allow|rule|host|1|,|\\{|\\}| ){0,40}") {
        let _ = load_text(&text);
    }
}

#[test]
fn owners_are_users() {
    let read = loaded("[sandbox.s]\nowners = [0, 1000]");
    let [sandbox] = &read.sandboxes.values().collect::<Vec<_>>()[..] else { panic!("one") };
    assert_eq!(sandbox.owners, [0, 1000]);
    for text in ["owners = [1000, 1000]", "owners = [4294967295]", "owners = [\"root\"]", "owners = 0"] {
        one_mistake(&format!("[sandbox.s]\n{text}"));
    }
}
