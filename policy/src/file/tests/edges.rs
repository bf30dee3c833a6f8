//! Where a value just passes and where it just does not, and the words of every hint.

use super::*;

/// The hint of the one mistake, or `None` where there is none.
fn hint(text: &str) -> Option<String> {
    match load_text(text) {
        Ok(_) => None,
        Err(mistakes) => {
            assert_eq!(mistakes.len(), 1, "{text}\n{}", report(&mistakes));
            mistakes.into_iter().next().map(|mistake| mistake.hint)
        }
    }
}

fn passes(text: &str) -> bool {
    hint(text).is_none()
}

fn rule(rest: &str) -> String {
    format!("[[policy.a.rule]]\nhost = \"a.example.com\"\nports = [80]\n{rest}\n")
}

#[test]
fn methods_are_tokens_in_capitals() {
    for method in ["GET", "M-SEARCH", "VERSION-CONTROL", "X_Y", "A!#$%&'*+-.^_`|~9"] {
        assert!(passes(&rule(&format!("methods = ['''{method}''']"))), "{method}");
    }
    for method in ["", "get", "Get", "G T", "G\u{e9}T"]
        .into_iter()
        .map(str::to_owned)
        .chain("()<>@,;:\\\"/[]?={}".chars().map(|delimiter| format!("G{delimiter}T")))
    {
        let text = rule(&format!("methods = ['''{method}''']"));
        let wanted =
            format!("methods are case-sensitive: write \"{}\"", method.to_ascii_uppercase().escape_debug());
        assert_eq!(hint(&text), Some(wanted), "{method}");
    }
}

#[test]
fn no_rule_opens_a_type_that_is_a_question_or_a_tunnel() {
    let types = |qtype: &str| passes(&rule(&format!("qtypes = [\"{qtype}\"]")));
    for qtype in ["A", "AAAA", "TXT", "SRV", "MX", "HTTPS", "SVCB", "CAA", "TYPE257", "TYPE65280"] {
        assert!(types(qtype), "{qtype}");
    }
    for qtype in [
        "NULL",
        "TYPE10",
        "AXFR",
        "TYPE252",
        "IXFR",
        "TYPE251",
        "ANY",
        "TYPE255",
        "TYPE253",
        "TYPE254",
        "TYPE41",
        "txt",
        "TYPE",
        "TYPE65536",
        "",
    ] {
        assert!(!types(qtype), "{qtype}");
    }
}

#[test]
fn ports_are_numbers_ranges_or_a_star() {
    let ports = |written: &str| {
        let text = format!("[[policy.case.rule]]\nhost = \"a.example.com\"\nports = {written}\n{SANDBOX}");
        load_text(&text).ok().map(|policy| rules(&policy, "s1").concat())
    };
    for (written, expected) in [
        ("443", Some("443")),
        ("\"443\"", Some("443")),
        ("\"*\"", Some("*")),
        ("[443]", Some("443")),
        ("[80, \"9000-9010\", 443]", Some("80,443,9000-9010")),
        ("[\"*\"]", Some("*")),
        ("[1, 65535]", Some("1,65535")),
        ("0", None),
        ("65536", None),
        ("-1", None),
        ("true", None),
        ("[]", None),
        ("[443, []]", None),
        ("[443, 0]", None),
        ("[443, \"x\"]", None),
    ] {
        let expected = expected.map(|ports| format!("Allow a.example.com:{ports}"));
        assert_eq!(ports(written), expected, "{written}");
    }
}

#[test]
fn internal_ranges_end_at_16_and_32() {
    let table = |addresses: &str| {
        passes(&format!("[internal.a]\nhost = \"a.corp.example\"\naddresses = [{addresses}]"))
    };
    for addresses in ["\"10.0.0.0/16\"", "\"fd00:1::/32\"", "\"10.0.0.1\", \"fd00::1\"", "\"8.8.8.8\""] {
        assert!(table(addresses), "{addresses}");
    }
    for addresses in ["\"10.0.0.0/15\"", "\"fd00::/31\"", "\"10.0.0.1\", \"10.0.0.0/15\"", "\"10.0.0.1\", 5"]
    {
        assert!(!table(addresses), "{addresses}");
    }
    let port =
        |text: &str| passes(&format!("[internal.a]\nhost = \"a.corp.example\"\nhost_port = \"{text}\""));
    assert!(port("127.0.0.1:11434") && port("[::1]:80") && port("127.1.2.3:65535"));
    assert!(!port("127.0.0.1:65536") && !port("[::2]:80") && !port("localhost:80") && !port("127.0.0.1"));
}

