//! A client of the proxy port that sends exactly the bytes it is told to, and reads with limits.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use serde_json::Value;
use tidegate::lab::{Lab, Namespace};

use super::PATIENCE;

/// No answer in a test is larger.
const LIMIT: usize = 64 << 20;

/// One connection.
pub struct Client {
    stream: TcpStream,
    /// Everything received so far.
    received: Vec<u8>,
    /// How much of it was taken as responses.
    taken: usize,
    ended: bool,
}

/// An HTTP response as it stood on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub phrase: String,
    /// Header fields in order.
    pub headers: Vec<(String, String)>,
    /// The body without its framing; of a 2xx without length everything that follows.
    pub body: Vec<u8>,
    /// Whether the response has no length of its own: a tunnel, or a body up to the connection's end.
    pub open_ended: bool,
}

/// The second byte of a SOCKS5 reply (RFC 1928 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocksReply(pub u8);

impl Client {
    /// Connects from the gateway's host.
    pub fn connect(lab: &Lab, to: SocketAddr) -> Client {
        Client::try_connect(lab, to).unwrap_or_else(|error| panic!("{to}: {error}"))
    }

    /// As [`Client::connect`], for a listener that may be gone.
    pub fn try_connect(lab: &Lab, to: SocketAddr) -> io::Result<Client> {
        Client::try_connect_from(lab.gateway(), to)
    }

    /// As [`Client::try_connect`], from another host or sandbox.
    pub fn try_connect_from(namespace: &Namespace, to: SocketAddr) -> io::Result<Client> {
        let stream = namespace.tcp_connect(to, PATIENCE)?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, received: Vec::new(), taken: 0, ended: false })
    }

    /// Sends bytes. The peer may have closed already; then what it said before is what counts.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Ends the sending direction.
    pub fn half_close(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The stream itself, for TLS on top; everything received so far must have been taken.
    pub fn into_stream(self) -> TcpStream {
        assert_eq!(self.taken, self.received.len(), "bytes would be lost");
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        self.stream
    }

    /// Waits at most `patience` for more bytes; whether some came.
    pub fn read_more(&mut self, patience: Duration) -> bool {
        if self.ended {
            return false;
        }
        // Zero would mean "no limit" (SO_RCVTIMEO).
        self.stream.set_read_timeout(Some(patience.max(Duration::from_millis(1)))).unwrap();
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(length) => self.received.extend_from_slice(&buffer[..length]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return false;
            }
            Err(_) => self.ended = true,
        }
        assert!(self.received.len() <= LIMIT, "an answer without end");
        !self.ended
    }

    /// Reads until `marker` has come at or behind `from`; where it ends.
    pub fn wait_for(&mut self, from: usize, marker: &[u8]) -> Option<usize> {
        let until = Instant::now() + PATIENCE;
        loop {
            let at = self.received[from..].windows(marker.len()).position(|window| window == marker);
            if let Some(at) = at {
                return Some(from + at + marker.len());
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.ended || left.is_zero() {
                return None;
            }
            self.read_more(left);
        }
    }

    /// Takes the next whole response.
    pub fn response(&mut self) -> Response {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some((response, length)) = Response::read(self.rest(), self.ended) {
                self.taken += length;
                return response;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(
                !self.ended && !left.is_zero(),
                "no response, only {:?}",
                String::from_utf8_lossy(self.rest())
            );
            self.read_more(left);
        }
    }

    /// Takes exactly `length` bytes.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let until = Instant::now() + PATIENCE;
        while self.rest().len() < length {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!self.ended && !left.is_zero(), "{length} bytes wanted, only {:?}", self.rest());
            self.read_more(left);
        }
        let taken = self.rest()[..length].to_vec();
        self.taken += length;
        taken
    }

    /// Waits for the peer's end and takes everything before it.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let until = Instant::now() + PATIENCE;
        while !self.ended {
            let left = until.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "the peer did not close; so far {:?}",
                String::from_utf8_lossy(self.rest())
            );
            self.read_more(left);
        }
        let rest = self.rest().to_vec();
        self.taken = self.received.len();
        rest
    }

    /// Everything received, taken or not.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    /// Whether the peer closed or reset.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Asks for `host:port` by SOCKS5 without authentication. A `host` that is an address goes as an address.
    pub fn socks5(&mut self, host: &str, port: u16) -> SocksReply {
        self.send(&[5, 1, 0]);
        assert_eq!(self.take(2), [5, 0], "the method without authentication");
        self.socks5_request(host, port)
    }

    /// Asks for `host:port` once the method is agreed upon.
    pub fn socks5_request(&mut self, host: &str, port: u16) -> SocksReply {
        let mut request = vec![5, 1, 0];
        match host.parse() {
            Ok(std::net::IpAddr::V4(v4)) => request.extend([&[1][..], &v4.octets()].concat()),
            Ok(std::net::IpAddr::V6(v6)) => request.extend([&[4][..], &v6.octets()].concat()),
            Err(_) => request.extend([&[3, u8::try_from(host.len()).unwrap()][..], host.as_bytes()].concat()),
        }
        request.extend(port.to_be_bytes());
        self.send(&request);
        let head = self.take(4);
        let address = match head[3] {
            1 => 4,
            4 => 16,
            other => panic!("address type {other} in a SOCKS5 reply"),
        };
        self.take(address + 2);
        SocksReply(head[1])
    }

    fn rest(&self) -> &[u8] {
        &self.received[self.taken..]
    }
}

