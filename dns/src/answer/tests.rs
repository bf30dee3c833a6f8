use hickory_resolver::proto::op::{Message, ResponseCode};
use proptest::prelude::*;

use super::*;
use crate::testing::response;
use crate::wire::write_query;

fn host(text: &str) -> Hostname {
    Hostname::parse(text).unwrap()
}

/// The message of an upstream with these records.
fn message(code: ResponseCode, qtype: QType, records: &[&str]) -> Vec<u8> {
    let query = Message::from_vec(&write_query(7, &host("api.example.com"), qtype)).unwrap();
    response(&query, code, records).to_vec().unwrap()
}

fn read(code: ResponseCode, qtype: QType, records: &[&str]) -> Result<Answer, LookupError> {
    Answer::read(&message(code, qtype, records), &host("api.example.com"), qtype, Instant::now())
}

const SOA: &str = "example.com. 30 SOA ns.example.com. host.example.com. 1 2 3 4 20";

#[test]
fn the_chain_is_followed_in_any_order_and_in_any_case() {
    let answer = read(
        ResponseCode::NoError,
        QType::A,
        &[
            "b.example.net. 9 A 203.0.113.1",
            "a.example.net. 50 CNAME B.EXAMPLE.net.",
            "x.example.net. 9 A 203.0.113.2",
            "API.example.com. 7 CNAME A.example.NET.",
        ],
    )
    .unwrap();
    assert_eq!(answer.chain, [host("a.example.net"), host("b.example.net")]);
    assert_eq!(answer.addresses, ["203.0.113.1".parse::<IpAddr>().unwrap()]);
    assert_eq!((answer.ttl, answer.keep, answer.dangling()), (7, true, None));
}

#[test]
fn an_alias_without_an_answer_must_be_asked_for() {
    let open = ["api.example.com. 9 CNAME a.example.net."];
    assert_eq!(
        read(ResponseCode::NoError, QType::A, &open).unwrap().dangling(),
        Some(&host("a.example.net"))
    );
    let soa = "example.net. 30 SOA ns.example.net. host.example.net. 1 2 3 4 20";
    assert_eq!(read(ResponseCode::NoError, QType::A, &[open[0], soa]).unwrap().dangling(), None);
    assert_eq!(read(ResponseCode::NXDomain, QType::A, &open).unwrap().dangling(), None);
    // Asked for itself, an alias is the answer.
    let asked = read(ResponseCode::NoError, QType::CNAME, &open).unwrap();
    assert_eq!((asked.data, asked.chain), (vec![Data::Name(host("a.example.net"))], vec![]));
}

#[test]
fn an_answer_about_something_else_is_not_no_data() {
    let records = ["api.example.com. 9 TXT \"x\"", "api.example.com. 9 AAAA 2001:db8::1"];
    assert_eq!(read(ResponseCode::NoError, QType::A, &records).unwrap_err(), LookupError::Malformed);
    assert!(read(ResponseCode::NoError, QType::A, &[]).unwrap().is_negative());
}

#[test]
fn chains_that_do_not_end_are_errors() {
    let alias = |from: usize, to: usize| format!("n{from}.example. 9 CNAME n{to}.example.");
    let mut records = vec!["api.example.com. 9 CNAME n1.example.".to_owned()];
    records.extend((1..MAX_ALIASES).map(|place| alias(place, place + 1)));
    let texts = |records: &[String]| records.iter().map(String::clone).collect::<Vec<_>>();
    let all = texts(&records);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(read(ResponseCode::NoError, QType::A, &all).unwrap().chain.len(), MAX_ALIASES);
    records.push(alias(MAX_ALIASES, MAX_ALIASES + 1));
    let longer: Vec<&str> = records.iter().map(String::as_str).collect();
    assert_eq!(read(ResponseCode::NoError, QType::A, &longer), Err(LookupError::Endless));
    for looping in [
        &["api.example.com. 9 CNAME api.example.com."][..],
        &["api.example.com. 9 CNAME a.example.", "a.example. 9 CNAME api.example.com."],
        &[
            "api.example.com. 9 CNAME a.example.",
            "a.example. 9 CNAME b.example.",
            "b.example. 9 CNAME a.example.",
        ],
    ] {
        assert_eq!(read(ResponseCode::NoError, QType::A, looping), Err(LookupError::Endless));
    }
}

