//! Serves the admin API by HTTP/1.1, one request a connection, on its unix socket.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::Api;
use super::answer::{Body, Code, Problem};
use super::caller::Caller;
use super::peer::{Namespaces, Stranger};
use super::routes;

/// A client that has not sent its head by then is dropped.
pub(super) const HEAD: Duration = Duration::from_secs(10);

/// A client that has not asked and read its answer by then is dropped, unless it follows a stream of events. A reload may
/// take a while.
const CLOCK: Duration = Duration::from_secs(60);

/// How many clients are served at once.
pub(super) const CLIENTS: usize = 64;

/// How long to wait after a failed accept, which is nearly always a lack of descriptors (EMFILE, accept(2)).
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the socket until the task is dropped. `own` are the namespaces whose clients are heard.
pub(crate) async fn serve(listener: UnixListener, own: Namespaces, api: Arc<Api>) {
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let api = Arc::clone(&api);
                tokio::spawn(async move {
                    let caller = caller(&stream, own, &api);
                    converse(stream, caller, api).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept on the admin socket");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Who has connected, of the moment of its connect(2): what it passes the socket on to changes nothing.
fn caller(stream: &UnixStream, own: Namespaces, api: &Api) -> Result<Caller, Problem> {
    match own.judge(stream) {
        Ok(peer) => Ok(api.caller(peer.uid)),
        Err(stranger) => {
            tracing::warn!(error = %crate::error_chain(&stranger), "a client of the admin socket is refused");
            Err(refusal(&stranger))
        }
    }
}

/// Serves the one request of a client, or tells it why it is not heard.
pub(super) async fn converse<S>(stream: S, caller: Result<Caller, Problem>, api: Arc<Api>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let follows = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request: Request<Incoming>| {
        let (api, caller, follows) = (Arc::clone(&api), caller.clone(), Arc::clone(&follows));
        async move {
            let response = answer(&api, caller, request).await;
            follows.store(response.body().is_stream(), Ordering::Relaxed);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let mut ended = timeout(CLOCK, connection.as_mut()).await;
    if ended.is_err() && follows.load(Ordering::Relaxed) {
        ended = Ok(connection.await);
    }
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a client of the admin API failed"),
        Err(_) => tracing::debug!("a client of the admin API was too slow"),
    }
}

async fn answer(
    api: &Arc<Api>,
    caller: Result<Caller, Problem>,
    request: Request<Incoming>,
) -> Response<Body> {
    match caller {
        Ok(caller) => routes::answer(api, &caller, request).await,
        Err(problem) => problem.into_response(),
    }
}

fn refusal(stranger: &Stranger) -> Problem {
    let hint = match stranger {
        Stranger::Elsewhere => "call from the host, not from a container".to_owned(),
        Stranger::Unknown(why) if why.kind() == io::ErrorKind::PermissionDenied => {
            "the gateway may not look at your process; call as the gateway's own user, or give it CAP_SYS_PTRACE"
                .to_owned()
        }
        Stranger::Unknown(why) => why.to_string(),
    };
    Problem::new(Code::WrongNamespace, format!("{stranger}; {hint}"))
}
