//! The resolver: names that a permit lets through, to addresses.
//!
//! ```text
//! Permit ─▶ lookup ─▶ cache ─▶ identical question under way? ─▶ servers of the zone ─▶ answer ─▶ next alias …
//! ```
//!
//! It takes nothing but a [`Permit`], so that a denied name cannot be resolved, and judges each further alias before
//! asking for it. Names are absolute; there is no hosts file and no search list.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use policy::{AliasJudge, Gate, Host, Hostname, Permit, QType, Resolved};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::answer::Answer;
use crate::cache::{Cache, Key};
use crate::config::ResolverConfig;
use crate::error::{LookupError, ResolverError};
use crate::flight::{Flights, Role};
use crate::metrics::Metrics;
use crate::upstream::Zones;

/// How long addresses of the one family wait for the other (RFC 8305 section 3).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// Resolves the names that permits let through. Cloning is one reference count.
#[derive(Clone, Debug)]
pub struct Resolver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    zones: Zones,
    cache: Cache,
    flights: Flights<Result<Found, LookupError>>,
    in_flight: Semaphore,
    metrics: Metrics,
}

/// The addresses of a name, IPv6 and IPv4 by turns, with the aliases that led to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The names that aliases led through, without the first.
    pub chain: Vec<Hostname>,
    /// The addresses, in the order in which they should be tried.
    pub addresses: Vec<IpAddr>,
}

impl Addresses {
    /// What [`Gate::vet`] judges.
    #[must_use]
    pub fn resolved(&self) -> Resolved<'_> {
        Resolved { chain: &self.chain, addresses: &self.addresses }
    }
}

/// What following a name's aliases came to.
#[derive(Clone, Debug)]
enum Found {
    Whole(Arc<Answer>),
    /// The last alias on the chain is denied to the sandbox that asked, and was not asked for.
    Stopped(Arc<Answer>),
}

impl Found {
    fn into_answer(self) -> Arc<Answer> {
        match self {
            Self::Whole(answer) | Self::Stopped(answer) => answer,
        }
    }
}

impl Resolver {
    /// A resolver that has opened nothing yet.
    ///
    /// # Errors
    /// Where no upstream is configured, `system` cannot be read, or TLS cannot be set up.
    pub fn new(config: &ResolverConfig, metrics: Metrics) -> Result<Self, ResolverError> {
        Ok(Self(Arc::new(Inner {
            zones: Zones::new(&config.upstreams, &config.zones, &metrics)?,
            cache: Cache::default(),
            flights: Flights::default(),
            in_flight: Semaphore::new(config.limits.in_flight),
            metrics,
        })))
    }

    /// The addresses of the host that a permit lets through: A and AAAA at once. What the permit knows itself (a
    /// literal, the pinned addresses of an internal table) is asked of nobody.
    ///
    /// An alias that the sandbox may not reach ends the chain: [`Gate::vet`] then refuses it.
    ///
    /// # Errors
    /// Where both families fail, or one fails and the other has no address.
    pub async fn lookup(&self, gate: &Arc<Gate>, permit: &Permit) -> Result<Addresses, LookupError> {
        if let Some(addresses) = permit.known_addresses() {
            return Ok(Addresses { chain: Vec::new(), addresses });
        }
        let Some(Host::Name(name)) = permit.host() else { return Err(LookupError::Malformed) };
        let judge = gate.alias_judge(permit);
        let v6 = self.family(Key::new(permit, name.clone(), QType::AAAA), &judge);
        let v4 = self.family(Key::new(permit, name, QType::A), &judge);
        let (v6, v4) = both(v6, v4).await;
        merge(v6, v4)
    }

    /// The addresses of one family. They are asked for in a task, which goes on and keeps what it finds when the
    /// look-up waits no longer.
    async fn family(&self, key: Key, judge: &AliasJudge) -> Outcome {
        if let Some(answer) = self.cached(&key) {
            return Ok(answer);
        }
        let (resolver, judge) = (self.clone(), judge.clone());
        let asked = tokio::spawn(async move { resolver.resolve(&judge, key).await });
        // It fails where the runtime shuts down.
        asked.await.unwrap_or(Err(LookupError::Timeout))
    }

