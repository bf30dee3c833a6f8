//! Reads the head of an HTTP/1 request, so strictly that no two parsers could read it differently.
//!
//! hyper's server is too late for this: it hides Content-Length where Transfer-Encoding is present, and takes
//! bare line feeds, empty lines before a request, and two Hosts (seen with 1.12 by sending raw bytes).

use std::ops::Range;

use policy::destination::{BadDestination, Destination, Port};

use super::framing::Framing;

/// The longest head that is read.
pub const LIMIT: usize = 32 * 1024;

/// The longest request target. Signed URLs reach 8 KiB.
pub const TARGET_LIMIT: usize = 16 * 1024;

/// More header lines than this are refused; browsers send some thirty.
const MOST_FIELDS: usize = 128;

/// The longest method that is registered with IANA has 17 letters.
const METHOD_LIMIT: usize = 32;

/// The head of one request.
#[derive(Debug)]
pub struct RequestHead {
    raw: Vec<u8>,
    line: Line,
    fields: Vec<Field>,
    /// Where the request goes.
    pub target: Target,
    /// What the Host header names, port 80 where it names none. Not given for CONNECT, whose target decides.
    pub host: Option<Destination>,
    /// What follows the head.
    pub body: BodyLength,
    /// Whether the connection may carry another request after this one.
    pub keep_alive: bool,
    /// Whether the client waits for a `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// What the client wants to speak instead of HTTP, if the server agrees.
    pub upgrade: Upgrade,
}

/// The four forms of a request target (RFC 9112 §3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `CONNECT host:port`.
    Authority(Destination),
    /// `http://host[:port]/path?query`, the form that a proxy gets.
    Absolute {
        /// Host and port of the URI; they decide, not the Host header.
        destination: Destination,
        /// Everything behind the authority, byte for byte, at least `/`.
        path_and_query: Box<str>,
    },
    /// `/path?query`, the form that an origin gets.
    Origin {
        /// The target as it stands.
        path_and_query: Box<str>,
    },
    /// `OPTIONS *`.
    Asterisk,
}

/// The versions that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: Python's http.client, socat and ncat send their CONNECT so.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// How long the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    None,
    /// So many bytes; never zero.
    Length(u64),
    /// Chunks, and perhaps trailers.
    Chunked,
}

/// The protocol that a client asks to change to (RFC 9110 §7.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// None.
    None,
    /// WebSocket (RFC 6455).
    WebSocket,
    /// Anything else, h2c among it.
    Other,
}

/// Why a request is refused before it is looked at: the connection ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    /// The first bytes are those of another protocol, or an empty line.
    #[error("not an HTTP/1 request: {0}")]
    Foreign(Foreign),
    /// The request line is not `method SP target SP HTTP/1.x`.
    #[error("malformed request line")]
    RequestLine,
    /// What should be inside TLS comes without it.
    #[error("this listener speaks TLS: write the proxy as https://HOST:PORT")]
    Unencrypted,
    /// The target has none of the forms that are taken here.
    #[error("malformed request target")]
    Target,
    /// Host or port of the target.
    #[error("malformed request target: {0}")]
    Destination(BadDestination),
    /// None where one must be, two, or one that is not `host[:port]`.
    #[error("missing, repeated or malformed Host")]
    Host,
    /// A header line is malformed, is folded, or ends in anything but CR LF.
    #[error("malformed header line")]
    Field,
    /// Content-Length and Transfer-Encoding do not say one thing in one way.
    #[error("ambiguous body length")]
    Framing,
    /// TRACE and TRACK reflect what they get, credentials included.
    #[error("method not supported")]
    Method,
    /// The target is longer than [`TARGET_LIMIT`].
    #[error("request target too long")]
    TargetTooLong,
    /// The head is longer than [`LIMIT`] or has too many lines.
    #[error("request head too large")]
    TooLarge,
    /// The head did not come in time.
    #[error("request head too slow")]
    TooSlow,
}