#[test]
fn times_are_bounded() {
    let ttl = |ttl: &str| {
        read(ResponseCode::NoError, QType::A, &[&format!("api.example.com. {ttl} A 203.0.113.1")])
    };
    for (told, ttl_kept, keep) in [("0", 1, false), ("1", 1, true), ("300", 300, true), ("86400", 300, true)]
    {
        let answer = ttl(told).unwrap();
        assert_eq!((answer.ttl, answer.keep), (ttl_kept, keep), "{told}");
    }
    // The topmost bit means zero (RFC 2181 section 8).
    let answer = ttl("2147483648").unwrap();
    assert_eq!((answer.ttl, answer.keep), (1, false));
}

#[test]
fn negative_answers_hold_as_long_as_their_soa_says_and_a_minute_at_most() {
    let answer = read(ResponseCode::NXDomain, QType::A, &[SOA]).unwrap();
    assert_eq!((answer.exists, answer.ttl, answer.keep), (false, 20, true));
    let long = "example.com. 9000 SOA ns.example.com. host.example.com. 1 2 3 4 9000";
    assert_eq!(read(ResponseCode::NoError, QType::A, &[long]).unwrap().ttl, 60);
    let untold = read(ResponseCode::NoError, QType::A, &[]).unwrap();
    assert_eq!((untold.ttl, untold.keep, untold.soa), (5, false, None));
    let foreign = "example.net. 30 SOA ns.example.net. host.example.net. 1 2 3 4 20";
    assert_eq!(read(ResponseCode::NoError, QType::A, &[foreign]).unwrap().soa, None);
    let root = ". 30 SOA ns.example.net. host.example.net. 1 2 3 4 20";
    assert!(read(ResponseCode::NXDomain, QType::A, &[root]).unwrap().soa.is_some());
}

#[test]
fn time_runs_out() {
    let start = Instant::now();
    let answer = Answer::negative(true, Some(10), start);
    assert_eq!(answer.remaining(start), Some(10));
    assert_eq!(answer.remaining(start + Duration::from_millis(9_500)), Some(1));
    assert_eq!(answer.remaining(start + Duration::from_secs(10)), None);
}

#[test]
fn one_malformed_record_spoils_the_message() {
    let whole = message(ResponseCode::NoError, QType::A, &["api.example.com. 9 A 203.0.113.1"]);
    let place = whole.len() - 5;
    for (change, why) in [(3, "an address of three bytes"), (5, "a length past the end"), (0, "no address")] {
        let mut broken = whole.clone();
        broken[place] = change;
        let read = Answer::read(&broken, &host("api.example.com"), QType::A, Instant::now());
        assert_eq!(read, Err(LookupError::Malformed), "{why}");
    }
}

/// A TXT record whose first length was 0 passed through until `a_dns_reply_carries_no_unfiltered_byte` met one.
#[test]
fn data_of_a_known_type_must_have_its_form() {
    let data = |qtype: u16, data: &[u8]| {
        let qtype = QType(qtype);
        let mut message = message(ResponseCode::NoError, qtype, &[]);
        message[7] = 1;
        message.extend_from_slice(&[0xc0, 12]);
        message.extend_from_slice(&qtype.0.to_be_bytes());
        message.extend_from_slice(&[0, 1, 0, 0, 0, 9, 0, data.len() as u8]);
        message.extend_from_slice(data);
        Answer::read(&message, &host("api.example.com"), qtype, Instant::now()).map(|answer| answer.data)
    };
    for (qtype, whole, broken) in [
        (16, &b"\x04text\0\x01a"[..], &[&b""[..], b"\x00text", b"\x05text", b"\x04text\x01"][..]),
        (257, b"\0\x05issueca.example", &[b"", b"\0", b"\0\0ca", b"\0\x05iss", b"\0\x02a.ca"]),
        (43, b"\0\x01\x08\x02digest", &[b"", b"\0\x01\x08"]),
        (48, b"\x01\x01\x03\x08key", &[b"", b"\x01\x01\x03"]),
        (44, b"\x04\x02print", &[b"", b"\x04"]),
        (52, b"\x03\x01\x01hash", &[b"", b"\x03\x01"]),
        (65280, b"", &[]),
    ] {
        assert_eq!(data(qtype, whole), Ok(vec![Data::Opaque(whole.into())]), "TYPE{qtype}");
        for broken in broken {
            assert_eq!(data(qtype, broken), Err(LookupError::Malformed), "TYPE{qtype} {broken:?}");
        }
    }
}

