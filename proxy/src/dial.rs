//! Opens connections, and only to vetted addresses: the only `connect` of the crate.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use policy::{Host, Reason, VettedAddrs};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::stream::{self, Stream};
use crate::via::{self, UpstreamProxy};

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

/// A connection to a destination, by whatever way.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) stream: Stream,
    /// The destination's address.
    pub(crate) address: SocketAddr,
    /// What the destination has said already, through a proxy that passed it on with its answer.
    pub(crate) early: Vec<u8>,
}

/// Connects to the first of the addresses that accepts, in their order (Happy Eyeballs, RFC 8305: the resolver has
/// put the families by turns).
pub(crate) async fn dial(
    vetted: &VettedAddrs,
    upstream: Option<&UpstreamProxy>,
    within: Duration,
) -> Result<Dialled, DialError> {
    let addresses = vetted.sockets().take(MOST);
    let dialled = match upstream.filter(|proxy| goes_through(proxy, vetted)) {
        None => {
            timeout(within, async {
                let (tcp, address) = race(addresses).await?;
                Some(Dialled { stream: tcp.into(), address, early: Vec::new() })
            })
            .await
        }
        Some(proxy) => timeout(within, through(proxy, addresses)).await,
    };
    match dialled {
        Ok(Some(dialled)) => Ok(dialled),
        Ok(None) => Err(DialError::Refused),
        Err(_) => Err(DialError::TimedOut),
    }
}

/// A port of this very host, which `[internal.X] host_port` opens, is not where the proxy is.
fn goes_through(proxy: &UpstreamProxy, vetted: &VettedAddrs) -> bool {
    let host = vetted.permit().host();
    host.as_ref().is_some_and(|host: &Host| proxy.serves(host))
        && !vetted.addresses().iter().any(|address| address.is_loopback())
}

async fn through(proxy: &UpstreamProxy, addresses: impl Iterator<Item = SocketAddr>) -> Option<Dialled> {
    for address in addresses {
        let (tcp, _) = race(proxy.addresses.iter().copied()).await?;
        let mut stream = Stream::from(tcp);
        if let Some(early) = via::connect(&mut stream, address).await {
            return Some(Dialled { stream, address, early });
        }
    }
    None
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
    // Keep-alive costs three calls, and is set once a stream is old enough to need it: `tunnel::idled`.
    stream::send_at_once(&stream);
    Some((stream, address))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::TcpListener;

    use super::*;

    async fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    async fn refusing() -> SocketAddr {
        listening().await.1
    }

    /// An address that takes no more connections: the kernel drops what comes while the queue is full.
    async fn silent() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        while let Ok(Some((stream, _))) = timeout(Duration::from_millis(50), connect(address)).await {
            held.push(stream);
        }
        (listener, held, address)
    }

    #[tokio::test]
    async fn an_address_that_refuses_gives_way_at_once() {
        let (_listener, open) = listening().await;
        let started = Instant::now();
        let (_, address) = race([refusing().await, refusing().await, open].into_iter()).await.unwrap();
        assert_eq!(address, open);
        assert!(started.elapsed() < NEXT_AFTER, "{:?}", started.elapsed());
        assert!(race([refusing().await, refusing().await].into_iter()).await.is_none());
        assert!(race(std::iter::empty()).await.is_none());
    }

    #[tokio::test]
    async fn an_address_that_is_silent_gives_way_after_a_while() {
        let (_listener, open) = listening().await;
        let (_silent, _held, address) = silent().await;
        let started = Instant::now();
        let (_, connected) = race([address, open].into_iter()).await.unwrap();
        assert_eq!(connected, open);
        let took = started.elapsed();
        assert!(took >= NEXT_AFTER && took < NEXT_AFTER * 4, "{took:?}");
        let alone = timeout(NEXT_AFTER * 2, race([address].into_iter())).await;
        assert!(alone.is_err(), "nobody answers");
    }
}