/// What is sent to HTTP ports by mistake or by design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// A TLS record.
    #[error("TLS")]
    Tls,
    /// SOCKS4.
    #[error("SOCKS4")]
    Socks4,
    /// An empty line, as some clients send after a body; also the start of a PROXY protocol v2 header.
    #[error("an empty line")]
    EmptyLine,
    /// A PROXY protocol v1 header. The client's address is not a claim.
    #[error("a PROXY protocol header")]
    ProxyProtocol,
    /// The preface of HTTP/2.
    #[error("an HTTP/2 preface")]
    Http2,
}

impl BadHead {
    /// The status of the refusal.
    pub const fn status(self) -> u16 {
        match self {
            Self::Foreign(_)
            | Self::Unencrypted
            | Self::RequestLine
            | Self::Target
            | Self::Destination(_)
            | Self::Host
            | Self::Field
            | Self::Framing => 400,
            Self::Method => 405,
            Self::TooSlow => 408,
            Self::TargetTooLong => 414,
            Self::TooLarge => 431,
        }
    }
}

/// The request line, as places in the head.
#[derive(Clone, Debug)]
struct Line {
    method: Range<usize>,
    target: Range<usize>,
    version: Version,
    end: usize,
}

/// A header line, as places in the head.
#[derive(Clone, Debug)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
}

impl RequestHead {
    /// The method, as sent.
    pub fn method(&self) -> &str {
        text(self.raw.get(self.line.method.clone()))
    }

    /// The version of the request.
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// The target, as sent.
    pub fn target_as_sent(&self) -> &str {
        text(self.raw.get(self.line.target.clone()))
    }

    /// Names and values of the header lines, in order, as sent.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> + Clone {
        self.fields.iter().map(|field| {
            (text(self.raw.get(field.name.clone())), self.raw.get(field.value.clone()).unwrap_or_default())
        })
    }

    /// The first value of a header, whatever the case of its name.
    pub fn field<'a>(&'a self, name: &str) -> Option<&'a [u8]> {
        self.fields().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The whole head, byte for byte.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }
}

/// Puts heads together from a connection that may deliver a byte at a time; looks at each byte once.
#[derive(Debug, Default)]
pub struct HeadReader {
    buffer: Vec<u8>,
    scanned: usize,
    line: Option<Line>,
}

impl HeadReader {
    /// A reader that has these bytes already; the next [`HeadReader::feed`] looks at them.
    pub fn starting_with(bytes: Vec<u8>) -> Self {
        Self { buffer: bytes, scanned: 0, line: None }
    }

    /// Whether what has come begins as a CONNECT.
    pub fn shows_connect(&self) -> bool {
        self.buffer.starts_with(b"CONNECT ")
    }

