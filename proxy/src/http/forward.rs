//! Plain HTTP: each request on a client's connection is an attempt of its own, judged, forwarded and recorded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dns::clock::now;
use policy::{Ask, Attempt, Destination, Hostname, Inbound, Peer, Permit, Port, Reason, Resolved};

use super::body::{Extent, Transfer};
use super::chunked;
use super::exchange::{Ended, Exchange, Fault};
use super::fields::{self, RequestTerms};
use super::head::{BodyLength, RequestHead, Target, Upgrade, Version};
use super::leg::{DRAINED, Leg};
use super::pool::{Idle, Key};
use super::reply::{self, Form};
use super::response::Asked;
use crate::gateway::Gateway;
use crate::live::Session;
use crate::open::{Reached, Refused};
use crate::tunnel::Tunnel;

/// A request that must not be sent twice takes a connection that has rested less than this, or a new one: an origin
/// that closes while a request is on its way leaves open whether it was carried out, and common origins rest 2 s and
/// more before they close.
const FRESH: Duration = Duration::from_secs(1);

/// What becomes of a client's connection after a request.
#[derive(Debug)]
pub(crate) enum Next {
    /// It may carry another.
    Again(Leg),
    /// It has ended.
    Ended,
}

/// A way to an origin, for one request.
#[derive(Debug)]
struct Route {
    upstream: Leg,
    address: SocketAddr,
    chain: Arc<[Hostname]>,
    session: Session,
    /// It has carried a request before.
    reused: bool,
}

/// A request in absolute form.
struct Request<'a> {
    gateway: &'a Arc<Gateway>,
    peer: &'a Peer,
    head: &'a RequestHead,
    destination: &'a Destination,
    path_and_query: &'a str,
}

/// Serves one request in absolute form. Its head has been read, its body has not.
pub(crate) async fn forward(gateway: &Arc<Gateway>, peer: &Peer, client: Leg, head: &RequestHead) -> Next {
    let Target::Absolute { destination, path_and_query } = &head.target else { return Next::Ended };
    Request { gateway, peer, head, destination, path_and_query }.serve(client).await
}

impl Request<'_> {
    async fn serve(self, mut client: Leg) -> Next {
        if !is_sane(self.head, &client) {
            let denial = self.gateway.gate.refuse(self.attempt(), Reason::BadRequest).settle().await;
            client.outbox().extend(reply::denial(&denial, Form::of(self.head, false)));
            client.finish().await;
            return Next::Ended;
        }
        let safe =
            matches!(self.head.method(), "GET" | "HEAD" | "OPTIONS") && self.head.body == BodyLength::None;
        let mut reuse = Some(if safe { Duration::MAX } else { FRESH });
        loop {
            let mut route = match self.route(reuse).await {
                Ok(route) => route,
                Err(refused) => {
                    return refuse(client, self.head, &refused, false, self.gateway.timeouts.head).await;
                }
            };
            let asked = asked(self.head, route.session.permit());
            route.session.meter().add_up(self.head.raw().len());
            if write_head(
                self.head,
                self.destination,
                self.path_and_query,
                &route.session,
                route.upstream.outbox(),
            )
            .is_err()
            {
                return Next::Ended;
            }
            let ended = Exchange {
                client: &mut client,
                upstream: &mut route.upstream,
                asked: &asked,
                body: Transfer::new(self.head.body.into(), self.head.body.into()),
                meter: route.session.meter(),
                tunnel: None,
                idle: self.gateway.timeouts.idle,
            }
            .run()
            .await;
            match ended {
                // The origin had closed the connection before the request came. It is asked again on a new one, which
                // is another attempt: two connections have been used.
                Ended::Unanswered(Fault::Silent) if safe && route.reused => {
                    route.session.cut(Reason::UpstreamConnectFailed);
                    reuse = None;
                }
                Ended::Whole { keep_client, keep_upstream } => {
                    if keep_upstream {
                        self.keep(route);
                    }
                    if keep_client {
                        return Next::Again(client);
                    }
                    client.finish().await;
                    return Next::Ended;
                }
                ended => {
                    end(client, route.upstream, route.session, ended, self.head, self.gateway.timeouts.idle)
                        .await;
                    return Next::Ended;
                }
            }
        }
    }

    fn attempt(&self) -> Attempt {
        let ask = ask(self.head, self.destination, self.path_and_query);
        self.gateway.gate.attempt(now(), self.peer, Inbound::Http, ask)
    }

    /// Decides the request and finds a connection for it: one that has rested at most `reuse`, or a new one.
    async fn route(&self, reuse: Option<Duration>) -> Result<Route, Refused> {
        let gateway = self.gateway;
        let permit = gateway.decide(self.attempt()).await?;
        match reuse.and_then(|most| gateway.pool.take(&Key::of(&permit)?, permit.rule(), most)) {
            Some(idle) => {
                let Idle { stream, address, chain, .. } = idle;
                let resolved = Resolved { chain: &chain, addresses: &[address.ip()] };
                let vetted = match gateway.gate.vet(permit, resolved, now()) {
                    Ok(vetted) => vetted,
                    Err(denial) => return Err(Refused::Denied(denial.settle().await)),
                };
                let session = gateway.register(vetted, address).await?;
                Ok(Route { upstream: Leg::new(stream, Vec::new()), address, chain, session, reused: true })
            }
            None => {
                let Reached { vetted, stream, address, early, chain } = gateway.connect(permit).await?;
                let session = gateway.register(vetted, address).await?;
                let upstream = Leg::new(stream, early);
                Ok(Route { upstream, address, chain: chain.into(), session, reused: false })
            }
        }
    }

    /// Keeps a connection for another request.
    fn keep(&self, route: Route) {
        let permit = route.session.permit();
        let Some(key) = Key::of(permit) else { return };
        let rule = permit.rule().cloned();
        let (stream, _) = route.upstream.into_parts();
        self.gateway.pool.put(key, Idle { stream, address: route.address, chain: route.chain, rule });
    }
}