#[test]
fn names_and_labels_have_a_length() {
    let long = |count: usize| "a".repeat(count);
    assert!(passes(&format!("[policy.{}]", long(64))) && !passes(&format!("[policy.{}]", long(65))));
    assert!(passes(&format!("[sandbox.{}]", long(64))) && !passes(&format!("[sandbox.{}]", long(65))));
    let label = |key: &str, value: &str| passes(&format!("[sandbox.s]\nlabels = {{ {key} = \"{value}\" }}"));
    assert!(label("a", &"é".repeat(256)) && label("a", "") && label(&long(64), "x"));
    assert!(!label("a", &long(257)) && !label("a", "x\\ny") && !label("a", "x\\u007f"));
    assert!(!label(&long(65), "x") && !label("\"\"", "x") && !label("\"a b\"", "x"));
    let peer = |text: &str| passes(&format!("[sandbox.s]\nlocal_peers = [\"{text}\"]"));
    assert!(peer("mcp") && peer("mcp:8080") && peer("[::1]:80") && peer("10.0.0.1"));
    assert!(!peer("*.mcp") && !peer("") && !peer("mcp:0") && !peer("mcp:80,81") && !peer("10.0.0.0/8"));
}

#[test]
fn learning_may_last_to_the_second() {
    let learn = |until: &str| passes(&format!("[sandbox.s]\nmode = \"learn\"\nuntil = {until}"));
    assert!(
        learn("2026-11-30T16:00:00Z") && learn("2026-11-30T15:00:00-01:00") && learn("2020-01-01T00:00:00Z")
    );
    assert!(!learn("2026-11-30T16:00:00.001Z") && !learn("2026-11-30T16:00:00"));
    let policy = loaded("[sandbox.s]\nmode = \"enforce\"");
    let sandbox = policy.sandboxes.values().next().expect("a sandbox");
    assert_eq!((sandbox.mode, sandbox.hints, sandbox.labels.len()), (Mode::Enforce, false, 0));
}

#[test]
fn broken_toml_is_told_with_a_next_step() {
    for (text, told) in [
        (
            "a = [1",
            "t.toml:1:7: not valid TOML: unclosed array, expected `]` — close the list with `]`, with commas between its entries",
        ),
        (
            "a = 1\na = 2",
            "t.toml:2:1: not valid TOML: duplicate key — each key and each table is written once",
        ),
        (
            "a = b",
            "t.toml:1:5: not valid TOML: string values must be quoted, expected literal string — put the value in quotes",
        ),
    ] {
        let lines = refused(text);
        assert!(lines.lines().any(|line| line == told), "{told}\n{lines}");
    }
}

#[test]
fn hints_say_what_is_known_or_meant() {
    for (text, expected) in [
        ("[sandbox.s]\nmode = \"Learn\"", "write \"enforce\" or \"learn\""),
        ("[[policy.a.rule]]\nhost = \"a.example.com\"\nech = 1", ""),
        ("[policy.a]\nallow = \"a.example.com\"", "write [\"a.example.com\"]"),
        ("[sandbox.s]\nhints = \"true\"", "leave the quotes out"),
        ("[sandbox.s]\nhints = \"yes\"", ""),
        ("[[policy.a]]", "write [policy.a] in single brackets"),
        ("[policy]\na = 1", "write [policy.NAME] above it"),
        ("[sandbox.s]\npolicies = [\"x\"]", "write a table [policy.NAME] for it, or remove it"),
        ("[sandbox.s]\ninternal = [\"x\"]", "write a table [internal.NAME] for it, or remove it"),
        ("[addresses]\nzzz = []", "known here: own, nat64, treat_as_private, treat_as_public"),
        ("[sandbox.s]\nidentify = [{}]", "write { source = \"10.88.0.7/32\" }"),
        ("[sandbox.s]\nidentify = [{ default = false }]", "remove the entry"),
        ("[sandbox.\"\"]", "1 to 64 letters, digits, `.`, `_` and `-`, with a letter or digit first"),
    ] {
        assert_eq!(hint(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn evidence_of_one_sandbox_may_overlap() {
    let policy = loaded(
        "[sandbox.s]\nidentify = [{ source = \"10.0.0.0/24\" }, { source = \"10.0.0.7\" }, { listener = \"a\" }, { default = true }]\n\
         [sandbox.t]\nidentify = [{ listener = \"b\" }]",
    );
    let who = |listener: &str, address: &str| {
        let peer = Peer::new(listener.into(), address.parse().ok());
        policy.identities.identify(&peer).ok().map(|id| id.as_str().to_owned())
    };
    let (s, t) = (Some("s".to_owned()), Some("t".to_owned()));
    assert_eq!(who("x", "10.0.0.9:1"), s);
    assert_eq!(who("x", "10.0.1.9:1"), s, "by default");
    assert_eq!((who("a", "10.9.9.9:1"), who("b", "10.0.0.7:1"), who("b", "")), (s, t.clone(), t));
    let mut sources: Vec<_> = policy.identities.sources().map(|net| net.to_string()).collect();
    sources.sort();
    assert_eq!(sources, ["10.0.0.0/24", "10.0.0.7/32"]);
}
