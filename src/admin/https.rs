//! Serves the admin API over TCP, to clients whose certificate the `[admin]` table gives a role.

use std::sync::Arc;
use std::time::Duration;

use proxy::tls::Trust;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::Api;
use super::answer::{Code, Problem};
use super::socket::{ACCEPT_PAUSE, CLIENTS, HEAD, converse};

/// Serves the listener until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, trust: Arc<Trust>, api: Arc<Api>) {
    // Places of its own: whoever reaches it cannot take those of the socket.
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (trust, api) = (Arc::clone(&trust), Arc::clone(&api));
                tokio::spawn(async move {
                    admit(stream, &trust, api).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept on the admin listener");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn admit(stream: TcpStream, trust: &Trust, api: Arc<Api>) {
    let client = stream.peer_addr().ok();
    match within(HEAD, trust.shake_hands(stream)).await {
        Some(Ok(shaken)) => {
            let caller = shaken.certificate.filter(|certificate| !certificate.is_withdrawn());
            let caller = caller.map(|certificate| api.certified(&certificate)).ok_or_else(|| {
                Problem::new(Code::NotPermitted, "the client certificate is not trusted any more")
            });
            converse(shaken.stream, caller, api).await;
        }
        Some(Err(failed)) => trust.tell(&failed, "admin", client),
        None => tracing::debug!(?client, "a TLS handshake with the admin listener took too long"),
    }
}

async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Option<T> {
    timeout(time, work).await.ok()
}
