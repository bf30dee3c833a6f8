//! `identify`: what an entry may say, and that no two sandboxes are known by the same thing.

use super::*;
use crate::hostname::Hostname;
use crate::identity::{Keys, TokenHash};
use crate::socket::{Owner, Socket};

fn digest(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn entry_of(text: &str) -> String {
    format!("[sandbox.s]\nidentify = [{{ {text} }}]\n")
}

#[test]
fn a_token_is_written_as_its_hash() {
    let policy = loaded(&entry_of(&format!("token_sha256 = \"{}\"", digest('A'))));
    assert!(policy.identities.take_tokens());
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    for (text, what) in [
        ("token_sha256 = \"00\"".to_owned(), "this is no SHA-256 in hexadecimal"),
        (format!("token_sha256 = \"{empty}\""), "this is the SHA-256 of an empty token"),
        ("token_sha256 = 7".to_owned(), "a string is expected, this is a whole number"),
    ] {
        let mistake = one_mistake(&entry_of(&text));
        assert_eq!((mistake.what.as_str(), mistake.line), (what, 2));
    }
}

#[test]
fn default_stands_alone() {
    for other in ["source = \"10.0.0.1\"", "listener = \"x\""] {
        let mistake = one_mistake(&entry_of(&format!("default = true, {other}")));
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
    let certificates =
        [("", ""), ("spiffe", "spiffe://a/1"), ("spiffe", "spiffe://a/2"), ("dns", "a.example"), ("cn", "a")];
    let mut all = Vec::new();
    for token in ["", "1", "2"] {
        for (kind, name) in certificates {
            for listener in ["", "l", "m"] {
                // The whole product takes seconds; what certificates and networks do to each other, one network shows.
                for net in if kind.is_empty() { &nets[..] } else { &nets[..2] } {
                    let of = |wanted: &str| (kind == wanted).then(|| name.into());
                    let keys = Keys {
                        token: TokenHash::parse(&token.repeat(64)),
                        spiffe: of("spiffe"),
                        dns: (kind == "dns").then(|| Hostname::parse(name).expect("a name")),
                        cn: of("cn"),
                        listener: (!listener.is_empty()).then(|| listener.into()),
                        source: net.parse().ok(),
                        ..Keys::default()
                    };
                    let written = [
                        ("token_sha256", token.repeat(64)),
                        (kind, name.into()),
                        ("listener", listener.into()),
                        ("source", (*net).into()),
                    ];
                    let written = written.iter().filter(|(_, value)| !value.is_empty());
                    let text: Vec<_> = written.map(|(key, value)| format!("{key} = \"{value}\"")).collect();
                    if !text.is_empty() {
                        all.push((format!("{{ {} }}", text.join(", ")), keys));
                    }
                }
            }
        }
    }
    all
}

#[test]
fn a_certificate_is_known_by_a_name_that_it_holds_whole() {
    for good in [
        "spiffe = \"spiffe://example.org/agent-7\"",
        "dns = \"Agent-7.example.com\"",
        "cn = \"Agent 7\"",
        "spiffe = \"spiffe://example.org/a\", dns = \"a.example\", cn = \"a\", source = \"10.0.0.1\"",
    ] {
        assert!(load_text(&entry_of(good)).is_ok(), "{good}");
    }
    for (entry, what) in [
        (
            "spiffe = \"spiffe://example.org\"",
            "`spiffe://example.org`: the path of a SPIFFE ID has segments of letters, digits, `.`, `-` and `_`",
        ),
        ("spiffe = \"agent-7\"", "`agent-7`: a SPIFFE ID begins with spiffe:// and has at most 2048 bytes"),
        (
            "dns = \"*.example.com\"",
            "`*.example.com`: the host name has a character that host names do not have",
        ),
        ("cn = \"\"", "a common name has 1 to 64 characters, none of them a control character"),
        ("unix = \"/s\", cn = \"a\"", "a client of a unix socket shows no certificate"),
        ("default = true, cn = \"a\"", "`default` is whoever shows nothing, so it stands alone"),
        ("netns = \"a\"", "sandboxes known by `netns`: not built yet"),
    ] {
        assert_eq!(one_mistake(&entry_of(entry)).what, what, "{entry}");
    }
    let beside = "[sandbox.a]\nidentify = [{ default = true }]\n[sandbox.b]\nidentify = [{ cn = \"b\" }]";
    assert!(load_text(beside).is_err(), "a stranger would pass for the default");
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

#[test]
fn a_unix_socket_is_a_listener_with_a_file() {
    let sockets = |text: &str| {
        let documents = [document("t.toml", text)];
        let parsed = Parsed::new(&documents);
        let mut config = parsed.config();
        let mut none = |_: &str| Err(Vec::new());
        let read = read(&mut config, now(), &LocalAddresses::default(), &mut none, None);
        let sockets: Vec<_> = read.sockets.into_iter().map(|(socket, _)| socket).collect();
        parsed.finish(sockets).map_err(|mistakes| mistakes[0].what.clone())
    };
    let one = "[sandbox.s]\nidentify = [{ unix = \"/run/s.sock\", uid = 1000, mode = \"0660\", owner = \"1000:5\" }]\n";
    let socket =
        Socket { path: "/run/s.sock".into(), mode: 0o660, owner: Some(Owner { uid: 1000, gid: Some(5) }) };
    assert_eq!(sockets(one), Ok(vec![socket.clone()]));
    assert_eq!(&*socket.name(), "unix:/run/s.sock");
    let two = format!("{one}[sandbox.t]\nidentify = [{{ unix = \"/run/s.sock\", uid = 1001 }}]\n");
    assert_eq!(sockets(&two), Ok(vec![socket]), "what one entry says of the file holds for both");
    for (entry, what) in [
        ("unix = \"run/s.sock\"", "a unix socket needs an absolute path of at most 107 bytes"),
        ("unix = \"/s\", listener = \"unix:/s\"", "`unix` and `listener` are two words for one thing"),
        ("unix = \"/s\", source = \"10.0.0.1\"", "a client of a unix socket has no address"),
        ("uid = 5", "only clients of unix sockets have a `uid`"),
        ("mode = \"0600\"", "`mode` is that of a unix socket"),
        ("unix = \"/s\", mode = \"rw\"", "`rw` is no mode"),
        ("unix = \"/s\", mode = \"1777\"", "`1777` is no mode"),
        ("unix = \"/s\", owner = \"root\"", "`root` is no owner"),
    ] {
        assert_eq!(sockets(&entry_of(entry)), Err(what.to_owned()), "{entry}");
    }
    let apart =
        format!("{one}[sandbox.t]\nidentify = [{{ unix = \"/run/s.sock\", uid = 1, mode = \"0600\" }}]\n");
    assert_eq!(sockets(&apart), Err("the file of /run/s.sock is described otherwise above".to_owned()));
}
