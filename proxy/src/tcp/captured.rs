//! Captured connections: whatever a sandbox's own namespace opens to any address comes here, and its client takes the
//! gateway for the address that it chose.
//!
//! ```text
//! address ─┬─ bound ───────────────▶ its name ─┐
//!          ├─ floor, or a rule for it ─────────┼─▶ open ─▶ first bytes ─▶ tunnel
//!          └─ neither ─▶ what is shown? ─ name ┤
//!                                     └─ none ─┴─▶ the address: denied
//! ```
//!
//! The address that a client chose is dialled only where a rule lists it. A name that the client shows is resolved here:
//! a Host or a server name that is allowed opens no other address.

use std::net::SocketAddr;
use std::time::Duration;

use dns::clock::now;
use policy::{Ask, Attempt, ByName, Denial, Destination, FirstBytes, Host, Hostname, Inbound, Reason};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::opening::{Opening, OpeningReader};
use crate::connection::Connection;
use crate::first_bytes::{ACCESS_DENIED, Established};
use crate::hold::left;
use crate::http::head::{BadHead, RequestHead, Target};
use crate::http::reply::{self, Form};
use crate::open::{Opened, Refused};
use crate::stream::Stream;

/// How long a client that is refused before it has said anything is waited for, so that it can be told in its own
/// protocol. Most clients speak as soon as they are connected.
const PATIENCE: Duration = Duration::from_millis(5);

/// How long a refused client may take to hear of it.
const ALERT_WITHIN: Duration = Duration::from_secs(1);

/// What has come from a client, and what it is.
#[derive(Debug)]
struct First {
    bytes: Vec<u8>,
    /// `None` for a client that has said nothing.
    opening: Option<Opening>,
}

/// Serves a connection that came to `own`, the listener's address, and was meant for another. Returns a tunnel where one
/// is allowed and opened.
pub(crate) async fn serve(
    mut connection: Connection,
    own: SocketAddr,
    deadline: Instant,
) -> Option<Established> {
    let Some(destination) = original(&connection.stream, own) else {
        refuse_unmeant(connection, own).await;
        return None;
    };
    let attempt = connection.attempt(Inbound::Tcp, Ask::Stream(destination));
    let until = match connection.gateway().gate.by_name(&attempt) {
        ByName::Yes => Some(deadline),
        // It is denied whatever comes, and not by a time-out.
        ByName::InVain => Some(Instant::now() + PATIENCE),
        ByName::No => None,
    };
    if let Some(until) = until {
        let first = First::read(&mut connection.stream, Vec::new(), until).await;
        return Box::pin(by_name(connection, attempt, first)).await;
    }
    let mut ahead = Vec::new();
    let Connection { stream, client, .. } = &mut connection;
    match client.gateway().open(attempt, client, left(stream, &mut ahead)).await {
        Ok(opened) => Some(Established::new(connection, ahead, opened)),
        Err(refused) => {
            let first = First::read(&mut connection.stream, ahead, Instant::now() + PATIENCE).await;
            Box::pin(turn_away(connection, &refused, first)).await;
            None
        }
    }
}

/// The destination that the client chose; `None` for one that has connected to the listener itself.
fn original(stream: &Stream, own: SocketAddr) -> Option<Destination> {
    let socket = stream.plain()?;
    let socket = socket2::SockRef::from(&socket);
    // Where the kernel has redirected nothing, the one answers ENOENT and the other the listener's own address.
    let found = if own.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    let chosen = found.ok()?.as_socket().filter(|chosen| *chosen != own)?;
    Destination::from_socket(chosen).ok()
}

async fn refuse_unmeant(connection: Connection, own: SocketAddr) {
    let attempt = connection.attempt(Inbound::Tcp, Ask::unreadable(own.to_string().as_bytes()));
    connection.gateway().gate.refuse(attempt, Reason::BadRequest).settle().await;
    connection.stream.reset_on_close();
}

