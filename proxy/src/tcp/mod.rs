//! What can be told from the first bytes of a TCP stream whose ends speak for themselves.

pub mod client_hello;
pub mod retry;

mod records;
