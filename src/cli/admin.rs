//! How verbs ask a running gateway through its admin socket.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::ConfigArgs;
use super::client::{Connection, Server};
use super::output::harmless;
use crate::config;

/// The longest answer that is read: ten thousand sandboxes.
const ANSWER_LIMIT: u64 = 64 * 1024 * 1024;

/// Which gateway is asked.
#[derive(Debug, Args)]
pub(super) struct AdminArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The admin socket: unix:/PATH. Without it: `admin` of the config's [listen]
    #[arg(long, value_name = "SOCKET")]
    socket: Option<String>,
}

/// An admin socket.
#[derive(Debug)]
pub(super) struct Admin(PathBuf);

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nobody answered.
    Unreachable(String),
    /// The gateway says why.
    Refused(Value),
}

impl AdminArgs {
    /// The socket of the command line, or of the config.
    pub(super) fn find(self) -> Result<Admin, String> {
        if let Some(socket) = self.socket {
            let no_path =
                || format!("{socket:?} is no socket's path; write unix:/run/tidegate/admin/admin.sock");
            return socket.strip_prefix("unix:").map(|path| Admin(path.into())).ok_or_else(no_path);
        }
        let path = config::find(self.config.config).map_err(|error| error.to_string())?;
        Admin::of_config(&path)?
            .ok_or_else(|| format!("{} has no `admin` in [listen]; add it, or use --socket", path.display()))
    }
}

impl Admin {
    /// The socket of the config at `path`, if it has one.
    pub(super) fn of_config(path: &Path) -> Result<Option<Self>, String> {
        config::admin_socket(path).map(|found| found.map(Self)).map_err(|error| error.to_string())
    }

    /// Asks: the answer's body as JSON.
    pub(super) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failed> {
        let (status, body) = self.exchange(method, path, body).map_err(|error| {
            let socket = self.0.display();
            let next = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "call as root or as the gateway's own user, or see [admin]"
                }
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "is the gateway running?",
                _ => "see the gateway's log",
            };
            Failed::Unreachable(format!("cannot ask {socket}: {error}; {next}"))
        })?;
        let no_json = || Failed::Unreachable(format!("{} answers with no JSON", self.0.display()));
        let body: Value = serde_json::from_str(&body).map_err(|_| no_json())?;
        if (200..300).contains(&status) { Ok(body) } else { Err(Failed::Refused(body)) }
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, String)> {
        let mut connection = Connection::open(&Server::Unix(self.0.clone()))?;
        let body = body.map(ToString::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: tidegate\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(head.as_bytes())?;
        connection.write_all(body.as_bytes())?;
        let mut answer = Vec::new();
        connection.take(ANSWER_LIMIT).read_to_end(&mut answer)?;
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP response");
        super::client::page(&answer).ok_or_else(broken)
    }
}

/// What the gateway says of a refusal: the detail, and each mistake.
impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
