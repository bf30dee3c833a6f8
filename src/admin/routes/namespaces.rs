//! `POST /v1/namespaces/{id}`: the connection becomes the registration of a namespace, and lives as long as it.
//!
//! ```text
//! client                                   gateway
//!   POST … Upgrade: tidegate-namespace ─▶
//!                                      ◀── 101, "ready\n"        who asks is an owner of the sandbox
//!   hand-over (netns::handover)        ─▶
//!                                      ◀── "ok\n"                 served from here on
//!   … as long as both live …
//!   "end 0\n"                          ─▶                        the workload has ended; or the client leaves
//!                                      ◀── "shut: …\n"            a link appeared, the sandbox was removed
//!                                      ◀── "summary {…}\n"        what became of it, and the end
//! ```
//!
//! `POST /v1/namespaces` makes a sandbox for it, which ends with the connection too.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use policy::{Sandbox, SandboxId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::Asked;
use crate::admin::answer::{Answer, Body, Code, Problem, json};
use crate::app::Core;
use crate::audit::{By, Notice, SandboxChange};
use crate::namespaces::{NotOpened, Open};
use crate::netns::handover;
use crate::sandboxes::{Lent, Table};
use crate::summary::Kept;
use crate::workload::Served;

/// The protocol that the connection changes to.
pub(crate) const PROTOCOL: &str = "tidegate-namespace";

/// Sent once the stream is the hand-over's alone. Descriptors that come before would be lost with the bytes of HTTP that
/// they came with.
pub(crate) const READY: &[u8] = b"ready\n";

/// What a client says when its workload has ended, before the exit status, if it knows one.
pub(crate) const END: &str = "end";

/// What the gateway says before why it shut a namespace.
pub(crate) const SHUT: &str = "shut: ";

/// What the gateway says before the summary.
pub(crate) const SUMMARY: &str = "summary ";

/// The longest that a client says.
const WORD: u64 = 16;

/// How long streams may take to end after the workload has: nobody is left at their near ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a client may take to read its summary.
const CLOCK: Duration = Duration::from_secs(10);

/// A namespace that is about to be handed over.
struct Registration {
    core: Core,
    sandbox: Arc<Sandbox>,
    by: u32,
    /// Keeps the sandbox, where it was made for this connection.
    _lent: Option<Lent>,
}

/// Tells whoever may hand a namespace over what the workload inside it must be kept from.
pub(super) fn surroundings(asked: &Asked<'_>) -> Answer {
    let sandbox = asked.owned()?;
    tell(asked, sandbox.local_peers.iter().map(ToString::to_string).collect())
}

/// The same for a sandbox that is yet to be made.
pub(super) fn surroundings_of_new(asked: &Asked<'_>) -> Answer {
    tell(asked, Vec::new())
}

fn tell(asked: &Asked<'_>, local_peers: Vec<String>) -> Answer {
    Ok(json(StatusCode::OK, &Served { local_peers, own_files: asked.api.core.files.get() }))
}

/// Judges who asks for what. Nothing is taken over before the answer has left.
pub(super) fn open(mut asked: Asked<'_>) -> Answer {
    let sandbox = asked.owned()?;
    let (by, stream) = (asked.uid()?, asked.stream()?);
    Ok(asked.register(stream, sandbox, by, None))
}

/// Makes the sandbox as well.
pub(super) async fn open_new(mut asked: Asked<'_>, body: Incoming) -> Answer {
    let (by, stream) = (asked.uid()?, asked.stream()?);
    let mut table: Table = Asked::read(body).await?;
    let id = Asked::take_id(&mut table)?;
    let lent = asked.lend(id, table, by).await?;
    let Some(sandbox) = asked.api.core.gate.policy().sandbox(&lent.id).cloned() else {
        return Err(Problem::new(Code::Conflict, format!("sandbox {} was removed meanwhile", lent.id)));
    };
    Ok(asked.register(stream, sandbox, by, Some(lent)))
}

impl Asked<'_> {
    /// The sandbox that the path names, whose owner the caller must be.
    fn owned(&self) -> Result<Arc<Sandbox>, Problem> {
        let id = Self::sandbox(self.name)?;
        let policy = self.api.core.gate.policy();
        let Some(sandbox) = policy.sandbox(&id) else {
            let detail = format!("there is no [sandbox.{id}] in the policy in force");
            return Err(Problem::new(Code::NotFound, detail));
        };
        let uid = self.uid()?;
        if !sandbox.owners.contains(&uid) {
            let detail = format!("uid {uid} may not: write owners = [{uid}] in [sandbox.{id}]");
            return Err(Problem::new(Code::NotPermitted, detail));
        }
        Ok(Arc::clone(sandbox))
    }

    /// The connection, which changes its protocol.
    fn stream(&mut self) -> Result<OnUpgrade, Problem> {
        let stream = self.upgrade.take().filter(|(protocol, _)| protocol == PROTOCOL);
        let needed = || Problem::new(Code::UpgradeRequired, format!("send `Upgrade: {PROTOCOL}`"));
        stream.map(|(_, stream)| stream).ok_or_else(needed)
    }

    /// The user: descriptors come by a unix socket alone.
    fn uid(&self) -> Result<u32, Problem> {
        let why = "a namespace is handed over on the host, by the admin socket";
        self.caller.by.uid().ok_or_else(|| Problem::new(Code::NotPermitted, why))
    }

    fn register(
        &self,
        stream: OnUpgrade,
        sandbox: Arc<Sandbox>,
        by: u32,
        lent: Option<Lent>,
    ) -> Response<Body> {
        let registration = Registration { core: self.api.core.clone(), sandbox, by, _lent: lent };
        tokio::spawn(registration.hold(stream));
        let mut answer = Response::new(Body::default());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
        answer
    }
}

