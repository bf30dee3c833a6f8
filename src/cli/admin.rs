//! How verbs ask a running gateway, through its admin socket or its admin listener.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use policy::{Destination, Port};
use serde_json::Value;

use super::ConfigArgs;
use super::client::{Connection, Server};
use super::output::harmless;
use super::tls::{Tls, TlsArgs};
use crate::config;

/// The longest answer that is read: ten thousand sandboxes.
const ANSWER_LIMIT: u64 = 64 * 1024 * 1024;

/// The longest line of a stream of events that is read.
const LINE_LIMIT: u64 = 1024 * 1024;

/// Which gateway is asked.
#[derive(Debug, Args)]
pub(super) struct AdminArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    /// unix:/PATH of the admin socket, or https://HOST:PORT with --ca, --cert and --key. Without it: `admin` of the config's
    /// [listen]
    #[arg(long, visible_alias = "socket", value_name = "URL")]
    admin: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// A running gateway.
#[derive(Debug)]
pub(super) struct Admin {
    server: Server,
    /// Where it is asked over TCP.
    tls: Option<Tls>,
}

impl fmt::Display for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.server, &self.tls) {
            (Server::Unix(path), _) => write!(f, "{}", path.display()),
            (server, None) => write!(f, "http://{server}"),
            (server, Some(_)) => write!(f, "https://{server}"),
        }
    }
}

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nobody answered.
    Unreachable(String),
    /// The gateway says why.
    Refused(Value),
}

impl AdminArgs {
    /// Whether the command line names the gateway.
    pub(super) const fn is_named(&self) -> bool {
        self.admin.is_some()
    }

    /// The gateway of the command line, or of the config.
    pub(super) fn find(self) -> Result<Admin, String> {
        if let Some(admin) = self.admin {
            if let Some(authority) = admin.strip_prefix("https://") {
                let authority = authority.strip_suffix('/').unwrap_or(authority);
                let to = Destination::from_authority_or(authority.as_bytes(), Port::HTTPS);
                let to = to.map_err(|why| format!("{admin:?}: {why}; write https://HOST:PORT"))?;
                let tls = Some(self.tls.load(&to)?);
                return Ok(Admin { server: Server::Tcp(to), tls });
            }
            let Some(path) = admin.strip_prefix("unix:") else {
                return Err(format!(
                    "{admin:?} is no gateway; write unix:/run/tidegate/admin/admin.sock or https://HOST:PORT"
                ));
            };
            if !self.tls.is_empty() {
                return Err("--ca, --cert and --key are for an https address".to_owned());
            }
            return Ok(Admin::socket(path.into()));
        }
        let path = config::find(self.config.config).map_err(|error| error.to_string())?;
        Admin::of_config(&path)?
            .ok_or_else(|| format!("{} has no `admin` in [listen]; add it, or use --admin", path.display()))
    }
}

impl Admin {
    /// The one at a unix socket.
    pub(super) const fn socket(path: PathBuf) -> Self {
        Self { server: Server::Unix(path), tls: None }
    }

    /// The socket of the config at `path`, if it has one.
    pub(super) fn of_config(path: &Path) -> Result<Option<Self>, String> {
        config::admin_socket(path).map(|found| found.map(Self::socket)).map_err(|error| error.to_string())
    }

    /// Asks: the answer's body as JSON.
    pub(super) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failed> {
        let answer = self.exchange(method, path, body).map_err(|error| self.unreachable(&error))?;
        self.read(answer)
    }

