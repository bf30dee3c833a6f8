//! A whole scene for one test: the lab, its DNS server, origins on the ports that matter, and a gateway.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use tidegate::lab::{
    HostFile, Lab, Zone,
    dns::{DnsServer, Responder},
    origin::{Behaviour, Contact, Origin},
    tap::{Sent, Tap},
};

use super::{Client, Gateway, GatewayConfig, NotStarted};

/// Where the scene's proxy port is.
pub const PROXY: &str = "10.200.0.1:3128";
/// Where the scene's gateway answers DNS.
pub const PROXY_DNS: &str = "10.200.0.1:5353";
/// Where the scene's DNS server is, in the world.
pub const DNS: &str = "198.51.100.53:53";

/// No limits for sandbox `s1` but that on new names, for tests that are about something else and go fast.
pub const UNLIMITED: &str = r#"
[sandbox.s1.limits]
connections = "unlimited"
new_connections_per_second = "unlimited"
requests_per_second = "unlimited"
dns_per_second = "unlimited"
upload = "unlimited"
download = "unlimited"
"#;

/// What a scene will hold.
pub struct SceneBuilder {
    config: GatewayConfig,
    allow: Vec<String>,
    zone: Zone,
    responder: Option<Box<Responder>>,
    ports: BTreeSet<u16>,
    listeners: BTreeSet<SocketAddr>,
    behave: Arc<dyn Fn(SocketAddr) -> Behaviour + Send + Sync>,
    dns: bool,
}

/// A running scene.
pub struct Scene {
    gateway: Gateway,
    origins: Vec<Origin>,
    dns: Option<DnsServer>,
    tap: Tap,
    lab: Lab,
}

impl Scene {
    /// One sandbox `s1` that everybody is, an empty policy `case`, an empty DNS zone, HTTP on port 80 and echoes elsewhere.
    #[expect(clippy::new_ret_no_self, reason = "a scene is described first and started then")]
    pub fn new() -> SceneBuilder {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        SceneBuilder {
            config: GatewayConfig {
                policy: String::new(),
                proxy: words(&[PROXY]),
                dns: words(&[PROXY_DNS]),
                listen: String::new(),
                upstreams: words(&["udp://198.51.100.53"]),
                own: words(&["10.200.0.1"]),
                treat_as_public: words(&["203.0.113.0/24", "2001:db8:cafe::/48"]),
                nat64: Vec::new(),
                timeouts: words(&["head = \"3s\"", "drain = \"1s\""]),
                audit: None,
                environment: Vec::new(),
                host_files: Vec::new(),
                volume: None,
            },
            allow: Vec::new(),
            zone: Zone::new(),
            responder: None,
            ports: BTreeSet::from([80, 443]),
            listeners: BTreeSet::new(),
            behave: Arc::new(|to| if to.port() == 80 { Behaviour::Http } else { Behaviour::Echo }),
            dns: true,
        }
    }

    /// Kills the gateway and starts it anew with what stands on the disk.
    pub fn restart(&mut self) {
        self.gateway.restart(&self.lab);
    }

    /// The two namespaces.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The gateway.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// The gateway, to stop it or ask whether it lives.
    pub fn gateway_mut(&mut self) -> &mut Gateway {
        &mut self.gateway
    }

    /// The DNS server in the world.
    pub fn dns(&self) -> &DnsServer {
        self.dns.as_ref().expect("the scene has a DNS server")
    }

    /// As [`Scene::dns`], for a scene that may be without one.
    pub fn dns_if_any(&self) -> Option<&DnsServer> {
        self.dns.as_ref()
    }

    /// A new connection to the proxy port.
    pub fn client(&self) -> Client {
        Client::connect(&self.lab, PROXY.parse().unwrap())
    }

    /// Every connection that an origin accepted, by origin.
    pub fn contacts(&self) -> Vec<Arc<Contact>> {
        self.origins.iter().flat_map(Origin::contacts).collect()
    }

    /// Everything that the gateway's host sent into the world since the last call, but for its questions to the DNS server.
    pub fn sent(&self) -> BTreeSet<Sent> {
        let dns: SocketAddr = DNS.parse().unwrap();
        let to_dns =
            |sent: &Sent| matches!(*sent, Sent::Dial { to, .. } | Sent::Datagram { to } if to == dns);
        self.tap.sent().unwrap().into_iter().filter(|sent| !to_dns(sent)).collect()
    }

