//! The DNS side of the gateway: the filtering server that sandboxes ask, and the resolver that both it and the proxy
//! use.
//!
//! ```text
//! datagram ──question──▶ Gate::check ──▶ Denial ─────────────────────────────────────▶ reply
//!                             │                                                          ▲
//!                             ▼ Permit                                                   │
//!                  resolver: cache ─▶ upstreams ─▶ answer ─▶ Gate::vet ─▶ scrub ─▶ Gate::answered
//! ```
//!
//! The order is the point: policy before the cache and the upstreams, vetting and scrubbing after them, at every
//! delivery. What is sent is built from judged values; no byte of an upstream's message is copied through unjudged.

mod answer;
mod batch;
mod cache;
pub mod clock;
pub mod config;
pub mod error;
mod flight;
mod handler;
pub mod limits;
mod meter;
pub mod metrics;
mod question;
mod reply;
pub mod resolver;
mod scrub;
pub mod server;
mod service;
mod socket;
#[cfg(test)]
mod testing;
mod upstream;
mod wire;

pub use config::{BadUpstream, Limits, ResolverConfig, Upstream};
pub use error::{LookupError, ResolverError};
pub use metrics::Metrics;
pub use resolver::{Addresses, Resolver};
pub use server::Server;

/// The readers of what comes from the network, for the targets of `fuzz/`.
#[cfg(fuzzing)]
pub mod fuzzing {
    /// Reads what a client sent.
    pub fn question(message: &[u8]) {
        let _ = crate::question::Message::read(message);
    }

    /// Reads what an upstream sent to one question.
    pub fn answer(message: &[u8]) {
        let Ok(name) = policy::Hostname::parse("api.example.com") else { return };
        for qtype in [policy::QType::A, policy::QType::HTTPS, policy::QType::TXT] {
            let _ = crate::answer::Answer::read(message, &name, qtype, std::time::Instant::now());
        }
    }
}
