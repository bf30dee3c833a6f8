//! The inbounds that streams come through, the dialler, and the tunnel between them.

pub mod http;
pub mod socks5;
pub mod stream;
pub mod tcp;
pub mod tunnel;
