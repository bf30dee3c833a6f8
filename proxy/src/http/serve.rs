//! The requests of one client's connection, one after the other, each judged by itself.

use std::sync::Arc;
use std::time::Duration;

use policy::{Ask, Inbound, Reason};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::forward::forward;
use super::head::{BadHead, HeadReader, RequestHead, Target};
use super::leg::Leg;
use super::reply::{self, Form};
use super::request::Next;
use crate::connection::Connection;
use crate::credentials;
use crate::first_bytes::Established;
use crate::hold::left;

/// What a CONNECT gets: no header has a meaning here (RFC 9110 §9.3.6).
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// A head that could not be read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) bad: BadHead,
    /// What was sent in the place of the target, for the record.
    pub(crate) shown: Vec<u8>,
    connect: bool,
}

/// Serves a connection whose first bytes are there. Returns a tunnel where one was asked for and opened.
pub(crate) async fn serve(connection: Connection, first: Vec<u8>, deadline: Instant) -> Option<Established> {
    let Connection { stream, peer: bare, client: guard, .. } = connection;
    let gateway = Arc::clone(guard.gateway());
    let mut client = Leg::new(stream, first);
    let mut within = deadline.saturating_duration_since(Instant::now());
    let mut stopping = gateway.stopping();
    let mut peer = bare.clone();
    let last = loop {
        let read = read_head(&mut client, within, gateway.timeouts.idle, &mut stopping).await;
        let mut head = match read {
            Ok(Some(head)) => head,
            Ok(None) => return None,
            Err(unreadable) => break Err(unreadable),
        };
        // Each request is whose credentials it carries: nothing is taken over from the one before.
        peer = credentials::presented(&bare, &head);
        head.keep_alive &= !*stopping.borrow();
        within = gateway.timeouts.head;
        match head.target {
            Target::Absolute { .. } => match Box::pin(forward(&guard, &peer, client, &head)).await {
                Next::Again(same) => client = same,
                Next::Last(client) => {
                    client.finish().await;
                    return None;
                }
                Next::Ended => return None,
            },
            Target::Authority(_) => break Ok(head),
            // A forward proxy must not become a reverse proxy that routes by Host, nor show pages of its own.
            Target::Origin { .. } | Target::Asterisk => {
                let shown = head.target_as_sent().as_bytes().to_vec();
                break Err(Unreadable { bad: BadHead::Target, shown, connect: false });
            }
        }
    };
    let (stream, rest) = client.into_parts();
    let connection = Connection { stream, peer, client: guard, captured_at: None };
    match last {
        // Boxed, since a client that rests between requests would hold the room for it.
        Ok(head) => Box::pin(connect(connection, rest, head)).await,
        Err(unreadable) => {
            Box::pin(refuse(connection, unreadable)).await;
            None
        }
    }
}

/// Reads the next head: for its first byte `idle` is waited, then it must be whole `within` its time. `None` where the
/// client has nothing more to ask, or asks nothing and the gateway is stopping.
pub(crate) async fn read_head(
    client: &mut Leg,
    within: Duration,
    idle: Duration,
    stopping: &mut watch::Receiver<bool>,
) -> Result<Option<RequestHead>, Unreadable> {
    if client.unread().is_empty() {
        let first = async {
            tokio::select! {
                biased;
                read = client.fill() => matches!(read, Ok(1..)),
                _ = stopping.wait_for(|stopping| *stopping) => false,
            }
        };
        if !timeout(idle, first).await.unwrap_or(false) {
            return Ok(None);
        }
    }
    let mut reader = HeadReader::starting_with(client.take_unread());
    let mut fed = reader.feed(&[]);
    if matches!(fed, Ok(None)) {
        let whole = async {
            while matches!(client.fill().await, Ok(1..)) {
                match reader.feed(&client.take_unread()) {
                    Ok(None) => {}
                    fed => return Some(fed),
                }
            }
            None
        };
        fed = match timeout(within, whole).await {
            Ok(Some(fed)) => fed,
            Ok(None) => return Ok(None),
            Err(_) => Err(BadHead::TooSlow),
        };
    }
    match fed {
        Ok(head) => {
            client.put_back(reader.take_rest());
            Ok(head)
        }
        Err(bad) => Err(Unreadable { bad, shown: reader.shown().to_vec(), connect: reader.shows_connect() }),
    }
}

async fn connect(mut connection: Connection, mut early: Vec<u8>, head: RequestHead) -> Option<Established> {
    let form = Form::of(&head, false);
    let Target::Authority(destination) = head.target else { return None };
    let attempt = connection.attempt(Inbound::Connect, Ask::Stream(destination));
    let Connection { stream, client, .. } = &mut connection;
    match client.gateway().open(attempt, client, left(stream, &mut early)).await {
        Ok(opened) => {
            connection.stream.send(ESTABLISHED).await.ok()?;
            Some(Established::new(connection, early, opened))
        }
        Err(refused) => {
            let answer = reply::refused(&refused, form);
            // What follows a CONNECT is for the tunnel, and never a request.
            connection.finish(&answer, !early.is_empty()).await;
            None
        }
    }
}

/// Records a request that could not be read, answers it and closes.
async fn refuse(connection: Connection, unreadable: Unreadable) {
    let inbound = if unreadable.connect { Inbound::Connect } else { Inbound::Http };
    let attempt = connection.attempt(inbound, Ask::unreadable(&unreadable.shown));
    let denial = connection.gateway().gate.refuse(attempt, Reason::BadRequest).settle().await;
    connection.finish(&reply::bad_head(&denial, unreadable.bad), true).await;
}
