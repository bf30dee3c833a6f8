//! How operators look into a running gateway and direct it.
//!
//! ```text
//! metrics listener ──▶ pages    /metrics /healthz /readyz: counts and readiness, for whoever reaches it
//! admin socket ─peer─▶ caller ─▶ routes    sandboxes, tunnels, reload: by uid, from the gateway's own namespaces only
//! admin https ──TLS──▶ caller ─┘           the same, by certificate
//! ```
//!
//! The pages change nothing and hold no host, no name and no rule: only counts, and where a config mistake stands.

mod answer;
mod api;
mod caller;
mod https;
mod pages;
mod peer;
pub(crate) mod routes;
mod socket;
mod status;

pub use self::api::ReloadOrder;
pub(crate) use self::api::{Api, Roles};
pub(crate) use self::https::serve as serve_https;
pub use self::pages::serve;
pub use self::peer::{Namespaces, Peer, Stranger};
pub(crate) use self::socket::serve as serve_socket;
pub use self::status::{Phase, Reload, Report, Status};
