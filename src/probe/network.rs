//! Packets of every kind, to every kind of address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::Type;

use super::ground::Ground;
use super::socket::{self, NOBODY, NOBODY_V4, NOBODY_V6, Stream};
use super::{Line, Verdict};

/// Streams: the way and where it leads.
const STREAMS: [(&str, IpAddr, u16); 12] = [
    ("tcp to a public address", IpAddr::V4(NOBODY_V4), 80),
    ("tcp to a public address, IPv6", IpAddr::V6(NOBODY_V6), 443),
    ("tcp to a private address", IpAddr::V4(Ipv4Addr::new(10, 255, 255, 254)), 80),
    ("tcp to a private address, IPv6", IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7)), 80),
    ("tcp to the metadata endpoint", IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80),
    (
        "tcp to the metadata endpoint, IPv6",
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
        80,
    ),
    ("tcp to the usual address of a container's host", IpAddr::V4(Ipv4Addr::new(172, 17, 0, 1)), 22),
    ("ssh to a public address", IpAddr::V4(NOBODY_V4), 22),
    ("another proxy (NO_PROXY=*, or one of the sandbox's choice)", IpAddr::V4(NOBODY_V4), 3128),
    ("DNS over TCP to another server", IpAddr::V4(NOBODY_V4), 53),
    ("DNS over TLS", IpAddr::V4(NOBODY_V4), 853),
    ("DNS over HTTPS", IpAddr::V4(NOBODY_V4), 443),
];

/// Datagrams: the way, where it leads and what is sent.
fn datagrams() -> [(&'static str, SocketAddr, Vec<u8>); 6] {
    let v4 = |port| SocketAddr::new(NOBODY_V4.into(), port);
    // The first byte and the version of a QUIC Initial (RFC 9000 section 17.2.2), padded as it must be.
    let quic = [&[0xc0, 0, 0, 0, 1][..], &[0; 1195]].concat();
    [
        ("udp to a public address", v4(9), b"tidegate-probe".to_vec()),
        ("udp to a public address, IPv6", SocketAddr::new(NOBODY_V6.into(), 9), b"tidegate-probe".to_vec()),
        ("QUIC", v4(443), quic),
        ("DNS over UDP to another server", v4(53), question()),
        // A binding request (RFC 8489 section 5).
        ("STUN", v4(3478), [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[1; 12]].concat()),
        ("NTP", v4(123), [&[0x1b][..], &[0; 47]].concat()),
    ]
}

/// A question for the A record of a name that nobody has.
fn question() -> Vec<u8> {
    let mut packet = vec![0x54, 0x47, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in NOBODY.split('.') {
        packet.push(u8::try_from(label.len()).unwrap_or_default());
        packet.extend_from_slice(label.as_bytes());
    }
    packet.extend_from_slice(&[0, 0, 1, 0, 1]);
    packet
}

pub(super) fn lines(ground: &Ground<'_>) -> Vec<Line> {
    let mut lines: Vec<_> =
        STREAMS.into_iter().map(|(way, to, port)| stream(ground, way, SocketAddr::new(to, port))).collect();
    lines.extend(datagrams().into_iter().map(|(way, to, payload)| {
        judge(ground, way, to, || match socket::datagrams(to, &payload) {
            Ok(answer) if to.port() == 53 => (true, dns_answer(&answer)),
            Ok(answer) => (true, format!("an answer of {} bytes", answer.len())),
            Err(error) => (false, socket::told(&error)),
        })
    }));
    let everybody = [
        ("multicast", IpAddr::V4(Ipv4Addr::new(233, 252, 0, 7))),
        ("broadcast", IpAddr::V4(Ipv4Addr::BROADCAST)),
    ];
    lines.extend(everybody.into_iter().map(|(way, to)| {
        let to = SocketAddr::new(to, 9);
        judge(ground, way, to, || match socket::datagram_to_all(to) {
            // Sent is not heard.
            Ok(()) => (false, "sent".to_owned()),
            Err(error) => (false, socket::told(&error)),
        })
    }));
    for (way, to, kind) in [
        ("ICMP", IpAddr::V4(NOBODY_V4), Type::DGRAM),
        ("ICMP, IPv6", IpAddr::V6(NOBODY_V6), Type::DGRAM),
        ("raw socket", IpAddr::V4(NOBODY_V4), Type::RAW),
        ("raw socket, IPv6", IpAddr::V6(NOBODY_V6), Type::RAW),
    ] {
        lines.push(judge(ground, way, SocketAddr::new(to, 0), || match socket::echo_request(to, kind) {
            Ok(()) => (true, "an answer".to_owned()),
            Err(error) => (false, socket::told(&error)),
        }));
    }
    lines
}

fn stream(ground: &Ground<'_>, way: &'static str, to: SocketAddr) -> Line {
    judge(ground, way, to, || match socket::stream(to) {
        Stream::Failed(error) => (false, socket::told(&error)),
        Stream::Open(mut stream) => {
            // A name that nobody has: the gateway's answer, not an origin's, is what comes.
            let http = format!("GET / HTTP/1.1\r\nHost: {NOBODY}\r\nConnection: close\r\n\r\n");
            let (request, read): (_, fn(&[u8]) -> String) = match to.port() {
                53 => (over_tcp(&question()), |answer| dns_answer(answer.get(2..).unwrap_or_default())),
                _ => (http.into_bytes(), |answer| format!("answered with {} bytes", answer.len())),
            };
            match socket::exchange(&mut stream, &request) {
                Ok(answer) => match socket::refusal(&answer) {
                    Some((status, Some(reason))) => {
                        (true, format!("the gateway took it and said {status} {reason}"))
                    }
                    _ if answer.is_empty() => (true, "taken, then closed".to_owned()),
                    _ => (true, format!("taken; {}", read(&answer))),
                },
                Err(error) => (true, format!("taken, then: {}", socket::told(&error))),
            }
        }
    })
}

/// A message with its length in front (RFC 1035 section 4.2.2).
fn over_tcp(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or_default();
    [&length.to_be_bytes()[..], message].concat()
}

/// Judges an attempt to send to an address: it tells whether somebody answered, and how it fared.
fn judge(
    ground: &Ground<'_>,
    way: &'static str,
    to: SocketAddr,
    attempt: impl FnOnce() -> (bool, String),
) -> Line {
    if !ground.may_send_to(to) {
        let evidence = format!("{}; not tried, as {} is somebody's", ground.why(), to.ip());
        return Line::unproven(way, evidence);
    }
    let ((answered, fared), left) = ground.watch(attempt);
    let (verdict, why) = match left {
        Some((link, count)) => (Verdict::Escaped, format!("{count} packets left over {link}")),
        // Where nothing can leave, whoever took it is the gateway, or the sandbox itself.
        None if ground.is_sealed() => (Verdict::Contained, ground.why()),
        None if answered => (Verdict::Escaped, ground.why()),
        None => (Verdict::Unproven, ground.why()),
    };
    Line { way, verdict, evidence: format!("{to}: {fared}; {why}") }
}

/// What a DNS server said (RFC 1035 section 4.1.1).
fn dns_answer(answer: &[u8]) -> String {
    match answer.get(3).map(|byte| byte & 0xf) {
        Some(0) => "an answer without error".to_owned(),
        Some(3) => "the answer that there is no such name".to_owned(),
        Some(5) => "the answer that it is refused".to_owned(),
        _ => "an answer".to_owned(),
    }
}
