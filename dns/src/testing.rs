//! For tests: a gate over a config text, a recorder of its events, and an upstream that answers from a function.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use policy::file::{Document, load};
use policy::{Event, Gate, LocalAddresses, Observer, Receipt};
use prometheus::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use crate::{Metrics, Resolver, ResolverConfig, Upstream, clock};

/// Notes each decision as `allow|deny reason what rcode`, and hands out the receipts that `receipt` makes.
pub(crate) struct Recorder {
    events: Mutex<Vec<String>>,
    receipt: Box<dyn Fn() -> Receipt + Send + Sync>,
}

impl Recorder {
    pub(crate) fn with_receipts(receipt: impl Fn() -> Receipt + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { events: Mutex::default(), receipt: Box::new(receipt) })
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    /// The events since they were last taken.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

impl Observer for Recorder {
    fn record(&self, event: &Event<'_>) -> Receipt {
        let Event::Decision(event) = event else { panic!("look-ups do not close") };
        let what = match &event.attempt.ask {
            policy::Ask::Lookup { name, qtype } => format!("{name} {qtype}"),
            policy::Ask::Unreadable { shown } => format!("{shown:?}"),
            other => panic!("{other:?}"),
        };
        let reason = event.reason.map_or("-", policy::Reason::code);
        let rcode = event.rcode.map_or_else(|| "-".to_owned(), |code| code.to_string());
        let line = format!("{} {reason} {what} {rcode}", event.answer.as_str());
        self.events.lock().unwrap().push(line);
        (self.receipt)()
    }
}

/// A gate whose every client is one sandbox with the policy `case`, in which 203.0.113.0/24 and 2001:db8:cafe::/48
/// stand for the public internet.
pub(crate) fn gate(policy: &str) -> (Arc<Gate>, Arc<Recorder>) {
    let recorder = Recorder::with_receipts(Receipt::written);
    (gate_with(policy, "{ default = true }", &recorder), recorder)
}

pub(crate) fn gate_with(policy: &str, identify: &str, recorder: &Arc<Recorder>) -> Arc<Gate> {
    let text = format!(
        "[addresses]\ntreat_as_public = [\"203.0.113.0/24\", \"2001:db8:cafe::/48\"]\n\
         [sandbox.s1]\npolicies = [\"case\"]\nidentify = [{identify}]\n{policy}"
    );
    let document = Document::new("case.toml", text.as_bytes()).expect("text");
    let local = LocalAddresses::new(["10.200.0.1/32".parse().expect("net")]);
    let policy = load(&[document], clock::now(), &local).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    let observer: Arc<dyn Observer> = Arc::clone(recorder) as _;
    Arc::new(Gate::new(Arc::new(policy), Arc::new(local), observer, 1))
}

pub(crate) fn metrics() -> Metrics {
    Metrics::new(&Registry::new()).expect("an empty registry")
}

pub(crate) fn resolver(upstreams: impl IntoIterator<Item = SocketAddr>) -> Resolver {
    let upstreams = upstreams.into_iter().map(Upstream::Udp).collect();
    Resolver::new(&ResolverConfig { upstreams, ..ResolverConfig::default() }, metrics()).expect("upstreams")
}

/// What a test's upstream was asked.
pub(crate) type Asked = Arc<Mutex<Vec<(String, u16)>>>;

/// An upstream on loopback that answers each query with whatever messages `answer` makes of it, over UDP and TCP.
pub(crate) async fn upstream(
    answer: impl Fn(&Message, bool) -> Vec<Vec<u8>> + Send + Sync + 'static,
) -> (SocketAddr, Asked) {
    let answer = Arc::new(answer);
    let asked = Asked::default();
    // TCP first: a free TCP port may be taken on UDP by somebody else's client socket.
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            break (tcp, udp);
        }
    };
    let address = udp.local_addr().unwrap();
    let (asked_udp, answer_udp) = (Arc::clone(&asked), Arc::clone(&answer));
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
            let query = note(&buffer[..length], &asked_udp);
            for message in answer_udp(&query, false) {
                udp.send_to(&message, from).await.unwrap();
            }
        }
    });
    let asked_tcp = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let mut query = vec![0; stream.read_u16().await.unwrap().into()];
            stream.read_exact(&mut query).await.unwrap();
            for message in answer(&note(&query, &asked_tcp), true) {
                stream.write_u16(message.len().try_into().unwrap()).await.unwrap();
                stream.write_all(&message).await.unwrap();
            }
        }
    });
    (address, asked)
}

fn note(query: &[u8], asked: &Asked) -> Message {
    let message = Message::from_vec(query).expect("the gateway asks well");
    let question = &message.queries[0];
    let edns = message.edns.as_ref().expect("the gateway offers EDNS");
    // Nothing of the client may reach an upstream: clean flags, no options, lower case.
    assert!(edns.options().as_ref().is_empty() && !edns.flags().dnssec_ok);
    assert_eq!(query[2..4], [1, 0]);
    assert_eq!(question.name().to_string(), question.name().to_lowercase().to_string());
    let name = question.name().to_string().trim_end_matches('.').to_owned();
    asked.lock().unwrap().push((name, question.query_type().into()));
    message
}

/// A response to a query, with records as `OWNER TTL TYPE DATA`.
pub(crate) fn response(query: &Message, code: ResponseCode, records: &[&str]) -> Message {
    let mut message = Message::response(query.metadata.id, OpCode::Query);
    message.metadata.recursion_available = true;
    message.metadata.response_code = code;
    message.add_query(query.queries[0].clone());
    for text in records {
        let record = record(text);
        if record.record_type() == RecordType::SOA {
            message.add_authority(record);
        } else {
            message.add_answer(record);
        }
    }
    message
}

pub(crate) fn record(text: &str) -> Record {
    let mut parts = text.splitn(4, ' ');
    let mut next = || parts.next().expect("OWNER TTL TYPE DATA");
    let (owner, ttl) = (Name::from_ascii(next()).expect("owner"), next().parse().expect("TTL"));
    let rrtype = next().parse().expect("type");
    Record::from_rdata(owner, ttl, RData::try_from_str(rrtype, next()).expect("data"))
}

/// The answers of a zone: records as `OWNER TTL TYPE DATA`, everything else NXDOMAIN. Aliases are not followed.
pub(crate) fn zone(records: &'static [&'static str]) -> impl Fn(&Message, bool) -> Vec<Vec<u8>> {
    move |query, _| {
        let asked = &query.queries[0];
        let owned = |text: &&&str| record(text).name == *asked.name();
        let fits = |text: &&str| {
            let rrtype = record(text).record_type();
            rrtype == asked.query_type() || rrtype == RecordType::CNAME
        };
        let of_name: Vec<&str> = records.iter().filter(owned).copied().collect();
        let of_type: Vec<&str> = of_name.iter().copied().filter(fits).collect();
        let soa = "example.com. 30 SOA ns.example.com. host.example.com. 1 2 3 4 20";
        let code = if of_name.is_empty() { ResponseCode::NXDomain } else { ResponseCode::NoError };
        let records = if of_type.is_empty() { vec![soa] } else { of_type };
        vec![response(query, code, &records).to_vec().expect("a message")]
    }
}
