//! How verbs hand a namespace over to a running gateway, and hear of it as long as it is served (docs/admin.md).

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use policy::SandboxId;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::admin::Failed;
use super::output::harmless;
use crate::admin::routes::namespaces::{END, PROTOCOL, READY, SHUT, SUMMARY};
use crate::summary::Told;

/// What a gateway that is asked over its admin socket takes to answer.
const CLOCK: Duration = Duration::from_secs(10);

/// The longest head and body of such an answer.
const ANSWER_LIMIT: u64 = 16 * 1024;

/// The longest that a gateway says later: a thousand destinations.
const LAST_LIMIT: u64 = 1024 * 1024;

/// Why a gateway does not take a namespace.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRegistered {
    /// Nobody is there.
    #[error("cannot reach the gateway at {at}: is `tidegate serve` running?")]
    Unreachable { at: String, source: io::Error },
    /// It says why.
    #[error("the gateway refuses the namespace: {0}")]
    Refused(String),
    /// It answers otherwise than a gateway does.
    #[error("the gateway's answer is not understood")]
    Broken(#[from] io::Error),
}

/// A gateway's readiness to take one namespace, which lasts as long as the connection.
#[derive(Debug)]
pub(super) struct Registration(UnixStream);

/// The connection of a namespace that is served.
#[derive(Debug)]
pub(super) struct Served {
    read: tokio::io::BufReader<tokio::io::Take<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

/// How it ended that a namespace was served.
#[derive(Debug)]
pub(super) enum End {
    /// The gateway shut it, and says why.
    Shut(String),
    /// The gateway is gone.
    Gone,
}

impl Registration {
    /// Asks for a sandbox that there is.
    pub(super) fn of(sandbox: &SandboxId, socket: &Path) -> Result<Self, NotRegistered> {
        Self::ask(&format!("/v1/namespaces/{sandbox}"), "", socket)
    }

    /// Asks for a sandbox that is made for it, with this table.
    pub(super) fn of_new(table: &Value, socket: &Path) -> Result<Self, NotRegistered> {
        Self::ask("/v1/namespaces", &table.to_string(), socket)
    }

    fn ask(path: &str, body: &str, socket: &Path) -> Result<Self, NotRegistered> {
        let unreachable =
            |source| NotRegistered::Unreachable { at: format!("unix:{}", socket.display()), source };
        let mut stream = UnixStream::connect(socket).map_err(unreachable)?;
        stream.set_read_timeout(Some(CLOCK))?;
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: tidegate\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let head = read_head(&stream)?;
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
        if status == "101" {
            let mut ready = [0; READY.len()];
            stream.read_exact(&mut ready)?;
            return if ready == *READY {
                Ok(Self(stream))
            } else {
                Err(io::Error::from(io::ErrorKind::InvalidData).into())
            };
        }
        let mut why = String::new();
        BufReader::new(stream.take(ANSWER_LIMIT)).read_line(&mut why)?;
        let why = match serde_json::from_str(&why) {
            Ok(problem) => Failed::Refused(problem).to_string(),
            Err(_) => harmless(why.trim_end().as_bytes()),
        };
        Err(NotRegistered::Refused(why))
    }

    /// Where the sockets go.
    pub(super) const fn stream(&self) -> &UnixStream {
        &self.0
    }

    /// The sockets were taken: from here on it is served. Needs a tokio runtime.
    pub(super) fn served(self) -> io::Result<Served> {
        self.0.set_read_timeout(None)?;
        self.0.set_nonblocking(true)?;
        let (read, write) = tokio::net::UnixStream::from_std(self.0)?.into_split();
        Ok(Served { read: tokio::io::BufReader::new(read.take(LAST_LIMIT)), write })
    }
}

impl Served {
    /// Waits until the gateway serves it no more. To be called again only after the end.
    pub(super) async fn ended(&mut self) -> io::Result<End> {
        let mut line = Vec::new();
        self.read.read_until(b'\n', &mut line).await?;
        Ok(line.strip_prefix(SHUT.as_bytes()).map_or(End::Gone, |why| End::Shut(harmless(why.trim_ascii()))))
    }

    /// Tells the gateway that the workload has ended, and hears what became of it; `None` where the gateway is gone.
    pub(super) async fn end(mut self, status: u8) -> Option<Told> {
        let told = async {
            // Where the gateway has shut it, it hears nothing any more and tells all the same.
            let _ = self.write.write_all(format!("{END} {status}\n").as_bytes()).await;
            let mut line = String::new();
            while self.read.read_line(&mut line).await.ok()? > 0 {
                if let Some(summary) = line.strip_prefix(SUMMARY) {
                    return Told::read(summary).ok();
                }
                line.clear();
            }
            None
        };
        timeout(CLOCK, told).await.ok().flatten()
    }
}

/// The head of an answer, and no byte beyond it.
fn read_head(mut stream: &UnixStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() as u64 > ANSWER_LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData.into())
}
