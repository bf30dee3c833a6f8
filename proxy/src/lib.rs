//! The inbounds that streams come through, the dialler, and the tunnel between them.
//!
//! ```text
//! listener ─▶ connection ─┬─ http ─────┬─▶ open: decide ─▶ resolve ─▶ vet ─▶ dial ─▶ record ─▶ first bytes ─▶ tunnel
//!                         ├─ socks5 ───┤        │                 │         │        │            │
//!                         └─ captured ─┘        └── the inbound's own "no" ─┴────────┘        alert, reset
//!                                                 └── hold, while a person decides (desk)
//! ```

pub mod config;
pub mod desk;
pub mod gateway;
pub mod http;
pub mod listener;
pub mod live;
pub mod socks5;
pub mod stream;
pub mod tcp;
pub mod tls;
pub mod tunnel;

mod connection;
mod credentials;
mod dial;
mod first_bytes;
mod hold;
mod limits;
mod metrics;
mod open;
mod via;

pub use config::{Approvers, Config, Timeouts};
pub use desk::Desk;
pub use gateway::Gateway;
pub use listener::Listener;
pub use via::UpstreamProxy;
