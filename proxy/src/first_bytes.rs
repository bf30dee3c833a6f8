//! What a tunnel's first bytes must be (step 9 of the decision): TLS with the right name, HTTP for the right host,
//! or whatever the two sides say.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use policy::{FirstBytes, Peer, Reason, Shown};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::Connection;
use crate::gateway::Client;
use crate::http::inside::Inside;
use crate::http::leg::Leg;
use crate::live::Session;
use crate::open::Opened;
use crate::tcp::client_hello::{ClientHello, HelloReader, Progress};
use crate::tcp::retry::{AfterHello, Answer, answer};
use crate::tunnel::{Meter, Tunnel};

/// A client speaks first and at once where it must; one that does not within this time is closed.
const FIRST_WITHIN: Duration = Duration::from_secs(10);

/// How long a refused client may take to hear of it.
const ALERT_WITHIN: Duration = Duration::from_secs(1);

/// The first byte of TLS: a handshake record.
const TLS: u8 = 0x16;

/// A fatal alert, access_denied (RFC 8446 §6.2).
pub(crate) const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// A client and its upstream, both answered.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) tunnel: Tunnel,
    pub(crate) session: Session,
    pub(crate) peer: Peer,
    pub(crate) client: Client,
    /// Whether the client's first bytes are known to be the head of a request, on whatever port.
    pub(crate) is_http: bool,
}

/// What has become of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// It has ended.
    Whole,
    /// It begins as HTTP; nothing has been passed on.
    Http,
}

/// Why a tunnel ends before its copying begins.
enum Ended {
    /// One of the sides has gone, or the tunnel was killed.
    Gone,
    /// The first bytes are not what they must be.
    Cut(Reason),
}

impl Established {
    /// `early` is what the client sent behind its request.
    pub(crate) fn new(connection: Connection, early: Vec<u8>, opened: Opened) -> Self {
        let Connection { stream, peer, client, .. } = connection;
        let Opened { upstream, early: said, session } = opened;
        session.meter().add_up(early.len());
        session.meter().add_down(said.len());
        let tunnel = Tunnel {
            client: stream,
            upstream,
            to_upstream: early,
            to_client: said,
            meter: Arc::clone(session.meter()),
            idle: session.idle(client.gateway().timeouts.idle),
        };
        Self { tunnel, session, peer, client, is_http: false }
    }

    /// Checks the first bytes and copies until the end, which is recorded when this is dropped; unless they are HTTP.
    pub(crate) async fn carry(&mut self) -> Carried {
        // The checks are boxed: what they need is given back before the copying, which may last for days.
        let checked = match self.session.permit().first_bytes() {
            FirstBytes::Raw => Ok(()),
            FirstBytes::Tls => Box::pin(self.check_hello()).await,
            FirstBytes::Any if self.is_http => return Carried::Http,
            FirstBytes::Any => match self.tunnel.run_unless(TLS).await {
                Some(closed) => {
                    self.session.note(closed);
                    return Carried::Whole;
                }
                None => Box::pin(self.check_hello()).await,
            },
            FirstBytes::Http => match Box::pin(self.speaks_tls()).await {
                Ok(true) => Box::pin(self.check_hello()).await,
                Ok(false) => return Carried::Http,
                Err(ended) => Err(ended),
            },
        };
        match checked {
            Ok(()) => {
                let closed = self.tunnel.run().await;
                self.session.note(closed);
            }
            Err(ended) => Box::pin(self.end(ended)).await,
        }
        Carried::Whole
    }

    /// Waits for the first byte. TLS is judged by its hello, anything else must be HTTP.
    async fn speaks_tls(&mut self) -> Result<bool, Ended> {
        if self.tunnel.to_upstream.is_empty() {
            let mut bytes = Vec::new();
            // Clients open connections ahead of their first request.
            let deadline = Instant::now() + self.tunnel.idle;
            self.read_client(&mut bytes, deadline, Ended::Gone).await?;
            self.tunnel.to_upstream = bytes;
        }
        Ok(self.tunnel.to_upstream.first() == Some(&TLS))
    }

    /// Serves the requests inside, one by one.
    pub(crate) async fn serve_http(self) {
        let Self { tunnel, session, peer, client, .. } = self;
        let counted = tunnel.to_upstream.len();
        let inside = Inside { client: &client, peer: &peer, tunnel: session, counted };
        inside
            .serve(Leg::new(tunnel.client, tunnel.to_upstream), Leg::new(tunnel.upstream, tunnel.to_client))
            .await;
    }

    /// Has the client's hello judged and passes it on; then the second one, if the server asks for it.
    async fn check_hello(&mut self) -> Result<(), Ended> {
        let first = mem::take(&mut self.tunnel.to_upstream);
        let (mut hello, behind) = self.read_hello(first).await?;
        let mut after = AfterHello::default();
        hello.extend(after.pass(&behind));
        let meter = Arc::clone(&self.tunnel.meter);
        alive(&meter, self.tunnel.upstream.write_all(&hello)).await?;
        drop(hello);
        let mut server = mem::take(&mut self.tunnel.to_client);
        loop {
            match self.next(&mut server, !after.is_handshake()).await? {
                Said::Server => match answer(&server) {
                    Answer::NeedMore => {}
                    Answer::Other => break,
                    Answer::Retry => return self.check_second_hello(server, after).await,
                },
                Said::Client(bytes) => {
                    let passing = after.pass(&bytes);
                    alive(&meter, self.tunnel.upstream.write_all(&passing)).await?;
                }
                // Whichever end it is, the copying will meet it again.
                Said::Nothing => break,
            }
        }
        self.tunnel.to_client = server;
        self.tunnel.to_upstream = after.into_held();
        Ok(())
    }