impl Registration {
    /// Takes the namespace and serves it until the client leaves or it must be shut.
    async fn hold(self, stream: OnUpgrade) {
        let taken = match stream.await {
            Ok(upgraded) => self.take(upgraded).await,
            Err(error) => Err(io::Error::other(error)),
        };
        match taken {
            Ok(Some((stream, open))) => self.serve(stream, open).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(sandbox = %self.id(), %error, "a namespace was not handed over"),
        }
    }

    fn id(&self) -> &SandboxId {
        &self.sandbox.id
    }

    /// The hand-over; `None` where it was refused, and the client told why.
    async fn take(&self, upgraded: Upgraded) -> io::Result<Option<(StdUnixStream, Open)>> {
        let parts = upgraded
            .downcast::<TokioIo<UnixStream>>()
            .map_err(|_| io::Error::other("the connection is no unix socket"))?;
        if !parts.read_buf.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client did not wait"));
        }
        let mut stream = parts.io.into_inner();
        stream.write_all(READY).await?;
        let stream = stream.into_std()?;
        let (stream, checked) = tokio::task::spawn_blocking(move || {
            stream.set_nonblocking(false)?;
            let checked = handover::receive(&stream).and_then(handover::Offered::check);
            Ok::<_, io::Error>((stream, checked))
        })
        .await??;
        let open = |checked| self.core.namespaces.open(self.id().clone(), Some(self.by), checked);
        match checked.map_err(NotOpened::Refused).and_then(open) {
            Ok(open) => Ok(Some((stream, open))),
            Err(refused) => {
                let error = crate::error_chain(&refused);
                tracing::warn!(sandbox = %self.id(), %error, "a namespace is refused");
                // Shorter than the socket's buffer: it does not wait for a client.
                handover::acknowledge(&stream, Some(&refused))?;
                Ok(None)
            }
        }
    }

    /// Serves until the client has nothing more to be served.
    async fn serve(&self, stream: StdUnixStream, mut open: Open) {
        let kept = self.core.summaries.keep(self.id().clone());
        // On record before the workload can do anything.
        self.note(SandboxChange::Start).await;
        tracing::info!(sandbox = %self.id(), "a namespace is served");
        let begun = handover::acknowledge(&stream, None).and_then(|()| stream.set_nonblocking(true));
        let mut stream = match begun.and_then(|()| UnixStream::from_std(stream)) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(sandbox = %self.id(), %error, "the holder of a namespace has left at once");
                drop(open);
                return self.note(SandboxChange::Exit { status: None }).await;
            }
        };
        let (ended, said) = tokio::select! {
            ended = open.watch() => (Some(ended), Said::Nothing),
            said = last_word(&mut stream) => (None, said),
        };
        match (&ended, said) {
            (None, Said::End(_)) => open.finish(LAST_WORDS).await,
            _ => drop(open),
        }
        let status = if let Said::End(status) = said { status } else { None };
        self.note(SandboxChange::Exit { status }).await;
        tracing::info!(sandbox = %self.id(), "a namespace is no longer served");
        let why = ended.map(|ended| format!("{SHUT}{ended}\n")).unwrap_or_default();
        // A client that has gone knows.
        let _ = timeout(CLOCK, tell_end(&mut stream, &why, &kept)).await;
    }

    async fn note(&self, change: SandboxChange<'_>) {
        // A required audit that cannot be written denies everything by itself.
        let by = By::Uid(self.by);
        let notice = Notice::Sandbox { sandbox: &self.sandbox, change, by: Some(&by) };
        let _ = self.core.audit.note(notice).await;
    }
}

/// What a client says last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// It has left.
    Nothing,
    /// The workload has ended, with this status.
    End(Option<u8>),
}

async fn last_word(stream: &mut UnixStream) -> Said {
    let mut word = Vec::new();
    // A line, and whatever else is the end of the connection.
    while word.last() != Some(&b'\n') && (word.len() as u64) < WORD {
        match stream.read_u8().await {
            Ok(byte) => word.push(byte),
            Err(_) => return Said::Nothing,
        }
    }
    let word = std::str::from_utf8(&word).unwrap_or_default();
    match word.strip_prefix(END).and_then(|rest| rest.strip_suffix('\n')) {
        Some("") => Said::End(None),
        Some(status) => status.trim_start().parse().map_or(Said::Nothing, |status| Said::End(Some(status))),
        None => Said::Nothing,
    }
}

async fn tell_end(stream: &mut UnixStream, why: &str, kept: &Kept) -> io::Result<()> {
    let summary = serde_json::to_string(&kept.told()).map_err(io::Error::other)?;
    stream.write_all(format!("{why}{SUMMARY}{summary}\n").as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_last_word_is_a_line_that_is_understood_and_short() {
        for (sent, said) in [
            (&b"end 7\n"[..], Said::End(Some(7))),
            (b"end\n", Said::End(None)),
            (b"end 256\n", Said::Nothing),
            (b"end x\n", Said::Nothing),
            (b"ended\n", Said::Nothing),
            (b"end 7", Said::Nothing),
            (b"", Said::Nothing),
            (b"\xff\n", Said::Nothing),
            (&[b'e'; 4096], Said::Nothing),
        ] {
            let (mut near, mut far) = UnixStream::pair().expect("a pair");
            far.write_all(sent).await.expect("a small buffer");
            drop(far);
            assert_eq!(last_word(&mut near).await, said, "{sent:?}");
        }
    }
}
