//! HTTP/1 on the proxy port: CONNECT, plain requests, and what is answered.

pub mod head;

mod framing;
mod reply;
mod serve;

pub(crate) use serve::serve;
