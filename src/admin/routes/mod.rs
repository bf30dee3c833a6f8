//! The routes of the admin API: one table, one file a resource. docs/admin.openapi.json describes them; a test compares.

mod approvals;
mod gateway;
pub(crate) mod namespaces;
mod sandboxes;
mod tunnels;

use std::sync::Arc;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response};
use policy::SandboxId;
use serde::de::DeserializeOwned;

use super::Api;
use super::answer::{self, Answer, Body, Code, Problem};
use super::caller::{Caller, Need};

/// The longest body that is read.
const BODY_LIMIT: usize = 64 * 1024;

/// One thing that can be asked for.
struct Route {
    method: Method,
    /// `{id}` stands for one segment.
    path: &'static str,
    need: Need,
    call: Call,
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    OpenApi,
    Status,
    Ready,
    Reload,
    ListTunnels,
    EndTunnel,
    OpenNamespace,
    OpenNewNamespace,
    Surroundings,
    SurroundingsOfNew,
    ListSandboxes,
    AddSandbox,
    CleanUp,
    ShowSandbox,
    UpdateSandbox,
    RemoveSandbox,
    Pause,
    Resume,
    ListDenials,
    ListApprovals,
    FollowApprovals,
    Approve,
    Deny,
    Revoke,
}

const fn route(method: Method, path: &'static str, need: Need, call: Call) -> Route {
    Route { method, path, need, call }
}

const ROUTES: &[Route] = &[
    route(Method::GET, "/v1/openapi.json", Need::Nothing, Call::OpenApi),
    route(Method::GET, "/v1/status", Need::See, Call::Status),
    route(Method::GET, "/v1/ready", Need::Nothing, Call::Ready),
    route(Method::POST, "/v1/reload", Need::Operate, Call::Reload),
    route(Method::GET, "/v1/tunnels", Need::See, Call::ListTunnels),
    route(Method::DELETE, "/v1/tunnels/{id}", Need::Change, Call::EndTunnel),
    // A sandbox that ends with the connection.
    route(Method::GET, "/v1/namespaces", Need::Change, Call::SurroundingsOfNew),
    route(Method::POST, "/v1/namespaces", Need::Change, Call::OpenNewNamespace),
    // Whom the sandbox's `owners` name, whatever their role.
    route(Method::GET, "/v1/namespaces/{id}", Need::Nothing, Call::Surroundings),
    route(Method::POST, "/v1/namespaces/{id}", Need::Nothing, Call::OpenNamespace),
    route(Method::GET, "/v1/sandboxes", Need::See, Call::ListSandboxes),
    route(Method::POST, "/v1/sandboxes", Need::Change, Call::AddSandbox),
    route(Method::DELETE, "/v1/sandboxes", Need::Change, Call::CleanUp),
    route(Method::GET, "/v1/sandboxes/{id}", Need::See, Call::ShowSandbox),
    route(Method::PATCH, "/v1/sandboxes/{id}", Need::Change, Call::UpdateSandbox),
    route(Method::DELETE, "/v1/sandboxes/{id}", Need::Change, Call::RemoveSandbox),
    route(Method::POST, "/v1/sandboxes/{id}/pause", Need::Change, Call::Pause),
    route(Method::POST, "/v1/sandboxes/{id}/resume", Need::Change, Call::Resume),
    route(Method::GET, "/v1/sandboxes/{id}/denials", Need::See, Call::ListDenials),
    route(Method::GET, "/v1/approvals", Need::See, Call::ListApprovals),
    route(Method::GET, "/v1/approvals/events", Need::See, Call::FollowApprovals),
    route(Method::POST, "/v1/approvals/{id}/approve", Need::Change, Call::Approve),
    route(Method::POST, "/v1/approvals/{id}/deny", Need::Change, Call::Deny),
    route(Method::DELETE, "/v1/approvals/{id}", Need::Change, Call::Revoke),
];

/// One request on its way to a route.
struct Asked<'a> {
    api: &'a Arc<Api>,
    caller: &'a Caller,
    /// What stands for `{id}`; empty where the path has none.
    name: &'a str,
    query: &'a str,
    /// The connection itself, where the client wants it for another protocol.
    upgrade: Option<(HeaderValue, OnUpgrade)>,
}

impl Route {
    /// What stands for `{id}` where the path is this route's; empty where it has none.
    fn matches<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (mut wanted, mut given) = (self.path.split('/'), path.split('/'));
        let mut name = "";
        loop {
            match (wanted.next(), given.next()) {
                (None, None) => return Some(name),
                (Some("{id}"), Some(segment)) if !segment.is_empty() => name = segment,
                (Some(wanted), Some(given)) if wanted == given => {}
                _ => return None,
            }
        }
    }
}