    /// An answer that needs nobody to be asked.
    pub(crate) fn cached(&self, key: &Key) -> Option<Arc<Answer>> {
        self.0.cache.get(key, Instant::now())
    }

    /// Records of one type of a name that a permit lets through.
    pub(crate) async fn resolve(&self, judge: &AliasJudge, key: Key) -> Outcome {
        loop {
            if let Some(answer) = self.cached(&key) {
                return Ok(answer);
            }
            match self.0.flights.join(&key) {
                Role::Lead(lead) => {
                    let found = self.follow(judge, &key.name, key.qtype).await;
                    if let Ok(Found::Whole(answer)) = &found {
                        self.0.cache.insert(key, answer);
                    }
                    lead.land(found.clone());
                    return found.map(Found::into_answer);
                }
                Role::Follow(follow) => match follow.outcome().await {
                    Some(Ok(Found::Whole(answer))) => return Ok(answer),
                    Some(Err(error)) => return Err(error),
                    // What another sandbox may not reach says nothing about this one.
                    Some(Ok(Found::Stopped(_))) | None => {}
                },
            }
        }
    }

    /// Asks for a name and for the aliases that an answer leaves open.
    async fn follow(&self, judge: &AliasJudge, name: &Hostname, qtype: QType) -> Result<Found, LookupError> {
        let _under_way = self.0.in_flight.try_acquire().map_err(|_| LookupError::Overloaded)?;
        let _counted = Counted::new(&self.0.metrics);
        let mut answer = self.0.zones.for_name(name).ask(name, qtype).await?;
        // Each round adds an alias or is the last, and `extend` ends a chain that grows too long.
        while let Some(alias) = answer.dangling().cloned() {
            if !answer.chain.iter().all(|alias| judge.allows(alias)) {
                return Ok(Found::Stopped(Arc::new(answer)));
            }
            let further = self.0.zones.for_name(&alias).ask(&alias, qtype).await?;
            let ends = further.chain.is_empty();
            answer = answer.extend(further, name)?;
            if ends {
                break;
            }
        }
        Ok(Found::Whole(Arc::new(answer)))
    }
}

/// Counts a question that waits.
struct Counted<'m>(&'m Metrics);

impl<'m> Counted<'m> {
    fn new(metrics: &'m Metrics) -> Self {
        metrics.in_flight().inc();
        Self(metrics)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.in_flight().dec();
    }
}

type Outcome = Result<Arc<Answer>, LookupError>;

/// Waits for both families; once the one has addresses, only a little longer for the other.
async fn both(
    v6: impl Future<Output = Outcome>,
    v4: impl Future<Output = Outcome>,
) -> (Option<Outcome>, Option<Outcome>) {
    let (mut v6, mut v4) = (std::pin::pin!(v6), std::pin::pin!(v4));
    let useful = |outcome: &Outcome| outcome.as_ref().is_ok_and(|answer| !answer.addresses.is_empty());
    tokio::select! {
        first = &mut v6 => {
            let second = if useful(&first) { timeout(RESOLUTION_DELAY, v4).await.ok() } else { Some(v4.await) };
            (Some(first), second)
        }
        first = &mut v4 => {
            let second = if useful(&first) { timeout(RESOLUTION_DELAY, v6).await.ok() } else { Some(v6.await) };
            (second, Some(first))
        }
    }
}

fn merge(v6: Option<Outcome>, v4: Option<Outcome>) -> Result<Addresses, LookupError> {
    let mut found = Addresses::default();
    let mut failure = None;
    let mut families = [Vec::new(), Vec::new()];
    for (outcome, family) in [v6, v4].into_iter().flatten().zip(&mut families) {
        match outcome {
            Ok(answer) => {
                for alias in &answer.chain {
                    if !found.chain.contains(alias) {
                        found.chain.push(alias.clone());
                    }
                }
                family.clone_from(&answer.addresses);
            }
            Err(error) => failure = Some(error),
        }
    }
    let [v6, v4] = families;
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    loop {
        let next = [v6.next(), v4.next()];
        if next == [None, None] {
            break;
        }
        found.addresses.extend(next.into_iter().flatten());
    }
    match failure {
        Some(error) if found.addresses.is_empty() => Err(error),
        Some(_) | None => Ok(found),
    }
}

#[cfg(test)]
mod tests;