#[test]
fn ten_thousand_records_are_refused() {
    let mut message = message(ResponseCode::NoError, QType::A, &[]);
    message[6..8].copy_from_slice(&10_000_u16.to_be_bytes());
    for _ in 0..10_000 {
        message.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 203, 0, 113, 1]);
    }
    let read = Answer::read(&message, &host("api.example.com"), QType::A, Instant::now());
    assert_eq!(read, Err(LookupError::Malformed));
}

#[test]
fn service_bindings_must_have_their_form() {
    let data = |data: &[u8]| {
        let mut message = message(ResponseCode::NoError, QType::HTTPS, &[]);
        message[7] = 1;
        message.extend_from_slice(&[0xc0, 12, 0, 65, 0, 1, 0, 0, 0, 9, 0, data.len() as u8]);
        message.extend_from_slice(data);
        Answer::read(&message, &host("api.example.com"), QType::HTTPS, Instant::now())
            .map(|answer| answer.data.len())
    };
    assert_eq!(data(b"\0\x01\0\0\x03\0\x02\x01\xbb"), Ok(1));
    for broken in [
        &b"\0\x01"[..],                                      // no target
        b"\0\x01\0\0\x03\0\x01\x01",                         // a port of one byte
        b"\0\x01\0\0\x04\0\x03\x01\x01\x01",                 // a hint of three bytes
        b"\0\x01\0\0\x03\0\x02\x01\xbb\0\x03\0\x02\x01\xbb", // a key twice
        b"\0\x01\0\0\x04\0\x04\x01\x01\x01\x01\0\x01\0\0",   // keys that fall
        b"\0\x01\0\0\x00\0\x01\0",                           // half a mandatory key
        b"\0\x01\0\0\x03\0\x09\x01\xbb",                     // a length past the end
    ] {
        assert_eq!(data(broken), Err(LookupError::Malformed), "{broken:?}");
    }
}

const MIXED: &[&str] = &[
    "api.example.com. 9 CNAME a.example.net.",
    "a.example.net. 9 A 203.0.113.1",
    "a.example.net. 9 HTTPS 1 b.example.net. alpn=h2 ipv4hint=203.0.113.1",
    "a.example.net. 9 MX 10 mail.example.net.",
    SOA,
];

#[test]
fn every_prefix_of_a_message_is_an_answer_or_an_error() {
    for qtype in [QType::A, QType::HTTPS, QType(15), QType::AAAA] {
        let message = message(ResponseCode::NoError, qtype, MIXED);
        for end in 0..message.len() {
            let read = Answer::read(&message[..end], &host("api.example.com"), qtype, Instant::now());
            if qtype == QType::AAAA {
                assert!(read.is_err(), "{end}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_message_gives_an_answer_within_bounds(
        changes in prop::collection::vec((4_usize..230, any::<u8>()), 0..12),
        qtype in prop::sample::select(vec![QType::A, QType::HTTPS, QType(15), QType(33), QType(35), QType(6)]),
    ) {
        let mut bytes = message(ResponseCode::NoError, qtype, MIXED);
        for (place, byte) in changes {
            if let Some(slot) = bytes.get_mut(place) {
                *slot = byte;
            }
        }
        if let Ok(answer) = Answer::read(&bytes, &host("api.example.com"), qtype, Instant::now()) {
            prop_assert!((1..=300).contains(&answer.ttl));
            prop_assert!(answer.chain.len() <= MAX_ALIASES && answer.len() <= MAX_RECORDS);
        }
    }
}
