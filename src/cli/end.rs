//! Waits until a verb that runs for long is told to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT. They end nothing by themselves from the moment that this is made.
pub(super) struct End {
    terminate: Signal,
    interrupt: Signal,
}

impl End {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits until the program is told to end.
    pub(super) async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
