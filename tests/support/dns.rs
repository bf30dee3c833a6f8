//! DNS questions as a stub resolver would send them, or as an attacker would.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    time::Duration,
};

use hickory_proto::{
    op::{Edns, Message, Query},
    rr::{Name, RecordType, rdata::opt::EdnsOption},
};
use tidegate::lab::{Lab, Namespace};

/// As long as a stub resolver waits (resolv.conf(5): 5 s), and a little more.
const PATIENCE: Duration = Duration::from_secs(6);

/// A question with recursion desired and no EDNS.
pub fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    message.add_query(Query::query(name, kind));
    message
}

/// Asks over UDP from the gateway's host with EDNS, and again over TCP where the answer was truncated.
pub fn ask(lab: &Lab, server: SocketAddr, name: &str, kind: RecordType) -> io::Result<Message> {
    ask_from(lab.gateway(), server, name, kind)
}

/// As [`ask`], from another host or sandbox.
pub fn ask_from(
    namespace: &Namespace,
    server: SocketAddr,
    name: &str,
    kind: RecordType,
) -> io::Result<Message> {
    let mut query = question(name, kind);
    let mut edns = Edns::new();
    edns.set_max_payload(1232);
    query.set_edns(edns);
    let query = query.to_vec().unwrap();
    let reply = read(&ask_wire_from(namespace, server, &query, false)?)?;
    if reply.metadata.truncation { read(&ask_wire_from(namespace, server, &query, true)?) } else { Ok(reply) }
}

/// The extended error of a reply: its code and its text (RFC 8914).
pub fn extended_error(reply: &Message) -> Option<(u16, String)> {
    let options = reply.edns.as_ref()?.options();
    let bytes = options.as_ref().iter().find_map(|(code, option)| match option {
        EdnsOption::Unknown(15, bytes) if u16::from(*code) == 15 => Some(bytes.clone()),
        _ => None,
    })?;
    let (code, text) = bytes.split_first_chunk()?;
    Some((u16::from_be_bytes(*code), String::from_utf8_lossy(text).into_owned()))
}

/// Sends these bytes as one message, whatever they are, and waits for one answer.
pub fn ask_wire(lab: &Lab, server: SocketAddr, query: &[u8], over_tcp: bool) -> io::Result<Vec<u8>> {
    ask_wire_from(lab.gateway(), server, query, over_tcp)
}

/// As [`ask_wire`], from another host or sandbox.
fn ask_wire_from(
    namespace: &Namespace,
    server: SocketAddr,
    query: &[u8],
    over_tcp: bool,
) -> io::Result<Vec<u8>> {
    if over_tcp {
        let mut stream = namespace.tcp_connect(server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[&u16::try_from(query.len()).unwrap().to_be_bytes()[..], query].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut reply = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut reply)?;
        return Ok(reply);
    }
    let local = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = namespace.udp_bind(local.parse().unwrap())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(query, server)?;
    let mut buffer = vec![0; 65_535];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        if from == server {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

fn read(wire: &[u8]) -> io::Result<Message> {
    Message::from_vec(wire).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}
