//! Questions over UDP: a few connected sockets on random ports that are replaced all the time, many questions on each.
//!
//! A socket for each question costs about twenty system calls and one descriptor a question (measured with hickory's
//! client), so that a silent upstream uses up a gateway's descriptors. One socket for everything would let an attacker
//! learn its port. Here a question goes out on one of a few sockets taken at random, each of which serves a random
//! number of questions for a short time; the kernel drops what comes from any address but the upstream's, and what
//! has the wrong id or repeats another question is ignored.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use policy::{Hostname, QType};
use rand::Rng;
use tokio::io::Interest;
use tokio::sync::{Notify, oneshot};

use crate::answer::Answer;
use crate::batch::{Batch, MAX_DATAGRAM};
use crate::error::LookupError;
use crate::socket::Socket as Datagram;
use crate::upstream::tcp;
use crate::wire::{HEADER, TC, answers, write_query};

/// Sockets to one upstream at once.
const SOCKETS: usize = 8;

/// Questions that wait on one socket; ids are 16 bits, and guessing one must stay hard.
const MAX_WAITING: usize = 1024;

/// How long a socket takes new questions.
const LIFETIME: Duration = Duration::from_secs(60);

/// How many questions a socket takes.
const QUESTIONS: std::ops::Range<u32> = 256..1024;

/// Datagrams that fit no question: past this many, somebody guesses at the socket's port and ids.
const MAX_STRAYS: u32 = 256;

/// Answers on one socket that are read together.
const BATCH: usize = 8;

/// The sockets to one upstream.
#[derive(Debug)]
pub(crate) struct Datagrams {
    server: SocketAddr,
    /// How often a socket could not be opened.
    failures: AtomicU32,
    sockets: [Mutex<Option<Arc<Socket>>>; SOCKETS],
}

impl Datagrams {
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self { server, failures: AtomicU32::new(0), sockets: Default::default() }
    }

    /// Asks once. The caller holds the clock.
    pub(crate) async fn ask(&self, name: &Hostname, qtype: QType) -> Result<Answer, LookupError> {
        let socket = self.socket().map_err(|error| self.cannot_open(&error))?;
        let mut waiting = socket.enter(name, qtype).ok_or(LookupError::Overloaded)?;
        let query = write_query(waiting.id, name, qtype);
        socket.udp.send(&query).await.map_err(|_| LookupError::Unreachable)?;
        let message = (&mut waiting.reply).await.map_err(|_| LookupError::Unreachable)?;
        let truncated = message.get(2).is_some_and(|flags| u16::from(*flags) << 8 & TC != 0);
        if !truncated {
            return Answer::read(&message, name, qtype, Instant::now());
        }
        let message = tcp::exchange(self.server, &query).await?;
        if !message.starts_with(&waiting.id.to_be_bytes()) || !answers(&message, name, qtype) {
            return Err(LookupError::Malformed);
        }
        Answer::read(&message, name, qtype, Instant::now())
    }

    /// Tells the operator, who may have to raise a limit: at the first failure and ever more rarely, since a sandbox
    /// can cause as many as it asks questions.
    fn cannot_open(&self, error: &std::io::Error) -> LookupError {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures.is_power_of_two() {
            tracing::warn!(%error, server = %self.server, failures, "cannot open a socket to a DNS upstream");
        }
        LookupError::Unreachable
    }

    /// One of the sockets at random, opened or replaced where that is due.
    fn socket(&self) -> std::io::Result<Arc<Socket>> {
        let place = rand::rng().random_range(0..SOCKETS);
        let Some(slot) = self.sockets.get(place) else { return Err(std::io::ErrorKind::NotFound.into()) };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = slot.as_ref().filter(|socket| socket.takes_more()) {
            return Ok(Arc::clone(socket));
        }
        let socket = Arc::new(Socket::open(self.server)?);
        tokio::spawn(Arc::clone(&socket).deliver());
        if let Some(former) = slot.replace(Arc::clone(&socket)) {
            former.retire();
        }
        Ok(socket)
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        for slot in &mut self.sockets {
            if let Some(socket) = slot.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
                socket.retire();
            }
        }
    }
}

