//! A sandbox in a network namespace of its own: what is sent there arrives at the gateway's sockets, which this process
//! serves from the lab's gateway host.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::net::UnixStream,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
};

use hickory_proto::{op::Message, rr::RecordType};
use policy::{
    Event, Gate, LocalAddresses, Observer, Policy, Reason, Receipt, SandboxId,
    file::{Document, load},
};
use prometheus::Registry;
use proxy::{Config, Gateway, Listener};
use tidegate::{
    lab::{
        GATEWAY_INSIDE, GATEWAY_V4, GATEWAY_V6, HostFile, Lab, Namespace, Zone,
        dns::DnsServer,
        origin::{Behaviour, Contact, Origin},
        tap::{Sent, Tap},
    },
    netns::{
        self, Plan,
        handover::{self, Checked},
    },
};
use tokio::sync::oneshot;

use super::{Client, PATIENCE, ask_from, eventually};

/// Any server: questions to it arrive at the gateway.
const SOME_SERVER: &str = "8.8.8.8:53";
const DNS: &str = "198.51.100.53:53";

/// What an inside will hold.
pub struct InsideBuilder {
    policy: String,
    zone: Zone,
    config: Config,
    ports: Vec<u16>,
    behave: Arc<dyn Fn(SocketAddr) -> Behaviour + Send + Sync>,
}

/// A sandbox `s1` with its own network, a gateway and the world.
pub struct Inside {
    /// Asked by tests directly.
    pub gate: Arc<Gate>,
    /// The streams of the sandbox.
    pub gateway: Arc<Gateway>,
    /// Its namespace, as the gateway knows it.
    pub namespace: Arc<policy::Namespace>,
    /// The registry with the gateway's counters.
    sandbox: Namespace,
    recorder: Arc<Recorder>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    origins: Vec<Origin>,
    dns: DnsServer,
    tap: Tap,
    _lab: Arc<Lab>,
}

/// Every event as a line: `tcp deny not_listed api.example.com:443`, `close tcp policy_changed`.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Observer for Recorder {
    fn record(&self, event: &Event<'_>) -> Receipt {
        let line = match event {
            Event::Decision(told) => {
                let what = match &told.attempt.ask {
                    policy::Ask::Stream(to) => to.to_string(),
                    policy::Ask::Request { destination, method, .. } => format!("{method} {destination}"),
                    policy::Ask::Lookup { name, qtype } => format!("{name} {qtype}"),
                    policy::Ask::Unreadable { shown } => format!("{shown:?}"),
                };
                let (inbound, answer) = (told.attempt.inbound.as_str(), told.answer.as_str());
                let rcode = told.rcode.map(|code| format!(" {code}")).unwrap_or_default();
                format!("{inbound} {answer} {} {what}{rcode}", told.reason.map_or("-", Reason::code))
            }
            Event::Close(told) => {
                let inbound = told.attempt.inbound.as_str();
                format!("close {inbound} {}", told.reason.map_or("-", Reason::code))
            }
        };
        self.0.lock().unwrap().push(line);
        Receipt::written()
    }
}

impl Inside {
    /// A sandbox under these policies and sandboxes, of which it is `s1`; HTTP on port 80 of the world and echoes elsewhere.
    #[expect(clippy::new_ret_no_self, reason = "it is described first and started then")]
    pub fn new(policy: &str) -> InsideBuilder {
        InsideBuilder {
            policy: policy.to_owned(),
            zone: Zone::new(),
            config: Config::default(),
            ports: vec![80, 443],
            behave: Arc::new(|to| if to.port() == 80 { Behaviour::Http } else { Behaviour::Echo }),
        }
    }

    /// Connects from inside to any address.
    pub fn connect(&self, to: SocketAddr) -> Client {
        self.try_connect(to).unwrap_or_else(|error| panic!("{to}: {error}"))
    }

    /// As [`Inside::connect`], for a connection that may be reset at once.
    pub fn try_connect(&self, to: SocketAddr) -> io::Result<Client> {
        Client::try_connect_from(&self.sandbox, to)
    }

    /// As [`Inside::connect`], to an address as text.
    pub fn to(&self, to: &str) -> Client {
        self.connect(to.parse().unwrap())
    }

