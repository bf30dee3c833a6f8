//! A client of a TLS listener: its handshake, and what is said and noted where it does not come through.

use std::sync::Arc;

use dns::clock::now;
use policy::{Ask, Certificate, Decision, Inbound, Peer, Reason};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::handshake::Shaken;
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
    let shaken = match timeout_at(deadline, trust.shake_hands(tcp)).await {
        Ok(Ok(shaken)) => shaken,
        Ok(Err(failed)) => {
            trust.tell(&failed, &peer.listener, peer.address);
            if failed.is_about_certificate() {
                note_stranger(&client, peer).await;
            }
            return None;
        }
        Err(_) => {
            tracing::debug!(client = ?peer.address, "a TLS handshake took too long");
            return None;
        }
    };
    let Shaken { stream, certificate } = shaken;
    let peer = match certificate {
        Some(certificate) => peer.certified(certificate),
        None => peer,
    };
    Some(Connection { stream: Stream::Tls(Box::new(stream)), peer, client, captured_at: None })
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
/// told it why.
async fn note_stranger(client: &Client, peer: Peer) {
    let gate = &client.gateway().gate;
    let stranger = peer.certified(Certificate::untrusted());
    let attempt = gate.attempt(now(), &stranger, Inbound::Http, Ask::unreadable(&[]));
    if let Decision::Deny(denial) = gate.check(attempt) {
        denial.settle().await;
    }
}
