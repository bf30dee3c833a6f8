//! What a plain request is on its way, alone or inside a tunnel: the question for the gate, the head that goes on, and
//! what is done where it does not end well.

use std::sync::Arc;
use std::time::Duration;

use policy::{Ask, Destination, Permit, Port};

use super::body::Extent;
use super::chunked;
use super::exchange::Ended;
use super::fields::{self, RequestTerms};
use super::head::{BodyLength, RequestHead, Upgrade, Version};
use super::leg::{DRAINED, Leg};
use super::reply::{self, Form};
use super::response::Asked;
use crate::live::Session;
use crate::open::Refused;
use crate::tunnel::Tunnel;

/// What becomes of a client's connection after a request.
#[derive(Debug)]
pub(crate) enum Next {
    /// It may carry another.
    Again(Leg),
    /// It ends with what is in its outbox.
    Last(Leg),
    /// It has ended.
    Ended,
}

/// The question that a request puts to the gate.
pub(super) fn ask(head: &RequestHead, destination: &Destination, path_and_query: &str) -> Ask {
    let path = path_and_query.split('?').next().unwrap_or_default();
    Ask::Request { destination: destination.clone(), method: head.method().into(), path: path.into() }
}

/// Whether what has come of the body is well-formed and the fields can be rewritten: what is malformed is refused
/// before anybody is dialled.
pub(super) fn is_sane(head: &RequestHead, client: &Leg) -> bool {
    let chunks = || {
        let (mut decoder, mut came) = (chunked::Decoder::default(), client.unread());
        loop {
            match decoder.next(&mut came) {
                Ok(Some(chunked::Piece::Data(_))) => {}
                Ok(Some(chunked::Piece::End) | None) => return true,
                Err(chunked::BadChunk) => return false,
            }
        }
    };
    fields::are_sane(head.fields()) && (head.body != BodyLength::Chunked || chunks())
}

/// What a request is, as far as its response depends on it.
pub(super) fn asked(head: &RequestHead, permit: &Permit) -> Asked {
    Asked {
        head: head.method() == "HEAD",
        version: head.version(),
        upgrade: offered(head, permit),
        keep_alive: head.keep_alive,
        tied: false,
    }
}

/// The protocols that a client asks to change to, if the wish is passed on. HTTP/2 is not: its requests would pass
/// unseen (RFC 9113 §3.1 has retired that change). Nor is any but WebSocket where requests are held to methods or paths.
fn offered(head: &RequestHead, permit: &Permit) -> Option<Vec<u8>> {
    let narrow = permit.limits_methods() || permit.limits_paths();
    match head.upgrade {
        _ if head.version() == Version::Http10 => return None,
        Upgrade::None => return None,
        Upgrade::Other if narrow => return None,
        Upgrade::WebSocket | Upgrade::Other => {}
    }
    let lines = head.fields().filter(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
    let all = lines.map(|(_, value)| value).collect::<Vec<_>>().join(&b',');
    let speaks_http2 =
        |token: &[u8]| token.trim_ascii().get(..2).is_some_and(|two| two.eq_ignore_ascii_case(b"h2"));
    (!all.split(|&byte| byte == b',').any(speaks_http2)).then_some(all)
}

/// Writes the head as the origin gets it: origin-form, Host from the destination, nothing of this connection.
pub(super) fn write_head(
    head: &RequestHead,
    destination: &Destination,
    path_and_query: &str,
    session: &Session,
    out: &mut Vec<u8>,
) -> Result<(), fields::TooManyNominated> {
    let authority = match destination.port {
        Port::HTTP => destination.host.to_string(),
        _ => destination.to_string(),
    };
    out.reserve(head.raw().len() + authority.len());
    for part in [head.method(), " ", path_and_query, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    let permit: &Permit = session.permit();
    let terms = RequestTerms {
        authority: &authority,
        body: Extent::from(head.body),
        upgrade: offered(head, permit).is_some(),
        limits_methods: permit.limits_methods(),
        limits_paths: permit.limits_paths(),
    };
    fields::write_request(head.fields(), terms, out)
}

/// Answers a refusal. The connection goes on only where the request's body can be read to its end at little cost.
pub(super) async fn refuse(
    mut client: Leg,
    head: &RequestHead,
    refused: &Refused,
    last: bool,
    within: Duration,
) -> Next {
    let left = match head.body {
        BodyLength::None => Some(0),
        // A client that waits for a 100 sends its body or does not.
        BodyLength::Length(length) if !head.expect_continue && length <= DRAINED => Some(length),
        BodyLength::Length(_) | BodyLength::Chunked => None,
    };
    let left = left.filter(|_| !last && head.keep_alive && head.version() == Version::Http11);
    client.outbox().extend(reply::refused(refused, Form::of(head, left.is_some())));
    match left {
        Some(left) if client.drain(left, within).await => Next::Again(client),
        _ => Next::Last(client),
    }
}

/// Brings an exchange that did not end well to its end on both sides.
pub(super) async fn end(
    mut client: Leg,
    upstream: Leg,
    session: Session,
    ended: Ended,
    head: &RequestHead,
    idle: Duration,
) -> Next {
    match ended {
        Ended::Switched => {
            let (client, to_upstream) = client.into_parts();
            let (upstream, to_client) = upstream.into_parts();
            let meter = Arc::clone(session.meter());
            meter.add_up(to_upstream.len());
            meter.add_down(to_client.len());
            let closed = Tunnel { client, upstream, to_upstream, to_client, meter, idle }.run().await;
            session.note(closed);
        }
        Ended::Unanswered(fault) => {
            session.cut(fault.reason());
            // Half a request must not be taken for a whole one.
            upstream.stream().reset_on_close();
            client.outbox().extend(reply::fault(session.permit().attempt(), fault, Form::of(head, false)));
            return Next::Last(client);
        }
        Ended::Cut { unframed } => {
            if unframed {
                client.stream().reset_on_close();
            }
        }
        Ended::Over(limit) => {
            session.cut(limit);
            client.stream().reset_on_close();
            upstream.stream().reset_on_close();
        }
        Ended::Killed => {
            client.stream().reset_on_close();
            upstream.stream().reset_on_close();
        }
        // An origin must not take half a body for a whole one.
        Ended::ClientGone => upstream.stream().reset_on_close(),
        Ended::Whole { .. } => return Next::Last(client),
    }
    Next::Ended
}
