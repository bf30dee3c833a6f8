//! A test authority, TLS origins under it, and TLS clients that trust it.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SanType, date_time_ymd,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    server::WebPkiClientVerifier,
};
use tidegate::lab::{
    http::Request,
    origin::{Behaviour, Contact, echo_of},
};

/// Signs certificates for stand-in origins and their clients.
pub struct TestAuthority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// What a TLS origin demands of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificate {
    /// No certificate is asked for.
    Unasked,
    /// One that the test authority signed.
    Required,
}

/// A client's certificate with its key.
pub struct ClientIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The names in a client's certificate.
#[derive(Debug, Default, Clone, Copy)]
pub struct ClientNames<'a> {
    /// URIs among its alternative names.
    pub uris: &'a [&'a str],
    /// DNS names among them.
    pub dns: &'a [&'a str],
    /// The common name of its subject.
    pub cn: Option<&'a str>,
}

impl ClientIdentity {
    /// The certificate in PEM form.
    pub fn certificate_pem(&self) -> String {
        pem("CERTIFICATE", &self.chain[0])
    }

    /// The key in PEM form.
    pub fn key_pem(&self) -> String {
        pem("PRIVATE KEY", self.key.secret_der())
    }
}

/// A TLS client configuration; sessions are kept between its connections.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
}

impl TestAuthority {
    /// A new authority.
    pub fn new() -> TestAuthority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate for self-signed where its issuer has its own name.
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let certificate = params.self_signed(&key).unwrap().der().clone();
        TestAuthority { certificate, issuer: Issuer::new(params, key) }
    }

    /// The authority's certificate in PEM form, for real clients.
    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// A server certificate for `names` and its key in PEM form, for real servers.
    pub fn identity_pem(&self, names: &[&str]) -> (String, String) {
        let (chain, key) = self.leaf(names, ExtendedKeyUsagePurpose::ServerAuth);
        (pem("CERTIFICATE", &chain[0]), pem("PRIVATE KEY", key.secret_der()))
    }

    /// An origin that speaks TLS under `names`, then echoes HTTP requests as JSON. It notes the SNI and what it decrypted.
    pub fn https(&self, names: &[&str], clients: ClientCertificate) -> Behaviour {
        let config = Arc::new(self.server_config(names, clients));
        Behaviour::Custom(Arc::new(move |stream, contact| serve(config.clone(), stream, contact)))
    }

    fn server_config(&self, names: &[&str], clients: ClientCertificate) -> ServerConfig {
        let (chain, key) = self.leaf(names, ExtendedKeyUsagePurpose::ServerAuth);
        let builder = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            ClientCertificate::Unasked => builder.with_no_client_auth(),
            ClientCertificate::Required => {
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    self.roots().into(),
                    ring::default_provider().into(),
                );
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.max_early_data_size = 16 * 1024;
        config
    }

    /// A client that trusts this authority alone, with a certificate of its own where `certificate` says so.
    pub fn client(&self, alpn: &[&str], certificate: ClientCertificate) -> TlsClient {
        let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots());
        let mut config = match certificate {
            ClientCertificate::Unasked => builder.with_no_client_auth(),
            ClientCertificate::Required => {
                let (chain, key) = self.leaf(&["client.example"], ExtendedKeyUsagePurpose::ClientAuth);
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config.enable_early_data = true;
        TlsClient { config: config.into() }
    }

    /// A certificate for a client, by its serial number.
    pub fn client_identity(&self, serial: u64, names: ClientNames<'_>) -> ClientIdentity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        if let Some(cn) = names.cn {
            params.distinguished_name.push(DnType::CommonName, cn);
        }
        let uris = names.uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap()));
        let dns = names.dns.iter().map(|&name| SanType::DnsName(name.try_into().unwrap()));
        params.subject_alt_names = uris.chain(dns).collect();
        params.serial_number = Some(serial.into());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        ClientIdentity { chain: vec![certificate.der().clone()], key }
    }

    /// The list of the serial numbers that the authority has revoked, in PEM form. `until` is the year in which it runs
    /// out.
    pub fn revocation_list(&self, revoked: &[u64], until: i32) -> String {
        let time = date_time_ymd(2024, 1, 1);
        let revoked = revoked.iter().map(|&serial| RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: time,
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: time,
            next_update: date_time_ymd(until, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// A client that shows this certificate, or none.
    pub fn client_showing(&self, identity: Option<&ClientIdentity>) -> TlsClient {
        let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots());
        let config = match identity {
            Some(identity) => {
                builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key()).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        TlsClient { config: config.into() }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }

    fn leaf(
        &self,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
    }
}

impl TlsClient {
    /// Shakes hands over `stream` under the name `sni` to the end, so that a verdict on the hello is known.
    pub fn handshake(
        &self,
        stream: TcpStream,
        sni: &str,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let mut stream = self.start(stream, sni)?;
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }

    /// Makes the connection without a byte sent yet, so that early data can go first.
    pub fn start(
        &self,
        stream: TcpStream,
        sni: &str,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::try_from(sni.to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, stream))
    }
}

fn serve(config: Arc<ServerConfig>, stream: TcpStream, contact: &Contact) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
        if let Some(name) = stream.conn.server_name() {
            contact.note_server_name(name);
        }
    }
    let mut pending = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        while let Some((request, length)) = Request::read(&pending) {
            pending.drain(..length);
            stream.write_all(&echo_of(&request, contact))?;
            stream.flush()?;
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            length => {
                contact.note(&buffer[..length]);
                pending.extend_from_slice(&buffer[..length]);
            }
        }
    }
}

/// RFC 7468 §2.
fn pem(label: &str, der: &[u8]) -> String {
    let base64 = data_to_base64(der);
    let lines: Vec<_> = base64.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// RFC 4648 §4.
fn data_to_base64(bytes: &[u8]) -> String {
    const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let symbol = char::from(SYMBOLS[(bits >> (18 - 6 * place)) as usize & 63]);
            text.push(if place > group.len() { '=' } else { symbol });
        }
    }
    text
}
