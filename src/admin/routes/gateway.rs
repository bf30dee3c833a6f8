//! The gateway itself: its state, its readiness, its reload, and the description of this API.

use hyper::{Response, StatusCode};
use serde::Serialize;

use super::{Asked, approvals, sandboxes};
use crate::admin::Report;
use crate::admin::answer::{Answer, Body, Code, Problem, json, page};

/// The published description: OpenAPI 3.1.
pub(super) const OPENAPI: &str = include_str!("../../../docs/admin.openapi.json");

#[derive(Serialize)]
struct Status {
    #[serde(flatten)]
    report: Report,
    /// Streams that are open now.
    tunnels: usize,
    /// Clients that are connected now.
    clients: usize,
    /// Sandboxes that the caller sees.
    sandboxes: Counts,
    /// Questions to a person that wait, of those that the caller sees.
    pending: usize,
    /// Approvals that hold, of those.
    approvals: usize,
}

/// How many sandboxes there are.
#[derive(Default, Serialize)]
pub(super) struct Counts {
    pub(super) config: usize,
    pub(super) run_time: usize,
    pub(super) paused: usize,
    pub(super) expired: usize,
}

#[derive(Serialize)]
struct Reloaded {
    policy_generation: u64,
}

pub(super) fn openapi() -> Response<Body> {
    page(StatusCode::OK, "application/json", OPENAPI)
}

pub(super) fn status(asked: &Asked<'_>) -> Answer {
    let core = &asked.api.core;
    let mut report = core.status.report();
    if asked.caller.role.tenant().is_some() {
        // It may quote the config.
        report.reload = None;
    }
    let (tunnels, clients) = (core.gateway.streams().count(), core.gateway.clients());
    let sandboxes = sandboxes::count(asked);
    let (pending, approvals) = approvals::counts(asked);
    Ok(json(StatusCode::OK, &Status { report, tunnels, clients, sandboxes, pending, approvals }))
}

/// 200 where new connections are served, 503 where not.
pub(super) fn ready(asked: &Asked<'_>) -> Response<Body> {
    let report = asked.api.core.status.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &serde_json::json!({ "ready": report.ready, "phase": report.phase }))
}

pub(super) async fn reload(asked: &Asked<'_>) -> Answer {
    match asked.api.reload(asked.caller.by.clone()).await {
        Some(Ok(generation)) => Ok(json(StatusCode::OK, &Reloaded { policy_generation: generation.get() })),
        Some(Err(error)) => {
            let detail = format!("the old policy stays in force; {}", error.brief());
            Err(Problem::mistakes(detail, error.into_mistakes()))
        }
        None => Err(Problem::new(Code::Unavailable, "the gateway is ending")),
    }
}
