//! The handshake: who has come, or why nobody has.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use policy::Certificate;
use rustls::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::material::{SEEN, Seen};
use super::stream::TlsStream;
use super::trust::Trust;

/// So many refused certificates are told a second.
const LOUD: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// A client that has come through its handshake.
#[derive(Debug)]
pub struct Shaken {
    /// What it says from now on.
    pub stream: TlsStream,
    /// Its certificate, where clients are asked for one. It may be withdrawn already.
    pub certificate: Option<Arc<Certificate>>,
}

/// Why a client has not come through.
#[derive(Debug)]
pub struct Failed {
    error: io::Error,
    seen: Seen,
}

impl Trust {
    /// Shakes hands with a client, under the material in force. It takes as long as the client likes: the clock is the
    /// caller's.
    ///
    /// # Errors
    /// Where TLS fails, or the client shows no certificate that is trusted. An alert has told it so.
    pub async fn shake_hands(&self, tcp: TcpStream) -> Result<Shaken, Failed> {
        let material = self.material();
        let handshake = TlsAcceptor::from(material.server()).accept(tcp);
        let noting = SEEN.scope(RefCell::default(), async {
            let outcome = handshake.await;
            (outcome, SEEN.with(RefCell::take))
        });
        let (outcome, seen) = noting.await;
        let session = match outcome {
            Ok(session) => session,
            Err(error) => return Err(Failed { error, seen }),
        };
        let chain = session.get_ref().1.peer_certificates();
        let certificate = match (chain, seen.read) {
            (Some(chain), Some(read)) => {
                Some(self.admit(chain, read.names, &material).unwrap_or_else(Certificate::untrusted))
            }
            (..) => material.asks_for_certificates().then(Certificate::untrusted),
        };
        Ok(Shaken { stream: TlsStream::new(session), certificate })
    }
}

impl Failed {
    /// Whether it is its certificate that is missing or not trusted; any other failure is one of the protocol.
    #[must_use]
    pub fn is_about_certificate(&self) -> bool {
        self.cause().is_some()
    }

    fn cause(&self) -> Option<&Error> {
        let cause = self.error.get_ref()?.downcast_ref::<Error>()?;
        matches!(cause, Error::InvalidCertificate(_) | Error::NoCertificatesPresented).then_some(cause)
    }
}

impl Trust {
    /// Tells the log why a client has not come through: loudly where its certificate is why, but no more than ten times a
    /// second, so that nobody fills a disk by knocking.
    pub fn tell(&self, failed: &Failed, listener: &str, client: Option<SocketAddr>) {
        let cause = failed.cause().filter(|_| self.told().take(LOUD, SECOND).is_ok());
        let Some(cause) = cause else {
            tracing::debug!(listener, ?client, error = %failed.error, "a TLS handshake failed");
            return;
        };
        let error = failed.seen.why.map_or_else(|| cause.to_string(), str::to_owned);
        let (serial, certificate) = match &failed.seen.read {
            Some(read) => (read.serial.as_str(), Certificate::new(read.names.clone()).to_string()),
            None => Default::default(),
        };
        tracing::warn!(listener, ?client, error, serial, ?certificate, "a client certificate is refused");
    }
}
