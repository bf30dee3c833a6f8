//! Datagrams: read in batches, answered in batches. What needs no upstream needs no task.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use policy::Entrance;
use tokio::net::UdpSocket;

use crate::batch::Batch;
use crate::handler::{Begun, Outcome, Query};
use crate::reply::Transport;
use crate::server::Shared;

/// Datagrams that are decided before the first of them is answered.
const BATCH: usize = 32;

/// Errors of a socket in a row after which it is given up.
const MAX_ERRORS: u32 = 100;

pub(super) async fn serve(
    shared: &Arc<Shared>,
    socket: Arc<UdpSocket>,
    entrance: Entrance,
) -> std::io::Result<()> {
    let mut batch = Batch::new(&socket, BATCH)?;
    let mut errors = 0;
    loop {
        socket.readable().await?;
        match batch.receive(&socket) {
            Ok(()) => {
                errors = 0;
                answer(shared, &socket, &entrance, &batch).await;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                errors += 1;
                if errors == MAX_ERRORS {
                    return Err(error);
                }
            }
        }
    }
}

/// Answers what was received: at once what is decided and on record, in a task what waits for either.
async fn answer(shared: &Arc<Shared>, socket: &Arc<UdpSocket>, entrance: &Entrance, batch: &Batch) {
    let mut ready = Vec::with_capacity(batch.len());
    let mut unwritten = Vec::new();
    for (message, from) in batch.iter() {
        // Port 0 cannot be answered.
        let Some(from) = from.filter(|from| from.port() != 0) else { continue };
        let peer = entrance.peer(Some(from));
        match shared.handler.begin(&peer, message) {
            Begun::Silent => {}
            Begun::Ended(query, outcome) if outcome.is_settled() => ready.push((query, outcome, from)),
            Begun::Ended(query, outcome) => unwritten.push((query.to_owned(), outcome, from)),
            Begun::Open(query, open) => {
                let (shared, socket) = (Arc::clone(shared), Arc::clone(socket));
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
