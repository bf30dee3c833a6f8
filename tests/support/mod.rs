//! What the black-box tests share.
//!
//! A test makes a [`Scene`]: a fresh stand-in internet with a DNS server, an origin on each port that matters, and the
//! built `tidegate serve` between them. It then acts as a client would and looks at what came back, what reached the
//! origins and the DNS server, and what the audit log says:
//!
//! ```no_run
//! #[test]
//! fn connect_to_unlisted_name_is_denied() {
//!     let Some(scene) = Scene::new().allow(&["api.example.com"]).resolving("other.test", &["A 203.0.113.66"]).start() else {
//!         return; // no namespaces here; the reason is printed
//!     };
//!     let mut client = scene.client();
//!     client.send(b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n");
//!     assert_eq!(client.response().status, 403);
//!     assert!(scene.dns().asked_under("other.test").is_empty());
//!     assert!(scene.dialled().is_empty());
//!     assert_eq!(scene.gateway().audit().last().unwrap()["reason"], "not_listed");
//! }
//! ```
//!
//! Rules of the house: no sleeps (wait with [`eventually`]), a test name is a claim, whole values are compared, nothing
//! leaves the namespaces, and a test that needs what the machine lacks says so on stderr and returns.
//!
//! | file | holds |
//! |---|---|
//! | `gateway.rs` | [`Gateway`]: the process, its config file, readiness, audit log, reload and end |
//! | `scene.rs` | [`Scene`]: lab, DNS server, origins and gateway in one |
//! | `inside.rs` | [`Inside`]: a sandbox in a namespace of its own, served by the gateway's libraries in this process |
//! | `client.rs` | [`Client`]: raw bytes over TCP with limits, HTTP responses, SOCKS5 |
//! | `dns.rs` | DNS questions over UDP and TCP |
//! | `tls.rs` | a test authority, TLS origins and TLS clients |

mod client;
mod dns;
mod gateway;
mod inside;
mod scene;
mod tls;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

pub use client::{Client, Response, SocksReply};
pub use dns::{ask, ask_from, ask_wire, extended_error, question};
pub use gateway::{Gateway, GatewayConfig, NotStarted, run_here, run_tidegate, verb};
pub use inside::{Inside, InsideBuilder};
pub use scene::{PROXY, PROXY_DNS, Scene, SceneBuilder, UNLIMITED};
pub use tls::{ClientCertificate, ClientIdentity, ClientNames, TestAuthority, TlsClient};

/// How long a test waits for something that should take milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Tells the clients of a load that they may end, when it is dropped: a failed assertion must not leave them running.
pub struct EndsClients<'a>(pub &'a AtomicBool);

impl Drop for EndsClients<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Looks every few milliseconds until `look` finds something, for at most [`PATIENCE`].
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, look)
}

/// As [`eventually`], for what takes longer.
pub fn eventually_within<T>(patience: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what}: not within {patience:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
