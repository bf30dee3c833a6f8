//! What a refusal tells its client: after how long to ask again, whether credentials would help, and DNS its code.

use std::task::{Context, Poll, Waker};

use super::*;
use crate::attempt::Attempt;
use crate::decision::Unsettled;
use crate::identity::{Credentials, TokenHash};
use crate::list::List;
use crate::receipt::AuditLost;

/// A gate whose one sandbox is known by a token.
fn by_token() -> Bench {
    let mut source = source(vec![allow("api.example.com")], None, Mode::Enforce);
    source.sandboxes[0].identify = vec![Evidence::token(TokenHash::new([7; 32]))];
    Bench::with(Arc::new(Policy::compile(source).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))))
}

fn attempt(bench: &Bench, credentials: Option<Credentials>, ask: Ask) -> Attempt {
    let peer = Peer::new("127.0.0.1:3128".into(), "127.0.0.1:40000".parse().ok());
    let peer = match credentials {
        Some(credentials) => peer.presenting(credentials),
        None => peer,
    };
    bench.gate.attempt(NOW, &peer, Inbound::Connect, ask)
}

#[test]
fn credentials_are_asked_for_where_they_would_name_a_sandbox() {
    let bench = by_token();
    let told = |credentials: Option<u8>, ask: Ask| {
        let credentials =
            credentials.map(|byte| Credentials::Token { name: None, hash: TokenHash::new([byte; 32]) });
        match bench.gate.check(attempt(&bench, credentials, ask)) {
            Decision::Allow(_) => ("allow", false),
            Decision::Ask(_) => ("ask", false),
            Decision::Deny(denial) => (denial.value.reason().code(), denial.value.wants_credentials()),
        }
    };
    let ask = || stream("api.example.com:443");
    assert_eq!(told(None, ask()), ("unknown_sandbox", true));
    assert_eq!(told(Some(8), ask()), ("unknown_sandbox", true));
    assert_eq!(told(Some(7), ask()), ("allow", false));
    assert_eq!(told(Some(7), stream("other.example.com:443")), ("not_listed", false));
    // Where nothing can be put on record, credentials do not help.
    let Decision::Deny(denial) = bench.gate.check(attempt(&bench, None, ask())) else { panic!("nobody") };
    let unrecorded = std::pin::pin!(Unsettled::new(denial.value, Receipt::lost()).settle());
    let Poll::Ready(denial) = unrecorded.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it is lost")
    };
    assert_eq!((denial.reason(), denial.wants_credentials()), (Reason::AuditUnavailable, false));
    // Nobody is known by a token here.
    let bench =
        Bench::with(Arc::new(Policy::compile(source(Vec::new(), None, Mode::Enforce)).expect("a policy")));
    assert!(!bench.gate.takes_tokens());
    assert!(by_token().gate.takes_tokens());
}

#[test]
fn a_limit_says_when_to_ask_again_and_dns_its_code() {
    const WAIT: std::time::Duration = std::time::Duration::from_millis(1500);
    let bench = Bench::new(vec![allow("api.example.com")]);
    let over = |ask: Ask, limit| bench.gate.refuse_over(attempt(&bench, None, ask), limit, WAIT).value;
    let denial = over(stream("api.example.com:443"), Reason::LimitRate);
    assert_eq!((denial.wait(), denial.rcode()), (Some(WAIT), None));
    for (limit, rcode) in [(Reason::LimitRate, 5), (Reason::LimitNames, 5)] {
        assert_eq!(over(lookup("api.example.com", QType::A), limit).rcode(), Some(rcode), "{limit:?}");
    }
    let Decision::Deny(denial) = bench.check(lookup("other.example.com", QType::A)) else {
        panic!("not listed")
    };
    assert_eq!((denial.value.wait(), denial.value.rcode()), (None, Some(3)));
    let permit = bench.permit(stream("api.example.com:443"));
    let denial = bench.gate.refuse_permit_over(permit, Reason::LimitConnections, WAIT).value;
    assert_eq!((denial.reason(), denial.wait()), (Reason::LimitConnections, Some(WAIT)));
    assert_eq!(denial.rule().map(ToString::to_string).as_deref(), Some("base.allow[0]"));
}

#[test]
fn a_value_waits_in_place_for_its_record() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut unsettled = Unsettled::new((), Receipt::waiting(std::future::pending()));
    assert!(!unsettled.is_settled() && unsettled.poll_settled(&mut cx).is_pending());
    for written in [Ok(()), Err(AuditLost)] {
        let mut unsettled = Unsettled::new((), Receipt::waiting(std::future::ready(written)));
        assert_eq!(unsettled.poll_settled(&mut cx), Poll::Ready(()));
    }
}

#[test]
fn a_list_denies_what_was_asked_for_and_no_alias_of_it() {
    let mut source = source(vec![allow(".example.com")], None, Mode::Enforce);
    let list =
        List::parse("/etc/list".into(), b"0.0.0.0 ads.example.com").unwrap_or_else(|_| panic!("a list"));
    source.policies[0].lists = vec![(Arc::new(list), place())];
    let bench =
        Bench::with(Arc::new(Policy::compile(source).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))));
    for ask in [
        stream("ads.example.com:443"),
        lookup("ads.example.com", QType::A),
        request("GET", "ads.example.com:443", "/"),
    ] {
        assert_eq!(bench.answer(ask), "denied_by_rule");
    }
    let Decision::Deny(denial) = bench.check(stream("ads.example.com:443")) else { panic!("it is listed") };
    assert!(denial.value.rule().is_some_and(|rule| rule.to_string().contains("/etc/list")));
    assert_eq!(bench.answer(stream("x.ads.example.com:443")), "allow");
    let vetted = bench.vet(stream("api.example.com:443"), &["ads.example.com"], &["203.0.114.1"]);
    assert_eq!(vetted, Ok(vec!["203.0.114.1".to_owned()]));
}
