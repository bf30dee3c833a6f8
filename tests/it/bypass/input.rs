//! Does what a case's input says, one function a kind, and brings back what the client saw.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use hickory_proto::rr::RecordType;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;
use tidegate::lab::{Lab, Namespace, origin::Contact};

use super::{
    adapter::{Unsupported, fill_in},
    case::{Hello, Input, Item, Range, Ranges, Step, Target, TlsInput, TlsStep, Transport, bytes, unhex},
    evidence::{Bytes, Dns, Exchange, record_type},
    inside::Inside,
};
use crate::support::{
    Client, ClientCertificate, PROXY, PROXY_DNS, Response, TestAuthority, ask_wire, question,
};

/// A hello may take 10 s (product limit); whatever has not ended by then and a little more is "not ended".
const LONGEST: Duration = Duration::from_secs(13);
/// After a whole answer the client listens this long for more.
const QUIET: Duration = Duration::from_millis(120);
/// `tcp_gen` counts are meant for a load machine; here each runs this fraction of them.
pub const LOAD_FRACTION: u64 = 100;
/// The fault of a log that takes nothing more.
pub const LOG_FULL: &str = "log sink ENOSPC";

/// Where inputs act.
pub struct Stage<'a> {
    pub lab: &'a Lab,
    pub authority: &'a Arc<TestAuthority>,
    /// The connections that origins have accepted so far.
    pub contacts: &'a dyn Fn() -> Vec<Arc<Contact>>,
    /// The sandbox with a network of its own, where the case has one.
    pub inside: Option<&'a Inside>,
    /// Puts another policy in force.
    pub reload: &'a dyn Fn(&Value) -> Result<()>,
    /// Files of the case.
    pub dir: &'a Path,
}

/// A connection that a step has left open, with what came of it so far.
type Held = (StreamOwned<ClientConnection, TcpStream>, Bytes);

type Result<T> = std::result::Result<T, Unsupported>;

