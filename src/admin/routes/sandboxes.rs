//! Sandboxes: added, shown, changed, paused, resumed and removed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Incoming;
use policy::file::duration;
use policy::{SandboxId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::gateway::Counts;
use super::{Asked, carried};
use crate::admin::answer::{Answer, Code, Problem, json};
use crate::sandboxes::{
    Change, Denied, Known, Lent, Origin, Refusal, Sandboxes, Span, State, Table, Tunnels,
};

#[derive(Serialize)]
struct List {
    count: usize,
    sandboxes: Vec<Record>,
}

/// One sandbox as it is shown. Fields are only ever added.
#[derive(Serialize)]
struct Record {
    id: String,
    state: &'static str,
    origin: &'static str,
    policies: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by_certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clash: Option<String>,
    tunnels: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<Table>,
}

#[derive(Serialize)]
struct Told {
    sandbox: Record,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
}

#[derive(Serialize)]
struct DenialRecord {
    id: String,
    ts: String,
    inbound: &'static str,
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    #[serde(default)]
    tunnels: Tunnels,
}

impl Asked<'_> {
    fn sandboxes(&self) -> &Arc<Sandboxes> {
        &self.api.core.sandboxes
    }

    pub(super) fn span(&self) -> Span {
        self.caller.role.tenant().map_or_else(Span::all, |tenant| Span::of(Arc::new(tenant.clone())))
    }

    /// The sandbox that the path names.
    fn named(&self) -> Result<SandboxId, Problem> {
        Self::sandbox(self.name)
    }

    /// Takes the name that is wanted for a sandbox out of its table.
    pub(super) fn take_id(table: &mut Table) -> Result<Option<SandboxId>, Problem> {
        match table.remove("id") {
            None => Ok(None),
            Some(Value::String(text)) if SandboxId::parse(&text).is_some() => Ok(SandboxId::parse(&text)),
            Some(other) => {
                let hint = "1 to 64 letters, digits, `.`, `_` and `-`, the first one a letter or a digit";
                Err(Problem::new(Code::BadRequest, format!("{other} is no name for a sandbox: {hint}")))
            }
        }
    }

    /// Adds a sandbox that lives as long as the caller's connection.
    pub(super) async fn lend(&self, id: Option<SandboxId>, table: Table, by: u32) -> Result<Lent, Problem> {
        let (sandboxes, span) = (Arc::clone(self.sandboxes()), self.span());
        carried(async move { sandboxes.lend(id, table, by, &span).await }).await
    }

    /// One sandbox as the caller sees it.
    fn record(&self, id: &SandboxId) -> Result<Record, Problem> {
        let tunnels = tunnels(self).remove(id).unwrap_or_default();
        let span = self.span();
        let seen =
            self.sandboxes().one(id, |known| is_seen(&span, known).then(|| Record::of(known, tunnels)));
        seen.flatten().ok_or_else(|| Refusal::Unknown.into())
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            Refusal::Unknown => Self::new(Code::NotFound, detail),
            Refusal::Conflict(_) => Self::new(Code::Conflict, detail),
            Refusal::Mistakes(mistakes) => Self::mistakes(detail, mistakes),
            Refusal::NotPermitted(_) => Self::new(Code::NotPermitted, detail),
            Refusal::Failed(_) => Self::new(Code::Failed, detail),
        }
    }
}

fn is_seen(span: &Span, known: &Known<'_>) -> bool {
    match (&known.sandbox, &known.origin) {
        (Some(sandbox), _) => span.covers(&sandbox.labels),
        (None, Origin::RunTime { source: Some(source), .. }) => span.covers(&source.labels),
        (None, _) => span.covers(&BTreeMap::new()),
    }
}

/// How many streams of each sandbox are open.
fn tunnels(asked: &Asked<'_>) -> HashMap<SandboxId, usize> {
    let mut counts: HashMap<SandboxId, usize> = HashMap::new();
    asked.api.core.gateway.streams().each(|live, _| {
        *counts.entry(live.permit().sandbox().id.clone()).or_default() += 1;
    });
    counts
}

