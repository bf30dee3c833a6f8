use std::sync::Arc;

use super::*;
use crate::bound::Names;
use crate::namespace::Namespace;
use crate::sandbox::User;

fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).expect("a sandbox name")
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}

fn hash(byte: u8) -> TokenHash {
    TokenHash::new([byte; 32])
}

fn peer(listener: &str, address: &str) -> Peer {
    Peer::new(listener.into(), address.parse().ok())
}

fn token(name: Option<&str>, byte: u8) -> Credentials {
    Credentials::Token { name: name.map(Into::into), hash: hash(byte) }
}

fn all(entries: &[(&str, Evidence)]) -> Identities {
    let entries: Vec<_> = entries.iter().map(|(name, evidence)| (id(name), evidence.clone())).collect();
    Identities::new(entries.iter().map(|(id, evidence)| (id, evidence)))
}

fn who(all: &Identities, peer: &Peer) -> Result<String, Stranger> {
    all.identify(peer).map(ToString::to_string)
}

const OPEN: &str = "127.0.0.1:1";

#[test]
fn a_listener_decides_before_a_source_and_a_source_before_the_default() {
    let all = all(&[
        ("by-listener", Evidence::listener("127.0.0.1:9")),
        ("by-source", Evidence::source(net("10.1.0.0/16"))),
        ("rest", Evidence::Default),
    ]);
    for (listener, address, expected) in [
        ("127.0.0.1:9", "10.1.2.3:9", "by-listener"),
        (OPEN, "10.1.2.3:9", "by-source"),
        (OPEN, "[::ffff:10.1.2.3]:9", "by-source"),
        (OPEN, "10.2.2.3:9", "rest"),
    ] {
        assert_eq!(who(&all, &peer(listener, address)).as_deref(), Ok(expected));
    }
}

#[test]
fn without_a_default_a_stranger_is_nobody() {
    let all = all(&[("a", Evidence::source(net("10.1.0.0/16")))]);
    assert_eq!(who(&all, &peer("x", "10.2.0.1:1")), Err(Stranger::Unknown));
    assert_eq!(who(&all, &Peer::new("x".into(), None)), Err(Stranger::Unknown));
}

#[test]
fn a_client_inside_a_namespace_is_its_sandbox_whatever_its_address() {
    let all = all(&[("b", Evidence::source(net("10.0.0.0/8"))), ("b", Evidence::Default)]);
    let namespace = Arc::new(Namespace::new(id("a"), Names::new(1)));
    let peer = Peer::inside(Arc::clone(&namespace), "10.0.0.7:1".parse().ok());
    assert_eq!(who(&all, &peer).as_deref(), Ok("a"));
    namespace.close();
    assert_eq!(who(&all, &peer), Err(Stranger::Unknown), "what is closed is nobody's");
}

#[test]
fn a_token_names_its_sandbox_alone_or_behind_its_name() {
    let all = all(&[("s1", Evidence::token(hash(1))), ("s2", Evidence::token(hash(2)))]);
    let who = |credentials| who(&all, &peer(OPEN, "10.0.0.1:1").presenting(credentials));
    assert_eq!(who(token(None, 1)).as_deref(), Ok("s1"));
    assert_eq!(who(token(Some("s1"), 1)).as_deref(), Ok("s1"));
    assert_eq!(who(token(Some("s2"), 2)).as_deref(), Ok("s2"));
    for wrong in [token(None, 3), token(Some("s2"), 1), token(Some(""), 1), Credentials::Unreadable] {
        assert_eq!(who(wrong), Err(Stranger::Unauthenticated));
    }
    assert_eq!(all.identify(&peer(OPEN, "10.0.0.1:1")), Err(Stranger::Unauthenticated));
}

#[test]
fn wrong_credentials_never_fall_back() {
    let known = all(&[
        ("by-listener", Evidence::listener("127.0.0.1:9")),
        ("by-source", Evidence::source(net("10.1.0.0/16"))),
        ("by-token", Evidence::token(hash(1))),
    ]);
    let namespace = Arc::new(Namespace::new(id("a"), Names::new(1)));
    let inside = Peer::inside(namespace, "10.0.0.7:1".parse().ok());
    for place in [peer("127.0.0.1:9", "10.9.0.1:1"), peer(OPEN, "10.1.0.1:1"), inside] {
        assert!(known.identify(&place).is_ok());
        for wrong in [token(None, 9), token(Some("by-listener"), 1), Credentials::Unreadable] {
            assert_eq!(who(&known, &place.clone().presenting(wrong)), Err(Stranger::Unauthenticated));
        }
        let foreign = place.clone().presenting(token(None, 1));
        assert_eq!(who(&known, &foreign), Err(Stranger::Mismatch), "the token of another sandbox");
    }
    // Where nobody is known by a token, it is a habit of the client's and says nothing.
    let no_tokens = all(&[("rest", Evidence::Default)]);
    assert!(no_tokens.identify(&peer(OPEN, "10.1.0.1:1").presenting(Credentials::Unreadable)).is_ok());
}

