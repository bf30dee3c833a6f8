//! What waits for a person, what was approved, and the stream of both.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Bytes, Incoming};
use policy::file::duration;
use policy::{Approval, Approver, AttemptId, Binding, Consent, PathPrefix, SandboxId, Term, Timestamp};
use proxy::desk::{News, NotAnswered, Question};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use super::{Asked, carried};
use crate::admin::answer::{Answer, Code, Problem, json, stream};
use crate::approvals::{Approvals, Held};
use crate::audit::By;
use crate::sandboxes::Span;

/// How often a stream on which nothing happens says that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The longest that an approval may be given for. Beyond it a rule says so better.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

#[derive(Serialize)]
struct List {
    pending: Vec<Pending>,
    approvals: Vec<Given>,
}

/// What an approval binds. Fields are only ever added.
#[derive(Serialize)]
struct Bound {
    sandbox: String,
    host: String,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

/// A question that waits.
#[derive(Serialize)]
struct Pending {
    id: String,
    #[serde(flatten)]
    bound: Bound,
    inbound: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    asked: String,
    waiting: usize,
}

/// An approval that holds.
#[derive(Serialize)]
struct Given {
    id: String,
    #[serde(flatten)]
    bound: Bound,
    term: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    asked: String,
    approved: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_certificate: Option<String>,
}

/// How a question is approved.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// `once`, `session`, or a time such as `1h`.
    #[serde(default, rename = "for")]
    term: Option<String>,
    /// A path above the one that was asked for.
    #[serde(default)]
    path: Option<String>,
}

impl Bound {
    fn of(binding: &Binding) -> Self {
        Self {
            sandbox: binding.sandbox.to_string(),
            host: binding.host.to_string(),
            port: binding.port.get(),
            method: binding.method.as_deref().map(str::to_owned),
            path: binding.path.as_ref().map(ToString::to_string),
        }
    }
}

impl Pending {
    fn of(question: &Question) -> Self {
        Self {
            id: question.id.to_string(),
            bound: Bound::of(&question.binding),
            inbound: question.inbound.as_str(),
            rule: question.rule.as_ref().map(ToString::to_string),
            asked: question.asked_at.to_string(),
            waiting: question.waiting,
        }
    }
}

impl Given {
    fn of(approval: &Approval) -> Self {
        let until = match approval.term {
            Term::Until(end) => Some(end.to_string()),
            Term::Once | Term::Session => None,
        };
        let (by, by_certificate) = match &approval.by {
            Approver::Uid(uid) => (Some(*uid), None),
            Approver::Certificate(name) => (None, Some(name.to_string())),
        };
        Self {
            id: approval.id.to_string(),
            bound: Bound::of(&approval.binding),
            term: approval.term.as_str(),
            until,
            asked: approval.asked_at.to_string(),
            approved: approval.given_at.to_string(),
            by,
            by_certificate,
        }
    }
}

impl From<NotAnswered> for Problem {
    fn from(why: NotAnswered) -> Self {
        let code = match why {
            NotAnswered::Unknown => Code::NotFound,
            NotAnswered::Path => Code::BadRequest,
            NotAnswered::NotApproved(_) => Code::Conflict,
        };
        Self::new(code, why.to_string())
    }
}

impl Asked<'_> {
    fn approvals(&self) -> Approvals {
        Approvals::of(self.api.core.clone())
    }

    /// The attempt that the path names.
    fn attempt(&self) -> Result<AttemptId, Problem> {
        let none = || Problem::new(Code::NotFound, format!("{:?} is no id of an approval", self.name));
        AttemptId::parse(self.name).ok_or_else(none)
    }

    fn wanted_sandbox(&self) -> Result<Option<SandboxId>, Problem> {
        self.parameter("sandbox").map(Self::sandbox).transpose()
    }
}

pub(super) fn list(asked: &Asked<'_>) -> Answer {
    let wanted = asked.wanted_sandbox()?;
    let is_wanted = |binding: &Binding| wanted.as_ref().is_none_or(|id| *id == binding.sandbox);
    let Held { pending, approvals } = asked.approvals().held(&asked.span());
    let pending = pending.iter().filter(|question| is_wanted(&question.binding)).map(Pending::of).collect();
    let approvals = approvals
        .iter()
        .filter(|approval| is_wanted(&approval.binding))
        .map(|each| Given::of(each))
        .collect();
    Ok(json(StatusCode::OK, &List { pending, approvals }))
}

/// How many questions wait and how many approvals hold, of those that the caller sees.
pub(super) fn counts(asked: &Asked<'_>) -> (usize, usize) {
    let Held { pending, approvals } = asked.approvals().held(&asked.span());
    (pending.len(), approvals.len())
}

