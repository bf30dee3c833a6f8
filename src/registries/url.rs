//! URLs as package clients write them: where they lead, and a form without secrets.

use std::fmt;

use policy::{Destination, Port};

/// An http or https URL. It may hold credentials, which are shown nowhere: neither `Display` nor `Debug` has them.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    scheme: Scheme,
    userinfo: Option<Box<str>>,
    destination: Destination,
    /// From the slash on, with its query.
    path: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    const fn word(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn port(self) -> Port {
        match self {
            Self::Http => Port::HTTP,
            Self::Https => Port::HTTPS,
        }
    }
}

impl Url {
    /// Reads an http or https URL; `None` for everything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://")?;
        let scheme = [Scheme::Http, Scheme::Https]
            .into_iter()
            .find(|known| scheme.eq_ignore_ascii_case(known.word()))?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        // The last `@` parts them: a password may hold one (WHATWG URL, authority state).
        let (userinfo, authority) = match authority.rsplit_once('@') {
            Some((userinfo, authority)) => (Some(userinfo.into()), authority),
            None => (None, authority),
        };
        let destination = Destination::from_authority_or(authority.as_bytes(), scheme.port()).ok()?;
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.into() } else { format!("/{path}").into() };
        Some(Self { scheme, userinfo, destination, path })
    }

    /// Reads what a document at this URL points to.
    #[must_use]
    pub fn join(&self, link: &str) -> Option<Self> {
        let link = link.trim();
        if let Some(rest) = link.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", self.scheme.word()));
        }
        if link.contains("://") {
            return Self::parse(link);
        }
        // Everything else stays at this host, wherever on it.
        Some(self.clone())
    }

    /// A document below this URL, which is taken for a folder.
    #[must_use]
    pub fn below(&self, document: &str) -> Self {
        let path = self.path.split('?').next().unwrap_or_default();
        let slash = if path.ends_with('/') { "" } else { "/" };
        Self { path: format!("{path}{slash}{document}").into(), ..self.clone() }
    }

    /// The folder of a document of this name; `None` where the URL is of another one.
    #[must_use]
    pub fn folder_of(&self, document: &str) -> Option<Self> {
        Some(Self { path: self.path.strip_suffix(document)?.into(), ..self.clone() })
    }

    /// The host and port that it leads to.
    #[must_use]
    pub const fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Whether its requests can be read without inspection.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        matches!(self.scheme, Scheme::Http)
    }

    /// Whether both lead to one host and port by one scheme.
    #[must_use]
    pub fn same_host(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.destination == other.destination
    }

    /// The URL whole, with credentials: for the client that fetches it, and nobody else.
    pub(super) fn secret(&self) -> String {
        let userinfo = self.userinfo.as_ref().map_or_else(String::new, |userinfo| format!("{userinfo}@"));
        format!("{}://{userinfo}{}{}", self.scheme.word(), self.destination, self.path)
    }
}

/// Without credentials and query, either of which may hold a secret.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.word(), self.destination.host)?;
        if self.destination.port != self.scheme.port() {
            write!(f, ":{}", self.destination.port)?;
        }
        f.write_str(self.path.split('?').next().unwrap_or_default())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A text that is no URL of a host, as a note shows it: what stands before an `@` may be a password.
pub(super) fn without_secrets(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        let secret = url("HTTPS://user:p@ss@Mirror.Example:8443/a/simple?token=abc#frag");
        assert_eq!(secret.to_string(), "https://mirror.example:8443/a/simple");
        assert_eq!(format!("{secret:?}"), secret.to_string());
        assert_eq!(secret.secret(), "https://user:p@ss@mirror.example:8443/a/simple?token=abc");
        assert_eq!(url("http://[2001:db8::1]:80").to_string(), "http://[2001:db8::1]/");
    }

    #[test]
    fn what_is_no_url_of_a_host_is_none() {
        assert_eq!(without_secrets("git+ssh://u:p@a.example/x"), "git+ssh://…@a.example/x");
        assert_eq!(without_secrets("/opt/wheels"), "/opt/wheels");
        for text in [
            "",
            "file:///srv/x",
            "git+ssh://a.example/x",
            "https://",
            "https://127.1/",
            "mirror.example",
            "ftp://a.example",
        ] {
            assert_eq!(Url::parse(text), None, "{text}");
        }
    }

    #[test]
    fn links_lead_to_their_own_host_or_stay() {
        let page = url("https://index.example/simple/pip/");
        let host = |link: &str| page.join(link).map(|url| url.destination().to_string());
        for (link, expected) in [
            ("https://files.example/a.whl#sha256=1", Some("files.example:443")),
            ("//cdn.example:8443/a", Some("cdn.example:8443")),
            ("../../a.whl", Some("index.example:443")),
            ("/a.whl", Some("index.example:443")),
            ("ftp://other.example/a", None),
        ] {
            assert_eq!(host(link).as_deref(), expected, "{link}");
        }
        assert_eq!(
            url("https://a.example/simple").below("pip/").to_string(),
            "https://a.example/simple/pip/"
        );
        assert_eq!(
            url("https://a.example/simple/?x").below("pip/").to_string(),
            "https://a.example/simple/pip/"
        );
    }
}
