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

fn certificate(uri: &str, dns: &[&str], cn: &str) -> Arc<Certificate> {
    let some = |text: &str| (!text.is_empty()).then(|| text.into());
    let dns = dns.iter().map(|name| Hostname::parse(name).expect("a name")).collect();
    Arc::new(Certificate::new(CertificateNames { uri: some(uri), dns, cn: some(cn) }))
}

fn by_spiffe(uri: &str) -> Keys {
    Keys { spiffe: Some(uri.into()), ..Keys::default() }
}

fn by_dns(name: &str) -> Keys {
    Keys { dns: Hostname::parse(name).ok(), ..Keys::default() }
}

const TLS: &str = "https://127.0.0.1:2";

#[test]
fn a_certificate_names_its_sandbox_by_a_whole_name() {
    let cn = Keys { cn: Some("three".into()), ..Keys::default() };
    let all = all(&[
        ("s1", Evidence::All(by_spiffe("spiffe://a/one"))),
        ("s2", Evidence::All(by_dns("two.example"))),
        ("s3", Evidence::All(cn)),
    ]);
    let with = |uri, dns: &[&str], cn| {
        let peer = peer(TLS, "10.0.0.1:1").certified(certificate(uri, dns, cn));
        all.recognize(&peer).map(|(id, means)| (id.to_string(), means))
    };
    let known = |id: &str| Ok((id.to_owned(), Means::Certificate));
    assert_eq!(with("spiffe://a/one", &[], ""), known("s1"));
    assert_eq!(
        with("spiffe://a/one", &["other.example"], "other"),
        known("s1"),
        "its other names are nobody's"
    );
    assert_eq!(with("", &["x.example", "two.example"], ""), known("s2"));
    assert_eq!(with("spiffe://a/other", &["two.example"], "x"), known("s2"));
    assert_eq!(with("", &[], "three"), known("s3"));
    for (uri, dns, cn) in [
        ("spiffe://a/one/more", &[][..], ""),
        ("spiffe://a/ONE", &[], ""),
        ("", &["two.example.com"], ""),
        ("", &["three"], "two.example"),
        ("", &[], "Three"),
        ("", &[], ""),
    ] {
        assert_eq!(with(uri, dns, cn), Err(Stranger::Unknown), "{uri} {dns:?} {cn}");
    }
    assert_eq!(
        with("spiffe://a/one", &["two.example"], ""),
        Err(Stranger::Mismatch),
        "names of two sandboxes"
    );
    assert_eq!(with("spiffe://a/one", &[], "three"), Err(Stranger::Mismatch));
}

#[test]
fn a_wrong_certificate_never_falls_back() {
    let all = all(&[
        ("by-source", Evidence::source(net("10.1.0.0/16"))),
        ("by-listener", Evidence::listener(TLS)),
        ("by-name", Evidence::All(by_spiffe("spiffe://a/one"))),
    ]);
    for place in [peer(OPEN, "10.1.0.1:1"), peer(TLS, "10.2.0.1:1")] {
        assert!(all.identify(&place).is_ok());
        let wrong = place.clone().certified(certificate("spiffe://a/two", &[], ""));
        assert_eq!(who(&all, &wrong), Err(Stranger::Unknown));
        let foreign = place.certified(certificate("spiffe://a/one", &[], ""));
        assert_eq!(who(&all, &foreign), Err(Stranger::Mismatch), "the place is another sandbox's");
    }
}

#[test]
fn a_certificate_opens_a_listener_and_says_no_more_where_nobody_is_known_by_one() {
    let all = all(&[("s1", Evidence::token(hash(1)))]);
    let peer = peer(TLS, "10.0.0.1:1").certified(certificate("spiffe://a/any", &[], ""));
    assert_eq!(who(&all, &peer), Err(Stranger::Unauthenticated));
    assert_eq!(who(&all, &peer.presenting(token(None, 1))).as_deref(), Ok("s1"));
}

#[test]
fn a_withdrawn_certificate_is_nobodys() {
    let all = all(&[
        ("s1", Evidence::All(by_spiffe("spiffe://a/one"))),
        ("s2", Evidence::source(net("10.0.0.0/8"))),
    ]);
    let held = certificate("spiffe://a/one", &[], "");
    let known = peer(TLS, "192.0.2.1:1").certified(Arc::clone(&held));
    assert_eq!(who(&all, &known).as_deref(), Ok("s1"));
    held.withdraw();
    assert_eq!(who(&all, &known), Err(Stranger::Unknown));
    let untrusted = peer(TLS, "10.0.0.1:1").certified(Certificate::untrusted());
    assert_eq!(who(&all, &untrusted), Err(Stranger::Unknown), "wherever it comes from");
}