    /// `server` asks for another hello, which may name another server.
    async fn check_second_hello(&mut self, mut server: Vec<u8>, mut after: AfterHello) -> Result<(), Ended> {
        let meter = Arc::clone(&self.tunnel.meter);
        loop {
            // The request may be longer than what told it apart.
            alive(&meter, self.tunnel.client.send(&server)).await?;
            server.clear();
            if after.is_handshake() {
                break;
            }
            match self.next(&mut server, true).await? {
                Said::Server => {}
                Said::Client(bytes) => {
                    let passing = after.pass(&bytes);
                    alive(&meter, self.tunnel.upstream.write_all(&passing)).await?;
                }
                Said::Nothing => return Err(Ended::Gone),
            }
        }
        let (mut hello, behind) = self.read_hello(after.into_held()).await?;
        hello.extend(behind);
        self.tunnel.to_upstream = hello;
        Ok(())
    }

    /// Reads a hello that begins with `bytes` and has it judged. Returns its records, and what came behind them.
    async fn read_hello(&mut self, mut bytes: Vec<u8>) -> Result<(Vec<u8>, Vec<u8>), Ended> {
        let deadline = Instant::now() + FIRST_WITHIN;
        let mut reader = HelloReader::default();
        loop {
            match reader.feed(&bytes) {
                Progress::NeedMore => bytes.clear(),
                Progress::NotTls => return Err(Ended::Cut(Reason::TlsRequired)),
                Progress::Invalid(_) => return Err(Ended::Cut(Reason::HelloInvalid)),
                Progress::Hello(hello) => {
                    self.judge(hello)?;
                    return Ok(reader.into_parts());
                }
            }
            self.read_client(&mut bytes, deadline, Ended::Cut(Reason::HelloInvalid)).await?;
        }
    }

    fn judge(&mut self, hello: ClientHello) -> Result<(), Ended> {
        let permit = self.session.permit();
        let shown = hello.server_name.as_ref().map_or(Shown::NoSni, Shown::Sni);
        let judged = match hello.ech && permit.refuses_ech() {
            true => Err(Reason::EchPresent),
            false => self.client.gateway().gate.judge_shown(permit, shown),
        };
        if let Some(name) = hello.server_name {
            self.session.shows(name);
        }
        judged.map_err(Ended::Cut)
    }

    /// Reads once from the client; `late` is what its silence means.
    async fn read_client(&mut self, into: &mut Vec<u8>, deadline: Instant, late: Ended) -> Result<(), Ended> {
        let Tunnel { client, meter, .. } = &mut self.tunnel;
        match timeout_at(deadline, alive(meter, client.read_more(into))).await {
            Ok(Ok(0)) => Err(Ended::Gone),
            Ok(Ok(bytes)) => {
                meter.add_up(bytes);
                Ok(())
            }
            Ok(Err(ended)) => Err(ended),
            Err(_) => Err(late),
        }
    }

    /// Waits for either side; what the server says is appended to `server`. The client is only listened to where it
    /// may speak.
    async fn next(&mut self, server: &mut Vec<u8>, may_speak: bool) -> Result<Said, Ended> {
        let Tunnel { client, upstream, meter, idle, .. } = &mut self.tunnel;
        let mut bytes = Vec::new();
        let said = poll_fn(|cx| {
            match upstream.poll_read_more(cx, server) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(Said::Nothing)),
                Poll::Ready(Ok(more)) => {
                    meter.add_down(more);
                    return Poll::Ready(Ok(Said::Server));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
            if !may_speak {
                return Poll::Pending;
            }
            match ready!(client.poll_read_more(cx, &mut bytes))? {
                0 => Poll::Ready(Ok(Said::Nothing)),
                more => {
                    meter.add_up(more);
                    Poll::Ready(Ok(Said::Client(mem::take(&mut bytes))))
                }
            }
        });
        timeout(*idle, alive(meter, said)).await.unwrap_or(Err(Ended::Gone))
    }

    /// Ends a tunnel whose first bytes were not to be passed on.
    async fn end(&mut self, ended: Ended) {
        if let Ended::Cut(reason) = ended {
            self.session.cut(reason);
            // To whoever speaks TLS, in TLS; a client that said nothing or something else would not understand.
            if reason != Reason::TlsRequired && self.tunnel.meter.up() > 0 {
                let _ = timeout(ALERT_WITHIN, self.tunnel.client.send(&ACCESS_DENIED)).await;
            }
        }
        self.tunnel.client.reset_on_close();
        self.tunnel.upstream.reset_on_close();
    }
}

/// What happened first.
enum Said {
    Server,
    Client(Vec<u8>),
    /// One of them has finished.
    Nothing,
}

/// Does something unless the tunnel is killed meanwhile.
async fn alive<T>(meter: &Meter, work: impl Future<Output = io::Result<T>>) -> Result<T, Ended> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if meter.poll_killed(cx).is_ready() {
            return Poll::Ready(Err(Ended::Gone));
        }
        if meter.is_held() {
            return Poll::Pending;
        }
        work.as_mut().poll(cx).map_err(|_| Ended::Gone)
    })
    .await
}
