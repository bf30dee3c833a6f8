//! TLS between a client and the gateway: an `https://` proxy, and what its clients' certificates say.
//!
//! ```text
//! files ─▶ Material ─▶ Trust ◀─────────────── reload: what is no longer trusted is withdrawn
//!                        │ handshake ─▶ names ─▶ Certificate ─▶ Peer
//! listener ──TCP──▶ accept ──▶ Stream::Tls ─▶ connection: as any other client
//! ```
//!
//! No session is resumed: a resumed one would not show its certificate again, and a revoked one could come back with it
//! (RFC 8446 section 4.6.1 leaves that to the server). Nor is there early data.

mod accept;
mod handshake;
mod material;
mod names;
mod stream;
mod trust;

pub(crate) use self::accept::serve;
pub use self::handshake::{Failed, Shaken};
pub use self::material::{BadMaterial, Clients, Material};
pub use self::stream::TlsStream;
pub use self::trust::Trust;

#[cfg(test)]
mod tests;
