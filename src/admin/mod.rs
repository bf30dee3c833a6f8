//! The pages of the metrics listener: `/metrics`, `/healthz` and `/readyz`.
//!
//! They change nothing and are read by whoever reaches the listener, so they hold no host, no name and no rule: only
//! counts, and where a config mistake stands.

mod pages;
mod status;

pub use self::pages::serve;
pub use self::status::{Phase, Reload, Report, Status};
