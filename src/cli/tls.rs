//! TLS from a verb to the admin listener, by the files that its user names.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use policy::Destination;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Whom the verb trusts, and who it is.
#[derive(Debug, Args)]
pub(super) struct TlsArgs {
    /// With --admin https://…: the authority of the gateway's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "admin")]
    ca: Option<PathBuf>,
    /// With --admin https://…: the certificate that [admin] of the config gives a role, in PEM
    #[arg(long, value_name = "FILE", requires = "admin")]
    cert: Option<PathBuf>,
    /// With --admin https://…: its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "admin")]
    key: Option<PathBuf>,
}

/// What connections to one server are made with.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl TlsArgs {
    /// Whether nothing of it is written.
    pub(super) const fn is_empty(&self) -> bool {
        self.ca.is_none() && self.cert.is_none() && self.key.is_none()
    }

    /// Reads the files, for connections to a server.
    pub(super) fn load(&self, to: &Destination) -> Result<Tls, String> {
        let (Some(ca), Some(cert), Some(key)) = (&self.ca, &self.cert, &self.key) else {
            return Err(
                "an https address needs --ca, --cert and --key: certificates tell both sides who is there"
                    .to_owned(),
            );
        };
        let wrong = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|why| wrong(ca, &why))?;
        }
        let own = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|why| wrong(key, &why))?;
        let config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates(cert)?, own)
            .map_err(|why| wrong(cert, &why))?;
        let server = match (to.host.address(), to.host.name()) {
            (Some(address), _) => Ok(ServerName::IpAddress(address.into())),
            (None, name) => ServerName::try_from(name.map_or("", |name| name.as_str()).to_owned()),
        };
        let server = server.map_err(|error| format!("{to}: {error}"))?;
        Ok(Tls { config: Arc::new(config), server })
    }
}

impl Tls {
    /// Speaks TLS over a connection.
    pub(super) fn over<S: Read + Write>(
        &self,
        connection: S,
    ) -> io::Result<StreamOwned<ClientConnection, S>> {
        let session = ClientConnection::new(Arc::clone(&self.config), self.server.clone());
        Ok(StreamOwned::new(session.map_err(io::Error::other)?, connection))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(path)?;
    match CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{} holds no certificate in PEM form", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}
