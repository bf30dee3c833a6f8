//! A corporate proxy on the way out: destinations are reached by CONNECT to it, with the address that was vetted.

use std::net::SocketAddr;

use policy::Host;
use policy::pattern::HostPattern;
use tokio::io::AsyncWriteExt;

use crate::stream::Stream;

/// The longest answer to a CONNECT that is read; blocking pages reach some kilobytes, and are not needed whole.
const LIMIT: usize = 16 * 1024;

/// The `[upstream]` table. The policy has been applied, and addresses have been judged, before it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamProxy {
    /// Where the proxy is. The operator chose it: no rule and no floor stands between.
    pub addresses: Vec<SocketAddr>,
    /// Destinations that are dialled directly.
    pub except: Vec<HostPattern>,
}

impl UpstreamProxy {
    /// Whether a host is reached through it.
    pub(crate) fn serves(&self, host: &Host) -> bool {
        !self.except.iter().any(|pattern| match host {
            Host::Name(name) => pattern.matches_name(name),
            Host::Address(address) => pattern.matches_address(*address),
        })
    }
}

/// Asks the proxy at the other end of `stream` for a way to `address`. Returns what the destination has said already;
/// `None` where there is none.
pub(crate) async fn connect(stream: &mut Stream, address: SocketAddr) -> Option<Vec<u8>> {
    let request = format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    loop {
        if stream.read_more(&mut answer).await.ok()? == 0 {
            return None;
        }
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        match response.parse(&answer).ok()? {
            httparse::Status::Complete(length) => {
                return match response.code {
                    // Any 2xx is a tunnel, without a body (RFC 9110 §9.3.6).
                    Some(200..=299) => Some(answer.split_off(length)),
                    _ => None,
                };
            }
            httparse::Status::Partial if answer.len() > LIMIT => return None,
            httparse::Status::Partial => {}
        }
    }
}
