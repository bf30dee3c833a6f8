//! The handshake with a client of a TLS listener, and what is said to one that does not come through it.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use dns::clock::now;
use policy::{Ask, Certificate, Decision, Inbound, Peer, Reason};
use rustls::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;

use super::material::{SEEN, Seen};
use super::stream::TlsStream;
use super::trust::Trust;
use crate::connection::Connection;
use crate::gateway::Client;
use crate::http::head::BadHead;
use crate::http::reply;
use crate::socks5::wire;
use crate::stream::Stream;
use crate::tcp::records::HANDSHAKE;

/// Serves a client of a TLS listener to its end.
pub(crate) async fn serve(trust: Arc<Trust>, tcp: TcpStream, peer: Peer, client: Client) {
    // What the handshake needs is given back before the tunnel runs.
    if let Some(connection) = Box::pin(enter(trust, tcp, peer, client)).await {
        connection.serve().await;
    }
}

/// Shakes hands within the time that a head may take. `None` where the client does not come through.
async fn enter(trust: Arc<Trust>, tcp: TcpStream, peer: Peer, client: Client) -> Option<Connection> {
    let deadline = Instant::now() + client.gateway().timeouts.head;
    let mut first = [0];
    match timeout_at(deadline, tcp.peek(&mut first)).await {
        Ok(Ok(1..)) => {}
        // It came and said nothing: nothing was attempted.
        Ok(Ok(0) | Err(_)) | Err(_) => return None,
    }
    if first != [HANDSHAKE] {
        let connection = Connection { stream: Stream::Tcp(tcp), peer, client, captured_at: None };
        turn_away(connection, first).await;
        return None;
    }
    let material = trust.material();
    let handshake = TlsAcceptor::from(material.server()).accept(tcp);
    let seen = RefCell::new(Seen::default());
    let noted = SEEN.scope(seen, async {
        let outcome = timeout_at(deadline, handshake).await;
        (outcome, SEEN.with(RefCell::take))
    });
    let (outcome, seen) = noted.await;
    let session = match outcome {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => {
            refuse(&client, peer, &error, seen).await;
            return None;
        }
        Err(_) => {
            tracing::debug!(client = ?peer.address, "a TLS handshake took too long");
            return None;
        }
    };
    let peer = match (session.get_ref().1.peer_certificates(), seen.read) {
        (Some(chain), Some(read)) => match trust.admit(chain, read.names, &material) {
            Some(certificate) => peer.certified(certificate),
            None => peer.certified(Certificate::untrusted()),
        },
        (_, None) if material.asks_for_certificates() => peer.certified(Certificate::untrusted()),
        (..) => peer,
    };
    let stream = Stream::Tls(Box::new(TlsStream::new(session)));
    Some(Connection { stream, peer, client, captured_at: None })
}

/// Answers a client that does not speak TLS in what it may speak.
async fn turn_away(connection: Connection, first: [u8; 1]) {
    let (inbound, shown) = match first {
        [wire::VERSION] => (Inbound::Socks5, &b"SOCKS5 without TLS"[..]),
        _ => (Inbound::Http, &b"a request without TLS"[..]),
    };
    let attempt = connection.attempt(inbound, Ask::unreadable(shown));
    let denial = connection.gateway().gate.refuse(attempt, Reason::BadRequest).settle().await;
    match inbound {
        Inbound::Socks5 => connection.finish(&wire::Method::NotAcceptable.bytes(), true).await,
        _ => connection.finish(&reply::bad_head(&denial, BadHead::Unencrypted), true).await,
    }
}

/// Puts a client whose certificate is missing or not trusted on record: it is nobody, wherever it comes from. The alert has
/// told it why. Any other failure is one of the protocol, and nothing was attempted.
async fn refuse(client: &Client, peer: Peer, error: &io::Error, seen: Seen) {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    let Some(cause @ (Error::InvalidCertificate(_) | Error::NoCertificatesPresented)) = cause else {
        tracing::debug!(client = ?peer.address, %error, "a TLS handshake failed");
        return;
    };
    let gate = &client.gateway().gate;
    let Seen { read, why } = seen;
    let (serial, called) = match read {
        Some(read) => (read.serial, Certificate::new(read.names).to_string()),
        None => Default::default(),
    };
    let listener = &peer.listener;
    match why {
        Some(why) => {
            tracing::warn!(%listener, client = ?peer.address, why, "a client certificate is refused");
        }
        None => {
            tracing::warn!(%listener, client = ?peer.address, error = %cause, serial, certificate = ?called, "a client certificate is refused");
        }
    }
    let stranger = peer.certified(Certificate::untrusted());
    let attempt = gate.attempt(now(), &stranger, Inbound::Http, Ask::unreadable(&[]));
    if let Decision::Deny(denial) = gate.check(attempt) {
        denial.settle().await;
    }
}
