//! `tidegate healthcheck`: the check that a container runtime runs.

use std::fmt;
use std::io;

use clap::Args;
use policy::{Destination, Port};

use super::client::{Server, get};
use super::output::complain;
use super::{ConfigArgs, Outcome};
use crate::config;

const EXAMPLE: &str = "Example:
  HEALTHCHECK CMD [\"/tidegate\", \"healthcheck\"]      (in a Dockerfile)
  tidegate healthcheck --url http://127.0.0.1:9464/readyz

Exit status: 0 ready, 1 not ready or not reachable, 2 usage or config.";

/// Ask the gateway whether it is ready: silent and 0 where it is
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Healthcheck {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    page: PageArgs,
}

/// Which page is asked.
#[derive(Debug, Args)]
pub(super) struct PageArgs {
    /// The page to ask. Without it: /readyz of the config's metrics listener
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

impl PageArgs {
    /// Whether the command line names one.
    pub(super) const fn is_named(&self) -> bool {
        self.url.is_some()
    }
}

impl Healthcheck {
    pub(super) fn run(self) -> Outcome {
        let page = match Page::find(self.page, self.config) {
            Ok(page) => page,
            Err(complaint) => {
                complain("healthcheck", complaint);
                return Outcome::Usage;
            }
        };
        match page.get("text/plain") {
            Ok((200, _)) => Outcome::Done,
            Ok((status, _)) => {
                complain("healthcheck", format_args!("{page} says {status}; `tidegate status` shows why"));
                Outcome::Failed
            }
            Err(error) => {
                complain("healthcheck", error);
                Outcome::Failed
            }
        }
    }
}

/// A page of a metrics listener.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    server: Server,
    path: String,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.server, self.path)
    }
}

impl Page {
    /// The page of the command line, or `/readyz` of the config's metrics listener.
    pub(super) fn find(page: PageArgs, config: ConfigArgs) -> Result<Self, String> {
        if let Some(url) = page.url {
            let no_url = || format!("{url:?} is no http URL such as http://127.0.0.1:9464/readyz");
            return Self::parse(&url).ok_or_else(no_url);
        }
        let path = config::find(config.config).map_err(|error| error.to_string())?;
        let listener = config::metrics_listener(&path).map_err(|error| error.to_string())?;
        let hint = || format!("{path:?} has no `metrics` in [listen]; add it, or use --url");
        let server = listener.and_then(|address| Destination::from_socket(address).ok()).ok_or_else(hint)?;
        Ok(Self { server: Server::Tcp(server), path: "/readyz".to_owned() })
    }

    fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("http://")?;
        let (authority, path) = rest.split_at_checked(rest.find('/').unwrap_or(rest.len()))?;
        let printable = path.bytes().all(|byte| byte.is_ascii_graphic());
        let server =
            Destination::from_authority_or(authority.as_bytes(), Port::HTTP).ok().filter(|_| printable)?;
        let path = if path.is_empty() { "/readyz" } else { path };
        Some(Self { server: Server::Tcp(server), path: path.to_owned() })
    }

    /// Asks for the page: its status and body.
    pub(super) fn get(&self, accept: &str) -> io::Result<(u16, String)> {
        get(&self.server, &self.path, accept).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot ask {self}: {error}; is the gateway running?"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_from_urls() {
        let shown = |url| Page::parse(url).map(|page| page.to_string());
        assert_eq!(shown("http://127.0.0.1:9464").as_deref(), Some("http://127.0.0.1:9464/readyz"));
        assert_eq!(shown("http://[::1]:9464/healthz").as_deref(), Some("http://[::1]:9464/healthz"));
        for url in
            ["https://127.0.0.1/", "127.0.0.1:9464", "http://", "http://127.1/", "http://a.example/ x\r\n"]
        {
            assert_eq!(shown(url), None, "{url}");
        }
    }
}