impl Stage<'_> {
    /// Runs one input; kinds that need a gateway of their own making are for the caller.
    pub fn run(&self, input: &Input) -> Result<Vec<Exchange>> {
        Ok(match input {
            Input::Tcp { to, dst, send } => {
                vec![Exchange::Bytes(self.script_to(self.place(*to, dst.as_deref())?, send)?)]
            }
            Input::TcpEach { to, send_each } => {
                let each = send_each
                    .iter()
                    .map(|item| Ok(Exchange::Bytes(self.script(*to, std::slice::from_ref(item))?)));
                each.collect::<Result<_>>()?
            }
            Input::TcpGen { pattern, count } => vec![self.many(pattern, count / LOAD_FRACTION)?],
            Input::Dns { transport, q } => vec![self.ask(*transport, q)?],
            Input::DnsEach { transport, q_each } => {
                q_each.iter().map(|q| self.ask(*transport, q)).collect::<Result<_>>()?
            }
            Input::DnsWire { transport, hex } => vec![self.ask_wire(*transport, unhex(hex))],
            Input::DnsWireEach { transport, hex_each } => {
                hex_each.iter().map(|hex| self.ask_wire(*transport, unhex(hex))).collect()
            }
            Input::DnsGen { pattern, kind, count } => {
                let kind = record_type(kind).ok_or_else(|| Unsupported(format!("type {kind}")))?;
                let mut exchanges = Vec::new();
                for n in 0..*count {
                    let name = generate(pattern, n);
                    exchanges.push(
                        self.ask_wire(Transport::Udp, question(&name, kind).to_vec().expect("a question")),
                    );
                }
                exchanges
            }
            Input::Tls(tls) => vec![Exchange::Bytes(self.tls(tls)?)],
            Input::TlsScript { target, steps } => vec![Exchange::Bytes(self.tls_script(target, steps)?)],
            Input::Classify(ranges) => self.classify(ranges)?,
            Input::Shell { cmd, at } => vec![self.shell(cmd, at.as_deref())?],
            Input::Multi { steps } => self.steps(steps)?,
            Input::PolicyReload { policy } => {
                (self.reload)(policy)?;
                Vec::new()
            }
            Input::Timing { runs, a, b } => vec![self.timing(*runs, a, b)?],
            // In force since the gateway started: the scene was made with it.
            Input::Fault { what } if what == LOG_FULL => Vec::new(),
            Input::Fault { what } => return Err(Unsupported(format!("fault {what:?}"))),
            Input::Policy { .. } | Input::PolicyWrite { .. } => {
                return Err(Unsupported("a policy inside an input".into()));
            }
            Input::Unknown => return Err(Unsupported("an input kind of no layer here".into())),
        })
    }

    /// Several steps, with the connections that they leave open.
    fn steps(&self, steps: &[Step]) -> Result<Vec<Exchange>> {
        let mut exchanges = Vec::new();
        let mut held: Vec<Held> = Vec::new();
        for step in steps {
            match step {
                Step::Do(Input::Tls(tls)) if keeps_open(&tls.then) => held.push(self.keep_open(tls)?),
                Step::Do(input) => exchanges.extend(self.run(input)?),
                Step::Check { check } => {
                    let seconds = check
                        .strip_prefix("connection_closed_within_s(")
                        .and_then(|rest| rest.strip_suffix(')')?.parse().ok())
                        .ok_or_else(|| Unsupported(format!("the check {check:?}")))?;
                    for (stream, mut outcome) in held.drain(..) {
                        outcome.ended = ends_within(stream, Duration::from_secs(seconds));
                        exchanges.push(Exchange::Bytes(outcome));
                    }
                }
            }
        }
        Ok(exchanges)
    }

    fn keep_open(&self, input: &TlsInput) -> Result<Held> {
        let (Some(dst), Some(sni)) = (&input.dst, &input.hello.sni) else {
            return Err(Unsupported("a connection that is kept open, but captured and with a name".into()));
        };
        let (namespace, address) = self.place(Target::Transparent, Some(dst))?;
        let started = Instant::now();
        let client = Client::try_connect_from(namespace, address).expect("it is captured");
        let stream =
            self.authority.client(&[], ClientCertificate::Unasked).handshake(client.into_stream(), sni);
        let stream = stream.map_err(|error| Unsupported(format!("full handshake: {error}")))?;
        let mut outcome = tunnel_outcome(started);
        outcome.upstream_before = (self.contacts)().iter().map(|contact| contact.total()).sum();
        Ok((stream, outcome))
    }

    /// Where a script's client is, and what it connects to.
    fn place(&self, to: Target, dst: Option<&str>) -> Result<(&Namespace, SocketAddr)> {
        let address = |text: &str| text.parse().map_err(|_| Unsupported(format!("the address {text}")));
        match (to, self.inside, dst) {
            (Target::Proxy, ..) => Ok((self.lab.gateway(), address(PROXY)?)),
            (Target::DnsTcp, ..) => Ok((self.lab.gateway(), address(PROXY_DNS)?)),
            (Target::Transparent, Some(inside), Some(dst)) => Ok((inside.namespace(), address(dst)?)),
            (Target::Transparent, ..) => Err(Unsupported("a captured connection (needs a sandbox)".into())),
        }
    }

    fn script(&self, to: Target, items: &[Item]) -> Result<Bytes> {
        self.script_to(self.place(to, None)?, items)
    }

    fn script_to(&self, (namespace, address): (&Namespace, SocketAddr), items: &[Item]) -> Result<Bytes> {
        let started = Instant::now();
        let mut client =
            Client::try_connect_from(namespace, address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let mut sent_in_tunnel = Vec::new();
        let mut seen = 0;
        let mut requests = 0;
        for item in items {
            let out = match item {
                Item::Text(text) => bytes(&fill_in(text)),
                Item::Hex { hex } => unhex(hex),
                Item::Repeat { repeat, times } => bytes(repeat).repeat(*times),
                Item::Wait { wait_ms } => {
                    let until = Instant::now() + Duration::from_millis(*wait_ms);
                    while !client.ended() && Instant::now() < until {
                        client.read_more(until.saturating_duration_since(Instant::now()));
                    }
                    continue;
                }
                Item::ReadUntil { read_until } => {
                    seen = client.wait_for(seen, &bytes(read_until)).unwrap_or(client.received().len());
                    continue;
                }
                Item::HalfClose { .. } => {
                    client.half_close();
                    continue;
                }
                Item::Ask { dns } => {
                    self.ask(Transport::Udp, dns)?;
                    continue;
                }
                Item::Other(other) => return Err(Unsupported(format!("script item {other}"))),
            };
            let tunnel =
                Response::read_all(client.received(), client.ended()).last().is_some_and(Response::is_tunnel);
            if tunnel {
                sent_in_tunnel.extend_from_slice(&out);
            } else if out.windows(5).any(|window| window == b"HTTP/") {
                requests += 1;
            }
            client.send(&out);
        }
        self.settle(&mut client, &sent_in_tunnel, requests);
        let responses = Response::read_all(client.received(), client.ended());
        Ok(Bytes {
            received: client.received().to_vec(),
            responses,
            sent_in_tunnel,
            ended: client.ended(),
            took: started.elapsed(),
            upstream_before: 0,
        })
    }

    /// Reads until the gateway closes, or until everything that can be expected has come and nothing more does.
    fn settle(&self, client: &mut Client, sent_in_tunnel: &[u8], requests: usize) {
        let until = Instant::now() + LONGEST;
        while !client.ended() && Instant::now() < until {
            if client.read_more(QUIET) || client.ended() {
                continue;
            }
            let responses = Response::read_all(client.received(), false);
            let Some(last) = responses.last() else { continue };
            let done = if last.is_tunnel() && !sent_in_tunnel.is_empty() {
                self.reached_upstream(sent_in_tunnel)
            } else {
                responses.len() >= requests.max(1)
            };
            if done {
                return;
            }
        }
    }

    fn reached_upstream(&self, bytes: &[u8]) -> bool {
        (self.contacts)().iter().any(|contact| contact.received().ends_with(bytes))
    }

    fn many(&self, pattern: &str, count: u64) -> Result<Exchange> {
        let mut statuses = Vec::new();
        for n in 0..count {
            let mut client = Client::connect(self.lab, PROXY.parse().expect("an address"));
            client.send(&bytes(&generate(pattern, n)));
            statuses.push(client.response().status);
        }
        Ok(Exchange::Many { pattern: pattern.to_owned(), statuses })
    }

    fn ask(&self, transport: Transport, (name, kind): &(String, String)) -> Result<Exchange> {
        let kind: RecordType = record_type(kind).ok_or_else(|| Unsupported(format!("type {kind}")))?;
        let query = question(name, kind).to_vec().expect("a question");
        let mut exchange = self.ask_wire(transport, query.clone());
        if let Exchange::Dns(dns) = &exchange
            && transport == Transport::Udp
            && dns.message().is_some_and(|message| message.metadata.truncation)
        {
            exchange = self.ask_wire(Transport::Tcp, query);
        }
        Ok(exchange)
    }

    fn ask_wire(&self, transport: Transport, query: Vec<u8>) -> Exchange {
        let started = Instant::now();
        let server: SocketAddr = PROXY_DNS.parse().expect("an address");
        let reply = ask_wire(self.lab, server, &query, transport == Transport::Tcp).ok();
        Exchange::Dns(Dns { query, reply, took: started.elapsed() })
    }

    /// A CONNECT whose answer decides whether there is a tunnel to go on in.
    fn tunnel(&self, target: &str) -> std::result::Result<Client, Bytes> {
        let started = Instant::now();
        let mut client = Client::connect(self.lab, PROXY.parse().expect("an address"));
        client.send(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes());
        let response = client.response();
        if response.is_tunnel() {
            return Ok(client);
        }
        Err(Bytes {
            received: client.received().to_vec(),
            responses: vec![response],
            ended: client.ended(),
            took: started.elapsed(),
            ..Bytes::default()
        })
    }

    fn tls(&self, input: &TlsInput) -> Result<Bytes> {
        let TlsInput { target, dst: _, hello, then, upstream_cert } = input;
        let Hello { sni, alpn, client_cert, verify, max_version, check_san } = hello;
        // The client here always trusts the origins' authority alone.
        let verify = verify.as_ref().filter(|how| *how != "upstream-ca-only");
        if let Some(what) = upstream_cert.as_ref().or(max_version.as_ref()).or(check_san.as_ref()).or(verify)
        {
            return Err(Unsupported(format!("TLS option {what:?}")));
        }
        let started = Instant::now();
        let client = match self.tunnel(target) {
            Ok(client) => client,
            Err(refused) => return Ok(refused),
        };
        let alpn: Vec<&str> = alpn.iter().map(String::as_str).collect();
        let certificate = if *client_cert { ClientCertificate::Required } else { ClientCertificate::Unasked };
        let sni = sni.as_deref().ok_or_else(|| Unsupported("a hello without SNI by a TLS library".into()))?;
        let shaken = self.authority.client(&alpn, certificate).handshake(client.into_stream(), sni);
        let mut outcome = tunnel_outcome(started);
        match shaken {
            Err(_) => outcome.ended = true,
            Ok(stream) => {
                // An origin that rejects the client's certificate says so only on the first read (RFC 8446 §4.4.2.4).
                let probe = [Item::Text("GET / HTTP/1.1\r\nHost: probe.example\r\n\r\n".into())];
                let inner = inner_exchange(stream, if then.is_empty() { &probe } else { then })?;
                match (inner.is_empty(), then.is_empty()) {
                    (true, _) => outcome.ended = true,
                    (false, true) => {}
                    (false, false) => outcome.responses = inner,
                }
            }
        }
        Ok(outcome)
    }

    /// Shakes hands in full where a step says so, then resumes with early data in a tunnel to `target`.
    fn tls_script(&self, target: &str, steps: &[TlsStep]) -> Result<Bytes> {
        let started = Instant::now();
        let client = self.authority.client(&["http/1.1"], ClientCertificate::Unasked);
        let mut outcome = tunnel_outcome(started);
        for step in steps {
            let (through, sni) = match (&step.full_handshake, &step.sni) {
                (Some(name), _) => (format!("{name}:443"), name),
                (None, Some(sni)) => (target.to_owned(), sni),
                (None, None) => return Err(Unsupported("a TLS step without a name".into())),
            };
            let stream = match self.tunnel(&through) {
                Ok(tunnel) => tunnel.into_stream(),
                Err(refused) => return Ok(refused),
            };
            if let Some(early) = step.early_data.as_deref().filter(|_| step.resume) {
                let mut stream = client.start(stream, sni).map_err(|error| Unsupported(error.to_string()))?;
                let Some(mut writer) = stream.conn.early_data() else {
                    return Err(Unsupported("the origin gave no ticket for early data".into()));
                };
                let _ = writer.write_all(early.as_bytes());
                outcome.ended = stream.conn.complete_io(&mut stream.sock).is_err();
            } else {
                let stream = client
                    .handshake(stream, sni)
                    .map_err(|error| Unsupported(format!("full handshake: {error}")))?;
                if step.save_ticket {
                    // Tickets come behind the handshake (RFC 8446 §4.6.1); one answer is read so that they have arrived.
                    inner_exchange(stream, &[Item::Text(format!("GET / HTTP/1.1\r\nHost: {sni}\r\n\r\n"))])?;
                    outcome.upstream_before = (self.contacts)().iter().map(|contact| contact.total()).sum();
                }
            }
        }
        Ok(outcome)
    }

    fn shell(&self, cmd: &str, at: Option<&str>) -> Result<Exchange> {
        const TOOLS: &[&str] = &["curl", "dig", "ssh", "nc", "socat", "grpcurl", "git", "wget", "node"];
        let words: Vec<&str> = cmd.split(|c: char| !c.is_alphanumeric()).collect();
        if let Some(missing) = TOOLS.iter().find(|tool| words.contains(tool) && !installed(tool)) {
            return Err(Unsupported(format!("the tool {missing}")));
        }
        if cmd.contains("--http3") && !curl_speaks_http3() {
            return Err(Unsupported("a curl that speaks HTTP/3".into()));
        }
        if let (Some(inside), Some("sandbox")) = (self.inside, at) {
            return Ok(Exchange::Command { status: inside.shell(cmd, self.authority, self.dir) });
        }
        if !cmd.contains("$PROXY") {
            return Err(Unsupported("a command that needs a sandbox round it".into()));
        }
        #[expect(clippy::disallowed_methods, reason = "a real client of the corpus")]
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &fill_in(cmd)]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status =
            self.lab.gateway().spawn(&mut command).and_then(|mut child| child.wait()).expect("a shell");
        Ok(Exchange::Command { status: status.code() })
    }

    fn timing(&self, runs: u32, a: &Input, b: &Input) -> Result<Exchange> {
        let (mut took_a, mut took_b, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..runs {
            last.clear();
            for (input, took) in [(a, &mut took_a), (b, &mut took_b)] {
                let Input::Tcp { send, .. } = input else {
                    return Err(Unsupported("timing of another kind".into()));
                };
                let [Item::Text(text)] = &send[..] else {
                    return Err(Unsupported("timing of a longer script".into()));
                };
                let started = Instant::now();
                let mut client = Client::connect(self.lab, PROXY.parse().expect("an address"));
                client.send(&bytes(text));
                let response = client.response();
                took.push(started.elapsed());
                last.push(Exchange::Bytes(Bytes {
                    received: client.received().to_vec(),
                    responses: vec![response],
                    ended: client.ended(),
                    took: started.elapsed(),
                    ..Bytes::default()
                }));
            }
        }
        Ok(Exchange::Timed { a: took_a, b: took_b, last })
    }

    /// CONNECTs to one name a probed address; [`probes`] says which names the zone must hold.
    fn classify(&self, ranges: &Ranges) -> Result<Vec<Exchange>> {
        let mut exchanges = Vec::new();
        for (name, address, inside) in probes(ranges)? {
            let mut client = Client::connect(self.lab, PROXY.parse().expect("an address"));
            client.send(format!("CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n").as_bytes());
            exchanges.push(Exchange::Probe { address, inside, response: client.response() });
        }
        Ok(exchanges)
    }
}

