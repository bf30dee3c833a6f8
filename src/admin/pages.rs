//! Serves the pages by HTTP/1.1, one request a connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::status::Status;
use crate::metrics::Metrics;

/// A client that has not asked and read its answer by then is dropped.
const CLOCK: Duration = Duration::from_secs(10);

/// How many clients are served at once; a scraper needs one.
const CLIENTS: usize = 32;

/// How long to wait after a failed accept, which is nearly always a lack of descriptors (EMFILE, accept(2)).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The format that Prometheus scrapes.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves the pages until the task is dropped.
pub async fn serve(listener: TcpListener, status: Arc<Status>, metrics: Metrics) {
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (status, metrics) = (Arc::clone(&status), metrics.clone());
                tokio::spawn(async move {
                    converse(stream, status, metrics).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept on the metrics listener");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, status: Arc<Status>, metrics: Metrics) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.method(), request.uri().path(), wants_json(&request), &status, &metrics);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CLOCK, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a client of the metrics listener failed"),
        Err(_) => tracing::debug!("a client of the metrics listener was too slow"),
    }
}

fn answer(
    method: &Method,
    path: &str,
    json: bool,
    status: &Status,
    metrics: &Metrics,
) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refusal = page(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET or HEAD\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match path {
        "/metrics" => page(StatusCode::OK, METRICS_TYPE, metrics.exposition()),
        // Alive is whoever answers: a gateway that cannot serve is not ready, and a restart would not mend it.
        "/healthz" => page(StatusCode::OK, "text/plain", "alive\n"),
        "/readyz" => {
            let report = status.report();
            let code = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            match json.then(|| serde_json::to_vec(&report)) {
                Some(Ok(body)) => page(code, "application/json", body),
                Some(Err(_)) | None => page(code, "text/plain; charset=utf-8", report.to_string()),
            }
        }
        _ => page(StatusCode::NOT_FOUND, "text/plain", "/metrics, /healthz or /readyz\n"),
    }
}

fn wants_json(request: &Request<Incoming>) -> bool {
    let accepts = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    accepts.is_some_and(|accepts| accepts.contains("application/json"))
}

fn page(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut page = Response::new(Full::new(body.into()));
    *page.status_mut() = code;
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    page.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use prometheus::Registry;

    use super::*;
    use crate::admin::Phase;

    async fn ask(method: Method, path: &str, phase: Phase) -> (u16, String) {
        let status = Status::default();
        status.enter(phase);
        let metrics = Metrics::new(&Registry::new()).expect("a fresh registry");
        let page = answer(&method, path, false, &status, &metrics);
        let code = page.status().as_u16();
        let body = page.into_body().collect().await.expect("a body in memory").to_bytes();
        (code, String::from_utf8(body.into()).expect("text"))
    }

    #[tokio::test]
    async fn a_draining_gateway_is_alive_and_not_ready() {
        assert_eq!(ask(Method::GET, "/healthz", Phase::Draining).await.0, 200);
        let (code, body) = ask(Method::GET, "/readyz", Phase::Draining).await;
        assert_eq!(code, 503);
        assert!(body.starts_with("not ready: draining\n"), "{body}");
    }

    #[tokio::test]
    async fn metrics_are_readable_before_the_gateway_is_ready() {
        let (code, body) = ask(Method::GET, "/metrics", Phase::Starting).await;
        assert_eq!(code, 200);
        assert!(body.contains("tidegate_build_info"), "{body}");
    }

    #[tokio::test]
    async fn other_methods_and_paths_are_refused() {
        assert_eq!(ask(Method::POST, "/metrics", Phase::Ready).await.0, 405);
        assert_eq!(ask(Method::GET, "/", Phase::Ready).await.0, 404);
    }
}
