//! Where the demo plays: two namespaces with a stand-in internet, or the loopback where the machine permits none.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

use policy::SandboxId;
use tokio::sync::oneshot;

use super::DemoError;
use super::sandbox::Sandbox;
use super::steps::{Asks, POLICY, Step, ZONE};
use crate::app::App;
use crate::lab::dns::DnsServer;
use crate::lab::origin::{Behaviour, Origin};
use crate::lab::{self, GATEWAY_INSIDE, Lab, LabUnavailable, Zone};
use crate::netns::handover::Checked;

/// A client of the demo waits this long for anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// What the origins answer on port 443, where no certificate is needed to see that the client's bytes arrive: a TLS alert
/// `close_notify` (RFC 8446 section 6.1).
const TLS_GOODBYE: &[u8] = &[21, 3, 3, 0, 2, 1, 0];

/// A TLS record begins with its type; that of a ClientHello is 22.
const TLS_HANDSHAKE: u8 = 22;

/// A stage with its files.
pub(super) struct Stage {
    world: Result<World, LabUnavailable>,
    pub(super) proxy: SocketAddr,
    pub(super) dns: SocketAddr,
    folder: Folder,
}

/// The stand-in internet.
struct World {
    lab: Lab,
    dns: DnsServer,
    sandbox: io::Result<Sandbox>,
    _origins: [Origin; 2],
}

/// A folder that only this user may enter; it goes with this value.
struct Folder(PathBuf);

impl Stage {
    pub(super) fn build() -> io::Result<Self> {
        let folder = Folder::new()?;
        let world = match lab() {
            Ok(lab) => Ok(World::build(lab)?),
            Err(unavailable) => Err(unavailable),
        };
        let (proxy, dns) = match &world {
            Ok(_) => ((GATEWAY_INSIDE, 3128).into(), (GATEWAY_INSIDE, 5353).into()),
            Err(_) => (free_port()?, free_port()?),
        };
        let stage = Self { world, proxy, dns, folder };
        stage.write_config()?;
        Ok(stage)
    }

    /// Why there is no stand-in internet here.
    pub(super) fn unavailable(&self) -> Option<&LabUnavailable> {
        self.world.as_ref().err()
    }

    /// The DNS server of the stand-in internet, which knows what it was asked.
    pub(super) fn upstream_dns(&self) -> Option<&DnsServer> {
        self.world.as_ref().ok().map(|world| &world.dns)
    }

    /// Why there is no sandbox with a network of its own, in a stand-in internet.
    pub(super) fn no_sandbox(&self) -> Option<&io::Error> {
        self.world.as_ref().ok()?.sandbox.as_ref().err()
    }

    pub(super) fn can_play(&self, step: &Step) -> bool {
        match step.asks {
            Asks::Captured { .. } => self.sandbox().is_ok(),
            _ => self.world.is_ok() || !step.needs_world,
        }
    }

    fn sandbox(&self) -> io::Result<&Sandbox> {
        let world = self.world.as_ref().map_err(|_| io::ErrorKind::Unsupported)?;
        world.sandbox.as_ref().map_err(|_| io::ErrorKind::Unsupported.into())
    }

    /// A connection to any address, as a client in a network of its own opens it.
    pub(super) fn connect_inside(&self, to: SocketAddr) -> io::Result<TcpStream> {
        patient(self.sandbox()?.connect(to)?)
    }

    /// A socket in that network.
    pub(super) fn udp_inside(&self) -> io::Result<UdpSocket> {
        let socket = self.sandbox()?.udp()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.0.join("tidegate.toml")
    }

    pub(super) fn audit(&self) -> PathBuf {
        self.folder.0.join("audit.jsonl")
    }

    /// A connection to the gateway's proxy port, as a client in the sandbox would open it.
    pub(super) fn connect(&self) -> io::Result<TcpStream> {
        let stream = match &self.world {
            Ok(world) => world.lab.gateway().tcp_connect(self.proxy, PATIENCE),
            Err(_) => lab::tcp_connect_here(self.proxy, PATIENCE),
        }?;
        patient(stream)
    }

