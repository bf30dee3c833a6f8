//! TCP streams whose ends speak for themselves: what their first bytes tell, and those that were captured.

pub mod client_hello;
pub mod retry;

pub(crate) mod captured;
pub(crate) mod records;

mod opening;
