//! A gateway with one origin behind it, the client's side of both, and what the gate told its observer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use policy::file::{Document, load};
use policy::{Event, Gate, LocalAddresses, Observer, Policy, Receipt, Timestamp};
use prometheus::Registry;
use proxy::{Config, Gateway, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Nothing here takes longer than this unless it hangs.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// What is kept of an event, in short.
pub(crate) type Tell = fn(&Event<'_>) -> String;

/// What the gate told its observer.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) told: Mutex<Vec<String>>,
    tell: Tell,
}

impl Observer for Recorder {
    fn record(&self, event: &Event<'_>) -> Receipt {
        self.told.lock().unwrap().push((self.tell)(event));
        Receipt::written()
    }
}

/// A gateway and the one origin behind every name that its policy opens.
pub(crate) struct Scene {
    pub(crate) gate: Arc<Gate>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) registry: Registry,
    pub(crate) proxy: SocketAddr,
    pub(crate) origin: TcpListener,
}

pub(crate) fn policy(text: &str) -> Arc<Policy> {
    let documents = [Document::new("t.toml", text.as_bytes()).unwrap()];
    let policy = load(&documents, Timestamp::from_secs(1_800_000_000), &LocalAddresses::default());
    Arc::new(policy.unwrap_or_else(|mistakes| panic!("{mistakes:?}")))
}

impl Scene {
    /// A gateway under the policy that `opening` writes for the origin's port; `tell` says what is kept of an event.
    pub(crate) async fn new(opening: impl Fn(u16) -> String, tell: Tell, config: Config) -> Self {
        // Nobody listens there.
        Self::asking("127.0.0.1:9".parse().unwrap(), opening, tell, config).await
    }

    /// The same, with a name server.
    pub(crate) async fn asking(
        name_server: SocketAddr,
        opening: impl Fn(u16) -> String,
        tell: Tell,
        config: Config,
    ) -> Self {
        let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let recorder = Arc::new(Recorder { told: Mutex::default(), tell });
        let text = opening(origin.local_addr().unwrap().port());
        let observer: Arc<dyn Observer> = recorder.clone();
        let gate = Arc::new(Gate::new(policy(&text), Arc::new(LocalAddresses::default()), observer, 1));
        let upstreams = vec![dns::Upstream::Udp(name_server)];
        let resolving = dns::ResolverConfig { upstreams, ..Default::default() };
        let registry = Registry::new();
        let resolver = dns::Resolver::new(&resolving, dns::Metrics::new(&registry).unwrap()).unwrap();
        let gateway = Gateway::new(Arc::clone(&gate), resolver, Arc::default(), config, &registry).unwrap();
        let listener = Listener::tcp("127.0.0.1:0".into(), "127.0.0.1:0".parse().unwrap()).unwrap();
        let proxy = listener.address().unwrap();
        tokio::spawn(listener.run(Arc::clone(&gateway)));
        Self { gate, gateway, recorder, registry, proxy, origin }
    }

    #[expect(clippy::disallowed_methods, reason = "the client's side")]
    pub(crate) async fn client(&self) -> TcpStream {
        TcpStream::connect(self.proxy).await.unwrap()
    }

    pub(crate) async fn sends(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut client = self.client().await;
        client.write_all(bytes.as_ref()).await.unwrap();
        client
    }

    pub(crate) async fn accept(&self) -> TcpStream {
        timeout(SOON, self.origin.accept()).await.expect("the origin is dialled").unwrap().0
    }

    /// A tunnel to a port of the one open name.
    pub(crate) async fn tunnel(&self, port: u16) -> (TcpStream, TcpStream) {
        let connect = format!("CONNECT api.example.test:{port} HTTP/1.1\r\nHost: api.example.test\r\n\r\n");
        let mut client = self.sends(connect.as_bytes()).await;
        let origin = self.accept().await;
        assert_eq!(head(&mut client).await, "HTTP/1.1 200 Connection established\r\n\r\n");
        (client, origin)
    }

    /// The origin gets exactly `request` on a new connection and answers.
    pub(crate) async fn answers(&self, request: &str, answer: &str) -> TcpStream {
        let mut origin = self.accept().await;
        gets(&mut origin, request).await;
        send(&mut origin, answer).await;
        origin
    }

    pub(crate) async fn records(&self, expected: &[&str]) {
        let held = || self.recorder.told.lock().unwrap().clone();
        let same = async {
            while held() != expected {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(SOON, same).await.is_ok(), "{:#?}\nis not\n{expected:#?}", held());
    }

    /// Bytes that were taken from clients and from origins.
    pub(crate) fn bytes(&self) -> (f64, f64) {
        let families = self.registry.gather();
        let bytes = families.iter().find(|family| family.name() == "tidegate_bytes_total").unwrap();
        let of = |direction: &str| {
            let mut all = bytes.get_metric().iter();
            all.find(|one| one.get_label().iter().any(|label| label.value() == direction))
                .unwrap()
                .get_counter()
                .get_value()
        };
        (of("up"), of("down"))
    }

    pub(crate) fn is_undialled(&self) -> bool {
        Future::poll(
            std::pin::pin!(self.origin.accept()),
            &mut std::task::Context::from_waker(std::task::Waker::noop()),
        )
        .is_pending()
    }
}

pub(crate) async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Reads as many bytes as `expected` has, which they must be.
pub(crate) async fn gets(stream: &mut TcpStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    let read = timeout(SOON, stream.read_exact(&mut bytes)).await;
    let text = String::from_utf8_lossy(&bytes);
    assert!(matches!(read, Ok(Ok(_))), "{read:?} after {text:?}, not {expected:?}");
    assert_eq!(text, expected);
}

pub(crate) async fn head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(SOON, client.read_u8()).await.expect("an answer").unwrap());
    }
    String::from_utf8(head).unwrap()
}

pub(crate) async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let end = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("an end");
    if end.is_err() {
        rest.extend(b"<reset>");
    }
    rest
}