    /// A socket from which a client in the sandbox would ask the gateway for names.
    pub(super) fn udp(&self) -> io::Result<UdpSocket> {
        let any = SocketAddr::new(self.dns.ip(), 0);
        let socket = match &self.world {
            Ok(world) => world.lab.gateway().udp_bind(any),
            Err(_) => UdpSocket::bind(any),
        }?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    /// Serves until told to stop, as `tidegate serve` does.
    pub(super) fn serve(
        &self,
        ready: &Sender<Result<(), DemoError>>,
        stopped: oneshot::Receiver<()>,
    ) -> io::Result<()> {
        let serving = || {
            // One thread, since a thread's namespace is its own: every socket is then made where this one is.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let sockets = self.sandbox().ok().and_then(Sandbox::take);
            runtime.block_on(serve(&self.config(), sockets, ready, stopped));
            Ok(())
        };
        match &self.world {
            Ok(world) => world.lab.gateway().run(serving),
            Err(_) => serving(),
        }
    }

    fn write_config(&self) -> io::Result<()> {
        let (proxy, dns, audit) = (self.proxy, self.dns, self.audit());
        let text = format!(
            "{POLICY}\n[listen]\nproxy = [\"{proxy}\"]\ndns = [\"{dns}\"]\n\n[dns]\nupstreams = [\"udp://{UPSTREAM}\"]\n\n\
             [audit]\npath = {audit:?}\n\n[addresses]\n\
             treat_as_public = [\"203.0.113.0/24\", \"2001:db8:cafe::/48\"]\n\n[timeouts]\ndrain = \"1s\"\n"
        );
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(self.config())?;
        file.write_all(text.as_bytes())
    }
}

/// The DNS server of the stand-in internet. On the loopback stage nothing is asked there: every step is denied before.
const UPSTREAM: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);

async fn serve(
    config: &Path,
    sockets: Option<Checked>,
    ready: &Sender<Result<(), DemoError>>,
    stopped: oneshot::Receiver<()>,
) {
    // Whoever no longer listens stops the gateway at once.
    let app = match App::start(config).await {
        Ok(app) => app,
        Err(error) => return drop(ready.send(Err(DemoError::Start(error)))),
    };
    let running = app.serve();
    let agent = SandboxId::parse("agent").zip(sockets);
    let opened = agent.map(|(agent, sockets)| running.open_namespace(agent, sockets)).transpose();
    let namespace = match opened {
        Ok(namespace) => namespace,
        Err(error) => return drop(ready.send(Err(io::Error::other(error).into()))),
    };
    let _ = ready.send(Ok(()));
    let _ = stopped.await;
    drop(namespace);
    running.drain().await;
}

/// A stream whose other end is not waited for without end.
fn patient(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Builds the namespaces: as they are permitted to root, or in a user namespace.
fn lab() -> Result<Lab, LabUnavailable> {
    Lab::new().or_else(|as_we_are| match lab::enter_user_namespace() {
        Ok(()) => Lab::new(),
        Err(_) => Err(as_we_are),
    })
}

impl World {
    fn build(lab: Lab) -> io::Result<Self> {
        let mut zone = Zone::new();
        for (name, records) in ZONE {
            zone = zone.with(name, records).map_err(io::Error::other)?;
        }
        let dns = DnsServer::serve(lab.world(), (UPSTREAM, 53).into(), zone)?;
        let every_host = |port| SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
        let http = Origin::serve(lab.world(), every_host(80), |_| Behaviour::Http)?;
        let tls = Origin::serve(lab.world(), every_host(443), |_| {
            Behaviour::Custom(std::sync::Arc::new(see_hello))
        })?;
        Ok(Self { lab, dns, sandbox: Sandbox::build(), _origins: [http, tls] })
    }
}

/// Reads a ClientHello and says goodbye.
fn see_hello(mut stream: TcpStream, contact: &lab::origin::Contact) -> io::Result<()> {
    let mut first = [0; 1];
    io::Read::read_exact(&mut stream, &mut first)?;
    contact.note(&first);
    if first == [TLS_HANDSHAKE] { stream.write_all(TLS_GOODBYE) } else { Ok(()) }
}

/// A port of the loopback that is free now.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

impl Folder {
    fn new() -> io::Result<Self> {
        let mut last = io::ErrorKind::AlreadyExists.into();
        for attempt in 0..100 {
            let path = std::env::temp_dir().join(format!("tidegate-demo-{}-{attempt}", std::process::id()));
            // Creating fails where anything stands there, a link too.
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
