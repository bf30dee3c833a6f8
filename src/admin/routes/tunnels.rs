//! The streams that are open now.

use hyper::StatusCode;
use policy::{Live, Reason, SandboxId};
use serde::Serialize;

use super::Asked;
use crate::admin::answer::{Answer, Code, Problem, json};
use crate::audit::{Notice, SandboxChange};

/// The most that one answer lists, the oldest first.
const MOST: usize = 1000;

#[derive(Serialize)]
struct List {
    /// How many there are, listed or not.
    count: usize,
    tunnels: Vec<Tunnel>,
}

#[derive(Serialize)]
struct Tunnel {
    id: String,
    sandbox: String,
    inbound: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    addr: String,
    opened: String,
    bytes_up: u64,
    bytes_down: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
}

/// The sandbox that the query names, and whether the caller sees it.
fn wanted(asked: &Asked<'_>) -> Result<Option<SandboxId>, Problem> {
    asked.parameter("sandbox").map(Asked::sandbox).transpose()
}

fn is_seen(asked: &Asked<'_>, live: &Live) -> bool {
    let Some(tenant) = asked.caller.role.tenant() else { return true };
    live.permit().sandbox().labels.get("tenant").is_some_and(|label| *label == tenant.name)
}

pub(super) fn list(asked: &Asked<'_>) -> Answer {
    let wanted = wanted(asked)?;
    let mut tunnels = Vec::new();
    asked.api.core.gateway.streams().each(|live, meter| {
        let permit = live.permit();
        if wanted.as_ref().is_some_and(|id| *id != permit.sandbox().id) || !is_seen(asked, live) {
            return;
        }
        let attempt = permit.attempt();
        tunnels.push((
            live.opened(),
            Tunnel {
                id: attempt.id.to_string(),
                sandbox: permit.sandbox().id.to_string(),
                inbound: attempt.inbound.as_str(),
                host: attempt.ask.host().map(|host| host.to_string()),
                port: attempt.ask.port().map(policy::Port::get),
                addr: live.address().to_string(),
                opened: live.opened().to_string(),
                bytes_up: meter.up(),
                bytes_down: meter.down(),
                rule: permit.rule().map(ToString::to_string),
            },
        ));
    });
    tunnels.sort_by_key(|(opened, _)| *opened);
    let count = tunnels.len();
    let tunnels = tunnels.into_iter().take(MOST).map(|(_, tunnel)| tunnel).collect();
    Ok(json(StatusCode::OK, &List { count, tunnels }))
}

pub(super) async fn end(asked: &Asked<'_>) -> Answer {
    let core = &asked.api.core;
    let mut ended = None;
    core.gateway.streams().end_where(Reason::EndedByOperator, |live| {
        let is_it = is_seen(asked, live) && live.permit().attempt().id.to_string() == asked.name;
        if is_it {
            ended = Some(live.permit().sandbox().clone());
        }
        is_it
    });
    let Some(sandbox) = ended else {
        return Err(Problem::new(Code::NotFound, "no open tunnel has this id; it may have ended"));
    };
    let change = SandboxChange::EndTunnel { id: asked.name };
    let notice = Notice::Sandbox { sandbox: &sandbox, change, by: Some(&asked.caller.by) };
    // Ended is ended: a lost line is told by the audit itself.
    let _ = core.audit.note(notice).await;
    Ok(json(StatusCode::OK, &serde_json::json!({ "id": asked.name })))
}
