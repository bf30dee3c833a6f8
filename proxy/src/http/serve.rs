//! The requests of one client's connection, one after the other.

use policy::{Ask, Inbound, Reason};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

use super::head::{BadHead, HeadReader, RequestHead, Target};
use super::reply::{self, Form};
use crate::connection::Connection;
use crate::first_bytes::Established;
use crate::open::Refused;

/// What a CONNECT gets: no header has a meaning here (RFC 9110 §9.3.6).
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Serves a connection whose first bytes are there. Returns a tunnel where one was asked for and opened.
pub(crate) async fn serve(
    mut connection: Connection,
    first: Vec<u8>,
    deadline: Instant,
) -> Option<Established> {
    let mut reader = HeadReader::starting_with(first);
    let head = match read_head(&mut connection, &mut reader, deadline).await {
        Some(Ok(head)) => head,
        Some(Err(bad)) => {
            refuse(connection, &reader, bad).await;
            return None;
        }
        None => return None,
    };
    match head.target {
        Target::Authority(_) => connect(connection, reader, head).await,
        // A forward proxy must not turn into a reverse proxy that is routed by Host.
        Target::Absolute { .. } | Target::Origin { .. } | Target::Asterisk => {
            refuse(connection, &reader, BadHead::Target).await;
            None
        }
    }
}

/// Reads on until there is a head. `None` where the client has gone.
async fn read_head(
    connection: &mut Connection,
    reader: &mut HeadReader,
    deadline: Instant,
) -> Option<Result<RequestHead, BadHead>> {
    let mut bytes = Vec::new();
    loop {
        match reader.feed(&bytes) {
            Ok(Some(head)) => return Some(Ok(head)),
            Ok(None) => bytes.clear(),
            Err(bad) => return Some(Err(bad)),
        }
        match timeout_at(deadline, connection.stream.read_more(&mut bytes)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return None,
            Err(_) => return Some(Err(BadHead::TooSlow)),
        }
    }
}

async fn connect(
    mut connection: Connection,
    mut reader: HeadReader,
    head: RequestHead,
) -> Option<Established> {
    let form = Form::of(&head, false);
    let Target::Authority(destination) = head.target else { return None };
    let attempt = connection.attempt(Inbound::Connect, Ask::Stream(destination));
    match connection.gateway().open(attempt).await {
        Ok(opened) => {
            connection.stream.write_all(ESTABLISHED).await.ok()?;
            Some(Established::new(connection, reader.take_rest(), opened))
        }
        Err(refused) => {
            let answer = match &refused {
                Refused::Denied(denial) => reply::denial(denial, form),
                Refused::Failed(failure) => reply::failure(failure, form),
            };
            // What follows a CONNECT is for the tunnel, and never a request.
            connection.finish(&answer, !reader.is_empty()).await;
            None
        }
    }
}

/// Records a request that could not be read, answers it and closes.
async fn refuse(connection: Connection, reader: &HeadReader, bad: BadHead) {
    let inbound = if reader.shows_connect() { Inbound::Connect } else { Inbound::Http };
    let attempt = connection.attempt(inbound, Ask::unreadable(reader.shown()));
    let denial = connection.gateway().gate.refuse(attempt, Reason::BadRequest).settle().await;
    connection.finish(&reply::bad_head(&denial, bad), true).await;
}
