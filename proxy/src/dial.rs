//! Opens connections, and only to vetted addresses: the only `connect` of the crate.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use policy::{Reason, VettedAddrs};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::stream;

/// How long an address is waited for before the next one is tried beside it (RFC 8305 §5).
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// So many addresses of a name are tried; some names have thousands.
const MOST: usize = 16;

/// Why no connection came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// No address accepted.
    Refused,
    /// No address answered in time.
    TimedOut,
}

impl DialError {
    pub(crate) const fn reason(self) -> Reason {
        match self {
            Self::Refused => Reason::UpstreamConnectFailed,
            Self::TimedOut => Reason::UpstreamTimeout,
        }
    }
}

/// Connects to the first of the addresses that accepts, in their order (Happy Eyeballs, RFC 8305: the resolver has
/// put the families by turns).
pub(crate) async fn dial(
    vetted: &VettedAddrs,
    within: Duration,
) -> Result<(TcpStream, SocketAddr), DialError> {
    match timeout(within, race(vetted.sockets().take(MOST))).await {
        Ok(Some(connected)) => Ok(connected),
        Ok(None) => Err(DialError::Refused),
        Err(_) => Err(DialError::TimedOut),
    }
}

type Attempt = Pin<Box<dyn Future<Output = Option<(TcpStream, SocketAddr)>> + Send>>;

async fn race(mut addresses: impl Iterator<Item = SocketAddr>) -> Option<(TcpStream, SocketAddr)> {
    // Most destinations answer on their first address: no timer and no list for them.
    let first = addresses.next()?;
    let mut rest = addresses.peekable();
    if rest.peek().is_none() {
        return connect(first).await;
    }
    let mut under_way: Vec<Attempt> = vec![Box::pin(connect(first))];
    let mut next_at = pin!(sleep(NEXT_AFTER));
    poll_fn(|cx| {
        loop {
            let mut failed = false;
            let mut index = 0;
            while let Some(attempt) = under_way.get_mut(index) {
                match attempt.as_mut().poll(cx) {
                    Poll::Ready(Some(connected)) => return Poll::Ready(Some(connected)),
                    Poll::Ready(None) => {
                        failed = true;
                        drop(under_way.swap_remove(index));
                    }
                    Poll::Pending => index += 1,
                }
            }
            let due = next_at.as_mut().poll(cx).is_ready();
            if !failed && !due {
                return Poll::Pending;
            }
            match rest.next() {
                Some(address) => {
                    under_way.push(Box::pin(connect(address)));
                    next_at.set(sleep(NEXT_AFTER));
                }
                None if under_way.is_empty() => return Poll::Ready(None),
                // The timer has nothing left to begin; the attempts wake by themselves.
                None => return Poll::Pending,
            }
        }
    })
    .await
}

#[expect(clippy::disallowed_methods, reason = "this is the one place, and the address is vetted")]
async fn connect(address: SocketAddr) -> Option<(TcpStream, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.ok()?;
    let stream = socket.connect(address).await.ok()?;
    stream::tune(&stream);
    Some((stream, address))
}
