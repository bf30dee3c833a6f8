//! The servers that names are asked of, with failover between them.

pub(crate) mod datagram;
mod encrypted;
mod tcp;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use policy::{Hostname, QType};
use tokio::time::timeout_at;

use crate::answer::Answer;
use crate::config::Upstream;
use crate::error::{LookupError, ResolverError};
use crate::metrics::Metrics;

use datagram::Datagrams;
use encrypted::Stream;

/// How long one server may take before the next is asked. glibc and musl give up after 5 seconds, so two tries and
/// the answer must fit below that.
const TRY: Duration = Duration::from_secs(2);

/// How long all tries together may take.
const BUDGET: Duration = Duration::from_secs(4);

/// How long a server that failed is asked last.
const PENALTY: Duration = Duration::from_secs(10);

/// The servers of one zone, in order of preference.
#[derive(Debug)]
pub(crate) struct Servers {
    servers: Vec<Server>,
    start: Instant,
    metrics: Metrics,
}

#[derive(Debug)]
struct Server {
    transport: Transport,
    /// Until when it is asked last, in milliseconds after `start`.
    shunned_until: AtomicU64,
}

#[derive(Debug)]
enum Transport {
    Datagrams(Datagrams),
    Stream(Box<Stream>),
}

impl Servers {
    /// Opens nothing yet: sockets come with the first question.
    pub(crate) fn new(upstreams: &[Upstream], metrics: &Metrics) -> Result<Self, ResolverError> {
        let mut servers = Vec::new();
        for upstream in upstreams {
            match upstream {
                Upstream::System => {
                    servers.extend(
                        system()?.into_iter().map(|address| Transport::Datagrams(Datagrams::new(address))),
                    );
                }
                Upstream::Udp(address) => servers.push(Transport::Datagrams(Datagrams::new(*address))),
                Upstream::Tcp(_) | Upstream::Tls { .. } | Upstream::Https { .. } => {
                    servers.push(Transport::Stream(Box::new(Stream::new(upstream)?)));
                }
            }
        }
        if servers.is_empty() {
            return Err(ResolverError::NoUpstream);
        }
        let shunned_until = || AtomicU64::new(0);
        let servers =
            servers.into_iter().map(|transport| Server { transport, shunned_until: shunned_until() });
        Ok(Self { servers: servers.collect(), start: Instant::now(), metrics: metrics.clone() })
    }

    /// Asks for a name and type until a server gives an answer, within the budget.
    pub(crate) async fn ask(&self, name: &Hostname, qtype: QType) -> Result<Answer, LookupError> {
        let deadline = tokio::time::Instant::now() + BUDGET;
        let mut failure = LookupError::Timeout;
        // A lone server is asked twice: datagrams get lost.
        let rounds = if self.servers.len() == 1 { 2 } else { 1 };
        for server in std::iter::repeat_n(self.by_preference(), rounds).flatten() {
            let started = tokio::time::Instant::now();
            if started >= deadline {
                break;
            }
            let asked = timeout_at(deadline.min(started + TRY), server.transport.ask(name, qtype)).await;
            self.metrics.upstream_took(started.elapsed());
            match asked.unwrap_or(Err(LookupError::Timeout)) {
                Ok(answer) => {
                    server.shunned_until.store(0, Ordering::Relaxed);
                    return Ok(answer);
                }
                // The same question would get the same answer.
                Err(error @ (LookupError::Malformed | LookupError::Endless)) => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, upstream = ?server.transport, "DNS upstream failed");
                    server.shunned_until.store(self.millis() + PENALTY.as_millis() as u64, Ordering::Relaxed);
                    failure = error;
                    if matches!(error, LookupError::Failed(_)) && self.servers.len() == 1 {
                        break;
                    }
                }
            }
        }
        Err(failure)
    }

    /// The servers in the configured order, those that failed a short while ago last.
    fn by_preference(&self) -> impl Iterator<Item = &Server> + Clone {
        let now = self.millis();
        let shunned = move |server: &&Server| server.shunned_until.load(Ordering::Relaxed) > now;
        let healthy = self.servers.iter().filter(move |server| !shunned(server));
        healthy.chain(self.servers.iter().filter(shunned))
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Transport {
    async fn ask(&self, name: &Hostname, qtype: QType) -> Result<Answer, LookupError> {
        match self {
            Self::Datagrams(datagrams) => datagrams.ask(name, qtype).await,
            Self::Stream(stream) => stream.ask(name, qtype).await,
        }
    }
}

/// The name servers of /etc/resolv.conf. Its search list and options are not ours: they would ask for other names.
fn system() -> Result<Vec<SocketAddr>, ResolverError> {
    let (config, _) = hickory_resolver::system_conf::read_system_conf()
        .map_err(|error| ResolverError::System(Box::new(error)))?;
    let mut found: Vec<_> =
        config.name_servers().iter().map(|server| SocketAddr::new(server.ip, 53)).collect();
    found.dedup();
    Ok(found)
}

/// The servers of a gateway: one set for everything, and one for each zone of split DNS.
#[derive(Debug)]
pub(crate) struct Zones {
    default: Arc<Servers>,
    zones: std::collections::HashMap<Hostname, Arc<Servers>>,
}

impl Zones {
    pub(crate) fn new(
        upstreams: &[Upstream],
        zones: &[(Hostname, Vec<Upstream>)],
        metrics: &Metrics,
    ) -> Result<Self, ResolverError> {
        let zone = |(name, upstreams): &(Hostname, Vec<Upstream>)| {
            Ok((name.clone(), Arc::new(Servers::new(upstreams, metrics)?)))
        };
        Ok(Self {
            default: Arc::new(Servers::new(upstreams, metrics)?),
            zones: zones.iter().map(zone).collect::<Result<_, _>>()?,
        })
    }

    /// The servers for a name: those of the longest zone that holds it.
    pub(crate) fn for_name(&self, name: &Hostname) -> &Servers {
        let zone = || name.suffixes().find_map(|suffix| self.zones.get(suffix));
        if self.zones.is_empty() { &self.default } else { zone().unwrap_or(&self.default) }
    }
}

#[cfg(test)]
mod tests;