/// Finds the route and does what it says.
pub(super) async fn answer(
    api: &Arc<Api>,
    caller: &Caller,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let protocol = request.headers().get(UPGRADE).cloned();
    let upgrade = protocol.map(|protocol| (protocol, hyper::upgrade::on(&mut request)));
    let (head, body) = request.into_parts();
    let found = ROUTES.iter().filter_map(|route| Some((route, route.matches(head.uri.path())?)));
    let found: Vec<_> = found.collect();
    let Some((route, name)) = found.iter().find(|(route, _)| route.method == head.method) else {
        return match found.is_empty() {
            true => Problem::new(Code::NotFound, "GET /v1/openapi.json lists what there is").into_response(),
            false => answer::other_method(
                &found.iter().map(|(route, _)| route.method.as_str()).collect::<Vec<_>>(),
            ),
        };
    };
    if !caller.role.is_enough(route.need) {
        let detail = format!("{} has no such role; [admin] of the config gives roles", caller.by);
        return Problem::new(Code::NotPermitted, detail).into_response();
    }
    let asked = Asked { api, caller, name, query: head.uri.query().unwrap_or_default(), upgrade };
    asked.call(route.call, body).await.unwrap_or_else(Problem::into_response)
}

impl Asked<'_> {
    async fn call(self, call: Call, body: Incoming) -> Answer {
        match call {
            Call::OpenApi => Ok(gateway::openapi()),
            Call::Status => gateway::status(&self),
            Call::Ready => Ok(gateway::ready(&self)),
            Call::Reload => gateway::reload(&self).await,
            Call::ListTunnels => tunnels::list(&self),
            Call::EndTunnel => tunnels::end(&self).await,
            Call::OpenNamespace => namespaces::open(self),
            Call::OpenNewNamespace => namespaces::open_new(self, body).await,
            Call::Surroundings => namespaces::surroundings(&self),
            Call::SurroundingsOfNew => namespaces::surroundings_of_new(&self),
            Call::ListSandboxes => sandboxes::list(&self),
            Call::AddSandbox => sandboxes::add(&self, body).await,
            Call::CleanUp => sandboxes::clean_up(&self).await,
            Call::ShowSandbox => sandboxes::show(&self),
            Call::UpdateSandbox => sandboxes::update(&self, body).await,
            Call::RemoveSandbox => sandboxes::remove(&self).await,
            Call::Pause => sandboxes::pause(&self, body).await,
            Call::Resume => sandboxes::resume(&self).await,
            Call::ListDenials => sandboxes::denials(&self),
            Call::ListApprovals => approvals::list(&self),
            Call::FollowApprovals => approvals::follow(&self),
            Call::Approve => approvals::approve(&self, body).await,
            Call::Deny => approvals::deny(&self).await,
            Call::Revoke => approvals::revoke(&self).await,
        }
    }

    /// The value of a key of the query; `None` where it is not written.
    fn parameter(&self, key: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The sandbox that the path or the query names.
    fn sandbox(name: &str) -> Result<SandboxId, Problem> {
        // Names need no percent-encoding, so that a name that has some is none.
        SandboxId::parse(name)
            .ok_or_else(|| Problem::new(Code::NotFound, format!("{name:?} is no sandbox's name")))
    }

    /// Reads the body as JSON.
    async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Problem> {
        parse(&Self::bytes(body).await?)
    }

    /// Reads a body that may be left out.
    async fn read_or_default<T: DeserializeOwned + Default>(body: Incoming) -> Result<T, Problem> {
        let bytes = Self::bytes(body).await?;
        if bytes.is_empty() { Ok(T::default()) } else { parse(&bytes) }
    }

    async fn bytes(body: Incoming) -> Result<Bytes, Problem> {
        match Limited::new(body, BODY_LIMIT).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(Problem::new(Code::TooLarge, format!("at most {BODY_LIMIT} bytes are read")))
            }
            Err(error) => Err(Problem::new(Code::BadRequest, error.to_string())),
        }
    }
}

/// Carries a change out, whether or not whoever asked for it waits: half a change must not be left behind.
async fn carried<T: Send + 'static, E: Into<Problem> + Send + 'static>(
    change: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::spawn(change).await {
        Ok(done) => done.map_err(E::into),
        Err(error) => Err(Problem::new(Code::Failed, error.to_string())),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| Problem::new(Code::BadRequest, error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_published_document_has_every_route_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(gateway::OPENAPI).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let operations = paths.iter().flat_map(|(path, item)| {
            let methods = item.as_object().expect("a path item").keys().filter(|key| *key != "parameters");
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        });
        let routes = ROUTES.iter().map(|route| format!("{} {}", route.method, route.path));
        assert_eq!(operations.collect::<BTreeSet<_>>(), routes.collect::<BTreeSet<_>>());
    }

    #[test]
    fn the_published_document_lists_every_code() {
        let document: serde_json::Value = serde_json::from_str(gateway::OPENAPI).expect("JSON");
        let listed = &document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
        let listed: Vec<&str> =
            listed.as_array().expect("a list").iter().filter_map(serde_json::Value::as_str).collect();
        let codes: Vec<&str> = Code::ALL.iter().map(|code| code.text()).collect();
        assert_eq!(listed, codes);
    }

    #[test]
    fn a_path_is_a_route_segment_by_segment() {
        let route = route(Method::GET, "/v1/tunnels/{id}", Need::See, Call::EndTunnel);
        assert_eq!(route.matches("/v1/tunnels/a-7"), Some("a-7"));
        for other in
            ["/v1/tunnels", "/v1/tunnels/", "/v1/tunnels/a/b", "/v1//a", "v1/tunnels/a", "/v1/tunnels/a/"]
        {
            assert_eq!(route.matches(other), None, "{other}");
        }
    }
}