/// The names, addresses and places (inside the range or not) of a range's probes.
pub fn probes(ranges: &Ranges) -> Result<Vec<(String, IpAddr, bool)>> {
    let Ranges { cidr, cidrs, probe, outside } = ranges;
    let ends = ["first".to_owned(), "last".to_owned()];
    let probe = if probe.is_empty() { &ends[..] } else { probe };
    let all = cidr.iter().map(String::as_str).chain(cidrs.iter().map(|Range { cidr }| cidr.as_str()));
    let mut probes = Vec::new();
    for cidr in all {
        for (places, inside) in [(probe, true), (&outside[..], false)] {
            for place in places {
                let address =
                    address_at(cidr, place).ok_or_else(|| Unsupported(format!("{place} of {cidr}")))?;
                probes.push((format!("probe-{}.example.com", probes.len()), address, inside));
            }
        }
    }
    Ok(probes)
}

fn address_at(cidr: &str, place: &str) -> Option<IpAddr> {
    let (address, length) = cidr.split_once('/')?;
    let (first, bits) = match address.parse().ok()? {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let size_bits: u32 = bits - length.parse::<u32>().ok()?;
    let last = first | (1_u128.checked_shl(size_bits).map_or(u128::MAX, |size| size - 1));
    let at = match place {
        "first" => first,
        "second" => first + 1,
        "last" => last,
        "first-1" => first - 1,
        "last+1" => last + 1,
        _ => return None,
    };
    Some(if bits == 32 { Ipv4Addr::from(u32::try_from(at).ok()?).into() } else { Ipv6Addr::from(at).into() })
}

fn tunnel_outcome(started: Instant) -> Bytes {
    let established = Response {
        status: 200,
        phrase: String::new(),
        headers: Vec::new(),
        body: Vec::new(),
        open_ended: true,
    };
    Bytes { responses: vec![established], took: started.elapsed(), ..Bytes::default() }
}

/// Sends `items` inside a TLS connection and reads one response for each text.
fn inner_exchange(
    mut stream: StreamOwned<ClientConnection, TcpStream>,
    items: &[Item],
) -> Result<Vec<Response>> {
    let mut received = Vec::new();
    let mut wanted = 0;
    let mut ended = false;
    for item in items {
        match item {
            Item::Text(text) => {
                wanted += 1;
                ended |= stream.write_all(&bytes(&fill_in(text))).and_then(|()| stream.flush()).is_err();
            }
            Item::ReadUntil { .. } => {}
            other => return Err(Unsupported(format!("{other:?} inside TLS"))),
        }
        while !ended && Response::read_all(&received, false).len() < wanted {
            let mut buffer = [0; 16 * 1024];
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => ended = true,
                Ok(length) => received.extend_from_slice(&buffer[..length]),
            }
        }
    }
    Ok(Response::read_all(&received, ended))
}