#[test]
fn the_keys_of_one_entry_must_all_hold() {
    let home = Keys { token: Some(hash(1)), source: Some(net("10.1.0.0/24")), ..Keys::default() };
    let door = Keys { token: Some(hash(2)), listener: Some("127.0.0.1:9".into()), ..Keys::default() };
    let both =
        Keys { listener: Some("127.0.0.1:8".into()), source: Some(net("10.3.0.0/24")), ..Keys::default() };
    let all = all(&[("s1", Evidence::All(home)), ("s2", Evidence::All(door)), ("s3", Evidence::All(both))]);
    let who = |peer: Peer| who(&all, &peer);
    let with = |listener, address, byte| peer(listener, address).presenting(token(None, byte));
    assert_eq!(who(with(OPEN, "10.1.0.7:1", 1)).as_deref(), Ok("s1"));
    assert_eq!(who(with(OPEN, "10.2.0.7:1", 1)), Err(Stranger::Unauthenticated), "from another address");
    assert_eq!(who(peer(OPEN, "10.1.0.7:1")), Err(Stranger::Unauthenticated), "without its token");
    assert_eq!(who(with("127.0.0.1:9", "10.1.0.7:1", 2)).as_deref(), Ok("s2"));
    assert_eq!(who(with(OPEN, "10.1.0.7:1", 2)), Err(Stranger::Unauthenticated), "on another listener");
    assert_eq!(who(with("127.0.0.1:9", "10.1.0.7:1", 1)), Err(Stranger::Mismatch), "on another's listener");
    assert_eq!(who(peer("127.0.0.1:9", "10.1.0.7:1")), Err(Stranger::Unauthenticated));
    assert_eq!(who(peer("127.0.0.1:8", "10.3.0.7:1")).as_deref(), Ok("s3"));
    assert_eq!(who(peer("127.0.0.1:8", "10.4.0.7:1")), Err(Stranger::Unknown));
    assert_eq!(who(peer(OPEN, "10.3.0.7:1")), Err(Stranger::Unauthenticated), "no listener, no sandbox");
}

#[test]
fn a_token_may_be_one_entry_and_a_place_another() {
    let all = all(&[("s1", Evidence::listener("127.0.0.1:9")), ("s1", Evidence::token(hash(1)))]);
    let on = |listener| peer(listener, "10.0.0.1:1");
    for known in
        [on("127.0.0.1:9"), on("127.0.0.1:9").presenting(token(None, 1)), on(OPEN).presenting(token(None, 1))]
    {
        assert_eq!(who(&all, &known).as_deref(), Ok("s1"));
    }
}

#[test]
fn one_token_at_two_places_is_two_sandboxes() {
    let at =
        |source| Evidence::All(Keys { token: Some(hash(1)), source: Some(net(source)), ..Keys::default() });
    let all = all(&[("s1", at("10.1.0.0/24")), ("s2", at("10.2.0.0/24"))]);
    let from = |address| peer(OPEN, address).presenting(token(None, 1));
    assert_eq!(who(&all, &from("10.1.0.1:1")).as_deref(), Ok("s1"));
    assert_eq!(who(&all, &from("10.2.0.1:1")).as_deref(), Ok("s2"));
    assert_eq!(who(&all, &from("10.3.0.1:1")), Err(Stranger::Unauthenticated));
}

#[test]
fn entries_overlap_where_nothing_tells_them_apart() {
    let keys = |token: u8, listener: &str, source: &str| Keys {
        token: (token > 0).then(|| hash(token)),
        listener: (!listener.is_empty()).then(|| Arc::from(listener)),
        source: source.parse().ok(),
        ..Keys::default()
    };
    for (a, b, expected) in [
        (keys(1, "", ""), keys(1, "", ""), true),
        (keys(1, "", ""), keys(2, "", ""), false),
        (keys(1, "", ""), keys(0, "", "10.0.0.0/8"), false),
        (keys(1, "", ""), keys(1, "", "10.0.0.0/8"), true),
        (keys(1, "", "10.1.0.0/16"), keys(1, "", "10.2.0.0/16"), false),
        (keys(1, "", "10.1.0.0/16"), keys(2, "", "10.1.0.0/16"), false),
        (keys(1, "", "10.1.0.0/16"), keys(0, "", "10.0.0.0/8"), true),
        (keys(0, "", "10.0.0.0/8"), keys(0, "", "10.1.0.0/16"), true),
        (keys(0, "l", ""), keys(0, "l", ""), true),
        (keys(0, "l", ""), keys(1, "l", ""), true),
        (keys(1, "l", ""), keys(2, "l", ""), false),
        (keys(0, "l", "10.1.0.0/16"), keys(0, "m", "10.1.0.0/16"), false),
        (keys(1, "l", ""), keys(1, "", "10.1.0.0/16"), true),
    ] {
        assert_eq!((a.overlap(&b), b.overlap(&a)), (expected, expected), "{a:?} {b:?}");
    }
}

#[test]
fn a_unix_socket_may_ask_for_a_user() {
    let of = |uid, gid| Keys { listener: Some("unix:/s".into()), uid, gid, ..Keys::default() };
    let all = all(&[
        ("s1", Evidence::All(of(Some(1000), None))),
        ("s2", Evidence::All(of(Some(1001), Some(5)))),
        ("s3", Evidence::token(hash(3))),
    ]);
    let by = |uid, gid| Peer::new("unix:/s".into(), None).run_by(User { uid, gid });
    assert_eq!(who(&all, &by(1000, 7)).as_deref(), Ok("s1"));
    assert_eq!(who(&all, &by(1001, 5)).as_deref(), Ok("s2"));
    for stranger in [by(1001, 6), by(0, 0), Peer::new("unix:/s".into(), None)] {
        assert_eq!(who(&all, &stranger), Err(Stranger::Unknown));
        let foreign = stranger.presenting(token(None, 3));
        assert_eq!(who(&all, &foreign), Err(Stranger::Mismatch), "the socket is others'");
    }
    assert!(!of(Some(1), None).overlap(&of(Some(2), None)) && of(Some(1), None).overlap(&of(None, Some(2))));
}