    /// The same; `None` where no gateway runs there.
    pub(super) fn ask_if_there(&self, method: &str, path: &str) -> Result<Option<Value>, Failed> {
        match self.exchange(method, path, None) {
            Ok(answer) => self.read(answer).map(Some),
            Err(error) if is_not_there(&error) => Ok(None),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    fn read(&self, (status, body): (u16, String)) -> Result<Value, Failed> {
        let body = self.json(&body)?;
        if (200..300).contains(&status) { Ok(body) } else { Err(Failed::Refused(body)) }
    }

    fn unreachable(&self, error: &io::Error) -> Failed {
        let next = match error.kind() {
            io::ErrorKind::InvalidData if self.tls.is_some() => {
                "--ca is to be the authority of the gateway's certificate, --cert one that it trusts"
            }
            io::ErrorKind::PermissionDenied => "call as root or as the gateway's own user, or see [admin]",
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "is the gateway running?",
            _ => "see the gateway's log",
        };
        Failed::Unreachable(format!("cannot ask {self}: {error}; {next}"))
    }

    fn json(&self, text: &str) -> Result<Value, Failed> {
        let no_json = || Failed::Unreachable(format!("{self} answers with no JSON"));
        serde_json::from_str(text).map_err(|_| no_json())
    }

    /// Follows a stream of server-sent events for as long as it goes on: each event by its name, with its data.
    pub(super) fn follow(&self, path: &str, mut told: impl FnMut(&str, &Value)) -> Result<(), Failed> {
        let mut lines = self.open_stream(path).map_err(|error| self.unreachable(&error))?;
        let mut line = || {
            let mut line = Vec::new();
            let read = (&mut lines).take(LINE_LIMIT).read_until(b'\n', &mut line);
            read.map_err(|error| self.unreachable(&error))?;
            Ok::<_, Failed>(String::from_utf8_lossy(&line).into_owned())
        };
        let is_ok = line()?.split(' ').nth(1) == Some("200");
        while !matches!(line()?.as_str(), "" | "\r\n") {}
        let mut name = String::new();
        loop {
            let line = line()?;
            if line.is_empty() {
                return Ok(());
            }
            let line = line.trim_end();
            if !is_ok {
                return Err(Failed::Refused(self.json(line)?));
            }
            match line.split_once(": ") {
                Some(("event", event)) => event.clone_into(&mut name),
                Some(("data", data)) => told(&name, &self.json(data)?),
                _ => {}
            }
        }
    }

    fn open_stream(&self, path: &str) -> io::Result<Box<dyn BufRead>> {
        fn begin<S: Read + Write + 'static>(mut stream: S, head: &str) -> io::Result<Box<dyn BufRead>> {
            stream.write_all(head.as_bytes())?;
            stream.flush()?;
            Ok(Box::new(BufReader::new(stream)))
        }
        let connection = Connection::open(&self.server)?;
        // The answer to HTTP/1.0 comes as it is, not in chunks (RFC 9112 section 6.1).
        let head = format!("GET {path} HTTP/1.0\r\nHost: tidegate\r\n\r\n");
        match &self.tls {
            Some(tls) => begin(tls.over(connection)?, &head),
            None => begin(connection, &head),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, String)> {
        let connection = Connection::open(&self.server)?;
        let body = body.map(ToString::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: tidegate\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = match &self.tls {
            Some(tls) => converse(tls.over(connection)?, &head, &body)?,
            None => converse(connection, &head, &body)?,
        };
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP response");
        super::client::page(&answer).ok_or_else(broken)
    }
}

/// Sends a request and reads what comes until the end.
fn converse(mut connection: impl Read + Write, head: &str, body: &str) -> io::Result<Vec<u8>> {
    connection.write_all(head.as_bytes())?;
    connection.write_all(body.as_bytes())?;
    connection.flush()?;
    let mut answer = Vec::new();
    connection.take(ANSWER_LIMIT).read_to_end(&mut answer)?;
    Ok(answer)
}

fn is_not_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// What the gateway says of a refusal: the detail, and each mistake.
impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = match self {
            Self::Unreachable(complaint) => return f.write_str(complaint),
            Self::Refused(problem) => problem,
        };
        let text = |value: &Value| harmless(value.as_str().unwrap_or_default().as_bytes());
        match problem["mistakes"].as_array() {
            Some(mistakes) if !mistakes.is_empty() => {
                for (place, mistake) in mistakes.iter().enumerate() {
                    let end = if place == 0 { "" } else { "\n" };
                    write!(f, "{end}{} ({})", text(&mistake["what"]), text(&mistake["at"]))?;
                    if mistake["hint"].as_str().is_some_and(|hint| !hint.is_empty()) {
                        write!(f, " — {}", text(&mistake["hint"]))?;
                    }
                }
                Ok(())
            }
            _ => f.write_str(&text(&problem["detail"])),
        }
    }
}