pub(super) fn list(asked: &Asked<'_>) -> Answer {
    let wanted = match asked.parameter("state") {
        None => None,
        Some(word) => Some(state(word)?),
    };
    let (span, mut tunnels) = (asked.span(), tunnels(asked));
    let mut sandboxes = Vec::new();
    asked.sandboxes().each(|known| {
        if is_seen(&span, known) && wanted.is_none_or(|wanted| wanted == known.state) {
            sandboxes.push(Record::of(known, tunnels.remove(known.id).unwrap_or_default()));
        }
    });
    Ok(json(StatusCode::OK, &List { count: sandboxes.len(), sandboxes }))
}

/// Counts the sandboxes that the caller sees.
pub(super) fn count(asked: &Asked<'_>) -> Counts {
    let span = asked.span();
    let mut counts = Counts::default();
    asked.sandboxes().each(|known| {
        if !is_seen(&span, known) {
            return;
        }
        match known.origin {
            Origin::Config => counts.config += 1,
            Origin::RunTime { .. } => counts.run_time += 1,
        }
        match known.state {
            State::Paused => counts.paused += 1,
            State::Expired => counts.expired += 1,
            State::Active | State::Shadowed => {}
        }
    });
    counts
}

fn state(word: &str) -> Result<State, Problem> {
    State::ALL.into_iter().find(|state| state.as_str() == word).ok_or_else(|| {
        let words = State::ALL.map(State::as_str).join(", ");
        Problem::new(Code::BadRequest, format!("{word:?} is no state; write one of: {words}"))
    })
}

pub(super) fn show(asked: &Asked<'_>) -> Answer {
    Ok(json(StatusCode::OK, &asked.record(&asked.named()?)?))
}

pub(super) async fn add(asked: &Asked<'_>, body: Incoming) -> Answer {
    let mut table: Table = Asked::read(body).await?;
    let id = Asked::take_id(&mut table)?;
    let change = change(table)?;
    let (sandboxes, span, by) = (Arc::clone(asked.sandboxes()), asked.span(), asked.caller.by.clone());
    let (id, token) = carried(async move { sandboxes.add(id, change, &by, &span).await }).await?;
    Ok(json(StatusCode::CREATED, &Told { sandbox: asked.record(&id)?, token }))
}

pub(super) async fn update(asked: &Asked<'_>, body: Incoming) -> Answer {
    let id = asked.named()?;
    let change = change(Asked::read(body).await?)?;
    let (sandboxes, span, by) = (Arc::clone(asked.sandboxes()), asked.span(), asked.caller.by.clone());
    let name = id.clone();
    let token = carried(async move { sandboxes.update(&name, change, &by, &span).await }).await?;
    Ok(json(StatusCode::OK, &Told { sandbox: asked.record(&id)?, token }))
}

/// Takes what this API adds to a table out of it.
fn change(mut table: Table) -> Result<Change, Problem> {
    let ttl = table.remove("ttl").map(|value| span("ttl", &value)).transpose()?;
    let idle_timeout = table.remove("idle_timeout").map(|value| span("idle_timeout", &value)).transpose()?;
    Ok(Change { table, ttl, idle_timeout })
}

fn span(key: &str, value: &Value) -> Result<Option<Duration>, Problem> {
    let read = match value {
        Value::Null => return Ok(None),
        Value::String(text) => duration::parse(text).filter(|span| *span >= Duration::from_secs(1)),
        _ => None,
    };
    let detail =
        || format!("{key}: {value} is no time of a second or more; write \"90s\", \"1h30m\" or \"7d\"");
    read.map(Some).ok_or_else(|| Problem::new(Code::BadRequest, detail()))
}

pub(super) async fn pause(asked: &Asked<'_>, body: Incoming) -> Answer {
    let id = asked.named()?;
    let Pause { tunnels } = Asked::read_or_default(body).await?;
    let (sandboxes, span, by) = (Arc::clone(asked.sandboxes()), asked.span(), asked.caller.by.clone());
    let name = id.clone();
    carried(async move { sandboxes.pause(&name, tunnels, &by, &span).await }).await?;
    Ok(json(StatusCode::OK, &asked.record(&id)?))
}