    /// Where the gateway tried to connect to since the last call, whether or not somebody listened there.
    pub fn dialled(&self) -> Vec<SocketAddr> {
        let dial = |sent| if let Sent::Dial { to, .. } = sent { Some(to) } else { None };
        self.sent().into_iter().filter_map(dial).collect()
    }
}

impl SceneBuilder {
    /// Adds entries to the policy's `allow`.
    pub fn allow(mut self, entries: &[&str]) -> SceneBuilder {
        self.allow.extend(entries.iter().map(|&entry| entry.to_owned()));
        self
    }

    /// Replaces the whole policy part of the config: policies, sandboxes, internals.
    pub fn policy(mut self, toml: &str) -> SceneBuilder {
        toml.clone_into(&mut self.config.policy);
        self
    }

    /// Changes anything else of the config.
    pub fn configure(mut self, change: impl FnOnce(&mut GatewayConfig)) -> SceneBuilder {
        change(&mut self.config);
        self
    }

    /// Lets the gateway see another file of the host.
    pub fn host_file(mut self, file: HostFile) -> SceneBuilder {
        self.config.host_files.push(file);
        self
    }

    /// Adds a name to the DNS zone.
    pub fn resolving(mut self, name: &str, records: &[&str]) -> SceneBuilder {
        self.zone = self.zone.with(name, records).unwrap();
        self
    }

    /// Replaces the DNS zone.
    pub fn zone(mut self, zone: Zone) -> SceneBuilder {
        self.zone = zone;
        self
    }

    /// Lets `responder` answer the gateway's questions.
    pub fn dns_answers(mut self, responder: Box<Responder>) -> SceneBuilder {
        self.responder = Some(responder);
        self
    }

    /// Leaves the DNS server's address without a server.
    pub fn without_dns(mut self) -> SceneBuilder {
        self.dns = false;
        self
    }

    /// Opens further ports on every host of the world.
    pub fn ports(mut self, ports: impl IntoIterator<Item = u16>) -> SceneBuilder {
        self.ports.extend(ports);
        self
    }

    /// Opens exactly these addresses instead of ports on every host; everything else refuses.
    pub fn only_listening_on(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> SceneBuilder {
        self.ports.clear();
        self.listeners.extend(addresses);
        self
    }

    /// What origins do, by the address that was dialled.
    pub fn origins(
        mut self,
        behave: impl Fn(SocketAddr) -> Behaviour + Send + Sync + 'static,
    ) -> SceneBuilder {
        self.behave = Arc::new(behave);
        self
    }

    /// The policy part of the config as it stands.
    pub fn policy_text(&self) -> String {
        self.config.policy.clone()
    }

    /// The config, with everything that was changed.
    pub fn config(&self) -> &GatewayConfig {
        &self.config
    }

    /// Starts everything; `None`, with the reason on stderr, where this machine has no namespaces for it.
    pub fn start(self) -> Option<Scene> {
        let scene = self.try_start()?;
        Some(
            scene.unwrap_or_else(|not| {
                panic!("the gateway did not start ({:?}):\n{}", not.status, not.stderr)
            }),
        )
    }

    /// As [`SceneBuilder::start`], for a gateway that may refuse to start.
    pub fn try_start(mut self) -> Option<Result<Scene, NotStarted>> {
        let lab = Lab::new()
            .inspect_err(|unavailable| eprintln!("skipped: {unavailable}: {}", unavailable.why))
            .ok()?;
        if self.config.policy.is_empty() {
            self.config.policy = format!(
                "[policy.case]\nallow = {:?}\n\n[sandbox.s1]\npolicies = [\"case\"]\nidentify = [{{ default = true }}]\n{UNLIMITED}",
                self.allow
            );
        }
        let tap = Tap::open(lab.world()).unwrap();
        let everywhere = self.ports.iter().map(|port| SocketAddr::new("::".parse().unwrap(), *port));
        let origins = everywhere.chain(self.listeners.iter().copied()).map(|address| {
            let behave = self.behave.clone();
            Origin::serve(lab.world(), address, move |to| behave(to))
                .unwrap_or_else(|error| panic!("{address}: {error}"))
        });
        let origins = origins.collect();
        let dns = self.dns.then(|| {
            let address = DNS.parse().unwrap();
            match self.responder {
                Some(responder) => DnsServer::serve_with(lab.world(), address, self.zone, responder).unwrap(),
                None => DnsServer::serve(lab.world(), address, self.zone).unwrap(),
            }
        });
        let started = Gateway::start(&lab, &self.config);
        Some(started.map(|gateway| Scene { gateway, origins, dns, tap, lab }))
    }
}
