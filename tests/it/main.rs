//! The black-box tests: the built binary in a stand-in internet. How to write one: `tests/support/mod.rs`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test that cannot go on should say where and end"
)]

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod admin_https;
mod approvals;
mod attach;
mod audit;
mod bridge;
mod bypass;
mod captured;
mod change;
mod clients;
mod costs;
mod crash;
mod daemon;
mod deploy;
mod docker;
mod house;
mod identity;
mod invariants;
mod lab;
mod limits;
mod lists;
mod mistakes;
mod mtls;
mod neighbours;
mod netns;
mod one_answer;
mod probe;
mod proxyless;
mod registries;
mod repository;
mod resolvers;
mod run;
mod sandboxes;
mod serve;
