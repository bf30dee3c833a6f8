//! Datagrams: read in batches, answered in batches. What needs no upstream needs no task, until there is more than one
//! core can do.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use policy::Entrance;
use tokio::task::JoinSet;

use crate::batch::{Batch, Replies};
use crate::handler::{Begun, Outcome, Query};
use crate::reply::Transport;
use crate::server::Shared;
use crate::socket::Socket;

/// Datagrams that are decided before the first of them is answered.
const BATCH: usize = 32;

/// Errors of a socket in a row after which it is given up.
const MAX_ERRORS: u32 = 100;

pub(super) async fn serve(shared: &Arc<Shared>, socket: Socket, entrance: Entrance) -> std::io::Result<()> {
    let mut batch = Batch::new(&socket, BATCH)?;
    let mut replies = Replies::default();
    let outbox = Arc::new(Outbox { socket, replies: Mutex::default() });
    let mut aside = Aside::new();
    let mut errors = 0;
    loop {
        outbox.socket.arrived().await?;
        match batch.receive(&outbox.socket) {
            Ok(()) => {
                errors = 0;
                if batch.is_full() && aside.takes(shared, &outbox, &entrance, &mut batch) {
                    go_last().await;
                } else {
                    answer(shared, &outbox, &entrance, &batch, &mut replies).await;
                }
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

/// Puts this task at the end of its worker's queue, where another that is free finds it, and runs what was spawned last.
/// `yield_now` would be heard of only once this worker has nothing else to do.
async fn go_last() {
    let mut gone = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gone, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Full batches that other workers answer, so that this task goes on reading: all workers but one at the same time.
#[derive(Debug)]
struct Aside {
    under_way: JoinSet<Batch>,
    workers: usize,
    spare: Vec<Batch>,
}

impl Aside {
    fn new() -> Self {
        let workers = tokio::runtime::Handle::current().metrics().num_workers();
        Self { under_way: JoinSet::new(), workers, spare: Vec::new() }
    }

    /// Takes a batch off the reader's hands and leaves an empty one, unless every other worker has one.
    fn takes(
        &mut self,
        shared: &Arc<Shared>,
        outbox: &Arc<Outbox>,
        entrance: &Entrance,
        batch: &mut Batch,
    ) -> bool {
        while let Some(ended) = self.under_way.try_join_next() {
            self.spare.extend(ended);
        }
        if self.under_way.len() + 1 >= self.workers {
            return false;
        }
        let empty = self.spare.pop().unwrap_or_else(|| batch.another());
        let full = std::mem::replace(batch, empty);
        let (shared, outbox, entrance) = (Arc::clone(shared), Arc::clone(outbox), entrance.clone());
        self.under_way.spawn(async move {
            answer(&shared, &outbox, &entrance, &full, &mut Replies::default()).await;
            full
        });
        true
    }
}

/// Answers what was received: in place what is decided and on record, in a task what waits for an upstream or a slow
/// audit.
async fn answer(
    shared: &Arc<Shared>,
    outbox: &Arc<Outbox>,
    entrance: &Entrance,
    batch: &Batch,
    replies: &mut Replies,
) {
    let mut unwritten = Vec::new();
    for (message, from) in batch.iter() {
        // Port 0 cannot be answered.
        let Some(from) = from.filter(|from| from.port() != 0) else { continue };
        let peer = entrance.peer(Some(from));
        match shared.handler.begin(&peer, message) {
            Begun::Silent => {}
            Begun::Ended(query, outcome) if outcome.is_settled() => {
                reply(shared, query, outcome, from, replies).await;
            }
            Begun::Ended(query, outcome) => unwritten.push((query, outcome, from)),
            Begun::Open(query, open) => {
                let (shared, outbox) = (Arc::clone(shared), Arc::clone(outbox));
                let query = query.to_owned();
                tokio::spawn(async move {
                    let outcome = shared.handler.finish(*open).await;
                    outbox.put(&shared, query.borrow(), outcome, from).await;
                });
            }
        }
    }
    // What is on record need not wait for what is not.
    replies.send(&outbox.socket).await;
    if unwritten.is_empty() {
        return;
    }
    if are_soon_settled(&mut unwritten).await {
        for (query, outcome, from) in unwritten {
            reply(shared, query, outcome, from, replies).await;
        }
        return replies.send(&outbox.socket).await;
    }
    let (shared, outbox) = (Arc::clone(shared), Arc::clone(outbox));
    let waiting: Vec<_> =
        unwritten.into_iter().map(|(query, outcome, from)| (query.to_owned(), outcome, from)).collect();
    tokio::spawn(async move {
        for (query, outcome, from) in waiting {
            outbox.put(&shared, query.borrow(), outcome, from).await;
        }
    });
}

/// Waits for the records of a batch, but not for a slow disk or a pipe: the first look lets the tasks that are ready
/// record theirs, at the second the audit writes, in this task, where writing is quick.
async fn are_soon_settled(outcomes: &mut [(Query<'_>, Outcome, SocketAddr)]) -> bool {
    let mut looked_before = false;
    poll_fn(|cx| {
        // The write that holds the last line holds those before it.
        let settled = outcomes.iter_mut().rev().all(|(_, outcome, _)| outcome.poll_settled(cx).is_ready());
        if settled || looked_before {
            return Poll::Ready(settled);
        }
        looked_before = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

async fn reply(shared: &Shared, query: Query<'_>, outcome: Outcome, to: SocketAddr, replies: &mut Replies) {
    let settled = outcome.settle().await;
    replies.add(to, |out| shared.handler.reply(query, &settled, Transport::Udp, out));
}

/// Where tasks leave their replies: the first of them sends what the others, ready at the same time, add.
#[derive(Debug)]
struct Outbox {
    socket: Socket,
    replies: Mutex<Replies>,
}

impl Outbox {
    async fn put(&self, shared: &Shared, query: Query<'_>, outcome: Outcome, to: SocketAddr) {
        let settled = outcome.settle().await;
        let is_first = {
            let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
            let is_first = replies.is_empty();
            replies.add(to, |out| shared.handler.reply(query, &settled, Transport::Udp, out));
            is_first
        };
        if is_first {
            tokio::task::yield_now().await;
            let mut replies =
                std::mem::take(&mut *self.replies.lock().unwrap_or_else(PoisonError::into_inner));
            replies.send(&self.socket).await;
        }
    }
}