#[test]
fn a_token_and_a_certificate_must_agree() {
    let both = Keys { token: Some(hash(3)), ..by_spiffe("spiffe://a/three") };
    let home = Keys { source: Some(net("10.4.0.0/24")), ..by_spiffe("spiffe://a/four") };
    let all = all(&[
        ("s1", Evidence::token(hash(1))),
        ("s1", Evidence::All(by_spiffe("spiffe://a/one"))),
        ("s2", Evidence::token(hash(2))),
        ("s3", Evidence::All(both)),
        ("s4", Evidence::All(home)),
    ]);
    let from = |address, uri, byte: u8| {
        let peer = peer(TLS, address).certified(certificate(uri, &[], ""));
        who(&all, &if byte > 0 { peer.presenting(token(None, byte)) } else { peer })
    };
    let with = |uri, byte| from("192.0.2.1:1", uri, byte);
    assert_eq!(with("spiffe://a/one", 1).as_deref(), Ok("s1"));
    assert_eq!(with("spiffe://a/one", 0).as_deref(), Ok("s1"));
    assert_eq!(with("spiffe://a/one", 2), Err(Stranger::Mismatch));
    assert_eq!(
        with("spiffe://a/one", 9),
        Err(Stranger::Unauthenticated),
        "a wrong token is wrong beside anything"
    );
    assert_eq!(with("spiffe://a/other", 2), Err(Stranger::Unknown), "and so is a certificate");
    assert_eq!(with("spiffe://a/three", 3).as_deref(), Ok("s3"));
    assert_eq!(with("spiffe://a/three", 0), Err(Stranger::Unauthenticated), "without its token");
    assert_eq!(with("spiffe://a/three", 1), Err(Stranger::Unknown), "its own token does not make up for it");
    assert_eq!(
        with("spiffe://a/one", 3),
        Err(Stranger::Unauthenticated),
        "the token asks for its own certificate"
    );
    assert_eq!(from("10.4.0.9:1", "spiffe://a/four", 0).as_deref(), Ok("s4"));
    assert_eq!(from("10.5.0.9:1", "spiffe://a/four", 0), Err(Stranger::Unknown), "from another address");
}

#[test]
fn clients_of_one_listener_may_be_told_apart_by_what_they_present() {
    let on = |keys: Keys| Keys { listener: Some(TLS.into()), ..keys };
    let token = Keys { token: Some(hash(1)), ..Keys::default() };
    let place = on(Keys::default());
    assert!(!on(by_spiffe("spiffe://a/1")).overlap(&on(by_dns("a.example"))));
    assert!(!on(by_spiffe("spiffe://a/1")).overlap(&on(token.clone())));
    assert!(on(by_spiffe("spiffe://a/1")).overlap(&place) && place.overlap(&on(token)));
    assert!(on(by_spiffe("spiffe://a/1")).overlap(&by_spiffe("spiffe://a/1")));
}

#[test]
fn evidence_comes_and_goes_and_leaves_nothing_behind() {
    let on = |keys: Keys| Evidence::All(Keys { listener: Some(TLS.into()), ..keys });
    let (cert, token) = (on(by_spiffe("spiffe://a/1")), on(Keys { token: Some(hash(1)), ..Keys::default() }));
    let mut all = all(&[("s1", cert.clone()), ("s2", token.clone())]);
    assert_eq!(all.overlapping(&on(by_spiffe("spiffe://a/1"))).map(SandboxId::as_str), Some("s1"));
    assert_eq!(all.overlapping(&on(by_spiffe("spiffe://a/2"))), None);
    all.remove(&id("s2"), &token);
    assert!(!all.take_tokens());
    let peer = peer(TLS, "10.0.0.1:1").certified(certificate("spiffe://a/1", &[], ""));
    assert_eq!(who(&all, &peer).as_deref(), Ok("s1"));
    all.remove(&id("s1"), &cert);
    assert_eq!(who(&all, &peer), Err(Stranger::Unknown));
    assert!(all.presented.is_empty() && all.listeners.is_empty() && all.with_certificate == 0);
}