pub(super) async fn resume(asked: &Asked<'_>) -> Answer {
    let id = asked.named()?;
    let (sandboxes, span, by) = (Arc::clone(asked.sandboxes()), asked.span(), asked.caller.by.clone());
    let name = id.clone();
    carried(async move { sandboxes.resume(&name, &by, &span).await }).await?;
    Ok(json(StatusCode::OK, &asked.record(&id)?))
}

pub(super) async fn remove(asked: &Asked<'_>) -> Answer {
    let id = asked.named()?;
    let (sandboxes, span, by) = (Arc::clone(asked.sandboxes()), asked.span(), asked.caller.by.clone());
    let name = id.clone();
    carried(async move { sandboxes.remove(&name, &by, &span).await }).await?;
    Ok(json(StatusCode::OK, &Removed { removed: vec![id.to_string()] }))
}

/// Removes those whose time is over. The query must say so: this path without one would be all of them.
pub(super) async fn clean_up(asked: &Asked<'_>) -> Answer {
    if asked.parameter("state") != Some(State::Expired.as_str()) {
        return Err(Problem::new(Code::BadRequest, "write ?state=expired; one sandbox is /v1/sandboxes/ID"));
    }
    let (sandboxes, span, by) = (Arc::clone(asked.sandboxes()), asked.span(), asked.caller.by.clone());
    let removed = carried(async move { sandboxes.clean_up(&by, &span).await }).await?;
    Ok(json(StatusCode::OK, &Removed { removed: removed.iter().map(ToString::to_string).collect() }))
}

pub(super) fn denials(asked: &Asked<'_>) -> Answer {
    let id = asked.named()?;
    asked.record(&id)?;
    let denials: Vec<_> = asked.sandboxes().denials(&id).iter().map(DenialRecord::of).collect();
    Ok(json(StatusCode::OK, &serde_json::json!({ "denials": denials })))
}

impl DenialRecord {
    fn of(denied: &Denied) -> Self {
        Self {
            id: denied.id.to_string(),
            ts: denied.at.to_string(),
            inbound: denied.inbound.as_str(),
            host: denied.host.as_ref().map(ToString::to_string),
            port: denied.port.map(policy::Port::get),
            reason: denied.reason.code(),
            rule: denied.rule.as_deref().map(str::to_owned),
        }
    }
}

impl Record {
    fn of(known: &Known<'_>, tunnels: usize) -> Self {
        let texts = |labels: &BTreeMap<Arc<str>, Arc<str>>| {
            labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let mut record = Self {
            id: known.id.to_string(),
            state: known.state.as_str(),
            origin: "config",
            policies: Vec::new(),
            missing: known.missing.iter().map(ToString::to_string).collect(),
            labels: BTreeMap::new(),
            created: None,
            created_by: None,
            created_by_certificate: None,
            expires: None,
            idle_timeout: None,
            clash: None,
            tunnels,
            table: None,
        };
        if let Some(sandbox) = &known.sandbox {
            record.policies = sandbox.sets.iter().map(|set| set.name().to_owned()).collect();
            record.labels = texts(&sandbox.labels);
        }
        if let Origin::RunTime { record: remembered, source, clash } = &known.origin {
            record.origin = "run_time";
            record.clash = clash.map(str::to_owned);
            if let Some(source) = source {
                record.policies = source.policies.iter().map(ToString::to_string).collect();
                record.labels = texts(&source.labels);
            }
            if let Some(added) = &remembered.added {
                record.created = Some(Timestamp::from_nanos(added.at).to_string());
                record.created_by = added.by.uid();
                record.created_by_certificate = added.by.certificate().map(str::to_owned);
                record.expires = added.ends.map(|ends| Timestamp::from_nanos(ends).to_string());
                record.idle_timeout = added.idle_timeout_ms.map(Duration::from_millis).map(duration::show);
                record.table = Some(added.table.clone());
            }
        }
        record
    }
}
