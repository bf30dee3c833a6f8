//! Listeners on loopback: those of the gateway's host must not be among them.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;

use super::ground::Ground;
use super::socket::{self, Stream};
use super::{Line, unix};
use crate::netns::{CAPTURED_PORT, DNS_PORT, PROXY_PORT};

/// `TCP_LISTEN` in /proc/net/tcp (proc_net(5), tcp_states.h).
const LISTENING: &str = "0A";

pub(super) fn lines(ground: &Ground<'_>) -> Vec<Line> {
    vec![of_this_namespace(ground), of_the_host(ground)]
}

/// What listens in this network namespace: besides the gateway only the sandbox itself may.
fn of_this_namespace(ground: &Ground<'_>) -> Line {
    const WAY: &str = "listeners on loopback";
    let Some(all) = listening() else {
        return Line::unproven(WAY, "/proc/self/net/tcp cannot be read");
    };
    let ours = [PROXY_PORT, CAPTURED_PORT, DNS_PORT];
    let own = unix::sockets_of_visible_processes();
    let strange: BTreeSet<u16> = all
        .iter()
        .filter(|(port, inode)| !ours.contains(port) && !own.contains(inode))
        .map(|(port, _)| *port)
        .collect();
    let shown: Vec<_> = strange.iter().take(8).map(ToString::to_string).collect();
    match (strange.is_empty(), ground.is_sealed()) {
        (true, true) => {
            Line::contained(WAY, format!("only the gateway's and the sandbox's own; {}", ground.why()))
        }
        (true, false) => Line::unproven(WAY, ground.why()),
        (false, _) => Line::unproven(
            WAY,
            format!("of neither the gateway nor a process that is seen here: port {}", shown.join(", ")),
        ),
    }
}

/// The ports that are listened on here with the inodes of their sockets.
fn listening() -> Option<Vec<(u16, u64)>> {
    let mut found = Vec::new();
    let mut read = false;
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let Ok(text) = fs::read_to_string(table) else { continue };
        read = true;
        found.extend(text.lines().skip(1).filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
            let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
            let inode = fields.nth(5)?.parse().ok()?;
            (state == LISTENING).then_some((port, inode))
        }));
    }
    read.then_some(found)
}

/// The listener of the controls, which answers on the loopback of the host.
fn of_the_host(ground: &Ground<'_>) -> Line {
    const WAY: &str = "tcp to the loopback of the host";
    let Some(known) = ground.known else {
        return if ground.is_sealed() {
            Line::contained(
                WAY,
                format!(
                    "loopback is the namespace's own, and its listeners are told above; {}",
                    ground.why()
                ),
            )
        } else {
            Line::unproven(WAY, "no control outside was named (--controls)")
        };
    };
    let mut said = Vec::new();
    let fared = match socket::stream(known.tcp) {
        Stream::Failed(error) => socket::told(&error),
        Stream::Open(stream) => match stream.take(known.nonce.len() as u64).read_to_end(&mut said) {
            Ok(_) => "taken by another".to_owned(),
            Err(error) => socket::told(&error),
        },
    };
    if said == known.nonce.as_bytes() {
        Line::escaped(WAY, format!("the control at {} answered", known.tcp))
    } else {
        Line::contained(WAY, format!("the control at {} works outside, and here: {fared}", known.tcp))
    }
}
