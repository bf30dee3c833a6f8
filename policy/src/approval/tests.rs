use super::*;
use crate::time::Timestamp;

fn sandbox(name: &str) -> SandboxId {
    SandboxId::parse(name).expect("a name")
}

fn to(authority: &str) -> Destination {
    Destination::from_authority(authority.as_bytes()).expect("a destination")
}

fn request(method: &str, authority: &str, path: &str) -> Ask {
    Ask::Request { destination: to(authority), method: method.into(), path: path.into() }
}

const THEN: Timestamp = Timestamp::from_secs(100);

fn given(term: Term, path: Option<&str>) -> Consent {
    Consent { term, path: path.map(PathPrefix::of), at: THEN, by: Approver::Uid(1000) }
}

fn approval(count: u64, asked: Ask, consent: Consent) -> Option<Approval> {
    Approval::new(AttemptId::new(THEN, 1, count), &sandbox("s1"), (asked, THEN), consent)
}

#[test]
fn an_approval_binds_host_port_method_and_path() {
    let get = request("GET", "api.example.com:80", "/v1/items");
    let binding = approval(1, get, given(Term::Session, None)).expect("an approval").binding;
    for (authority, method, path, covered) in [
        ("api.example.com:80", "GET", "/v1/items", true),
        ("api.example.com:80", "GET", "/v1/items/7", true),
        ("api.example.com:80", "GET", "/v1/item", false),
        ("api.example.com:80", "GET", "/v1/itemsx", false),
        ("api.example.com:80", "GET", "/v1/items/../x", false),
        ("api.example.com:80", "POST", "/v1/items", false),
        ("api.example.com:80", "get", "/v1/items", false),
        ("api.example.com:8080", "GET", "/v1/items", false),
        ("www.example.com:80", "GET", "/v1/items", false),
    ] {
        assert_eq!(
            binding.covers(&to(authority), Some((method, path))),
            covered,
            "{method} {authority}{path}"
        );
    }
    assert!(!binding.covers(&to("api.example.com:80"), None), "a stream would carry any request");
}

#[test]
fn an_approved_stream_covers_the_requests_in_it() {
    let binding = approval(1, Ask::Stream(to("api.example.com:80")), given(Term::Session, None));
    let binding = binding.expect("an approval").binding;
    assert!(binding.covers(&to("api.example.com:80"), None));
    assert!(binding.covers(&to("api.example.com:80"), Some(("POST", "/x/../y"))));
    assert!(!binding.covers(&to("api.example.com:443"), None));
}

#[test]
fn a_consent_widens_the_path_upwards_only() {
    let asked = || request("GET", "api.example.com:80", "/v1/items/7");
    let path = |wider: &str| {
        let approval = approval(1, asked(), given(Term::Once, Some(wider)))?;
        approval.binding.path.map(|path| path.to_string())
    };
    for wider in ["/v1/items/7", "/v1/items", "/v1/", "/"] {
        assert_eq!(path(wider).as_deref(), Some(wider));
    }
    for other in ["/v2", "/v1/items/7/8", "/v1/item", "", "/v1//", "/v1/../"] {
        assert_eq!(path(other), None, "{other}");
    }
    let stream = approval(1, Ask::Stream(to("api.example.com:80")), given(Term::Once, Some("/")));
    assert_eq!(stream, None, "a stream has no path");
}

#[test]
fn a_look_up_cannot_be_approved() {
    let name = Hostname::parse("api.example.com").expect("a name");
    let lookup = Ask::Lookup { name, qtype: crate::attempt::QType::A };
    assert_eq!(approval(1, lookup, given(Term::Session, None)), None);
}

#[test]
fn each_term_ends_when_it_says() {
    let of = |term| approval(1, Ask::Stream(to("a.example.com:80")), given(term, None)).expect("an approval");
    let end = Timestamp::from_secs(200);
    let (before, after) = (Timestamp::from_secs(199), Timestamp::from_secs(201));
    let until = of(Term::Until(end));
    assert_eq!([before, end, after].map(|now| until.holds_at(now)), [true, false, false]);
    let (once, session) = (of(Term::Once), of(Term::Session));
    once.spend(AttemptId::new(THEN, 1, 2));
    session.spend(session.id);
    assert!(once.holds_at(after) && session.holds_at(after));
    once.spend(once.id);
    assert!(!once.holds_at(after), "its attempt has ended");
}

#[test]
fn a_table_holds_so_many_of_a_sandbox_and_finds_what_counts() {
    let mut all = Approvals::default();
    assert!(all.is_empty() && all.next_expiry(THEN).is_none());
    for count in 0..MOST as u64 {
        let term = if count == 3 { Term::Until(Timestamp::from_secs(300)) } else { Term::Once };
        let asked = Ask::Stream(to(&format!("n{count}.example.com:443")));
        all = all.with(&Arc::new(approval(count, asked, given(term, None)).expect("one"))).expect("room");
    }
    let one_more = approval(1000, Ask::Stream(to("x.example.com:443")), given(Term::Session, None));
    assert!(all.with(&Arc::new(one_more.expect("one"))).is_none());
    assert_eq!(all.next_expiry(THEN), Some(Timestamp::from_secs(300)));
    assert_eq!(all.next_expiry(Timestamp::from_secs(300)), None);

    let (s1, own) = (sandbox("s1"), AttemptId::new(THEN, 1, 7));
    let find = |approved: Approved<'_>, authority: &str| {
        approved.find(&s1, &to(authority), None, THEN).map(|approval| approval.id)
    };
    let standing = Approved::standing(&all);
    assert_eq!(find(standing, "n7.example.com:443"), None, "it is for one attempt alone");
    assert_eq!(find(standing.of_attempt(own, None), "n7.example.com:443"), Some(own));
    let inside = standing.of_attempt(AttemptId::new(THEN, 1, 9000), Some(own));
    assert_eq!(find(inside, "n7.example.com:443"), Some(own));
    assert_eq!(find(standing.of_attempt(own, None), "n8.example.com:443"), None);
    assert_eq!(find(standing, "n3.example.com:443"), Some(AttemptId::new(THEN, 1, 3)));
    assert_eq!(find(Approved::NONE, "n3.example.com:443"), None);
    let name = Hostname::parse("n3.example.com").expect("a name");
    assert_eq!(standing.of_name(&s1, &name, THEN).count(), 1);
    assert_eq!(standing.of_name(&sandbox("s2"), &name, THEN).count(), 0);

    let fewer = all.retaining(|approval| approval.term != Term::Once);
    assert_eq!((fewer.of(&s1).len(), fewer.iter().count(), all.of(&s1).len()), (1, 1, MOST));
    assert!(fewer.retaining(|_| false).is_empty());
}
