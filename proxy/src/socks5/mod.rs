//! SOCKS5 (RFC 1928) on the proxy port.

pub mod wire;

use std::sync::Arc;

use policy::{Ask, Decision, Inbound, Reason, Stranger};
use tokio::time::{Instant, timeout_at};

use self::wire::{LONGEST, Malformed, Method, Read, Reply, Request};
use crate::connection::Connection;
use crate::credentials;
use crate::first_bytes::Established;
use crate::hold::left;
use crate::open::Refused;

/// Serves a connection whose first bytes are there. Returns a tunnel where one was asked for and opened.
pub(crate) async fn serve(
    mut connection: Connection,
    first: Vec<u8>,
    deadline: Instant,
) -> Option<Established> {
    let mut bytes = first;
    let request = match timeout_at(deadline, negotiate(&mut connection, &mut bytes)).await {
        Ok(Ok(request)) => request,
        // The client has gone, is too slow, or offers nothing that is taken: there is nothing to record yet.
        Ok(Err(Ended::Gone)) | Err(_) => return None,
        Ok(Err(Ended::Malformed)) => {
            refuse(connection, &bytes, Reply::GeneralFailure).await;
            return None;
        }
        Ok(Err(Ended::Unauthenticated)) => {
            // Nothing was named yet; who asks comes before what is asked.
            let attempt = connection.attempt(Inbound::Socks5, Ask::unreadable(&[]));
            if let Decision::Deny(denial) = connection.gateway().gate.check(attempt) {
                denial.settle().await;
            }
            connection.finish(&wire::password_reply(false), true).await;
            return None;
        }
    };
    match request {
        Request::Connect(destination) => {
            let attempt = connection.attempt(Inbound::Socks5, Ask::Stream(destination));
            let Connection { stream, client, .. } = &mut connection;
            match client.gateway().open(attempt, client, left(stream, &mut bytes)).await {
                Ok(opened) => {
                    connection.stream.send(&Reply::Succeeded.bytes()).await.ok()?;
                    return Some(Established::new(connection, bytes, opened));
                }
                Err(refused) => connection.finish(&reply(&refused).bytes(), !bytes.is_empty()).await,
            }
        }
        // As 400 elsewhere: the client named nothing that could be judged.
        Request::Unreadable { host, .. } => refuse(connection, &host, Reply::GeneralFailure).await,
        Request::OtherCommand => {
            refuse(connection, b"BIND or UDP ASSOCIATE", Reply::CommandNotSupported).await
        }
        Request::OtherAddress => {
            refuse(connection, b"unknown address type", Reply::AddressNotSupported).await
        }
    }
    None
}

/// Why there is no request.
enum Ended {
    Gone,
    Malformed,
    /// Its user name and password are wrong, and no answer has been sent.
    Unauthenticated,
}

/// Greets and reads the request; what follows it stays in `bytes`.
async fn negotiate(connection: &mut Connection, bytes: &mut Vec<u8>) -> Result<Request, Ended> {
    let greeting = message(connection, bytes, wire::greeting).await?;
    let gate = Arc::clone(&connection.gateway().gate);
    let method = match greeting {
        // A client that has a password sends it where it is asked for; others know only one method.
        wire::Greeting { password: true, .. } if gate.takes_tokens() => Method::Password,
        wire::Greeting { none: true, .. } => Method::None,
        // Some clients offer nothing else. Where nobody is known by a token, what it says counts for nothing.
        wire::Greeting { password: true, .. } => Method::Password,
        wire::Greeting { none: false, password: false } => Method::NotAcceptable,
    };
    send(connection, &method.bytes()).await?;
    match method {
        Method::None => {}
        Method::Password => {
            let said = message(connection, bytes, wire::credentials).await?;
            connection.peer.credentials = credentials::of_password(&said.user, &said.password);
            if gate.identify(&connection.peer) == Err(Stranger::Unauthenticated) {
                return Err(Ended::Unauthenticated);
            }
            send(connection, &wire::password_reply(true)).await?;
        }
        Method::NotAcceptable => return Err(Ended::Gone),
    }
    message(connection, bytes, wire::request).await
}

/// Reads on until there is a message, and takes it off `bytes`.
async fn message<T>(
    connection: &mut Connection,
    bytes: &mut Vec<u8>,
    read: impl Fn(&[u8]) -> Result<Option<Read<T>>, Malformed>,
) -> Result<T, Ended> {
    loop {
        match read(bytes).map_err(|_| Ended::Malformed)? {
            Some(Read { message, length }) => {
                bytes.drain(..length);
                return Ok(message);
            }
            None if bytes.len() > LONGEST => return Err(Ended::Malformed),
            None => {}
        }
        match connection.stream.read_more(bytes).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Err(Ended::Gone),
        }
    }
}

async fn send(connection: &mut Connection, bytes: &[u8]) -> Result<(), Ended> {
    connection.stream.send(bytes).await.map_err(|_| Ended::Gone)
}

/// Records a request that could not be read, answers it and closes.
async fn refuse(connection: Connection, shown: &[u8], reply: Reply) {
    let attempt = connection.attempt(Inbound::Socks5, Ask::unreadable(shown));
    connection.gateway().gate.refuse(attempt, Reason::BadRequest).settle().await;
    connection.finish(&reply.bytes(), true).await;
}

fn reply(refused: &Refused) -> Reply {
    match refused {
        Refused::Denied(_) => Reply::NotAllowed,
        Refused::Failed(failure) => match failure.reason() {
            Reason::UpstreamDnsFailed => Reply::HostUnreachable,
            Reason::UpstreamConnectFailed => Reply::ConnectionRefused,
            Reason::UpstreamTimeout => Reply::TimedOut,
            _ => Reply::GeneralFailure,
        },
    }
}
