//! Stand-in origins: each connection's behaviour is chosen by the address that was dialled, and everything is remembered.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::json;

use super::{Namespace, http::Request};

/// How many bytes of a connection are remembered; the rest is only counted.
const REMEMBERED: usize = 1 << 20;

/// What an origin does with a connection.
#[derive(Clone)]
pub enum Behaviour {
    /// Speaks HTTP/1.1 and answers each whole request with what it received, as JSON.
    Http,
    /// Answers each whole request with these bytes, whatever they are.
    Reply(Vec<u8>),
    /// Sends every byte back.
    Echo,
    /// Speaks first, then echoes.
    Banner(Vec<u8>),
    /// Answers an upgrade with 101 and echoes every byte behind it (RFC 6455 frames pass as bytes).
    WebSocket,
    /// Reads and never answers.
    Silent,
    /// As [`Behaviour::Http`], a byte at a time with this pause between.
    Slow(Duration),
    /// Anything else: gets the stream, and notes what it reads.
    Custom(Arc<Custom>),
}

/// A behaviour of the caller's own.
pub type Custom = dyn Fn(TcpStream, &Contact) -> io::Result<()> + Send + Sync;

/// One connection that an origin accepted.
pub struct Contact {
    /// The address and port that were dialled (`getsockname`).
    pub dialled: SocketAddr,
    /// Who dialled.
    pub from: SocketAddr,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    received: Vec<u8>,
    total: u64,
    closed: bool,
    /// The server name of a TLS hello, where the behaviour speaks TLS.
    server_name: Option<String>,
    /// The connection while it is served, so that the origin's end can end it.
    stream: Option<TcpStream>,
}

/// A listener in the world with its connections; it ends with this value.
pub struct Origin {
    core: Arc<Core>,
}

struct Core {
    listener: TcpListener,
    stopped: AtomicBool,
    contacts: Mutex<Vec<Arc<Contact>>>,
}

impl Origin {
    /// Listens on `address`; `[::]:PORT` is every host of the world on that port. `behave` is asked with the address that
    /// was dialled.
    pub fn serve(
        world: &Namespace,
        address: SocketAddr,
        behave: impl Fn(SocketAddr) -> Behaviour + Send + 'static,
    ) -> io::Result<Origin> {
        let listener = world.tcp_listen(address)?;
        let core = Arc::new(Core { listener, stopped: AtomicBool::new(false), contacts: Mutex::default() });
        let accepting = core.clone();
        thread::Builder::new().name("lab-origin".into()).spawn(move || accept(&accepting, behave))?;
        Ok(Origin { core })
    }

