//! Certificates: the names in a client's certificate, by which entries know it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Presented;
use crate::hostname::Hostname;

/// The names that a certificate holds, as far as a sandbox may be known by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The one URI of the subject's alternative names, byte for byte: a SPIFFE ID (X509-SVID section 2 allows no more
    /// than one).
    pub uri: Option<Box<str>>,
    /// The DNS names of the subject's alternative names. One with a star names no host, and is none of them.
    pub dns: Vec<Hostname>,
    /// The one common name of the subject, byte for byte.
    pub cn: Option<Box<str>>,
}

/// A certificate whose chain was verified, and whose key the client has proved to hold.
///
/// All connections that present it share it, so that one call ends what all of them are known by.
pub struct Certificate {
    names: Vec<Presented>,
    withdrawn: AtomicBool,
}

impl Certificate {
    /// A certificate that was verified just now.
    #[must_use]
    pub fn new(names: CertificateNames) -> Self {
        let CertificateNames { uri, dns, cn } = names;
        let uri = uri.map(|uri| Presented::Spiffe(uri.into()));
        let dns = dns.into_iter().map(Presented::Dns);
        let cn = cn.map(|cn| Presented::Cn(cn.into()));
        Self { names: uri.into_iter().chain(dns).chain(cn).collect(), withdrawn: AtomicBool::new(false) }
    }

    /// One that was presented and is not trusted: whoever presents it is nobody, wherever it comes from.
    #[must_use]
    pub fn untrusted() -> Arc<Self> {
        let refused = Self::new(CertificateNames::default());
        refused.withdraw();
        Arc::new(refused)
    }

    /// Takes the trust away, as when it was revoked: from now on nobody is known by it.
    pub fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::SeqCst);
    }

    /// Whether it is trusted no longer.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::SeqCst)
    }

    /// Whether it has this URI, or this DNS name.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|held| match held {
            Presented::Spiffe(uri) => **uri == *name,
            Presented::Dns(host) => host.as_str() == name,
            Presented::Cn(_) | Presented::Token(_) => false,
        })
    }

    /// Its names, each as an entry would ask for it.
    pub(crate) fn names(&self) -> &[Presented] {
        &self.names
    }
}

/// The name that people know it by: the URI, else the first DNS name, else the common name.
impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names.first() {
            Some(Presented::Spiffe(name) | Presented::Cn(name)) => f.write_str(name),
            Some(Presented::Dns(name)) => f.write_str(name.as_str()),
            Some(Presented::Token(_)) | None => Ok(()),
        }
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("names", &self.names)
            .field("withdrawn", &self.is_withdrawn())
            .finish()
    }
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names && self.is_withdrawn() == other.is_withdrawn()
    }
}

impl Eq for Certificate {}

/// Why a text is no SPIFFE ID of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSpiffe {
    /// It begins otherwise, or is too long.
    #[error("a SPIFFE ID begins with spiffe:// and has at most 2048 bytes")]
    Form,
    /// The trust domain is empty or has other characters.
    #[error("a trust domain has lower-case letters, digits, `.`, `-` and `_`")]
    TrustDomain,
    /// The path is missing, has an empty or a dot segment, or other characters.
    #[error("the path of a SPIFFE ID has segments of letters, digits, `.`, `-` and `_`")]
    Path,
}

/// Checks a SPIFFE ID of a workload (SPIFFE-ID section 2). It is compared as a whole, byte for byte.
///
/// # Errors
/// What is wrong with it.
pub fn check_spiffe(text: &str) -> Result<(), BadSpiffe> {
    let rest = text.strip_prefix("spiffe://").filter(|_| text.len() <= 2048).ok_or(BadSpiffe::Form)?;
    let (domain, path) = rest.split_once('/').ok_or(match rest {
        "" => BadSpiffe::TrustDomain,
        _ => BadSpiffe::Path,
    })?;
    let is_dotted = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_');
    let in_domain = |byte: u8| byte.is_ascii_lowercase() || is_dotted(byte);
    if domain.is_empty() || domain.len() > 255 || !domain.bytes().all(in_domain) {
        return Err(BadSpiffe::TrustDomain);
    }
    let in_path = |byte: u8| byte.is_ascii_alphabetic() || is_dotted(byte);
    let is_segment = |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(in_path);
    if path.split('/').all(is_segment) { Ok(()) } else { Err(BadSpiffe::Path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spiffe_id_is_that_of_the_specification() {
        for good in
            ["spiffe://example.org/a", "spiffe://prod_1.example-a.org/ns/X/sa/agent.7", "spiffe://1/2"]
        {
            assert_eq!(check_spiffe(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", BadSpiffe::Form),
            ("https://example.org/a", BadSpiffe::Form),
            ("SPIFFE://example.org/a", BadSpiffe::Form),
            (&format!("spiffe://a/{}", "a".repeat(2048)), BadSpiffe::Form),
            ("spiffe://", BadSpiffe::TrustDomain),
            ("spiffe:///a", BadSpiffe::TrustDomain),
            ("spiffe://Example.org/a", BadSpiffe::TrustDomain),
            ("spiffe://example.org:8443/a", BadSpiffe::TrustDomain),
            ("spiffe://user@example.org/a", BadSpiffe::TrustDomain),
            ("spiffe://example.org", BadSpiffe::Path),
            ("spiffe://example.org/", BadSpiffe::Path),
            ("spiffe://example.org/a/", BadSpiffe::Path),
            ("spiffe://example.org//a", BadSpiffe::Path),
            ("spiffe://example.org/a/../b", BadSpiffe::Path),
            ("spiffe://example.org/a?b", BadSpiffe::Path),
            ("spiffe://example.org/a%2fb", BadSpiffe::Path),
            ("spiffe://example.org/*", BadSpiffe::Path),
        ] {
            assert_eq!(check_spiffe(bad), Err(why), "{bad}");
        }
    }

    #[test]
    fn a_certificate_is_called_by_its_strongest_name() {
        let named = |uri: Option<&str>, dns: &[&str], cn: Option<&str>| {
            let dns = dns.iter().map(|name| Hostname::parse(name).expect("a name")).collect();
            Certificate::new(CertificateNames { uri: uri.map(Into::into), dns, cn: cn.map(Into::into) })
                .to_string()
        };
        assert_eq!(named(Some("spiffe://a/b"), &["a.example"], Some("c")), "spiffe://a/b");
        assert_eq!(named(None, &["a.example", "b.example"], Some("c")), "a.example");
        assert_eq!(named(None, &[], Some("c")), "c");
        assert_eq!(named(None, &[], None), "");
    }
}
