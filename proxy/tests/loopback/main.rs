//! The gateway as clients and origins see it, on loopback: a policy that opens ports of this host stands in for names and
//! their resolution.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy knows the tests, and not the functions that they share"
)]

mod http;
mod scene;
mod streams;
