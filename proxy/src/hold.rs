//! Holding an attempt while a person decides: for so long, and for as long as its client stays.

use std::pin::pin;

use dns::clock::now;
use policy::{Decision, Pending, Reason};
use tokio::time::sleep;

use crate::config::Approvers;
use crate::desk::{Filed, Woken};
use crate::gateway::{Client, Gateway};
use crate::stream::Stream;

/// What a client may send ahead while it is held. Beyond it nobody reads, and it waits as for any slow server.
const AHEAD: usize = 64 * 1024;

/// Resolves when a client ends its side or fails. What it sends meanwhile is kept.
pub(crate) async fn left(stream: &mut Stream, ahead: &mut Vec<u8>) {
    while ahead.len() < AHEAD {
        match stream.read_more(ahead).await {
            Ok(1..) => {}
            // One that only ends its side may wait for an answer: it is told at once, since it cannot be told from one
            // that has gone.
            Ok(0) | Err(_) => return,
        }
    }
    std::future::pending().await
}

impl Gateway {
    /// Holds an attempt until it is decided. `gone` resolves when its client leaves.
    pub(crate) async fn hold(
        &self,
        mut pending: Pending,
        client: &Client,
        gone: impl Future<Output = ()>,
    ) -> Decision {
        let refuse =
            |pending: Pending, reason| Decision::Deny(self.gate.refuse_pending(pending, reason, now()));
        if self.approvers == Approvers::Nobody {
            return refuse(pending, Reason::ApprovalPending);
        }
        let sandbox = pending.sandbox();
        let account = self.accounts.of(&sandbox.id);
        if let Err(over) = client.belongs_to(&account, sandbox.limits.connections) {
            let denial = self.gate.refuse_pending_over(pending, over.reason, over.wait, now());
            return Decision::Deny(denial);
        }
        let (mut gone, mut late, mut stopping) =
            (pin!(gone), pin!(sleep(self.timeouts.approval)), self.stopping());
        loop {
            let mut ticket = match self.desk.file(pending, now()) {
                Filed::Waits(ticket) => ticket,
                Filed::Full(pending) => return refuse(pending, Reason::ApprovalPending),
            };
            let woken = tokio::select! {
                biased;
                woken = ticket.woken() => woken,
                () = &mut late => Woken::TimedOut,
                () = &mut gone => Woken::Left,
                _ = stopping.wait_for(|stopping| *stopping) => Woken::Left,
            };
            pending = ticket.give_back(woken);
            let reason = match woken {
                Woken::Judge => match self.gate.resume(pending, now()) {
                    Decision::Ask(again) => {
                        pending = again;
                        continue;
                    }
                    decided => return decided,
                },
                Woken::Denied => Reason::ApprovalDenied,
                Woken::TimedOut => Reason::ApprovalTimeout,
                Woken::Left => Reason::ApprovalPending,
            };
            return refuse(pending, reason);
        }
    }
}
