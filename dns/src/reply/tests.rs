use hickory_resolver::proto::op::Message;

use super::*;
use crate::question;

fn host(text: &str) -> Hostname {
    Hostname::parse(text).unwrap()
}

/// Writes a reply to a question for `a.example`, behind two bytes that are not its own.
fn write(payload: Option<u16>, transport: Transport, fill: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let question = b"\x01A\x07example\0\0\x01\0\x01";
    let edns = payload.map(|payload| question::Edns { payload, dnssec_ok: false });
    let head = Head { id: 7, flags: RD, question, edns };
    let mut out = vec![0xff; 2];
    let mut writer = Writer::new(&mut out, head, transport, Some(Extended { code: 15, text: "not_listed" }));
    fill(&mut writer);
    writer.finish(0);
    out.split_off(2)
}

fn many(count: u32) -> Vec<IpAddr> {
    (0..count).map(|low| IpAddr::from((0xcb00_7100 + low).to_be_bytes())).collect()
}

#[test]
fn replies_keep_to_the_limit_of_their_transport() {
    for (payload, transport, limit, whole) in [
        (None, Transport::Udp, 512, false),
        (Some(0), Transport::Udp, 512, false),
        (Some(600), Transport::Udp, 600, false),
        (Some(65_535), Transport::Udp, 1232, false),
        (Some(512), Transport::Tcp, 65_535, true),
    ] {
        let bytes = write(payload, transport, |writer| writer.addresses(&many(200), QType::A, 9));
        let reply = Message::from_vec(&bytes).unwrap();
        assert!(bytes.len() <= limit && (whole || bytes.len() + 16 > limit), "{payload:?}: {}", bytes.len());
        assert_eq!(reply.metadata.truncation, !whole);
        assert_eq!(reply.edns.is_some(), payload.is_some());
    }
}

#[test]
fn sets_that_are_not_addresses_are_whole_or_empty() {
    let text = [&[250_u8][..], &[b'x'; 250]].concat();
    let bytes = write(None, Transport::Udp, |writer| {
        for _ in 0..3 {
            writer.data(16, 9, &text);
        }
        writer.data(16, 9, b"\x01y");
    });
    let reply = Message::from_vec(&bytes).unwrap();
    assert!(reply.metadata.truncation && reply.answers.is_empty());
}

#[test]
fn a_chain_that_does_not_fit_takes_its_addresses_with_it() {
    let label = "a".repeat(60);
    let chain: Vec<_> = (0..4).map(|n| host(&format!("{n}.{label}.{label}.{label}.example"))).collect();
    let bytes = write(None, Transport::Udp, |writer| {
        writer.chain(&chain, 9);
        writer.addresses(&many(1), QType::A, 9);
    });
    let reply = Message::from_vec(&bytes).unwrap();
    assert!(reply.metadata.truncation && reply.answers.is_empty());
    let bytes = write(None, Transport::Tcp, |writer| {
        writer.chain(&chain, 9);
        writer.addresses(&many(1), QType::A, 9);
    });
    let reply = Message::from_vec(&bytes).unwrap();
    let owner = &reply.answers[4].name;
    assert_eq!(owner.to_string(), format!("{}.", chain[3]));
    assert_eq!(reply.answers[0].name.to_string(), "A.example.");
}
