//! A stand-in authoritative DNS server in the world, which remembers every question it was asked.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use hickory_proto::{
    op::{Edns, Message, OpCode, ResponseCode},
    rr::{Name, RData, Record, RecordType},
};
use rustix::net::{Shutdown, shutdown};

use super::{Namespace, zone::Zone};

/// What a UDP reply may hold where the question brought no EDNS (RFC 1035 §4.2.1).
const PLAIN_UDP: u16 = 512;

/// How long a TCP client may be silent.
const TCP_PATIENCE: Duration = Duration::from_secs(30);

/// A question that reached the server.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The name as asked, final dot included, case kept.
    pub name: String,
    /// The type.
    pub kind: RecordType,
    /// Whether it came over TCP.
    pub over_tcp: bool,
    /// The whole message.
    pub wire: Vec<u8>,
}

/// A question at hand, for a [`Responder`].
#[derive(Debug)]
pub struct Question<'a> {
    /// The message as it came.
    pub wire: &'a [u8],
    /// Whether it came over TCP.
    pub over_tcp: bool,
    /// What the zone answers; none where the message cannot be read.
    pub usual: Option<Vec<u8>>,
    /// Who asked over UDP, and a socket on the server's address but another port.
    elsewhere: Option<(&'a UdpSocket, SocketAddr)>,
}

impl Question<'_> {
    /// Sends the asker a datagram from the server's address but another port, as an off-path forger might.
    pub fn send_from_another_port(&self, datagram: &[u8]) {
        if let Some((socket, asker)) = self.elsewhere {
            let _ = socket.send_to(datagram, asker);
        }
    }
}

