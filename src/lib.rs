//! Tidegate: an egress gateway for sandboxes.

pub mod admin;
pub mod app;
mod approvals;
pub mod audit;
pub mod cli;
pub mod config;
pub mod demo;
mod descriptors;
mod doors;
pub mod enforcement;
pub mod host;
pub mod lab;
pub mod listeners;
pub mod logging;
pub mod lookup;
pub mod metrics;
pub mod namespaces;
mod netlink;
pub mod netns;
pub mod probe;
pub mod registries;
pub mod reload;
pub mod sandboxes;
mod summary;
mod sys;
pub mod weakening;
mod workload;

use std::error::Error;

/// An error with everything that caused it, on one line: printed once, at the edge.
fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
