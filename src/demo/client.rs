//! Clients of the demo: the least that speaks each protocol, and says in one line what came back.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RecordType};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::stage::Stage;
use super::steps::{Asks, Step};

/// More of an answer is not looked at.
const LIMIT: u64 = 16 << 10;

/// The code of an extended DNS error in EDNS (RFC 8914 section 2).
const EXTENDED_ERROR: u16 = 15;

/// Takes one step and says what the client got.
pub(super) fn ask(stage: &Stage, step: &Step) -> io::Result<String> {
    match &step.asks {
        Asks::Connect { to, sni } => connect(stage.connect()?, to, sni),
        Asks::Http { method, host, path } => http(stage.connect()?, method, host, path),
        Asks::Socks5 { host } => socks5(stage.connect()?, host),
        Asks::Captured { to, sni } => captured(stage, to, sni),
        Asks::Lookup { name } => look_up(stage, name),
    }
}

fn connect(mut stream: TcpStream, to: &str, sni: &str) -> io::Result<String> {
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n")?;
    let said = status_line(&mut stream)?;
    if !said.starts_with("200") {
        return Ok(said);
    }
    stream.write_all(&client_hello(sni)?)?;
    Ok(format!("200, {}", after_hello(&mut stream)))
}

fn http(mut stream: TcpStream, method: &str, host: &str, path: &str) -> io::Result<String> {
    write!(stream, "{method} http://{host}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    status_line(&mut stream)
}

fn socks5(mut stream: TcpStream, host: &str) -> io::Result<String> {
    let length = u8::try_from(host.len()).map_err(io::Error::other)?;
    stream.write_all(&[5, 1, 0])?;
    stream.read_exact(&mut [0; 2])?;
    // CONNECT to a domain name (RFC 1928 section 4).
    stream.write_all(&[&[5, 1, 0, 3, length], host.as_bytes(), &443_u16.to_be_bytes()].concat())?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply)?;
    match reply {
        [5, 0, ..] => {
            // The address that follows: four bytes or sixteen, and a port.
            let rest = if reply[3] == 4 { 18 } else { 6 };
            io::copy(&mut (&stream).take(rest), &mut io::sink())?;
            stream.write_all(&client_hello(host)?)?;
            Ok(format!("0x00, {}", after_hello(&mut stream)))
        }
        [5, 2, ..] => Ok("0x02 not allowed".to_owned()),
        [_, code, ..] => Ok(format!("0x{code:02x}")),
    }
}

fn captured(stage: &Stage, to: &str, sni: &str) -> io::Result<String> {
    let (host, port) = to.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let address = match host.parse() {
        Ok(address) => address,
        Err(_) => {
            // Any server will do: every question arrives at the gateway.
            let reply = query(&stage.udp_inside()?, (Ipv4Addr::new(192, 0, 2, 53), 53).into(), host)?;
            let found = reply.answers.iter().find_map(|record| record.data.ip_addr());
            found.ok_or(io::ErrorKind::NotFound)?
        }
    };
    let mut stream =
        stage.connect_inside(SocketAddr::new(address, port.parse().map_err(io::Error::other)?))?;
    // It may be reset already; what was said before is what counts.
    let _ = stream.write_all(&client_hello(sni)?);
    Ok(after_hello(&mut stream))
}

/// Asks a name server for IPv4 addresses.
fn query(socket: &UdpSocket, server: SocketAddr, name: &str) -> io::Result<Message> {
    let mut asked = Name::from_ascii(name).map_err(io::Error::other)?;
    asked.set_fqdn(true);
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(asked, RecordType::A));
    query.set_edns(Edns::new());
    socket.send_to(&query.to_vec().map_err(io::Error::other)?, server)?;
    let mut buffer = [0; 1232];
    let (length, _) = socket.recv_from(&mut buffer)?;
    Message::from_vec(buffer.get(..length).unwrap_or_default()).map_err(io::Error::other)
}

fn look_up(stage: &Stage, name: &str) -> io::Result<String> {
    let reply = query(&stage.udp()?, stage.dns, name)?;
    let code = match reply.metadata.response_code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::NXDomain => "NXDOMAIN",
        other => other.to_str(),
    };
    if let Some(text) = extended_error(&reply) {
        return Ok(format!("{code}, EDE 15 {text}"));
    }
    let addresses: Vec<String> = reply.answers.iter().map(|record| record.data.to_string()).collect();
    Ok(format!("{code} {}", addresses.join(" ")))
}

/// The text of the extended error 15, "Blocked" (RFC 8914 section 4.16).
fn extended_error(reply: &Message) -> Option<String> {
    let options = reply.edns.as_ref()?.options();
    options.as_ref().iter().find_map(|(code, option)| match option {
        EdnsOption::Unknown(EXTENDED_ERROR, bytes) if u16::from(*code) == EXTENDED_ERROR => {
            Some(String::from_utf8_lossy(bytes.strip_prefix(&[0, 15])?).into_owned())
        }
        _ => None,
    })
}

/// The status and its phrase.
fn status_line(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut limited = stream.take(LIMIT);
    let mut byte = [0; 1];
    // Byte by byte, so that what follows the head stays in the stream.
    while !head.ends_with(b"\r\n\r\n") && limited.read(&mut byte)? == 1 {
        head.extend_from_slice(&byte);
    }
    let head = String::from_utf8_lossy(&head);
    let line = head.lines().next().unwrap_or_default();
    Ok(line.split_once(' ').map_or(line, |(_, status)| status).to_owned())
}

/// What came back for a ClientHello: the alert tells whether the origin or the gateway speaks.
fn after_hello(stream: &mut TcpStream) -> String {
    /// RFC 8446 section 6.
    const ACCESS_DENIED: u8 = 49;
    let mut alert = [0; 7];
    match stream.read_exact(&mut alert) {
        Ok(()) if alert[6] == ACCESS_DENIED => "then TLS alert access_denied".to_owned(),
        Ok(()) => "TLS reaches the origin".to_owned(),
        Err(_) => "then closed".to_owned(),
    }
}

/// The first flight of a TLS client.
fn client_hello(name: &str) -> io::Result<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let mut client = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut hello = Vec::new();
    client.write_tls(&mut hello)?;
    Ok(hello)
}