/// `{i}` is the number; `{rand}` and `{rand32}` are letters that no other number has.
pub fn generate(pattern: &str, n: u64) -> String {
    let mut seed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut letters = |count: usize| -> String {
        (0..count)
            .map(|_| {
                // xorshift64: any spread will do, and the same one each time.
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                char::from(b'a' + u8::try_from(seed % 26).expect("a letter"))
            })
            .collect()
    };
    let mut text = pattern.replace("{i}", &n.to_string());
    while let Some(at) = text.find("{rand32}") {
        text.replace_range(at..at + "{rand32}".len(), &letters(32));
    }
    while let Some(at) = text.find("{rand}") {
        text.replace_range(at..at + "{rand}".len(), &letters(8));
    }
    text
}

/// Whether a tool is where Debian puts tools.
pub fn installed(tool: &str) -> bool {
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
        .iter()
        .any(|dir| Path::new(dir).join(tool).exists())
}

fn curl_speaks_http3() -> bool {
    #[expect(clippy::disallowed_methods, reason = "a real client of the corpus")]
    let version = Command::new("curl").arg("--version").output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("HTTP3"))
}

/// Whether a script ends with its connection open.
fn keeps_open(then: &[Item]) -> bool {
    then.iter().any(|item| matches!(item, Item::Other(other) if other.get("keep_open").is_some()))
}

/// Whether the gateway ends a connection within so long.
fn ends_within(mut stream: StreamOwned<ClientConnection, TcpStream>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let mut buffer = [0; 1024];
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        stream.sock.set_read_timeout(Some(left)).unwrap();
        match stream.read(&mut buffer) {
            Ok(1..) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Ok(0) | Err(_) => return true,
        }
    }
    false
}

/// Lets a file watcher's settling time pass where a case's script says so.
pub fn pause(duration: Duration) {
    thread::sleep(duration);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_neighbours_of_a_range() {
        for (cidr, place, address) in [
            ("10.0.0.0/8", "last+1", "11.0.0.0"),
            ("10.0.0.0/8", "first-1", "9.255.255.255"),
            ("::1/128", "last", "::1"),
            ("2001::/23", "last", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("::/96", "first", "::"),
        ] {
            assert_eq!(address_at(cidr, place), Some(address.parse().unwrap()), "{cidr} {place}");
        }
    }

    #[test]
    fn generated_names_differ() {
        assert_ne!(generate("{rand32}.{rand32}.x", 1), generate("{rand32}.{rand32}.x", 2));
        assert_eq!(generate("h{i}.x", 7), "h7.x");
    }
}
