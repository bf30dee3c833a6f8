//! Plain HTTP inside a tunnel to port 80 or to a narrowed host: each request is judged before it goes on over the one
//! connection that the tunnel has.

use std::future::poll_fn;
use std::sync::Arc;

use dns::clock::now;
use policy::{Ask, Destination, Inbound, Peer, Reason, Resolved, Shown};
use tokio::sync::watch;

use super::body::Transfer;
use super::exchange::{Ended, Exchange};

use super::head::{RequestHead, Target};
use super::leg::Leg;
use super::reply;
use super::request::{Next, ask, asked, end, is_sane, refuse, write_head};
use super::serve::{Unreadable, read_head};
use crate::gateway::{Client, Gateway};
use crate::live::Session;
use crate::open::Refused;

/// A tunnel that carries HTTP.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    pub(crate) client: &'a Client,
    pub(crate) peer: &'a Peer,
    /// The tunnel's own session: it names the destination, and its end is the tunnel's.
    pub(crate) tunnel: Session,
    /// So much of what the client has sent is counted as the tunnel's; the rest is counted as its requests'.
    pub(crate) counted: usize,
}

/// A request as the tunnel's destination gets it.
struct Request<'a> {
    head: &'a RequestHead,
    /// What Host says, or the tunnel's destination where an old client says nothing.
    shown: Destination,
    target: &'a str,
}