/// One connected socket and the questions that wait on it.
#[derive(Debug)]
struct Socket {
    udp: Datagram,
    opened: Instant,
    questions_left: AtomicU32,
    strays: AtomicU32,
    table: Mutex<Table>,
    /// Told when the last question of a retired socket is gone.
    drained: Notify,
}

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<u16, Question>,
    retired: bool,
}

#[derive(Debug)]
struct Question {
    name: Hostname,
    qtype: QType,
    reply: oneshot::Sender<Box<[u8]>>,
}

/// A question that waits on a socket, until it is dropped.
struct Waiting<'s> {
    socket: &'s Socket,
    id: u16,
    reply: oneshot::Receiver<Box<[u8]>>,
}

impl Socket {
    /// Binds to port 0: the kernel takes a free port at random.
    fn open(server: SocketAddr) -> std::io::Result<Self> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let udp = std::net::UdpSocket::bind(any)?;
        #[expect(clippy::disallowed_methods, reason = "an upstream socket of the resolver")]
        udp.connect(server)?;
        udp.set_nonblocking(true)?;
        Ok(Self {
            udp: Datagram::new(udp)?,
            opened: Instant::now(),
            questions_left: AtomicU32::new(rand::rng().random_range(QUESTIONS)),
            strays: AtomicU32::new(0),
            table: Mutex::default(),
            drained: Notify::new(),
        })
    }

    fn takes_more(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.strays.load(Ordering::Relaxed) < MAX_STRAYS
            && self.opened.elapsed() < LIFETIME
            && self.questions_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a question under a random id; `None` where too many wait.
    fn enter(&self, name: &Hostname, qtype: QType) -> Option<Waiting<'_>> {
        let (sender, reply) = oneshot::channel();
        let question = Question { name: name.clone(), qtype, reply: sender };
        let mut table = self.table();
        if table.waiting.len() >= MAX_WAITING {
            return None;
        }
        let mut rng = rand::rng();
        let id = std::iter::repeat_with(|| rng.random()).find(|id| !table.waiting.contains_key(id))?;
        table.waiting.insert(id, question);
        Some(Waiting { socket: self, id, reply })
    }

    fn retire(&self) {
        let mut table = self.table();
        table.retired = true;
        if table.waiting.is_empty() {
            self.drained.notify_one();
        }
    }

    /// Reads answers until the socket is retired and nothing waits on it.
    async fn deliver(self: Arc<Self>) {
        let Ok(mut batch) = Batch::new(&self.udp, BATCH) else { return };
        loop {
            tokio::select! {
                biased;
                () = self.drained.notified() => return,
                ready = self.udp.arrived() => match ready {
                    Ok(ready) if ready.is_error() => self.forsake(),
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
            match batch.receive(&self.udp) {
                Ok(()) => batch.iter().for_each(|(message, _)| self.hand_over(message)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => self.forsake(),
            }
        }
    }

    /// An ICMP error that the kernel matched to this socket: the server does not listen. What waits need not wait on.
    fn forsake(&self) {
        // Epoll reports it until it is taken.
        let _ = self.udp.get().take_error();
        let _ = self.udp.take(Interest::ERROR, |_| Err::<(), _>(std::io::ErrorKind::WouldBlock.into()));
        self.table().waiting.clear();
    }

    /// Gives a message to the question that it answers.
    fn hand_over(&self, message: &[u8]) {
        let id = message.first_chunk().copied().map(u16::from_be_bytes);
        let mut table = self.table();
        let fits = |question: &Question| {
            message.len() > HEADER
                && message.len() < MAX_DATAGRAM
                && answers(message, &question.name, question.qtype)
        };
        match id.filter(|id| table.waiting.get(id).is_some_and(fits)).and_then(|id| table.waiting.remove(&id))
        {
            // The question may be gone by now.
            Some(question) => _ = question.reply.send(message.into()),
            None => _ = self.strays.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut table = self.socket.table();
        table.waiting.remove(&self.id);
        if table.retired && table.waiting.is_empty() {
            self.socket.drained.notify_one();
        }
    }
}
