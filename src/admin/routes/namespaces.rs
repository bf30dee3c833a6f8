//! `POST /v1/namespaces/{id}`: the connection becomes the registration of a namespace, and lives as long as it.
//!
//! ```text
//! client                                   gateway
//!   POST … Upgrade: tidegate-namespace ─▶
//!                                      ◀── 101, "ready\n"        who asks is an owner of the sandbox
//!   hand-over (netns::handover)        ─▶
//!                                      ◀── "ok\n"                 served from here on
//!   … as long as both live …
//!                                      ◀── "shut: …\n"            a link appeared; or the client leaves
//! ```

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use policy::SandboxId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::Asked;
use crate::admin::answer::{Answer, Body, Code, Problem};
use crate::namespaces::{Ended, Namespaces, NotOpened, Open};
use crate::netns::handover;

/// The protocol that the connection changes to.
pub(crate) const PROTOCOL: &str = "tidegate-namespace";

/// Sent once the stream is the hand-over's alone. Descriptors that come before would be lost with the bytes of HTTP that
/// they came with.
pub(crate) const READY: &[u8] = b"ready\n";

/// A namespace that is about to be handed over.
struct Registration {
    sandbox: SandboxId,
    namespaces: Arc<Namespaces>,
    stream: OnUpgrade,
}

/// Judges who asks for what. Nothing is taken over before the answer has left.
pub(super) fn open(asked: Asked<'_>) -> Answer {
    let sandbox = Asked::sandbox(asked.name)?;
    let core = &asked.api.core;
    let policy = core.gate.policy();
    let Some(table) = policy.sandbox(&sandbox) else {
        return Err(Problem::new(
            Code::NotFound,
            format!("there is no [sandbox.{sandbox}] in the policy in force"),
        ));
    };
    let Some(uid) = asked.caller.by.uid() else {
        return Err(Problem::new(
            Code::NotPermitted,
            "a namespace is handed over on the host, by the admin socket",
        ));
    };
    if !table.owners.contains(&uid) {
        let detail = format!("uid {uid} may not: write owners = [{uid}] in [sandbox.{sandbox}]");
        return Err(Problem::new(Code::NotPermitted, detail));
    }
    let stream = asked.upgrade.filter(|(protocol, _)| protocol == PROTOCOL).map(|(_, stream)| stream);
    let Some(stream) = stream else {
        return Err(Problem::new(Code::UpgradeRequired, format!("send `Upgrade: {PROTOCOL}`")));
    };
    let registration = Registration { sandbox, namespaces: Arc::clone(&core.namespaces), stream };
    tokio::spawn(registration.hold());
    let mut answer = Response::new(Body::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    Ok(answer)
}

impl Registration {
    /// Takes the namespace and serves it until the client leaves or it must be shut.
    async fn hold(self) {
        let Self { sandbox, namespaces, stream } = self;
        let taken = match stream.await {
            Ok(upgraded) => take(upgraded, &sandbox, &namespaces).await,
            Err(error) => Err(io::Error::other(error)),
        };
        match taken {
            Ok(Some((stream, open))) => serve(stream, open).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(%sandbox, %error, "a namespace was not handed over"),
        }
    }
}

/// The hand-over; `None` where it was refused, and the client told why.
async fn take(
    upgraded: Upgraded,
    sandbox: &SandboxId,
    namespaces: &Arc<Namespaces>,
) -> io::Result<Option<(UnixStream, Open)>> {
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
    let opened =
        checked.map_err(NotOpened::Refused).and_then(|checked| namespaces.open(sandbox.clone(), checked));
    match opened {
        Ok(open) => {
            answer(&stream, Ok(()))?;
            stream.set_nonblocking(true)?;
            tracing::info!(%sandbox, "a namespace is served");
            Ok(Some((UnixStream::from_std(stream)?, open)))
        }
        Err(refused) => {
            tracing::warn!(%sandbox, error = %crate::error_chain(&refused), "a namespace is refused");
            answer(&stream, Err(&refused))?;
            Ok(None)
        }
    }
}

/// The answer is shorter than the socket's buffer: it does not wait for a client.
fn answer(stream: &StdUnixStream, opened: Result<(), &NotOpened>) -> io::Result<()> {
    handover::acknowledge(stream, opened.err().map(|refused| refused as _))
}

/// Serves until the client leaves. It has nothing more to say.
async fn serve(mut stream: UnixStream, open: Open) {
    let sandbox = open.sandbox().clone();
    let mut watched = std::pin::pin!(open.watch());
    let mut said = [0];
    tokio::select! {
        ended = &mut watched => {
            let why = match ended {
                Ended::LinkAppeared(link) => format!("shut: link {link} appeared in the namespace\n"),
                Ended::Removed => "shut: its sandbox was removed\n".to_owned(),
                Ended::Broken(error) => format!("shut: {error}\n"),
            };
            // A client that has gone knows.
            let _ = stream.write_all(why.as_bytes()).await;
        }
        _ = stream.read(&mut said) => tracing::info!(%sandbox, "a namespace is no longer served: its holder has left"),
    }
}
