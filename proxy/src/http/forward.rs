//! Plain HTTP: each request on a client's connection is an attempt of its own, judged, forwarded and recorded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dns::clock::now;
use policy::{Attempt, Destination, Hostname, Inbound, Peer, Reason, Resolved};

use super::body::Transfer;
use super::exchange::{Ended, Exchange, Fault};
use super::head::{BodyLength, RequestHead, Target};
use super::leg::Leg;
use super::pool::{Idle, Key};
use super::reply::{self, Form};
use super::request::{Next, ask, asked, end, is_sane, refuse, write_head};
use crate::gateway::{Client, Gateway};
use crate::live::Session;
use crate::open::{Reached, Refused};

/// A request that must not be sent twice takes a connection that has rested less than this, or a new one: an origin
/// that closes while a request is on its way leaves open whether it was carried out, and common origins rest 2 s and
/// more before they close.
const FRESH: Duration = Duration::from_secs(1);

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
    whose: &'a Client,
    peer: &'a Peer,
    head: &'a RequestHead,
    destination: &'a Destination,
    path_and_query: &'a str,
}

/// Serves one request in absolute form. Its head has been read, its body has not.
pub(crate) async fn forward(whose: &Client, peer: &Peer, client: Leg, head: &RequestHead) -> Next {
    let Target::Absolute { destination, path_and_query } = &head.target else { return Next::Ended };
    Request { gateway: whose.gateway(), whose, peer, head, destination, path_and_query }.serve(client).await
}

impl Request<'_> {
    async fn serve(self, mut client: Leg) -> Next {
        if !is_sane(self.head, &client) {
            let denial = self.gateway.gate.refuse(self.attempt(), Reason::BadRequest).settle().await;
            client.outbox().extend(reply::denial(&denial, Form::of(self.head, false)));
            return Next::Last(client);
        }
        let safe =
            matches!(self.head.method(), "GET" | "HEAD" | "OPTIONS") && self.head.body == BodyLength::None;
        let mut reuse = Some(if safe { Duration::MAX } else { FRESH });
        loop {
            let mut route = match self.route(reuse, &mut client).await {
                Ok(route) => route,
                Err(refused) => {
                    return refuse(client, self.head, &refused, false, self.gateway.timeouts.head).await;
                }
            };
            let asked = asked(self.head, route.session.permit());
            route.session.meter().add_up(self.head.raw().len());
            // In a namespace the client may have written an address that stands for the name.
            let destination = route.session.permit().destination().unwrap_or(self.destination);
            if write_head(
                self.head,
                destination,
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
                idle: route.session.idle(self.gateway.timeouts.idle),
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
                    return if keep_client { Next::Again(client) } else { Next::Last(client) };
                }
                ended => {
                    let idle = route.session.idle(self.gateway.timeouts.idle);
                    return end(client, route.upstream, route.session, ended, self.head, idle).await;
                }
            }
        }
    }

    fn attempt(&self) -> Attempt {
        let ask = ask(self.head, self.destination, self.path_and_query);
        self.gateway.gate.attempt(now(), self.peer, Inbound::Http, ask)
    }

    /// Decides the request and finds a connection for it: one that has rested at most `reuse`, or a new one.
    async fn route(&self, reuse: Option<Duration>, client: &mut Leg) -> Result<Route, Refused> {
        let gateway = self.gateway;
        let permit = gateway.decide(self.attempt(), self.whose, client.left()).await?;
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
        let idle = Idle { stream, address: route.address, chain: route.chain, rule };
        self.gateway.pool.put(key, idle, || self.gateway.gate.policy());
    }
}
