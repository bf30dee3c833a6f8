//! `--publish HOST:PORT:PORT`: a port of the host that leads to one port of the workload's loopback, and nowhere else.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{sleep, timeout};

use super::door;
use crate::netns::{CAPTURED_PORT, DNS_PORT, PROXY_PORT};

/// As long as nothing can be accepted, as with no descriptor left.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the command's listener may take: one whose queue is full says nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where on the host, and where inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    at: SocketAddr,
    inside: u16,
}

impl FromStr for Published {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write ADDRESS:PORT:PORT, such as 127.0.0.1:8080:80 or [::1]:8080:80".to_owned();
        let (at, inside) = text.rsplit_once(':').ok_or_else(wrong)?;
        let at: SocketAddr = at.parse().map_err(|_| wrong())?;
        let inside: u16 = inside.parse().map_err(|_| wrong())?;
        match inside {
            0 => Err(wrong()),
            PROXY_PORT | CAPTURED_PORT | DNS_PORT => {
                Err(format!("port {inside} inside is the gateway's own; let the command listen on another"))
            }
            _ => Ok(Self { at, inside }),
        }
    }
}

impl Published {
    /// Takes the port on the host.
    pub(super) async fn listen(self) -> io::Result<TcpListener> {
        TcpListener::bind(self.at)
            .await
            .map_err(|error| io::Error::new(error.kind(), format!("cannot publish {}: {error}", self.at)))
    }

    /// Serves it for as long as the gateway runs. `doors` leads to the helper, which makes sockets inside.
    pub(super) async fn serve(self, listener: TcpListener, doors: Arc<Mutex<UnixStream>>) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    let doors = Arc::clone(&doors);
                    tokio::spawn(self.carry(client, doors));
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    async fn carry(self, mut client: tokio::net::TcpStream, doors: Arc<Mutex<UnixStream>>) {
        match connect(self.inside, doors).await {
            Ok(mut inside) => {
                let _ = inside.set_nodelay(true).and_then(|()| client.set_nodelay(true));
                // How it ends is the two ends' own affair; they have seen it.
                let _ = copy_bidirectional(&mut client, &mut inside).await;
            }
            Err(_) => {
                // Nobody listens there: the client is told as by a closed port.
                let _ = client.set_zero_linger();
            }
        }
    }
}

/// Connects to the workload's loopback, over a socket that was made there.
#[expect(
    clippy::disallowed_methods,
    reason = "not a contact of a sandbox: the socket stands inside, and its loopback has no way out"
)]
async fn connect(port: u16, doors: Arc<Mutex<UnixStream>>) -> io::Result<tokio::net::TcpStream> {
    let made = tokio::task::spawn_blocking(move || {
        let doors = doors.lock().unwrap_or_else(PoisonError::into_inner);
        door::ask(&*doors)
    });
    let socket = TcpStream::from(made.await.map_err(io::Error::other)??);
    socket.set_nonblocking(true)?;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    timeout(PATIENCE, TcpSocket::from_std_stream(socket).connect(to)).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_published_with_an_address_and_never_the_gateways_own() {
        let published = |at: &str, inside| Ok(Published { at: at.parse().unwrap(), inside });
        assert_eq!("127.0.0.1:8080:80".parse(), published("127.0.0.1:8080", 80));
        assert_eq!("[::1]:0:9000".parse(), published("[::1]:0", 9000));
        for text in ["8080:80", "127.0.0.1:80", "localhost:80:80", "127.0.0.1:80:0", "127.0.0.1:80:99999", ""]
        {
            assert!(text.parse::<Published>().is_err(), "{text}");
        }
        for own in [3128, 15001, 15053] {
            assert!(format!("127.0.0.1:8080:{own}").parse::<Published>().is_err());
        }
    }
}