    /// Runs a shell command inside that knows of no proxy; `ca` is an authority that it trusts, in PEM form.
    pub fn shell(&self, command: &str, ca: &str) -> Output {
        let dir = tempfile::tempdir().unwrap();
        let (resolv_conf, trusted) = (dir.path().join("resolv.conf"), dir.path().join("ca.pem"));
        fs::write(&resolv_conf, "nameserver 192.0.2.53\noptions timeout:2 attempts:1\n").unwrap();
        fs::write(&trusted, ca).unwrap();
        #[expect(clippy::disallowed_methods, reason = "real clients in a sandbox")]
        let mut shell = Command::new("/bin/bash");
        shell.args(["-c", command]).env_clear().env("HOME", dir.path());
        shell.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        shell
            .env("CURL_CA_BUNDLE", &trusted)
            .env("NODE_EXTRA_CA_CERTS", &trusted)
            .env("SSL_CERT_FILE", &trusted);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let files = [HostFile { at: "/etc/resolv.conf".into(), shows: resolv_conf }];
        self.sandbox.spawn_seeing(&files, &mut shell).and_then(Child::wait_with_output).unwrap()
    }

    /// Asks a name server from inside.
    pub fn ask(&self, name: &str, kind: RecordType) -> Message {
        ask_from(&self.sandbox, SOME_SERVER.parse().unwrap(), name, kind).unwrap()
    }

    /// The one address that a name has inside.
    pub fn address_of(&self, name: &str, kind: RecordType) -> IpAddr {
        let reply = self.ask(name, kind);
        let found: Vec<_> = reply.answers.iter().filter_map(|record| record.data.ip_addr()).collect();
        let [address] = found[..] else { panic!("{name} has {found:?}: {reply:?}") };
        address
    }

    /// Connects from inside to a name, as a client that knows of no proxy does.
    pub fn to_name(&self, name: &str, port: u16) -> Client {
        self.connect(SocketAddr::new(self.address_of(name, RecordType::A), port))
    }

    /// The events so far.
    pub fn events(&self) -> Vec<String> {
        self.recorder.0.lock().unwrap().clone()
    }

    /// Takes the events once there are as many as are expected; the order of ends is not told.
    #[track_caller]
    pub fn takes_events(&self, expected: &[&str]) {
        let seen = eventually("the events", || {
            let seen = self.events();
            (seen.len() >= expected.len()).then_some(seen)
        });
        assert_eq!(seen, expected);
        self.recorder.0.lock().unwrap().clear();
    }

    /// Takes the first decision about a captured connection that was not taken yet.
    pub fn take_decision(&self) -> Option<String> {
        let mut events = self.recorder.0.lock().unwrap();
        events.retain(|event| event.starts_with("tcp "));
        (!events.is_empty()).then(|| events.remove(0))
    }

    /// Takes the events, which must all be this one, at least once.
    #[track_caller]
    pub fn takes_only(&self, expected: &str) {
        let seen = eventually("an event", || Some(self.events()).filter(|seen| !seen.is_empty()));
        assert!(seen.iter().all(|event| event == expected), "{seen:#?} are not all {expected}");
        self.recorder.0.lock().unwrap().clear();
    }

    /// What the world's name server was asked for.
    pub fn asked(&self) -> Vec<String> {
        self.dns.asked().into_iter().map(|asked| asked.name.trim_end_matches('.').to_owned()).collect()
    }

    /// The addresses that the gateway has dialled since the last call.
    pub fn dialled(&self) -> Vec<SocketAddr> {
        let dial = |sent| if let Sent::Dial { to, .. } = sent { Some(to) } else { None };
        self.tap.sent().unwrap().into_iter().filter_map(dial).collect()
    }

    /// Every connection that an origin accepted.
    pub fn contacts(&self) -> Vec<Arc<Contact>> {
        self.origins.iter().flat_map(Origin::contacts).collect()
    }

    /// Puts another policy in force, as a reload does.
    pub fn reload(&self, policy: &str) {
        self.gate.install(compile(policy));
        self.gateway.policy_changed();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(served) = self.served.take() {
            served.join().unwrap();
        }
    }
}

impl InsideBuilder {
    /// Adds a name to the DNS zone.
    pub fn resolving(mut self, name: &str, records: &[&str]) -> Self {
        self.zone = self.zone.with(name, records).unwrap();
        self
    }

    /// Changes what the gateway is told.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// What the hosts of the world do, on these ports.
    pub fn origins(
        mut self,
        ports: &[u16],
        behave: impl Fn(SocketAddr) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        self.ports = ports.to_vec();
        self.behave = Arc::new(behave);
        self
    }