    /// Takes the next bytes of the connection. Returns the head once it is whole; what follows it stays, and is
    /// the beginning of the body or of the next request.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<RequestHead>, BadHead> {
        self.buffer.extend_from_slice(bytes);
        if self.scanned == 0
            && let Some(&first) = self.buffer.first()
        {
            first_byte(first)?;
        }
        while let Some(&byte) = self.buffer.get(self.scanned) {
            let before = self.scanned.checked_sub(1).and_then(|at| self.buffer.get(at));
            match (before, byte) {
                (Some(b'\r'), b'\n') => {
                    self.scanned += 1;
                    if self.line.is_none() {
                        self.line = Some(request_line(&self.buffer, self.scanned)?);
                    } else if self.buffer.get(..self.scanned).is_some_and(|head| head.ends_with(b"\r\n\r\n"))
                    {
                        return self.finish().map(Some);
                    }
                }
                // RFC 9112 §2.2: neither may stand alone; some parsers end a line at either.
                (Some(b'\r'), _) | (_, b'\n' | 0) => {
                    return Err(if self.line.is_none() { BadHead::RequestLine } else { BadHead::Field });
                }
                _ => self.scanned += 1,
            }
            if self.line.is_none() && self.scanned > TARGET_LIMIT + METHOD_LIMIT {
                return Err(too_long(self.shows_connect()));
            }
            if self.scanned > LIMIT {
                return Err(BadHead::TooLarge);
            }
        }
        Ok(None)
    }

    /// Whether nothing of a request has come.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// What is there of the target, for the record of a request that was refused; else its first bytes.
    pub fn shown(&self) -> &[u8] {
        let start = self.buffer.get(..self.buffer.len().min(80)).unwrap_or_default();
        self.line.as_ref().and_then(|line| self.buffer.get(line.target.clone())).unwrap_or(start)
    }

    /// Takes what has come behind the last head.
    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(self).buffer
    }

    fn finish(&mut self) -> Result<RequestHead, BadHead> {
        let line = self.line.as_ref().ok_or(BadHead::RequestLine)?;
        let head = self.buffer.get(..self.scanned).unwrap_or_default();
        let fields = fields(head, line.end)?;
        let framing = Framing::of(
            line.version,
            fields.iter().map(|field| {
                (text(head.get(field.name.clone())), head.get(field.value.clone()).unwrap_or_default())
            }),
        )?;
        let method = head.get(line.method.clone()).unwrap_or_default();
        let target = target(method, head.get(line.target.clone()).unwrap_or_default())?;
        let host = host(&target, line.version, &framing)?;
        if method == b"CONNECT" && framing.body != BodyLength::None {
            // A body of CONNECT has no meaning (RFC 9110 §9.3.6); guessing one would lose the place.
            return Err(BadHead::Framing);
        }
        let Framing { body, keep_alive, expect_continue, upgrade, .. } = framing;
        let rest = self.buffer.split_off(self.scanned);
        let raw = std::mem::replace(&mut self.buffer, rest);
        self.scanned = 0;
        let Some(line) = self.line.take() else { return Err(BadHead::RequestLine) };
        Ok(RequestHead { raw, line, fields, target, host, body, keep_alive, expect_continue, upgrade })
    }
}

/// Whether bytes begin as a request line does: a method, a target and `HTTP/`. `None` while that cannot be told.
pub(crate) fn begins_request(bytes: &[u8]) -> Option<bool> {
    let mut parts = bytes.splitn(3, |&byte| byte == b' ');
    let (method, target, version) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let is_method = method.len() <= METHOD_LIMIT && method.iter().all(|&byte| is_token(byte));
    if !is_method || (method.is_empty() && target.is_some()) {
        return Some(false);
    }
    let target = target?;
    if !target.iter().all(u8::is_ascii_graphic) || (target.is_empty() && version.is_some()) {
        return Some(false);
    }
    if target.len() > TARGET_LIMIT {
        // Nothing else has such a second word; its reader says that it is too long.
        return Some(true);
    }
    const PROTOCOL: &[u8] = b"HTTP/";
    let version = version?;
    let length = version.len().min(PROTOCOL.len());
    match version.get(..length) == PROTOCOL.get(..length) {
        true => (length == PROTOCOL.len()).then_some(true),
        false => Some(false),
    }
}

fn text(bytes: Option<&[u8]>) -> &str {
    bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

/// Other protocols give themselves away at once, and are answered at once.
fn first_byte(first: u8) -> Result<(), BadHead> {
    match first {
        0x16 => Err(BadHead::Foreign(Foreign::Tls)),
        0x04 => Err(BadHead::Foreign(Foreign::Socks4)),
        b'\r' | b'\n' => Err(BadHead::Foreign(Foreign::EmptyLine)),
        _ if is_token(first) => Ok(()),
        _ => Err(BadHead::RequestLine),
    }
}

/// A URI can be too long for us; a host and port of this length is none (RFC 1035 §2.3.4: 255 bytes).
fn too_long(is_authority: bool) -> BadHead {
    if is_authority { BadHead::Target } else { BadHead::TargetTooLong }
}

/// RFC 9110 §5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Reads the first line of `head`, which ends at `end` with CR LF: three parts, one space between, no more.
fn request_line(head: &[u8], end: usize) -> Result<Line, BadHead> {
    let line = head.get(..end.saturating_sub(2)).unwrap_or_default();
    if line.starts_with(b"PROXY ") {
        return Err(BadHead::Foreign(Foreign::ProxyProtocol));
    }
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(BadHead::RequestLine);
    };
    if method.is_empty() || method.len() > METHOD_LIMIT || !method.iter().all(|&byte| is_token(byte)) {
        return Err(BadHead::RequestLine);
    }
    if target.len() > TARGET_LIMIT {
        return Err(too_long(method == b"CONNECT"));
    }
    // Visible ASCII; no fragment (RFC 9112 §3.2). What else a URI must not hold, clients send all the same.
    if target.is_empty() || !target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#') {
        return Err(BadHead::Target);
    }
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        b"HTTP/2.0" if method == b"PRI" => return Err(BadHead::Foreign(Foreign::Http2)),
        _ => return Err(BadHead::RequestLine),
    };
    if method == b"TRACE" || method == b"TRACK" {
        return Err(BadHead::Method);
    }
    let start = method.len() + 1;
    Ok(Line { method: 0..method.len(), target: start..start + target.len(), version, end })
}

