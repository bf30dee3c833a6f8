//! What a TLS listener is made of: its certificate and key, and whose clients it takes.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::names::{self, Read};

/// One generation of what the files hold, checked.
#[derive(Debug)]
pub struct Material {
    server: Arc<ServerConfig>,
    /// `None` where clients are not asked for certificates.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// Whose clients a listener takes.
#[derive(Debug)]
pub struct Clients {
    /// The authorities that sign their certificates.
    pub authorities: Vec<CertificateDer<'static>>,
    /// What these have revoked, file by file. Where there is any, each authority on the way to a certificate needs a list
    /// that is not out of date: of what nothing is known nothing is trusted.
    pub revoked: Vec<Vec<CertificateRevocationListDer<'static>>>,
}

/// Why there is no material.
#[derive(Debug, thiserror::Error)]
pub enum BadMaterial {
    /// They were not made for each other.
    #[error("the key is not that of the certificate")]
    Mismatch,
    /// The certificate or its key is of no known kind.
    #[error("this certificate and key cannot be used: {0}")]
    Identity(Error),
    /// One of the authorities.
    #[error("an authority cannot be read: {0}")]
    Authority(Error),
    /// One of the files of revocation lists, by its place.
    #[error("a revocation list cannot be read: {1}")]
    Revoked(usize, VerifierBuilderError),
}

impl Material {
    /// Checks a certificate chain with its key, and what its clients are held to. HTTP/1.1 is offered by ALPN where `alpn`
    /// names it; a client that names only others is refused.
    ///
    /// # Errors
    /// What cannot be used.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        clients: Option<Clients>,
    ) -> Result<Self, BadMaterial> {
        let provider = Arc::new(ring::default_provider());
        let verifier = clients.map(|clients| verifier(clients, &provider)).transpose()?;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(BadMaterial::Identity)?;
        let builder = match &verifier {
            Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_single_cert(chain, key).map_err(|error| match error {
            Error::InconsistentKeys(_) => BadMaterial::Mismatch,
            other => BadMaterial::Identity(other),
        })?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { server: Arc::new(server), verifier })
    }

    /// What a connection is accepted with.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Whether clients must show a certificate.
    #[must_use]
    pub const fn asks_for_certificates(&self) -> bool {
        self.verifier.is_some()
    }

    /// Whether a chain that was verified at a time would be trusted by what is held here: what has run out since does not
    /// count, what was revoked since does.
    pub(super) fn trusts(&self, chain: &[CertificateDer<'static>], at: UnixTime) -> bool {
        let (Some(verifier), Some((leaf, rest))) = (&self.verifier, chain.split_first()) else {
            return false;
        };
        verifier.verify_client_cert(leaf, rest, at).is_ok()
    }
}

fn verifier(
    clients: Clients,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, BadMaterial> {
    let mut roots = RootCertStore::empty();
    for authority in clients.authorities {
        roots.add(authority).map_err(BadMaterial::Authority)?;
    }
    let roots = Arc::new(roots);
    let builder = || WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider));
    for (place, file) in clients.revoked.iter().enumerate() {
        builder().with_crls(file.iter().cloned()).build().map_err(|why| BadMaterial::Revoked(place, why))?;
    }
    let all =
        builder().with_crls(clients.revoked.into_iter().flatten()).enforce_revocation_expiration().build();
    let inner = all.map_err(|why| BadMaterial::Revoked(0, why))?;
    Ok(Arc::new(Verifier { inner }))
}

/// What was seen of a client's certificate in a handshake.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The certificate, where the authorities have signed it.
    pub(super) read: Option<Read>,
    /// Why nobody is known by it all the same.
    pub(super) why: Option<&'static str>,
}

tokio::task_local! {
    /// Where a handshake notes what it sees: a verifier is shared by all of them, and is told nothing of the client.
    pub(super) static SEEN: RefCell<Seen>;
}

/// Verifies chains as WebPKI does, and that the names in a certificate can be told.
#[derive(Debug)]
struct Verifier {
    inner: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let judged = self.inner.verify_client_cert(end_entity, intermediates, now);
        // What no authority has signed is not read further: anybody could have written it.
        if !matches!(judged, Ok(_) | Err(Error::InvalidCertificate(CertificateError::Revoked))) {
            return judged;
        }
        let (read, why) = match names::read(end_entity) {
            Ok(read) => (Some(read), None),
            Err(names::BadNames::TwoUris) => (None, Some("it has two URIs")),
            Err(names::BadNames::Der(_)) => (None, Some("its names cannot be read")),
        };
        // Nobody listens where a chain is judged anew after a reload.
        let _ = SEEN.try_with(|seen| *seen.borrow_mut() = Seen { read, why });
        match why {
            // The alert is access_denied.
            Some(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
            None => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