    /// Starts everything; `None`, with the reason on stderr, where this machine has no namespaces for it.
    pub fn start(self) -> Option<Inside> {
        let lab = Lab::new()
            .inspect_err(|unavailable| eprintln!("skipped: {unavailable}: {}", unavailable.why))
            .ok()?;
        let lab = Arc::new(lab);
        let sandbox = Namespace::new().unwrap();
        let tap = Tap::open(lab.world()).unwrap();
        let origins = self.ports.iter().map(|port| {
            let behave = Arc::clone(&self.behave);
            let everywhere = SocketAddr::new("::".parse().unwrap(), *port);
            Origin::serve(lab.world(), everywhere, move |to| behave(to)).unwrap()
        });
        let origins = origins.collect();
        let dns = DnsServer::serve(lab.world(), DNS.parse().unwrap(), self.zone).unwrap();
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = Arc::clone(&recorder) as _;
        let gate = Arc::new(Gate::new(compile(&self.policy), Arc::new(local()), observer, 7));
        let namespace = gate.namespace(SandboxId::parse("s1").unwrap());
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let sockets = hand_over(&sandbox);
        let serving = (Arc::clone(&lab), Arc::clone(&gate), Arc::clone(&namespace));
        let served = thread::spawn(move || {
            let (lab, gate, namespace) = serving;
            let serve = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(serve(gate, namespace, sockets, self.config, ready, stopped))
            };
            lab.gateway().run(serve).unwrap();
        });
        let gateway = is_ready.recv_timeout(PATIENCE).unwrap();
        let (stop, served) = (Some(stop), Some(served));
        Some(Inside {
            gate,
            gateway,
            namespace,
            sandbox,
            recorder,
            stop,
            served,
            origins,
            dns,
            tap,
            _lab: lab,
        })
    }
}

fn local() -> LocalAddresses {
    let hosts = [IpAddr::V4(GATEWAY_V4), IpAddr::V6(GATEWAY_V6), IpAddr::V4(GATEWAY_INSIDE)];
    LocalAddresses::new(hosts.map(Into::into))
}

fn compile(policy: &str) -> Arc<Policy> {
    let text = format!(
        "[addresses]\ntreat_as_public = [\"203.0.113.0/24\", \"2001:db8:cafe::/48\"]\nown = [\"10.200.0.1\"]\n{policy}"
    );
    let documents = [Document::new("inside.toml", text.as_bytes()).unwrap()];
    let policy = load(&documents, dns::clock::now(), &local());
    Arc::new(policy.unwrap_or_else(|mistakes| panic!("{mistakes:?}")))
}

/// Sets the namespace up and gives its sockets away.
fn hand_over(sandbox: &Namespace) -> Checked {
    let sockets =
        sandbox.run(|| netns::open_here(&Plan::for_this_kernel()).map_err(io::Error::other)).unwrap();
    let (inside, gateway) = UnixStream::pair().unwrap();
    let sender = thread::spawn(move || handover::send(&inside, sockets));
    let checked = handover::receive(&gateway).and_then(handover::Offered::check).unwrap();
    handover::acknowledge(&gateway, None).unwrap();
    sender.join().unwrap().unwrap();
    checked
}

async fn serve(
    gate: Arc<Gate>,
    namespace: Arc<policy::Namespace>,
    sockets: Checked,
    config: Config,
    ready: mpsc::Sender<Arc<Gateway>>,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let registry = Registry::new();
    let metrics = dns::Metrics::new(&registry).unwrap();
    let upstreams = vec![dns::Upstream::Udp(DNS.parse().unwrap())];
    let resolving = dns::ResolverConfig { upstreams, ..Default::default() };
    let resolver = dns::Resolver::new(&resolving, metrics.clone()).unwrap();
    let asked = Arc::<dns::limits::Asked>::default();
    let server = dns::Server::new(
        Arc::clone(&gate),
        resolver.clone(),
        metrics,
        dns::Limits::default(),
        Arc::clone(&asked),
    );
    let gateway = Gateway::new(gate, resolver, asked, config, &registry).unwrap();
    for listener in sockets.proxy {
        tokio::spawn(Listener::inside(Arc::clone(&namespace), listener)?.run(Arc::clone(&gateway)));
    }
    for listener in sockets.captured {
        tokio::spawn(Listener::captured(Arc::clone(&namespace), listener)?.run(Arc::clone(&gateway)));
    }
    for (udp, tcp) in sockets.dns {
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        let (udp, tcp) = (tokio::net::UdpSocket::from_std(udp)?, tokio::net::TcpListener::from_std(tcp)?);
        let (on_udp, on_tcp, namespace) = (server.clone(), server.clone(), Arc::clone(&namespace));
        let other = Arc::clone(&namespace);
        tokio::spawn(async move { on_udp.serve_udp(udp, namespace, std::future::pending()).await });
        tokio::spawn(async move { on_tcp.serve_tcp(tcp, other, std::future::pending()).await });
    }
    ready.send(gateway).unwrap();
    // The sender is dropped at the end of the test.
    let _ = stopped.await;
    Ok(())
}
