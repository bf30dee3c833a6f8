//! `tidegate connect`: joins stdin and stdout to a destination over the proxy; a `ProxyCommand` for ssh.

use std::io::{self, Read, Write};
use std::thread;

use clap::Args;
use policy::{Destination, Port};

use super::Outcome;
use super::client::{Connection, Server};
use super::output::{complain, harmless};
use crate::config;

const EXAMPLE: &str = "Example:
  GIT_SSH_COMMAND=\"ssh -o ProxyCommand='tidegate connect %h %p'\" git fetch
  tidegate connect --proxy unix:/run/tidegate/s/agent-7/proxy.sock git.example.com 22

Exit status: 0 the tunnel ended, 1 refused or not reachable, 2 usage.";

/// The longest head of an answer to CONNECT that is read.
const HEAD_LIMIT: usize = 16 * 1024;

/// Join stdin and stdout to HOST PORT over the proxy: a ProxyCommand for ssh
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Connect {
    /// The destination's name or address
    host: String,
    /// The destination's port
    port: u16,
    /// The proxy: http://[USER:PASSWORD@]HOST:PORT or unix:/PATH. Without it: $https_proxy, $HTTPS_PROXY, $all_proxy, $ALL_PROXY
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,
}

impl Connect {
    pub(super) fn run(self) -> Outcome {
        let (proxy, to) = match self.sides() {
            Ok(sides) => sides,
            Err(complaint) => {
                complain("connect", complaint);
                return Outcome::Usage;
            }
        };
        match open(&proxy, &to).and_then(|(connection, early)| Ok(join(connection, &early)?)) {
            Ok(()) => Outcome::Done,
            Err(Refused::Failed(error)) => {
                complain("connect", format_args!("cannot reach {to} over {}: {error}", proxy.server));
                Outcome::Failed
            }
            Err(Refused::Answer(answer)) => {
                complain("connect", format_args!("the proxy refused {to}: {answer}"));
                Outcome::Failed
            }
        }
    }

    fn sides(self) -> Result<(Proxy, Destination), String> {
        let hint = "write --proxy http://127.0.0.1:3128, or set HTTPS_PROXY";
        let url =
            self.proxy.or_else(config::https_proxy).ok_or_else(|| format!("no proxy is known; {hint}"))?;
        // The URL may hold a password, so it is not repeated.
        let proxy = Proxy::parse(&url).ok_or_else(|| format!("the proxy's URL cannot be read; {hint}"))?;
        let to = Destination::from_parts(self.host.as_bytes(), self.port)
            .map_err(|why| format!("{:?} port {} is no destination: {why}", self.host, self.port))?;
        Ok((proxy, to))
    }
}

/// The proxy to use.
#[derive(Debug, PartialEq, Eq)]
struct Proxy {
    server: Server,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
}

impl Proxy {
    /// `http://[USER:PASSWORD@]HOST[:PORT][/]`, the same without a scheme as curl takes it, or `unix:/PATH`.
    fn parse(url: &str) -> Option<Self> {
        if let Some(path) = url.strip_prefix("unix:") {
            return path
                .starts_with('/')
                .then(|| Self { server: Server::Unix(path.into()), authorization: None });
        }
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return None,
            None => url,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (userinfo, authority) = match rest.rsplit_once('@') {
            Some((userinfo, authority)) => (Some(userinfo), authority),
            None => (None, rest),
        };
        let server = Destination::from_authority_or(authority.as_bytes(), Port::new(3128)?).ok()?;
        let authorization = match userinfo {
            Some(userinfo) => {
                let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
                let mut plain = percent_decoded(user)?;
                plain.push(b':');
                plain.extend(percent_decoded(password)?);
                Some(format!("Basic {}", base64(&plain)))
            }
            None => None,
        };
        Some(Self { server: Server::Tcp(server), authorization })
    }
}

/// RFC 3986 section 2.1.
fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let value = digit()? * 16 + digit()?;
        decoded.push(u8::try_from(value).ok()?);
    }
    Some(decoded)
}

/// RFC 4648 section 4, with padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let joined =
            (0..3).fold(0_u32, |held, place| (held << 8) | u32::from(group.get(place).copied().unwrap_or(0)));
        for place in 0..4 {
            let digit = (joined >> (18 - 6 * place)) as usize & 63;
            let letter = ALPHABET.get(digit).copied().unwrap_or(b'=');
            text.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// Why there is no tunnel.
#[derive(Debug)]
enum Refused {
    Failed(io::Error),
    Answer(String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Opens the tunnel: the connection, and what the destination has sent already.
fn open(proxy: &Proxy, to: &Destination) -> Result<(Connection, Vec<u8>), Refused> {
    let mut connection = Connection::open(&proxy.server)?;
    let mut head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some(value) = &proxy.authorization {
        head.push_str(&format!("Proxy-Authorization: {value}\r\n"));
    }
    head.push_str("\r\n");
    connection.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    let end = loop {
        if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let mut part = [0; 1024];
        match connection.read(&mut part)? {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the proxy closed without an answer",
                )
                .into());
            }
            count => answer.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
        if answer.len() > HEAD_LIMIT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the proxy's answer is too long").into());
        }
    };
    let early = answer.split_off(end);
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let accepted = line.starts_with(b"HTTP/1.") && line.get(8..10) == Some(b" 2");
    if !accepted {
        return Err(Refused::Answer(harmless(line)));
    }
    connection.set_clock(None)?;
    Ok((connection, early))
}

/// Copies both ways until both have ended: each side's end is passed on by itself, since a server may answer after
/// its client has said its last.
fn join(connection: Connection, early: &[u8]) -> io::Result<()> {
    let mut down = connection.twin()?;
    let mut up = connection;
    let upward = thread::spawn(move || {
        // A stdin that fails has ended; a peer that takes no more shows on the way down.
        let _ = io::copy(&mut io::stdin().lock(), &mut up);
        let _ = up.finish_sending();
    });
    let mut stdout = io::stdout().lock();
    let copied = stdout.write_all(early).and_then(|()| copy_unbuffered(&mut down, &mut stdout));
    drop(stdout);
    if copied.is_err() {
        // Nobody reads any more, or the tunnel broke: stdin has nowhere to go.
        return Ok(());
    }
    close_stdout()?;
    // The thread cannot panic: it only copies.
    let _ = upward.join();
    Ok(())
}

/// Copies with a flush after each read: what arrives is passed on at once.
fn copy_unbuffered(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(buffer.get(..count).unwrap_or_default())?;
        to.flush()?;
    }
}

/// Lets whoever reads our stdout see its end, while stdin may go on.
fn close_stdout() -> io::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(&nowhere)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_rfc_4648_does() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn proxies_are_read_with_their_credentials() {
        let read = |url| Proxy::parse(url).map(|proxy| (proxy.server.to_string(), proxy.authorization));
        let server = "proxy.example:3128".to_owned();
        assert_eq!(read("http://proxy.example:3128/"), Some((server.clone(), None)));
        assert_eq!(read("proxy.example"), Some((server.clone(), None)));
        // "agent-7:a@b"
        let coded = Some("Basic YWdlbnQtNzphQGI=".to_owned());
        assert_eq!(read("http://agent-7:a%40b@proxy.example:3128"), Some((server, coded)));
        assert_eq!(read("unix:/run/p.sock"), Some(("unix:/run/p.sock".to_owned(), None)));
        for url in [
            "https://proxy.example",
            "socks5h://proxy.example",
            "unix:p",
            "http://",
            "http://a%4@p",
            "http://a%zz@p",
        ] {
            assert_eq!(read(url), None, "{url}");
        }
    }
}