/// Goes on with a connection to an address that no rule lists, by what its client shows.
async fn by_name(mut connection: Connection, mut attempt: Attempt, mut first: First) -> Option<Established> {
    let shown = match &first.opening {
        None => {
            refuse_silent(connection, attempt).await;
            return None;
        }
        Some(Opening::BadHttp(bad, shown)) => {
            attempt.ask = Ask::unreadable(shown);
            refuse_request(connection, attempt, *bad).await;
            return None;
        }
        Some(Opening::Http(head)) if !is_for_one_host(head) => {
            attempt.ask = Ask::unreadable(head.target_as_sent().as_bytes());
            refuse_request(connection, attempt, BadHead::Target).await;
            return None;
        }
        Some(Opening::Http(head)) => head.host.as_ref().and_then(|host| host.host.name()).cloned(),
        Some(Opening::Tls(name)) => name.clone(),
        Some(Opening::Other) => None,
    };
    if let Some(name) = shown {
        show(&mut attempt, name);
    }
    let is_http = matches!(first.opening, Some(Opening::Http(_)));
    match open(&mut connection, attempt, is_http, &mut first.bytes).await {
        Ok(opened) => {
            let mut established = Established::new(connection, first.bytes, opened);
            established.is_http = is_http;
            Some(established)
        }
        Err(refused) => {
            turn_away(connection, &refused, first).await;
            None
        }
    }
}

/// Puts the name that the client shows in the place of the address that it chose.
fn show(attempt: &mut Attempt, name: Hostname) {
    if let Ask::Stream(destination) = &mut attempt.ask {
        destination.host = Host::Name(name);
    }
}

/// Whether a request says one thing of where it goes: an origin's server is never asked for a tunnel, and a URI that
/// names another host than Host does is read by the one server so and by the other so (RFC 9112 §3.2.2).
fn is_for_one_host(head: &RequestHead) -> bool {
    match &head.target {
        Target::Authority(_) => false,
        Target::Absolute { destination, .. } => {
            head.host.as_ref().is_none_or(|host| host.host == destination.host)
        }
        Target::Origin { .. } | Target::Asterisk => true,
    }
}

async fn open(
    connection: &mut Connection,
    attempt: Attempt,
    is_http: bool,
    ahead: &mut Vec<u8>,
) -> Result<Opened, Refused> {
    let Connection { stream, client, .. } = connection;
    let gateway = client.gateway();
    let permit = gateway.decide(attempt, client, left(stream, ahead)).await?;
    if is_http && permit.first_bytes() == FirstBytes::Tls {
        // What would be found in the tunnel is known already.
        let denial = gateway.gate.refuse_permit(permit, Reason::TlsRequired, now());
        return Err(Refused::Denied(denial.settle().await));
    }
    gateway.open_permitted(permit).await
}

/// A client that says nothing waits for a server to speak. It is never led to the address that it chose, not even in
/// learn mode: nobody knows who that would be.
async fn refuse_silent(connection: Connection, attempt: Attempt) {
    let gateway = connection.gateway();
    // A refusal is on record already.
    if let Ok(permit) = gateway.decide_at_once(attempt, &connection.client).await {
        gateway.gate.refuse_permit(permit, Reason::AddressLiteralNotListed, now()).settle().await;
    }
    connection.stream.reset_on_close();
}

/// Records a request that could not be read, answers it and closes.
async fn refuse_request(connection: Connection, attempt: Attempt, bad: BadHead) {
    let denial: Denial = connection.gateway().gate.refuse(attempt, Reason::BadRequest).settle().await;
    connection.finish(&reply::bad_head(&denial, bad), true).await;
}

/// Ends a connection that is refused, in the protocol that its client speaks.
async fn turn_away(mut connection: Connection, refused: &Refused, first: First) {
    match (first.opening, refused) {
        (Some(Opening::Http(head)), _) => {
            connection.finish(&reply::refused(refused, Form::of(&head, false)), true).await;
            return;
        }
        (Some(Opening::Tls(_)), Refused::Denied(_)) => {
            let _ = timeout(ALERT_WITHIN, connection.stream.write_all(&ACCESS_DENIED)).await;
        }
        (_, Refused::Denied(_) | Refused::Failed(_)) => {}
    }
    connection.stream.reset_on_close();
}

impl First {
    /// Reads on behind `bytes` until it is known what the client opens with, or it has nothing more to say.
    async fn read(stream: &mut Stream, mut bytes: Vec<u8>, deadline: Instant) -> Self {
        let mut reader = OpeningReader::default();
        if !bytes.is_empty()
            && let Some(opening) = reader.read(&bytes, bytes.len())
        {
            return Self { bytes, opening: Some(opening) };
        }
        loop {
            match timeout_at(deadline, stream.read_more(&mut bytes)).await {
                Ok(Ok(new @ 1..)) => {
                    if let Some(opening) = reader.read(&bytes, new) {
                        return Self { bytes, opening: Some(opening) };
                    }
                }
                Ok(Ok(0) | Err(_)) | Err(_) => {
                    let opening = (!bytes.is_empty()).then(|| reader.given_up());
                    return Self { bytes, opening };
                }
            }
        }
    }
}
