//! Tidegate: an egress gateway for sandboxes.

pub mod lab;