impl Response {
    /// The first response in `bytes` and its length; `None` while something is missing. `ended` says that no more comes.
    pub fn read(bytes: &[u8], ended: bool) -> Option<(Response, usize)> {
        let head_length = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&bytes[..head_length - 4]).into_owned();
        let mut lines = head.split("\r\n");
        let mut status_line = lines.next()?.splitn(3, ' ');
        let status = status_line.nth(1)?.parse().ok()?;
        let phrase = status_line.next().unwrap_or_default().to_owned();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        let mut response = Response { status, phrase, headers, body: Vec::new(), open_ended: false };
        let rest = &bytes[head_length..];
        let length = if matches!(status, 100..=199 | 204 | 304) && status != 101 {
            0
        } else if response.header("transfer-encoding").is_some() {
            let (body, length) = read_chunked(rest)?;
            response.body = body;
            return Some((response, head_length + length));
        } else if let Some(length) = response.header("content-length") {
            length.parse().ok()?
        } else {
            response.open_ended = true;
            rest.len()
        };
        if rest.len() < length && !ended {
            return None;
        }
        let length = length.min(rest.len());
        response.body = rest[..length].to_vec();
        Some((response, head_length + length))
    }

    /// Every response in `bytes`. One that is open-ended is the last.
    pub fn read_all(bytes: &[u8], ended: bool) -> Vec<Response> {
        let mut responses = Vec::new();
        let mut at = 0;
        while let Some((response, length)) = Response::read(&bytes[at..], ended) {
            at += length;
            responses.push(response);
        }
        responses
    }

    /// The first value of a field.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The denial's reason code.
    pub fn reason(&self) -> Option<&str> {
        self.header("tidegate-reason")
    }

    /// The body read as JSON.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Whether the body follows the head without a length: the bytes of a tunnel.
    pub fn is_tunnel(&self) -> bool {
        self.open_ended && (self.status == 101 || (200..300).contains(&self.status))
    }
}

fn read_chunked(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let line = bytes[at..].windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        at += line + 2;
        if size == 0 {
            let end = bytes[at..].windows(2).position(|window| window == b"\r\n")?;
            return Some((body, at + end + 2));
        }
        body.extend_from_slice(bytes.get(at..at + size)?);
        at += size + 2;
    }
}
