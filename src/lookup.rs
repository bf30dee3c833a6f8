//! Look-ups that no sandbox attempts: the operator's upstream proxy, and `explain --resolve`. The same resolver asks,
//! and it takes nothing but a permit, so these come from a gate of their own that records nothing.

use std::net::SocketAddr;
use std::sync::Arc;

use dns::{Addresses, LookupError, Resolver};
use policy::approval::Approvals;
use policy::file::{self, Document};
use policy::identity::{Evidence, Identities};
use policy::{
    Ask, Decision, Destination, Event, Gate, Inbound, LocalAddresses, Observer, Peer, Policy, Receipt,
    SandboxId,
};

/// Why the upstream proxy cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot resolve the upstream proxy {name}")]
pub struct UpstreamUnknown {
    name: String,
    #[source]
    why: Option<LookupError>,
}

/// What is explained has not happened.
struct Unrecorded;

impl Observer for Unrecorded {
    fn record(&self, _event: &Event<'_>) -> Receipt {
        Receipt::written()
    }
}

/// Resolves the name of an attempt as the gateway would; `None` where the sandbox may not make it.
pub(crate) async fn resolve(
    resolver: &Resolver,
    policy: &Policy,
    local: Arc<LocalAddresses>,
    approvals: Arc<Approvals>,
    sandbox: &SandboxId,
    ask: Ask,
) -> Option<Result<Addresses, LookupError>> {
    let mut alone = policy.clone();
    alone.identities = Identities::new([(sandbox, &Evidence::Default)]);
    let gate = Gate::new(Arc::new(alone), local, Arc::new(Unrecorded), 0);
    let gate = Arc::new(gate.with_approvals(approvals));
    let peer = Peer::new("explain".into(), None);
    let attempt = gate.attempt(dns::clock::now(), &peer, Inbound::Connect, ask);
    match gate.check(attempt) {
        Decision::Allow(permit) => Some(resolver.lookup(&gate, &permit).await),
        Decision::Ask(_) | Decision::Deny(_) => None,
    }
}

/// The addresses of the proxy on the way out. The operator chose it, so no rule stands between.
///
/// # Errors
/// Where its name does not resolve.
pub(crate) async fn upstream(
    resolver: &Resolver,
    proxy: &Destination,
) -> Result<Vec<SocketAddr>, UpstreamUnknown> {
    let port = proxy.port.get();
    if let Some(address) = proxy.host.address() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let unknown = |why| UpstreamUnknown { name: proxy.to_string(), why };
    let text = format!(
        "[policy.upstream]\nallow = [\"{proxy}\"]\n\
         [sandbox.upstream]\npolicies = [\"upstream\"]\nidentify = [{{ default = true }}]\n"
    );
    let local = LocalAddresses::default();
    let policy = Document::new("upstream", text.as_bytes())
        .ok()
        .and_then(|document| file::load(&[document], dns::clock::now(), &local).ok());
    let (Some(policy), Some(id)) = (policy, SandboxId::parse("upstream")) else { return Err(unknown(None)) };
    match resolve(resolver, &policy, Arc::new(local), Arc::default(), &id, Ask::Stream(proxy.clone())).await {
        Some(Ok(found)) if !found.addresses.is_empty() => {
            Ok(found.addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
        }
        Some(Err(why)) => Err(unknown(Some(why))),
        Some(Ok(_)) | None => Err(unknown(None)),
    }
}
