//! `tidegate bridge`: the proxy port inside a container that has no network, only a mounted socket of the gateway.
//!
//! ```text
//! client ──TCP, 127.0.0.1──▶ bridge ──unix socket──▶ gateway
//! ```
//!
//! Bytes are copied and not read: the gateway at the far end decides, and knows the sandbox by the socket. A bridge
//! gives nobody anything that the mounted socket does not give already.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use proxy::stream::Stream;
use proxy::tunnel::Tunnel;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::Outcome;
use super::end::End;
use super::output::complain;

const EXAMPLE: &str = "Example, in a container with no network and the sandbox's folder mounted:
  tidegate bridge --listen 127.0.0.1:3128 --to unix:/run/tidegate/proxy.sock &
  HTTPS_PROXY=http://127.0.0.1:3128 curl https://api.example.com/

SIGTERM and SIGINT: takes nothing new and waits up to 30 s for what is open; a second one ends it at once.
Exit status: 0 ended as told, 1 could not listen, 2 usage.";

/// Clients at once. Each takes two descriptors, and a usual soft limit is 1024; the rest wait in the kernel's queue.
const CLIENTS: usize = 480;

/// A connection with no byte either way for this long is closed. The gateway's own limit (`[timeouts] idle`, at most a
/// day) comes first.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the gateway's socket may take to accept: a full queue means that the gateway does not accept.
const CONNECT: Duration = Duration::from_secs(10);

/// How long SIGTERM waits for what is open.
const DRAIN: Duration = Duration::from_secs(30);

/// How long to wait after a failed accept, which is nearly always a lack of descriptors (EMFILE, accept(2)).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Join a local port to the gateway's mounted socket, in a container that has no network
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Bridge {
    /// Where clients connect: an address of loopback and a port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3128")]
    listen: SocketAddr,
    /// The gateway's socket, as it is mounted here: unix:/PATH
    #[arg(long, value_name = "SOCKET")]
    to: String,
    /// Listen on an address that others can reach too: whoever connects is this sandbox to the gateway
    #[arg(long)]
    open_to_others: bool,
}

impl Bridge {
    pub(super) fn run(self) -> Outcome {
        let gateway = match self.gateway() {
            Ok(path) => path,
            Err(complaint) => {
                complain("bridge", complaint);
                return Outcome::Usage;
            }
        };
        if let Err(why) = look(&gateway) {
            // Not the end: a gateway that restarts makes its socket anew.
            complain("bridge", why);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = runtime.and_then(|runtime| runtime.block_on(serve(self.listen, gateway)));
        match ended {
            Ok(()) => Outcome::Done,
            Err(error) => {
                complain("bridge", format_args!("cannot listen on {}: {error}", self.listen));
                Outcome::Failed
            }
        }
    }

    fn gateway(&self) -> Result<PathBuf, String> {
        if !self.listen.ip().to_canonical().is_loopback() && !self.open_to_others {
            return Err(format!(
                "{} is not loopback: whoever reaches it would be this sandbox to the gateway; write \
                 127.0.0.1:{}, or add --open-to-others",
                self.listen,
                self.listen.port()
            ));
        }
        match self.to.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(path.into()),
            _ => Err(format!("{:?} is no socket's path; write unix:/run/tidegate/proxy.sock", self.to)),
        }
    }
}

/// Tells what is wrong with the path, as far as looking tells.
fn look(gateway: &Path) -> Result<(), String> {
    let shown = gateway.display();
    match fs::metadata(gateway) {
        Ok(found) if found.file_type().is_socket() => Ok(()),
        Ok(_) => Err(format!("{shown} is no socket; mount the sandbox's folder there")),
        Err(error) => {
            Err(format!("{shown}: {error}; is the sandbox's folder mounted, and does the gateway run?"))
        }
    }
}

async fn serve(listen: SocketAddr, gateway: PathBuf) -> io::Result<()> {
    let mut end = End::new()?;
    let listener = TcpListener::bind(listen).await?;
    let places = Arc::new(Semaphore::new(CLIENTS));
    let far = Arc::new(Far { path: gateway, is_down: AtomicBool::new(false) });
    tokio::select! {
        () = accept(&listener, &places, &far) => {}
        () = end.told() => {}
    }
    drop(listener);
    let all = u32::try_from(CLIENTS).unwrap_or(u32::MAX);
    tokio::select! {
        _ = timeout(DRAIN, places.acquire_many(all)) => {}
        () = end.told() => {}
    }
    Ok(())
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>, far: &Arc<Far>) {
    loop {
        let Ok(place) = Arc::clone(places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let far = Arc::clone(far);
                tokio::spawn(async move {
                    far.join(client).await;
                    drop(place);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                complain("bridge", format_args!("cannot accept: {error}"));
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The gateway's end.
struct Far {
    path: PathBuf,
    /// Whether the last client could not be joined, so that each outage is complained of once.
    is_down: AtomicBool,
}

impl Far {
    /// Copies until both have finished.
    async fn join(&self, client: TcpStream) {
        let client = Stream::from(client);
        client.tune();
        let connected = timeout(CONNECT, UnixStream::connect(&self.path)).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(gateway) => {
                self.is_down.store(false, Ordering::Relaxed);
                let mut tunnel = Tunnel {
                    client,
                    upstream: gateway.into(),
                    to_upstream: Vec::new(),
                    to_client: Vec::new(),
                    meter: Arc::default(),
                    idle: IDLE,
                };
                tunnel.run().await;
            }
            Err(error) => {
                if !self.is_down.swap(true, Ordering::Relaxed) {
                    complain("bridge", advice(&self.path, &error));
                }
                // What the client speaks is not known here, so that a reset is all that can be said.
                client.reset_on_close();
            }
        }
    }
}

fn advice(gateway: &Path, error: &io::Error) -> String {
    let next = match error.kind() {
        io::ErrorKind::NotFound => "is the sandbox's folder mounted, and does the gateway run?",
        io::ErrorKind::PermissionDenied => {
            let own = rustix::process::geteuid().as_raw();
            return format!(
                "cannot connect to {}: {error}; this is uid {own}, and the socket's mode or owner keeps it out",
                gateway.display()
            );
        }
        io::ErrorKind::ConnectionRefused => "nobody serves it: does the gateway run?",
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "the gateway does not accept",
        _ => "`tidegate status` on the host shows the gateway's side",
    };
    format!("cannot connect to {}: {error}; {next}", gateway.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge(listen: &str, to: &str, open_to_others: bool) -> Result<PathBuf, String> {
        Bridge { listen: listen.parse().expect("an address"), to: to.to_owned(), open_to_others }.gateway()
    }

    #[test]
    fn only_loopback_is_listened_on_unless_told_otherwise() {
        let path = PathBuf::from("/p.sock");
        for listen in ["127.0.0.1:3128", "127.9.9.9:1", "[::1]:3128", "[::ffff:127.0.0.1]:3128"] {
            assert_eq!(bridge(listen, "unix:/p.sock", false), Ok(path.clone()), "{listen}");
        }
        for listen in ["0.0.0.0:3128", "[::]:3128", "192.0.2.1:3128"] {
            let refused = bridge(listen, "unix:/p.sock", false).expect_err(listen);
            assert!(refused.contains("--open-to-others"), "{refused}");
            assert_eq!(bridge(listen, "unix:/p.sock", true), Ok(path.clone()), "{listen}");
        }
        for to in ["/p.sock", "unix:p.sock", "http://127.0.0.1:3128", ""] {
            assert!(bridge("127.0.0.1:3128", to, false).is_err(), "{to}");
        }
    }
}