/// The question that a request puts to the gate.
pub(super) fn ask(head: &RequestHead, destination: &Destination, path_and_query: &str) -> Ask {
    let path = path_and_query.split('?').next().unwrap_or_default();
    Ask::Request { destination: destination.clone(), method: head.method().into(), path: path.into() }
}

/// Whether what has come of the body is well-formed and the fields can be rewritten: what is malformed is refused
/// before anybody is dialled.
pub(super) fn is_sane(head: &RequestHead, client: &Leg) -> bool {
    let chunks = || {
        let (mut decoder, mut came) = (chunked::Decoder::default(), client.unread());
        loop {
            match decoder.next(&mut came) {
                Ok(Some(chunked::Piece::Data(_))) => {}
                Ok(Some(chunked::Piece::End) | None) => return true,
                Err(chunked::BadChunk) => return false,
            }
        }
    };
    fields::are_sane(head.fields()) && (head.body != BodyLength::Chunked || chunks())
}

/// What a request is, as far as its response depends on it.
pub(super) fn asked(head: &RequestHead, permit: &Permit) -> Asked {
    Asked {
        head: head.method() == "HEAD",
        version: head.version(),
        upgrade: offered(head, permit),
        keep_alive: head.keep_alive,
        tied: false,
    }
}

/// The protocols that a client asks to change to, if the wish is passed on. HTTP/2 is not: its requests would pass
/// unseen (RFC 9113 §3.1 has retired that change). Nor is any but WebSocket where requests are held to methods or paths.
fn offered(head: &RequestHead, permit: &Permit) -> Option<Vec<u8>> {
    let narrow = permit.limits_methods() || permit.limits_paths();
    match head.upgrade {
        _ if head.version() == Version::Http10 => return None,
        Upgrade::None => return None,
        Upgrade::Other if narrow => return None,
        Upgrade::WebSocket | Upgrade::Other => {}
    }
    let lines = head.fields().filter(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
    let all = lines.map(|(_, value)| value).collect::<Vec<_>>().join(&b',');
    let speaks_http2 =
        |token: &[u8]| token.trim_ascii().get(..2).is_some_and(|two| two.eq_ignore_ascii_case(b"h2"));
    (!all.split(|&byte| byte == b',').any(speaks_http2)).then_some(all)
}

/// Writes the head as the origin gets it: origin-form, Host from the destination, nothing of this connection.
pub(super) fn write_head(
    head: &RequestHead,
    destination: &Destination,
    path_and_query: &str,
    session: &Session,
    out: &mut Vec<u8>,
) -> Result<(), fields::TooManyNominated> {
    let authority = match destination.port {
        Port::HTTP => destination.host.to_string(),
        _ => destination.to_string(),
    };
    out.reserve(head.raw().len() + authority.len());
    for part in [head.method(), " ", path_and_query, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    let permit: &Permit = session.permit();
    let terms = RequestTerms {
        authority: &authority,
        body: Extent::from(head.body),
        upgrade: offered(head, permit).is_some(),
        limits_methods: permit.limits_methods(),
        limits_paths: permit.limits_paths(),
    };
    fields::write_request(head.fields(), terms, out)
}

/// Answers a refusal. The connection goes on only where the request's body can be read to its end at little cost.
pub(super) async fn refuse(
    mut client: Leg,
    head: &RequestHead,
    refused: &Refused,
    last: bool,
    within: Duration,
) -> Next {
    let left = match head.body {
        BodyLength::None => Some(0),
        // A client that waits for a 100 sends its body or does not.
        BodyLength::Length(length) if !head.expect_continue && length <= DRAINED => Some(length),
        BodyLength::Length(_) | BodyLength::Chunked => None,
    };
    let left = left.filter(|_| !last && head.keep_alive && head.version() == Version::Http11);
    client.outbox().extend(reply::refused(refused, Form::of(head, left.is_some())));
    match left {
        Some(left) if client.drain(left, within).await => Next::Again(client),
        _ => {
            client.finish().await;
            Next::Ended
        }
    }
}

/// Brings an exchange that did not end well to its end on both sides.
pub(super) async fn end(
    mut client: Leg,
    upstream: Leg,
    session: Session,
    ended: Ended,
    head: &RequestHead,
    idle: Duration,
) {
    match ended {
        Ended::Switched => {
            let (client, to_upstream) = client.into_parts();
            let (upstream, to_client) = upstream.into_parts();
            let meter = Arc::clone(session.meter());
            Tunnel { client, upstream, to_upstream, to_client, meter, idle }.run().await;
        }
        Ended::Unanswered(fault) => {
            session.cut(fault.reason());
            // Half a request must not be taken for a whole one.
            upstream.stream().reset_on_close();
            drop(upstream);
            client.outbox().extend(reply::fault(session.permit().attempt(), fault, Form::of(head, false)));
            drop(session);
            client.finish().await;
        }
        Ended::Cut { unframed } => {
            if unframed {
                client.stream().reset_on_close();
            }
        }
        Ended::Killed => {
            client.stream().reset_on_close();
            upstream.stream().reset_on_close();
        }
        // An origin must not take half a body for a whole one.
        Ended::ClientGone => upstream.stream().reset_on_close(),
        Ended::Whole { .. } => {}
    }
}
