//! The gateway as a way out: its own ports and the floor of its policy, asked for through its proxy.

use std::net::{Ipv4Addr, SocketAddr};

use super::Line;
use super::ground::Ground;
use super::socket::{self, Stream};
use crate::netns::PROXY_PORT;

/// Where no policy may let anybody: the way, and the authority that is asked for.
const FLOOR: [(&str, &str); 6] = [
    ("metadata through the gateway", "169.254.169.254:80"),
    ("metadata through the gateway, IPv6", "[fd00:ec2::254]:80"),
    ("the gateway's own metrics through the gateway", "127.0.0.1:9464"),
    ("the gateway's own loopback through the gateway, IPv6", "[::1]:9464"),
    ("the gateway's own loopback, mapped", "[::ffff:127.0.0.1]:9464"),
    ("the gateway's own loopback, as a number", "2130706433:9464"),
];

pub(super) fn lines(ground: &Ground<'_>) -> Vec<Line> {
    FLOOR.into_iter().map(|(way, authority)| ask(ground, way, authority)).collect()
}

fn ask(ground: &Ground<'_>, way: &'static str, authority: &str) -> Line {
    if !ground.is_sealed() {
        // What listens at that port could be anybody's proxy, and would be asked for somebody's address.
        return Line::unproven(way, format!("not tried; {}", ground.why()));
    }
    let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_PORT));
    let mut stream = match socket::stream(proxy) {
        Stream::Open(stream) => stream,
        Stream::Failed(error) => {
            return Line::contained(way, format!("no gateway at {proxy}: {}", socket::told(&error)));
        }
    };
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    let answer = match socket::exchange(&mut stream, request.as_bytes()) {
        Ok(answer) => answer,
        Err(error) => {
            return Line::unproven(way, format!("the gateway at {proxy}: {}", socket::told(&error)));
        }
    };
    match socket::refusal(&answer) {
        Some((status, _)) if status.starts_with('2') => {
            Line::escaped(way, format!("{authority}: the gateway opened it"))
        }
        Some((status, Some(reason))) => {
            Line::contained(way, format!("{authority}: the gateway saw it and said {status} {reason}"))
        }
        Some((status, None)) => {
            Line::unproven(way, format!("{authority}: {status}, and not by a gateway of ours"))
        }
        None => Line::unproven(way, format!("{authority}: an answer that is no HTTP")),
    }
}
