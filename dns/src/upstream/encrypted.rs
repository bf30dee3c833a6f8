//! Questions over TCP, TLS and HTTPS, through hickory's connections.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::{DnsHandle, FirstAnswer};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{DnsRequest, DnsRequestOptions, Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{NameServerPool, PoolContext, TlsConfig};
use policy::{Hostname, QType};

use crate::answer::Answer;
use crate::config::Upstream;
use crate::error::{LookupError, ResolverError};
use crate::upstream::TRY;
use crate::wire::UDP_PAYLOAD;

/// An upstream that is spoken to over kept connections.
pub(super) struct Stream {
    pool: NameServerPool<TokioRuntimeProvider>,
    shown: String,
}

impl Stream {
    pub(super) fn new(upstream: &Upstream) -> Result<Self, ResolverError> {
        let tls = TlsConfig::new().map_err(|error| ResolverError::Tls(Box::new(error)))?;
        Self::with_tls(upstream, tls)
    }

    /// The same, with another view of whose certificates are good.
    pub(super) fn with_tls(upstream: &Upstream, tls: TlsConfig) -> Result<Self, ResolverError> {
        let at_port = |mut connection: ConnectionConfig, port| {
            connection.port = port;
            vec![connection]
        };
        let server = |ip, connections| NameServerConfig::new(ip, true, connections);
        let servers = match upstream {
            Upstream::System | Upstream::Udp(_) => Vec::new(),
            Upstream::Tcp(address) => {
                vec![server(address.ip(), at_port(ConnectionConfig::tcp(), address.port()))]
            }
            Upstream::Tls { address, name } => {
                let tls = ConnectionConfig::tls(name.as_str().into());
                vec![server(address.ip(), at_port(tls, address.port()))]
            }
            Upstream::Https { name, port, path, bootstrap } => {
                let https = || ConnectionConfig::https(name.as_str().into(), Some(Arc::clone(path)));
                bootstrap.iter().map(|ip| server(*ip, at_port(https(), *port))).collect()
            }
        };
        if servers.is_empty() {
            return Err(ResolverError::NoUpstream);
        }
        let mut options = ResolverOpts::default();
        options.timeout = TRY;
        options.attempts = 1;
        options.cache_size = 0;
        // One question goes to one server: asking two at once tells both.
        options.num_concurrent_reqs = 1;
        // The default of 32 answers "busy" under load; our own limits come first.
        options.max_active_requests = 4096;
        options.edns_payload_len = UDP_PAYLOAD;
        let context = Arc::new(PoolContext::new(options, tls));
        let pool = NameServerPool::from_config(servers, context, TokioRuntimeProvider::default());
        Ok(Self { pool, shown: format!("{upstream:?}") })
    }

    pub(super) async fn ask(&self, name: &Hostname, qtype: QType) -> Result<Answer, LookupError> {
        let labels = name.labels().map(str::as_bytes);
        let mut wanted = Name::from_labels(labels).map_err(|_| LookupError::Malformed)?;
        wanted.set_fqdn(true);
        let query = Query::query(wanted, RecordType::from(qtype.0));
        let mut options = DnsRequestOptions::default();
        options.use_edns = true;
        let request = DnsRequest::from_query(query, options);
        match self.pool.send(request).first_answer().await {
            Ok(response) => Answer::read(response.as_buffer(), name, qtype, Instant::now()),
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                negative(none.response_code, none.negative_ttl)
            }
            Err(NetError::Dns(DnsError::ResponseCode(code))) => Err(LookupError::Failed(code.low())),
            Err(NetError::Timeout) => Err(LookupError::Timeout),
            Err(NetError::Proto(_)) => Err(LookupError::Malformed),
            Err(_) => Err(LookupError::Unreachable),
        }
    }
}

fn negative(code: ResponseCode, ttl: Option<u32>) -> Result<Answer, LookupError> {
    match code {
        ResponseCode::NoError => Ok(Answer::negative(true, ttl, Instant::now())),
        ResponseCode::NXDomain => Ok(Answer::negative(false, ttl, Instant::now())),
        other => Err(LookupError::Failed(other.low())),
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
