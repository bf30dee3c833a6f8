//! Reads the names in a certificate.

use policy::Hostname;
use policy::identity::CertificateNames;
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{self, Decode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};

/// `id-at-commonName` (RFC 5280 appendix A.1).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// What is read of a certificate.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) names: CertificateNames,
    /// Its serial number in hexadecimal, as revocation lists have it.
    pub(super) serial: String,
}

/// Why nobody can be known by a certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadNames {
    /// It is no certificate of RFC 5280.
    #[error("the certificate cannot be read")]
    Der(#[from] der::Error),
    /// Which of them would count is not to be guessed.
    #[error("the certificate has two URIs (X509-SVID section 2 allows one)")]
    TwoUris,
}

/// Reads the names of a certificate. What is no host name among its DNS names, as one with a star, is left out; of two
/// common names there is none.
pub(super) fn read(certificate: &[u8]) -> Result<Read, BadNames> {
    let certificate = Certificate::from_der(certificate)?;
    let body = certificate.tbs_certificate();
    let mut names = CertificateNames::default();
    let alternative = body.get_extension::<SubjectAltName>()?;
    for name in alternative.into_iter().flat_map(|(_, SubjectAltName(names))| names) {
        match name {
            GeneralName::UniformResourceIdentifier(_) if names.uri.is_some() => {
                return Err(BadNames::TwoUris);
            }
            GeneralName::UniformResourceIdentifier(uri) => names.uri = Some(uri.as_str().into()),
            GeneralName::DnsName(name) => names.dns.extend(Hostname::parse(name.as_str())),
            GeneralName::OtherName(_)
            | GeneralName::Rfc822Name(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EdiPartyName(_)
            | GeneralName::IpAddress(_)
            | GeneralName::RegisteredId(_) => {}
        }
    }
    let mut common = body.subject().iter().filter(|attribute| attribute.oid == COMMON_NAME);
    if let (Some(name), None) = (common.next(), common.next()) {
        names.cn = Some(DirectoryString::try_from(&name.value)?.value().into());
    }
    let serial = body.serial_number().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Read { names, serial })
}
