use proptest::prelude::*;

use super::*;

/// `name` as a query for `qtype` in class IN, with an OPT record where `payload` says so.
fn query(labels: &[&[u8]], qtype: u16, payload: Option<u16>) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(payload.is_some())];
    for label in labels {
        message.push(label.len() as u8);
        message.extend_from_slice(label);
    }
    message.push(0);
    message.extend_from_slice(&qtype.to_be_bytes());
    message.extend_from_slice(&[0, 1]);
    if let Some(payload) = payload {
        message.extend_from_slice(&[0, 0, 41]);
        message.extend_from_slice(&payload.to_be_bytes());
        message.extend_from_slice(&[0, 0, 0x80, 0, 0, 4, 0, 10, 0, 0]);
    }
    message
}

const API: &[&[u8]] = &[b"aPi", b"example", b"com"];

#[test]
fn a_question_is_read_as_it_was_asked() {
    let message = query(API, 28, Some(4096));
    let Message::Question(head, name, qtype) = Message::read(&message) else { panic!("a question") };
    assert_eq!((head.id, head.flags, name.as_str(), qtype), (0x1234, 0x0100, "api.example.com", QType::AAAA));
    assert_eq!(head.question, &message[12..33]);
    assert_eq!(head.edns, Some(Edns { payload: 4096, dnssec_ok: true }));
}

#[test]
fn every_prefix_of_a_query_is_silent_or_malformed() {
    let message = query(API, 1, Some(1232));
    for end in 0..message.len() {
        match (end, Message::read(&message[..end])) {
            (0..12, Message::Silent) => {}
            (12.., Message::Refused(head, Refusal::Malformed)) => assert!(head.question.is_empty()),
            (end, other) => panic!("{end}: {other:?}"),
        }
    }
}

#[test]
fn names_are_shown_with_what_is_not_plain_escaped() {
    let message = query(&[b"a.b\n", b"\x1b\0", b"com"], 1, None);
    let Message::Refused(_, Refusal::Name(shown, error)) = Message::read(&message) else { panic!("no name") };
    assert_eq!((shown.as_str(), error), ("a\\046b\\010.\\027\\000.com", BadHost::Character));
}

#[test]
fn an_option_that_overruns_its_record_is_malformed() {
    let mut message = query(API, 1, Some(1232));
    let length = message.len();
    message[length - 1] = 1;
    assert!(matches!(Message::read(&message), Message::Refused(_, Refusal::Malformed)));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = Message::read(&bytes);
    }

    #[test]
    fn a_query_with_bytes_changed_is_read_without_a_panic(
        changes in prop::collection::vec((0_usize..46, any::<u8>()), 1..6),
    ) {
        let mut message = query(API, 1, Some(1232));
        for (place, byte) in changes {
            if let Some(slot) = message.get_mut(place) {
                *slot = byte;
            }
        }
        if let Message::Question(head, name, _) = Message::read(&message) {
            prop_assert_eq!(head.question.len(), name.as_str().len() + 2 + 4);
        }
    }
}
