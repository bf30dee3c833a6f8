//! Tidegate: an egress gateway for sandboxes.

pub mod admin;
pub mod audit;
pub mod cli;
pub mod config;
pub mod host;
pub mod lab;
pub mod metrics;
pub mod weakening;