    /// Every connection so far, the oldest first.
    #[must_use]
    pub fn contacts(&self) -> Vec<Arc<Contact>> {
        self.core.contacts().clone()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.core.stopped.store(true, Ordering::Relaxed);
        // On Linux this wakes a blocked accept, which then fails.
        let _ = rustix::net::shutdown(&self.core.listener, rustix::net::Shutdown::Both);
        for contact in self.core.contacts().drain(..) {
            if let Some(stream) = contact.seen().stream.take() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Core {
    fn contacts(&self) -> MutexGuard<'_, Vec<Arc<Contact>>> {
        self.contacts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contact {
    /// What was received so far (the first MiB).
    #[must_use]
    pub fn received(&self) -> Vec<u8> {
        self.seen().received.clone()
    }

    /// How many bytes were received.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.seen().total
    }

    /// Whether the connection is over.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.seen().closed
    }

    /// The whole HTTP/1 requests among what was received.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        Request::read_all(&self.seen().received)
    }

    /// The TLS server name, where the behaviour noted one.
    #[must_use]
    pub fn server_name(&self) -> Option<String> {
        self.seen().server_name.clone()
    }

    /// Notes bytes that a [`Behaviour::Custom`] read (after its TLS, say).
    pub fn note(&self, bytes: &[u8]) {
        let mut seen = self.seen();
        seen.total += bytes.len() as u64;
        let room = REMEMBERED.saturating_sub(seen.received.len());
        seen.received.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
    }

    /// Notes the TLS server name.
    pub fn note_server_name(&self, name: &str) {
        self.seen().server_name = Some(name.to_owned());
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(core: &Arc<Core>, behave: impl Fn(SocketAddr) -> Behaviour) {
    while let Ok((stream, from)) = core.listener.accept() {
        if core.stopped.load(Ordering::Relaxed) {
            break;
        }
        // A connection that is gone before it could be looked at was still a contact, but has nothing to tell.
        let (Ok(dialled), Ok(held)) = (stream.local_addr(), stream.try_clone()) else { continue };
        let dialled = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let seen = Seen { stream: Some(held), ..Seen::default() };
        let contact = Arc::new(Contact { dialled, from, seen: seen.into() });
        core.contacts().push(contact.clone());
        let behaviour = behave(dialled);
        thread::spawn(move || {
            // The peer may break off at any time; what it did until then is on record.
            let _ = serve(&behaviour, stream, &contact);
            let mut seen = contact.seen();
            seen.closed = true;
            seen.stream = None;
        });
    }
}

fn serve(behaviour: &Behaviour, mut stream: TcpStream, contact: &Contact) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match behaviour {
        Behaviour::Http => {
            serve_http(&mut stream, contact, |request| echo_of(request, contact), Duration::ZERO)
        }
        Behaviour::Slow(pause) => {
            serve_http(&mut stream, contact, |request| echo_of(request, contact), *pause)
        }
        Behaviour::Reply(bytes) => serve_http(&mut stream, contact, |_| bytes.clone(), Duration::ZERO),
        Behaviour::Echo => echo(&mut stream, contact),
        Behaviour::Banner(banner) => {
            stream.write_all(banner)?;
            echo(&mut stream, contact)
        }
        Behaviour::WebSocket => {
            serve_http_once(&mut stream, contact)?;
            echo(&mut stream, contact)
        }
        Behaviour::Silent => {
            while !receive(&mut stream, contact)?.is_empty() {}
            Ok(())
        }
        Behaviour::Custom(custom) => custom(stream, contact),
    }
}

fn serve_http(
    stream: &mut TcpStream,
    contact: &Contact,
    answer: impl Fn(&Request) -> Vec<u8>,
    pause: Duration,
) -> io::Result<()> {
    let mut pending = Vec::new();
    loop {
        while let Some((request, length)) = Request::read(&pending) {
            pending.drain(..length);
            let answer = answer(&request);
            if pause.is_zero() {
                stream.write_all(&answer)?;
            } else {
                for byte in answer {
                    stream.write_all(&[byte])?;
                    thread::sleep(pause);
                }
            }
            if request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
                return stream.shutdown(Shutdown::Write);
            }
        }
        let bytes = receive(stream, contact)?;
        if bytes.is_empty() {
            return Ok(());
        }
        pending.extend_from_slice(&bytes);
    }
}

/// Waits for one whole request and switches protocols.
fn serve_http_once(stream: &mut TcpStream, contact: &Contact) -> io::Result<()> {
    let mut pending = Vec::new();
    loop {
        if let Some((request, length)) = Request::read(&pending) {
            let upgrade = request.header("upgrade").unwrap_or("websocket");
            write!(
                stream,
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
            )?;
            return stream.write_all(pending.get(length..).unwrap_or_default());
        }
        let bytes = receive(stream, contact)?;
        if bytes.is_empty() {
            return Ok(());
        }
        pending.extend_from_slice(&bytes);
    }
}

fn echo(stream: &mut TcpStream, contact: &Contact) -> io::Result<()> {
    loop {
        let bytes = receive(stream, contact)?;
        if bytes.is_empty() {
            return stream.shutdown(Shutdown::Write);
        }
        stream.write_all(&bytes)?;
    }
}

fn receive(stream: &mut TcpStream, contact: &Contact) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 16 * 1024];
    let length = stream.read(&mut buffer)?;
    buffer.truncate(length);
    contact.note(&buffer);
    Ok(buffer)
}

/// What an echoing origin says about a request: everything that it received.
#[must_use]
pub fn echo_of(request: &Request, contact: &Contact) -> Vec<u8> {
    let body = json!({
        "method": request.method,
        "target": request.target,
        "headers": request.headers,
        "body": String::from_utf8_lossy(&request.body),
        "dialled": contact.dialled.to_string(),
    })
    .to_string();
    let length = body.len();
    let body = if request.method == "HEAD" { "" } else { &body };
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}