/// Makes the messages that go back for one question: the usual one, a forged one before it, none at all.
pub type Responder = dyn Fn(Question<'_>) -> Vec<Vec<u8>> + Send + Sync;

/// One server on one address, over UDP and TCP; it ends with this value.
pub struct DnsServer {
    core: Arc<Core>,
}

/// What the owner shares with the serving threads.
struct Core {
    address: SocketAddr,
    udp: UdpSocket,
    tcp: TcpListener,
    elsewhere: UdpSocket,
    stopped: AtomicBool,
    zone: RwLock<Zone>,
    delay: RwLock<Duration>,
    asked: Mutex<Vec<Asked>>,
    responder: Box<Responder>,
}

impl DnsServer {
    /// Serves `zone` on `address` in the world.
    pub fn serve(world: &Namespace, address: SocketAddr, zone: Zone) -> io::Result<DnsServer> {
        DnsServer::serve_with(world, address, zone, Box::new(|question| question.usual.into_iter().collect()))
    }

    /// As [`DnsServer::serve`], with replies of the caller's making.
    pub fn serve_with(
        world: &Namespace,
        address: SocketAddr,
        zone: Zone,
        responder: Box<Responder>,
    ) -> io::Result<DnsServer> {
        let core = Arc::new(Core {
            address,
            udp: world.udp_bind(address)?,
            tcp: world.tcp_listen(address)?,
            elsewhere: world.udp_bind(SocketAddr::new(address.ip(), 0))?,
            stopped: AtomicBool::new(false),
            zone: zone.into(),
            delay: Duration::ZERO.into(),
            asked: Mutex::default(),
            responder,
        });
        let (on_udp, on_tcp) = (core.clone(), core.clone());
        thread::Builder::new().name("lab-dns-udp".into()).spawn(move || serve_udp(&on_udp))?;
        thread::Builder::new().name("lab-dns-tcp".into()).spawn(move || serve_tcp(&on_tcp))?;
        Ok(DnsServer { core })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.core.address
    }

    /// Everything that was asked so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.core.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The questions for `name` or a name below it, without regard to case.
    #[must_use]
    pub fn asked_under(&self, name: &str) -> Vec<Asked> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let under = |asked: &Asked| {
            let text = asked.name.trim_end_matches('.').to_ascii_lowercase();
            text.strip_suffix(&name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        self.asked().into_iter().filter(under).collect()
    }

    /// Puts another zone in place.
    pub fn set_zone(&self, zone: Zone) {
        *self.core.zone.write().unwrap_or_else(PoisonError::into_inner) = zone;
    }

    /// Waits this long before each answer, without holding up others.
    pub fn set_delay(&self, delay: Duration) {
        *self.core.delay.write().unwrap_or_else(PoisonError::into_inner) = delay;
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.core.stopped.store(true, Ordering::Relaxed);
        // Wakes a blocked accept or receive on the same socket. UDP answers ENOTCONN and is woken all the same.
        let _ = shutdown(&self.core.tcp, Shutdown::Both);
        let _ = shutdown(&self.core.udp, Shutdown::Both);
    }
}

impl Core {
    fn answer(&self, query: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
        let query = Message::from_vec(query).ok()?;
        let [question] = query.queries.as_slice() else { return None };
        let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
        reply.metadata.recursion_desired = query.metadata.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.add_query(question.clone());
        if query.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(1232);
            reply.set_edns(edns);
        }
        if query.metadata.op_code == OpCode::Query {
            let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner);
            reply.metadata.response_code =
                follow(&zone, question.name().clone(), question.query_type(), &mut reply);
        } else {
            reply.metadata.response_code = ResponseCode::NotImp;
        }
        let wire = reply.to_vec().ok()?;
        let limit = query.edns.as_ref().map_or(PLAIN_UDP, |edns| edns.max_payload().max(PLAIN_UDP));
        if over_tcp || wire.len() <= usize::from(limit) {
            return Some(wire);
        }
        reply.answers.clear();
        reply.metadata.truncation = true;
        reply.to_vec().ok()
    }

    /// The replies to a question; `asker` is known where it came over UDP.
    fn replies(&self, wire: &[u8], asker: Option<SocketAddr>) -> Vec<Vec<u8>> {
        let over_tcp = asker.is_none();
        let elsewhere = asker.map(|asker| (&self.elsewhere, asker));
        (self.responder)(Question { wire, over_tcp, usual: self.answer(wire, over_tcp), elsewhere })
    }

    fn note(&self, wire: &[u8], over_tcp: bool) {
        let (name, kind) =
            match Message::from_vec(wire).ok().and_then(|message| message.queries.into_iter().next()) {
                Some(question) => (question.name().to_ascii(), question.query_type()),
                None => ("(unreadable)".into(), RecordType::ZERO),
            };
        let asked = Asked { name, kind, over_tcp, wire: wire.to_vec() };
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
    }

    fn delay(&self) -> Duration {
        *self.delay.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, query: &[u8], peer: SocketAddr) {
        for reply in self.replies(query, Some(peer)) {
            // The asker may be gone; then nobody misses the answer.
            let _ = self.udp.send_to(&reply, peer);
        }
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// Adds the answers for `name`, along its CNAMEs as far as this server knows them.
fn follow(zone: &Zone, mut name: Name, kind: RecordType, reply: &mut Message) -> ResponseCode {
    for _ in 0..16 {
        let Some((ttl, records)) = zone.look_up(&name, kind) else { return ResponseCode::NXDomain };
        let next = records.iter().find_map(|data| match data {
            RData::CNAME(target) if kind != RecordType::CNAME => Some(target.0.clone()),
            _ => None,
        });
        for data in records {
            reply.add_answer(Record::from_rdata(name.clone(), ttl, data));
        }
        match next {
            Some(target) => name = target,
            None => return ResponseCode::NoError,
        }
    }
    ResponseCode::NoError
}

fn serve_udp(core: &Arc<Core>) {
    let mut buffer = [0; 4096];
    while let Ok((length, peer)) = core.udp.recv_from(&mut buffer) {
        if core.stopped() {
            break;
        }
        let Some(query) = buffer.get(..length) else { continue };
        core.note(query, false);
        let delay = core.delay();
        if delay.is_zero() {
            core.send(query, peer);
        } else {
            let (core, query) = (core.clone(), query.to_vec());
            thread::spawn(move || {
                thread::sleep(delay);
                core.send(&query, peer);
            });
        }
    }
}

fn serve_tcp(core: &Arc<Core>) {
    while let Ok((stream, _)) = core.tcp.accept() {
        let core = core.clone();
        // A client that breaks off is none of the server's business.
        thread::spawn(move || drop(serve_stream(&core, stream)));
    }
}

fn serve_stream(core: &Core, mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(TCP_PATIENCE))?;
    while !core.stopped() {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut query)?;
        core.note(&query, true);
        thread::sleep(core.delay());
        for reply in core.replies(&query, None) {
            let length = u16::try_from(reply.len()).map_err(io::Error::other)?;
            stream.write_all(&[&length.to_be_bytes()[..], &reply].concat())?;
        }
    }
    Ok(())
}