impl Inside<'_> {
    const fn gateway(&self) -> &Arc<Gateway> {
        self.client.gateway()
    }

    /// Serves requests until one of the sides closes.
    pub(crate) async fn serve(mut self, client: Leg, upstream: Leg) {
        let last = self.requests(client, upstream).await;
        // The end of the tunnel is on record before its client has taken the last answer.
        drop(self);
        if let Some(client) = last {
            client.finish().await;
        }
    }

    /// Returns the client where there is something left to send to it.
    async fn requests(&mut self, mut client: Leg, mut upstream: Leg) -> Option<Leg> {
        let mut stopping = self.gateway().stopping();
        loop {
            let mut head = match self.next(&mut client, &mut upstream, &mut stopping).await? {
                Ok(head) => head,
                Err(unreadable) => return Some(self.refuse_unreadable(client, unreadable).await),
            };
            head.keep_alive &= !*stopping.borrow();
            let request = self.request(&head)?;
            let next = match self.judge(&request, &mut client).await {
                Ok(session) => match self.exchange(&request, session, client, upstream).await {
                    Ok(both) => {
                        (client, upstream) = both;
                        continue;
                    }
                    Err(Next::Again(client) | Next::Last(client)) => return Some(client),
                    Err(Next::Ended) => return None,
                },
                Err(refused) => {
                    let over =
                        matches!(&refused, Refused::Denied(denial) if self.ends_tunnel(denial.reason()));
                    refuse(client, &head, &refused, over, self.gateway().timeouts.head).await
                }
            };
            match next {
                Next::Again(same) => client = same,
                Next::Last(client) => return Some(client),
                Next::Ended => return None,
            }
        }
    }

    /// Waits for the next head. `None` where the tunnel ends: its upstream has closed, or speaks out of turn.
    async fn next(
        &self,
        client: &mut Leg,
        upstream: &mut Leg,
        stopping: &mut watch::Receiver<bool>,
    ) -> Option<Result<RequestHead, Unreadable>> {
        let timeouts = &self.gateway().timeouts;
        tokio::select! {
            () = poll_fn(|cx| self.tunnel.meter().poll_killed(cx)) => {
                client.stream().reset_on_close();
                upstream.stream().reset_on_close();
                None
            }
            _ = poll_fn(|cx| upstream.poll_fill(cx)) => None,
            head = read_head(client, timeouts.head, timeouts.idle, stopping) => head.transpose(),
        }
    }

    fn request<'h>(&self, head: &'h RequestHead) -> Option<Request<'h>> {
        let allowed = self.tunnel.permit().destination()?;
        let (shown, target) = match &head.target {
            Target::Absolute { destination, path_and_query } => (Some(destination), &**path_and_query),
            Target::Origin { path_and_query } => (head.host.as_ref(), &**path_and_query),
            Target::Asterisk => (head.host.as_ref(), "*"),
            // A proxy behind the proxy would reach what nobody judged.
            Target::Authority(destination) => (Some(destination), head.target_as_sent()),
        };
        let mut shown = shown.unwrap_or(allowed).clone();
        if let Some(name) = self.peer.meant(&shown.host) {
            shown.host = name;
        }
        Some(Request { head, shown, target })
    }

    /// Judges one request; it is on record then.
    async fn judge(&self, request: &Request<'_>, client: &mut Leg) -> Result<Session, Refused> {
        let gate = &self.gateway().gate;
        let permit = self.tunnel.permit();
        let Some(allowed) = permit.destination() else { return Err(self.bad(request).await) };
        if matches!(request.head.target, Target::Authority(_)) || !is_sane(request.head, client) {
            return Err(self.bad(request).await);
        }
        if let Err(reason) = gate.judge_shown(permit, Shown::Host(&request.shown.host)) {
            let shown = Destination { host: request.shown.host.clone(), port: allowed.port };
            let attempt =
                gate.attempt(now(), self.peer, Inbound::Http, ask(request.head, &shown, request.target));
            return Err(Refused::Denied(gate.refuse(attempt, reason).settle().await));
        }
        let attempt =
            gate.attempt(now(), self.peer, Inbound::Http, ask(request.head, allowed, request.target));
        // What was approved for the tunnel alone is good for what is asked for in it.
        let attempt = attempt.inside(permit.attempt().id);
        let gone = async {
            tokio::select! {
                () = client.left() => {}
                () = poll_fn(|cx| self.tunnel.meter().poll_killed(cx)) => {}
            }
        };
        let permit = self.gateway().decide(attempt, self.client, gone).await?;
        let address = self.tunnel.address();
        let resolved = Resolved { chain: &[], addresses: &[address.ip()] };
        match gate.vet(permit, resolved, now()) {
            Ok(vetted) => self.gateway().register(vetted, address).await,
            Err(denial) => Err(Refused::Denied(denial.settle().await)),
        }
    }

    async fn bad(&self, request: &Request<'_>) -> Refused {
        let gate = &self.gateway().gate;
        let shown = Ask::unreadable(request.head.target_as_sent().as_bytes());
        let attempt = gate.attempt(now(), self.peer, Inbound::Http, shown);
        Refused::Denied(gate.refuse(attempt, Reason::BadRequest).settle().await)
    }

    /// Whether a refusal is one of the tunnel itself, which ends with it and whose record carries the reason.
    fn ends_tunnel(&self, reason: Reason) -> bool {
        let ends = matches!(reason, Reason::HostMismatch | Reason::BadRequest);
        if ends {
            self.tunnel.cut(reason);
        }
        ends
    }

    async fn exchange(
        &mut self,
        request: &Request<'_>,
        session: Session,
        mut client: Leg,
        mut upstream: Leg,
    ) -> Result<(Leg, Leg), Next> {
        let idle = session.idle(self.gateway().timeouts.idle);
        let mut asked = asked(request.head, session.permit());
        asked.tied = true;
        let head = write_head(request.head, &request.shown, request.target, &session, upstream.outbox());
        head.map_err(|_| Next::Ended)?;
        let counted = std::mem::take(&mut self.counted).min(request.head.raw().len());
        session.meter().add_up(request.head.raw().len() - counted);
        let body = request.head.body.into();
        let ended = Exchange {
            client: &mut client,
            upstream: &mut upstream,
            asked: &asked,
            body: Transfer::new(body, body),
            meter: session.meter(),
            tunnel: Some(self.tunnel.meter()),
            idle,
        }
        .run()
        .await;
        if ended == (Ended::Whole { keep_client: true, keep_upstream: true }) {
            return Ok((client, upstream));
        }
        Err(end(client, upstream, session, ended, request.head, idle).await)
    }

    async fn refuse_unreadable(&self, mut client: Leg, unreadable: Unreadable) -> Leg {
        let gate = &self.gateway().gate;
        let attempt = gate.attempt(now(), self.peer, Inbound::Http, Ask::unreadable(&unreadable.shown));
        let denial = gate.refuse(attempt, Reason::BadRequest).settle().await;
        self.tunnel.cut(Reason::BadRequest);
        client.outbox().extend(reply::bad_head(&denial, unreadable.bad));
        client
    }
}
