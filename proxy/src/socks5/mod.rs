//! SOCKS5 (RFC 1928) on the proxy port.

pub mod wire;
