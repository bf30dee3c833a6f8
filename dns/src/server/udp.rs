//! Datagrams: read in batches, answered in batches. What needs no upstream needs no task.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use policy::{ListenerName, Peer};
use tokio::net::UdpSocket;

use crate::handler::{Begun, Outcome, Query};
use crate::reply::Transport;
use crate::server::Shared;

/// Datagrams that are decided before the first of them is answered.
const BATCH: usize = 32;

/// The largest query that is read. A question and an OPT record need at most 300 bytes.
const MAX_QUERY: usize = 4096;

/// Errors of a socket in a row after which it is given up.
const MAX_ERRORS: u32 = 100;

pub(super) async fn serve(
    shared: &Arc<Shared>,
    socket: Arc<UdpSocket>,
    name: ListenerName,
) -> std::io::Result<()> {
    let mut buffers = vec![vec![0; MAX_QUERY]; BATCH];
    let mut errors = 0;
    loop {
        socket.readable().await?;
        let mut received = Vec::with_capacity(BATCH);
        for buffer in &mut buffers {
            match socket.try_recv_from(buffer) {
                Ok((length, from)) => received.push((buffer.get(..length).unwrap_or_default(), from)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    errors += 1;
                    if errors == MAX_ERRORS {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        if !received.is_empty() {
            errors = 0;
        }
        answer(shared, &socket, &name, &received).await;
    }
}

/// Answers what was received: at once what is decided and on record, in a task what waits for either.
async fn answer(
    shared: &Arc<Shared>,
    socket: &Arc<UdpSocket>,
    name: &ListenerName,
    received: &[(&[u8], SocketAddr)],
) {
    let mut ready = Vec::with_capacity(received.len());
    let mut unwritten = Vec::new();
    for (message, from) in received {
        // Port 0 cannot be answered.
        if from.port() == 0 {
            continue;
        }
        let peer = Peer::new(Arc::clone(name), Some(*from));
        match shared.handler.begin(&peer, message) {
            Begun::Silent => {}
            Begun::Ended(query, outcome) if outcome.is_settled() => ready.push((query, outcome, *from)),
            Begun::Ended(query, outcome) => unwritten.push((query.to_owned(), outcome, *from)),
            Begun::Open(query, open) => {
                let (shared, socket, from) = (Arc::clone(shared), Arc::clone(socket), *from);
                let query = query.to_owned();
                tokio::spawn(async move {
                    let outcome = shared.handler.finish(*open).await;
                    reply(&shared, &socket, query.borrow(), outcome, from, &mut Vec::with_capacity(512))
                        .await;
                });
            }
        }
    }
    if !unwritten.is_empty() {
        // Their events are written together, within a millisecond; the next batch need not wait for that.
        let (shared, socket) = (Arc::clone(shared), Arc::clone(socket));
        tokio::spawn(async move {
            let mut buffer = Vec::with_capacity(512);
            for (query, outcome, from) in unwritten {
                reply(&shared, &socket, query.borrow(), outcome, from, &mut buffer).await;
            }
        });
    }
    let mut buffer = Vec::with_capacity(512);
    for (query, outcome, from) in ready {
        reply(shared, socket, query, outcome, from, &mut buffer).await;
    }
}

async fn reply(
    shared: &Shared,
    socket: &UdpSocket,
    query: Query<'_>,
    outcome: Outcome,
    to: SocketAddr,
    buffer: &mut Vec<u8>,
) {
    let settled = outcome.settle().await;
    buffer.clear();
    shared.handler.reply(query, &settled, Transport::Udp, buffer);
    if let Err(error) = socket.send_to(buffer, to).await {
        // The client is gone, or its network is: it asks again if it cares.
        tracing::debug!(%error, "cannot send a DNS reply");
    }
}
