//! Answers of the admin API: JSON, and for what could not be done a problem (RFC 9457).

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use policy::file::Mistake;
use serde::Serialize;
use tokio::sync::mpsc;

/// What a route answers.
pub(super) type Answer = Result<Response<Body>, Problem>;

/// So many pieces of a stream wait for a client that is slow to read.
const AHEAD: usize = 4;

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Body {
    /// All of it; `None` once it is sent.
    Whole(Option<Bytes>),
    /// Pieces as they come, until their sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match &mut *self {
            Self::Whole(whole) => Poll::Ready(whole.take()),
            Self::Stream(pieces) => pieces.poll_recv(cx),
        };
        piece.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.as_ref().map_or(0, |whole| whole.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::Whole(None)
    }
}

impl Body {
    /// Whether it goes on for as long as its client listens.
    pub(super) const fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    code: Code,
    detail: String,
    mistakes: Vec<Mistake>,
}

/// Declares the codes with their status and title in one table.
macro_rules! codes {
    ($($variant:ident $status:ident $code:literal $title:literal)*) => {
        /// The kinds of problem: closed, stable and public, as docs/admin.md lists them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Code { $($variant,)* }

        impl Code {
            #[cfg(test)]
            pub(super) const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub(super) const fn text(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            pub(super) const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }
        }
    };
}

codes! {
    BadRequest BAD_REQUEST "bad_request" "the request cannot be read"
    NotPermitted FORBIDDEN "not_permitted" "this user may not do that"
    WrongNamespace FORBIDDEN "wrong_namespace" "only clients in the gateway's own namespaces are heard"
    NotFound NOT_FOUND "not_found" "there is no such thing"
    MethodNotAllowed METHOD_NOT_ALLOWED "method_not_allowed" "that cannot be done to it"
    UpgradeRequired UPGRADE_REQUIRED "upgrade_required" "this changes the protocol of the connection"
    Conflict CONFLICT "conflict" "something else stands in the way"
    TooLarge PAYLOAD_TOO_LARGE "too_large" "the request is too large"
    Mistakes UNPROCESSABLE_ENTITY "mistakes" "what was asked for has mistakes"
    Failed INTERNAL_SERVER_ERROR "failed" "it could not be done"
    Unavailable SERVICE_UNAVAILABLE "unavailable" "the gateway cannot do that now"
}

#[derive(Serialize)]
struct Document<'a> {
    status: u16,
    code: &'static str,
    title: &'static str,
    detail: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mistakes: Vec<MistakeRecord<'a>>,
}

#[derive(Serialize)]
struct MistakeRecord<'a> {
    /// File, line and column; none where what has the mistake is the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    at: &'a str,
    what: &'a str,
    hint: &'a str,
}

impl<'a> MistakeRecord<'a> {
    fn of(mistake: &'a Mistake) -> Self {
        let Mistake { file, line, column, at, what, hint } = mistake;
        let place = (!file.is_empty()).then(|| format!("{file}:{line}:{column}"));
        Self { place, at, what, hint }
    }
}

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), mistakes: Vec::new() }
    }

    /// Mistakes in the config, or in a sandbox that was asked for.
    pub(super) fn mistakes(detail: impl Into<String>, mistakes: Vec<Mistake>) -> Self {
        Self { code: Code::Mistakes, detail: detail.into(), mistakes }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let document = Document {
            status: self.code.status().as_u16(),
            code: self.code.text(),
            title: self.code.title(),
            detail: &self.detail,
            mistakes: self.mistakes.iter().map(MistakeRecord::of).collect(),
        };
        let mut response = json(self.code.status(), &document);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

/// A whole JSON answer.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // What is serialized here is plain data with text keys.
    let body = serde_json::to_vec(value).unwrap_or_default();
    page(status, "application/json", body)
}

/// A whole answer.
pub(super) fn page(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    answered(status, kind, Body::Whole(Some(body.into())))
}

/// An answer of server-sent events, and where they go.
pub(super) fn stream() -> (mpsc::Sender<Bytes>, Response<Body>) {
    let (to, pieces) = mpsc::channel(AHEAD);
    (to, answered(StatusCode::OK, "text/event-stream", Body::Stream(pieces)))
}

fn answered(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The answer to a method that a path does not have.
pub(super) fn other_method(allowed: &[&str]) -> Response<Body> {
    let listed = allowed.join(", ");
    let mut response =
        Problem::new(Code::MethodNotAllowed, format!("write one of: {listed}")).into_response();
    if let Ok(value) = HeaderValue::from_str(&listed) {
        response.headers_mut().insert(ALLOW, value);
    }
    response
}
