//! HTTP/1 on the proxy port: CONNECT, plain requests, and what is answered.
//!
//! ```text
//! head ─┬─ CONNECT ──▶ open ──▶ tunnel ──(port 80)──▶ inside: each request judged ─┐
//!       └─ absolute ─▶ forward: judge ─▶ pool or dial ─▶ record ───────────────────┴─▶ exchange
//! ```

pub mod head;

mod body;
mod chunked;
mod exchange;
mod fields;
mod forward;
mod framing;
pub(crate) mod inside;
pub(crate) mod leg;
pub(crate) mod pool;
pub(crate) mod reply;
mod request;
mod response;
mod serve;

pub(crate) use serve::serve;