/// Finds the header lines of `head`, which begin at `start`.
fn fields(head: &[u8], start: usize) -> Result<Vec<Field>, BadHead> {
    let mut found = [httparse::EMPTY_HEADER; MOST_FIELDS];
    // Refuses folded lines, a space before the colon, and control bytes in values.
    let found = match httparse::parse_headers(head.get(start..).unwrap_or_default(), &mut found) {
        Ok(httparse::Status::Complete((_, found))) => found,
        Ok(httparse::Status::Partial) => return Err(BadHead::Field),
        Err(httparse::Error::TooManyHeaders) => return Err(BadHead::TooLarge),
        Err(_) => return Err(BadHead::Field),
    };
    let place = |part: &[u8]| {
        let at = part.as_ptr().addr().wrapping_sub(head.as_ptr().addr());
        at..at + part.len()
    };
    Ok(found
        .iter()
        .map(|field| Field { name: place(field.name.as_bytes()), value: place(field.value) })
        .collect())
}

fn target(method: &[u8], target: &[u8]) -> Result<Target, BadHead> {
    if method == b"CONNECT" {
        return Destination::from_authority(target).map(Target::Authority).map_err(BadHead::Destination);
    }
    match target {
        b"*" if method == b"OPTIONS" => Ok(Target::Asterisk),
        [b'/', ..] => Ok(Target::Origin { path_and_query: path_and_query(target)? }),
        _ => {
            let (scheme, rest) = target.split_at_checked(7).ok_or(BadHead::Target)?;
            if !scheme.eq_ignore_ascii_case(b"http://") {
                return Err(BadHead::Target);
            }
            let end = rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            Ok(Target::Absolute {
                path_and_query: path_and_query(path)?,
                destination: Destination::from_authority_or(authority, Port::HTTP)
                    .map_err(BadHead::Destination)?,
            })
        }
    }
}

/// The path and the query, as an origin gets them.
fn path_and_query(text: &[u8]) -> Result<Box<str>, BadHead> {
    let path = text.split(|&byte| byte == b'?').next().unwrap_or_default();
    // Browsers' parsers read a backslash in a path as a slash, others do not (WHATWG URL §4.4).
    if path.contains(&b'\\') {
        return Err(BadHead::Target);
    }
    let text = std::str::from_utf8(text).map_err(|_| BadHead::Target)?;
    // An empty path is sent as "/" (RFC 9112 §3.2.1).
    Ok(if path.is_empty() { format!("/{text}").into() } else { text.into() })
}

/// Judges the Host header beside the target.
fn host(target: &Target, version: Version, framing: &Framing<'_>) -> Result<Option<Destination>, BadHead> {
    match (target, framing.host) {
        // Clients leave it out or send it without the port; the target decides (RFC 9110 §9.3.6).
        (Target::Authority(_), _) => Ok(None),
        (_, Some(host)) => {
            Destination::from_authority_or(host, Port::HTTP).map(Some).map_err(|_| BadHead::Host)
        }
        // RFC 9112 §3.2: a 1.1 request without Host is 400, whatever its target.
        (_, None) => match version {
            Version::Http10 => Ok(None),
            Version::Http11 => Err(BadHead::Host),
        },
    }
}

#[cfg(test)]
mod tests;
