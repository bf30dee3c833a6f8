//! Fetches a document of an index by curl, so that this process opens no connection past its gate.

use std::net::IpAddr;
use std::path::PathBuf;

use super::asker::{AskError, Asker};
use super::url::Url;

/// The program that fetches.
pub(super) const PROGRAMS: &[&str] = &["curl"];

/// What a document may hold at most.
const SIZE_LIMIT: &str = "16777216";

/// Fetches documents with the authorities that a client trusts.
#[derive(Debug)]
pub(super) struct Fetcher<'a> {
    curl: Asker<'a>,
    ca_file: Option<PathBuf>,
}

/// A document, from where it came in the end.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) url: Url,
    pub(super) status: u16,
    pub(super) address: Option<IpAddr>,
    pub(super) body: String,
}

impl<'a> Fetcher<'a> {
    pub(super) const fn new(curl: Asker<'a>, ca_file: Option<PathBuf>) -> Self {
        Self { curl, ca_file }
    }

    /// GETs a document, through redirects.
    pub(super) fn get(&self, url: &Url, accept: &str) -> Result<Document, AskError> {
        self.fetch(url, &["--header", &format!("Accept: {accept}")])
    }

    /// Asks for the head of a document: where its host is.
    pub(super) fn head(&self, url: &Url) -> Result<Document, AskError> {
        self.fetch(url, &["--head"])
    }

    fn fetch(&self, url: &Url, also: &[&str]) -> Result<Document, AskError> {
        let mut args = vec![
            // First, or a ~/.curlrc would be read (curl(1)).
            "--disable",
            "--silent",
            "--show-error",
            "--globoff",
            "--compressed",
            "--location",
            "--max-redirs",
            "5",
            "--proto",
            "=http,https",
            "--max-time",
            "30",
            "--max-filesize",
            SIZE_LIMIT,
            "--write-out",
            "\n%{http_code} %{remote_ip} %{url_effective}",
            "--config",
            "-",
        ];
        args.extend(also);
        if let Some(path) = self.ca_file.as_ref().and_then(|path| path.to_str()) {
            args.extend(["--cacert", path]);
        }
        // By the standard input: arguments are for everybody to see, and a URL may hold a password.
        let quoted = url.secret().replace('\\', "\\\\").replace('"', "\\\"");
        let said = self.curl.run(&args, &[], format!("url = \"{quoted}\"\n").as_bytes())?;
        if !said.status.success() {
            return Err(self.curl.odd(&said.stderr));
        }
        let text = String::from_utf8_lossy(&said.stdout);
        let read = text.rsplit_once('\n').and_then(|(body, told)| document(body, told));
        read.ok_or_else(|| self.curl.odd(b"what it wrote at the end"))
    }
}

fn document(body: &str, told: &str) -> Option<Document> {
    let mut words = told.splitn(3, ' ');
    let (status, address, url) = (words.next()?, words.next()?, words.next()?);
    let address = address.trim_matches(['[', ']']).parse().ok();
    Some(Document { url: Url::parse(url)?, status: status.parse().ok()?, address, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_curl_tells_at_the_end_is_read() {
        let read = document("a\nb", "200 10.0.3.9 https://a.example/x?y").expect("a document");
        assert_eq!((read.status, read.address), (200, "10.0.3.9".parse().ok()));
        assert_eq!((read.url.to_string().as_str(), read.body.as_str()), ("https://a.example/x", "a\nb"));
        assert_eq!(
            document("", "200 [2001:db8::1] http://a.example/").expect("one").address,
            "2001:db8::1".parse().ok()
        );
        assert_eq!(document("", "404  http://a.example/").expect("one").address, None);
        assert!(document("", "200").is_none());
    }
}
