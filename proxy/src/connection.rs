//! One client, from its first byte to its last.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dns::clock::now;
use policy::{Ask, Attempt, Inbound, Peer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use crate::first_bytes::{Carried, Established};
use crate::gateway::{Client, Gateway};
use crate::stream::Stream;
use crate::{http, socks5, tcp};

/// What a refused client may still send before its connection is closed under it, and for how long.
const LINGER: (u64, Duration) = (256 * 1024, Duration::from_secs(1));

/// A client that was accepted.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) peer: Peer,
    pub(crate) client: Client,
    /// The listener's address, where the connection was meant for another one.
    pub(crate) captured_at: Option<SocketAddr>,
}

impl Connection {
    /// Serves the client to its end.
    pub(crate) async fn serve(self) {
        // What only the beginning needs is given back before the tunnel runs, perhaps for days.
        if let Some(mut established) = Box::pin(self.admitted()).await
            && established.carry().await == Carried::Http
        {
            Box::pin(established.serve_http()).await;
        }
    }

    /// Negotiates for as long as the client's namespace is open, if it comes from one.
    async fn admitted(self) -> Option<Established> {
        let Some(namespace) = self.peer.namespace.clone() else { return self.negotiate().await };
        let mut closings = self.gateway().closings();
        let closed = async { closings.wait_for(|()| namespace.is_closed()).await };
        let established = tokio::select! {
            biased;
            _ = closed => None,
            established = self.negotiate() => established,
        };
        // Whoever closed it has ended the streams that were open then: this one may have come a moment later.
        established.filter(|_| !namespace.is_closed())
    }

    /// Finds out what the client speaks, and what it wants. `None` once there is nothing more to do.
    async fn negotiate(mut self) -> Option<Established> {
        let deadline = Instant::now() + self.gateway().timeouts.head;
        if let Some(own) = self.captured_at {
            return tcp::captured::serve(self, own, deadline).await;
        }
        let mut bytes = Vec::new();
        match timeout_at(deadline, self.stream.read_more(&mut bytes)).await {
            Ok(Ok(1..)) => {}
            // It came, said nothing, and has left or is sent away: nothing was attempted.
            Ok(Ok(0) | Err(_)) | Err(_) => return None,
        }
        match bytes.first() {
            Some(&socks5::wire::VERSION) => socks5::serve(self, bytes, deadline).await,
            _ => http::serve(self, bytes, deadline).await,
        }
    }

    pub(crate) const fn gateway(&self) -> &Arc<Gateway> {
        self.client.gateway()
    }

    /// An attempt of this client.
    pub(crate) fn attempt(&self, inbound: Inbound, ask: Ask) -> Attempt {
        self.gateway().gate.attempt(now(), &self.peer, inbound, ask)
    }

    /// Sends the last bytes for this client and closes. `unread` says whether the client may have sent what nobody will
    /// read: closing at once would then reset the connection (RFC 1122 §4.2.2.13), and the answer could be lost.
    pub(crate) async fn finish(mut self, answer: &[u8], unread: bool) {
        let ending = async {
            self.stream.send(answer).await?;
            if unread {
                self.stream.shutdown().await?;
                tokio::io::copy(&mut (&mut self.stream).take(LINGER.0), &mut tokio::io::sink()).await?;
            }
            std::io::Result::Ok(())
        };
        // A client that does not take its answer has waived it.
        let _ = timeout(LINGER.1, ending).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_small_while_it_waits() {
        fn of<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
            size_of::<F>()
        }
        // A tunnel at rest is to cost no more than 3.3 KiB, with its two sockets, its task and its permit.
        assert!(of(Connection::serve) <= 1376, "{} bytes", of(Connection::serve));
    }
}
