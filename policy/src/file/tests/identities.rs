//! `identify`: what an entry may say, and that no two sandboxes are known by the same thing.

use super::*;
use crate::identity::{Keys, TokenHash};

fn digest(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn entry(text: &str) -> String {
    format!("[sandbox.s]\nidentify = [{{ {text} }}]\n")
}

#[test]
fn a_token_is_written_as_its_hash() {
    let policy = loaded(&entry(&format!("token_sha256 = \"{}\"", digest('A'))));
    assert!(policy.identities.take_tokens());
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    for (text, what) in [
        ("token_sha256 = \"00\"".to_owned(), "this is no SHA-256 in hexadecimal"),
        (format!("token_sha256 = \"{empty}\""), "this is the SHA-256 of an empty token"),
        ("token_sha256 = 7".to_owned(), "a string is expected, this is a whole number"),
    ] {
        let mistake = one_mistake(&entry(&text));
        assert_eq!((mistake.what.as_str(), mistake.line), (what, 2));
    }
}

#[test]
fn default_stands_alone() {
    for other in ["source = \"10.0.0.1\"", "listener = \"x\""] {
        let mistake = one_mistake(&entry(&format!("default = true, {other}")));
        assert_eq!(mistake.what, "`default` is whoever shows nothing, so it stands alone");
    }
    let token = format!("{{ token_sha256 = \"{}\" }}", digest('1'));
    let beside = |entries: &str| {
        load_text(&format!(
            "[sandbox.a]\nidentify = [{{ default = true }}]\n[sandbox.b]\nidentify = [{entries}]"
        ))
    };
    for shows in [token.as_str(), "{ source = \"10.0.0.1\" }", "{ listener = \"x\", source = \"10.0.0.1\" }"]
    {
        let allowed = shows.contains("listener");
        assert_eq!(beside(shows).is_ok(), allowed, "{shows}");
    }
    assert!(beside("{ listener = \"x\" }").is_ok());
    assert!(beside(&format!("{{ listener = \"x\", {}", &token[2..])).is_err());
    let same = format!("[sandbox.a]\nidentify = [{{ default = true }}, {token}]");
    assert!(load_text(&same).is_ok(), "its own token is no other sandbox");
}

/// Every combination of keys, as they are written and as they are compared.
fn combinations() -> Vec<(String, Keys)> {
    let nets = ["", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "10.2.0.0/16", "2001:db8::/32"];
    let mut all = Vec::new();
    for token in ["", "1", "2"] {
        for listener in ["", "l", "m"] {
            for net in nets {
                let keys = Keys {
                    token: TokenHash::parse(&token.repeat(64)),
                    listener: (!listener.is_empty()).then(|| listener.into()),
                    source: net.parse().ok(),
                };
                let written = [
                    ("token_sha256", token.repeat(64)),
                    ("listener", listener.into()),
                    ("source", net.into()),
                ];
                let written = written.iter().filter(|(_, value)| !value.is_empty());
                let text: Vec<_> = written.map(|(key, value)| format!("{key} = \"{value}\"")).collect();
                if !text.is_empty() {
                    all.push((format!("{{ {} }}", text.join(", ")), keys));
                }
            }
        }
    }
    all
}

#[test]
fn every_two_entries_that_overlap_are_refused_and_no_others() {
    let all = combinations();
    for (first, a) in &all {
        for (second, b) in &all {
            let text = format!("[sandbox.a]\nidentify = [{first}]\n[sandbox.b]\nidentify = [{second}]\n");
            assert_eq!(load_text(&text).is_err(), a.overlap(b), "{first} {second}");
        }
    }
}