pub(super) async fn approve(asked: &Asked<'_>, body: Incoming) -> Answer {
    let id = asked.attempt()?;
    let Wanted { term, path } = Asked::read_or_default(body).await?;
    let at = dns::clock::now();
    let (term, path) = (read_term(term.as_deref(), at)?, path.as_deref().map(PathPrefix::of));
    let by = asked.caller.by.clone();
    let consent = Consent { term, path, at, by: approver(&by) };
    let (approvals, span) = (asked.approvals(), asked.span());
    let given = carried(async move { approvals.approve(id, consent, &by, &span).await }).await?;
    Ok(json(StatusCode::OK, &json!({ "approval": Given::of(&given) })))
}

fn approver(by: &By) -> Approver {
    match by {
        By::Uid(uid) => Approver::Uid(*uid),
        By::Certificate(name) => Approver::Certificate(name.clone()),
    }
}

fn read_term(text: Option<&str>, now: Timestamp) -> Result<Term, Problem> {
    match text {
        None | Some("once") => Ok(Term::Once),
        Some("session") => Ok(Term::Session),
        Some(text) => {
            let span = duration::parse(text).filter(|span| (Duration::from_secs(1)..=LONGEST).contains(span));
            let end =
                span.and_then(|span| u64::try_from(span.as_nanos()).ok()).map(|nanos| now.plus_nanos(nanos));
            end.map(Term::Until).ok_or_else(|| {
                let detail = format!(
                    "for: {text:?} is neither \"once\" nor \"session\" nor a time of 1s to 30d such as \"1h30m\""
                );
                Problem::new(Code::BadRequest, detail)
            })
        }
    }
}

pub(super) async fn deny(asked: &Asked<'_>) -> Answer {
    let (id, approvals, span, by) =
        (asked.attempt()?, asked.approvals(), asked.span(), asked.caller.by.clone());
    let question = carried(async move { approvals.deny(id, &by, &span).await }).await?;
    Ok(json(StatusCode::OK, &json!({ "denied": Pending::of(&question) })))
}

pub(super) async fn revoke(asked: &Asked<'_>) -> Answer {
    let (id, approvals, span, by) =
        (asked.attempt()?, asked.approvals(), asked.span(), asked.caller.by.clone());
    let revoked =
        carried(async move { Ok::<_, NotAnswered>(approvals.revoke(id, &by, &span).await) }).await?;
    let none = || Problem::new(Code::NotFound, "no approval has this id; it may have ended");
    let revoked = revoked.ok_or_else(none)?;
    Ok(json(StatusCode::OK, &json!({ "revoked": Given::of(&revoked) })))
}

/// What waits now, and from then on what comes and how it ends, as server-sent events (HTML Standard, section 9.2).
pub(super) fn follow(asked: &Asked<'_>) -> Answer {
    let Ok(place) = Arc::clone(&asked.api.followers).try_acquire_owned() else {
        return Err(Problem::new(
            Code::Unavailable,
            "too many follow already; GET /v1/approvals lists them too",
        ));
    };
    let (approvals, span) = (asked.approvals(), asked.span());
    let (pending, mut news) = approvals.desk().follow();
    let first: Vec<u8> = pending
        .iter()
        .filter(|question| approvals.is_seen(&span, &question.binding.sandbox))
        .flat_map(|question| event("pending", &Pending::of(question)))
        .collect();
    let (to, body) = stream();
    tokio::spawn(async move {
        let _place = place;
        // A comment at once, so that its reader knows that it listens.
        let mut text = [b": pending and decided\n\n", &first[..]].concat();
        while to.send(Bytes::from(std::mem::take(&mut text))).await.is_ok() {
            text = loop {
                let next = tokio::select! {
                    () = to.closed() => return,
                    next = tokio::time::timeout(KEEP_ALIVE, news.recv()) => next,
                };
                match next {
                    Ok(Ok(news)) => {
                        if let Some(text) = told(&approvals, &span, &news) {
                            break text;
                        }
                    }
                    // It reads too slowly. A new stream begins with everything that waits.
                    Ok(Err(RecvError::Lagged(_) | RecvError::Closed)) => return,
                    Err(_) => break b": still here\n\n".to_vec(),
                }
            };
        }
    });
    Ok(body)
}

fn told(approvals: &Approvals, span: &Span, news: &News) -> Option<Vec<u8>> {
    approvals.is_seen(span, &news.question().binding.sandbox).then(|| match news {
        News::Pending(question) => event("pending", &Pending::of(question)),
        News::Decided(question, outcome) => {
            let record = json!({ "outcome": outcome.as_str(), "question": Pending::of(question) });
            event("decided", &record)
        }
    })
}

/// One event. JSON holds no line break but those that are escaped.
fn event(name: &str, data: &impl Serialize) -> Vec<u8> {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into_bytes()
}
