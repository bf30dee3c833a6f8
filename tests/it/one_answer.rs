//! Invariant 2, "one answer": the same attempt gets the same decision and the same reason through every inbound and
//! `explain`; and invariant 4: after all of it, nobody upstream has heard of a denied name.

use std::{
    fmt::Write as _,
    fs,
    io::Read,
    net::{IpAddr, SocketAddr},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
};

use hickory_proto::rr::RecordType;
use policy::approval::Approved;
use policy::{Ask, Destination, Reason, SandboxId, decide::View};
use serde_json::Value;
use tidegate::lab::origin::Behaviour;

use crate::support::{
    Client, ClientNames, Inside, PATIENCE, PROXY, PROXY_DNS, Scene, TestAuthority, UNLIMITED, ask,
    eventually, extended_error, run_tidegate,
};

const POLICY: &str = r#"
[policy.base]
allow = [
    "api.example.com:443,80", "*.w.example.com:443,80", "git.example.com:22", "www.straße.example:80",
    "203.0.113.20:443,80", "[2001:db8:cafe::20]:80", "10.20.0.5:5432",
    "imds.example.com:80", "rfc1918.example.com:80", "mapped.example.com:80", "nat64.example.com:80",
    "wire.example.com:80", "gateway.example.com:80", "inside.example.com:80", "loopback.example.com:80",
    "multicast.example.com:80", "mixed.example.com:80", "cloaked.example.com:80", "gone.example.com:80",
]
deny = ["bad.w.example.com", "tracker.test", "203.0.113.99", "denied.ask.example.com"]
ask = ["asked.example.com:443,80", "*.ask.example.com:80", "203.0.113.30:80", "api.example.com:80"]

[internal.billing]
host = "billing.corp.example"
addresses = ["10.0.3.7/32"]
ports = [8443]

[sandbox.s1]
policies = ["base"]
internal = ["billing"]
identify = [{ default = true }]
"#;

/// What the world answers.
const ZONE: &[(&str, &[&str])] = &[
    ("api.example.com", &["A 203.0.113.10", "AAAA 2001:db8:cafe::10"]),
    ("a.w.example.com", &["A 203.0.113.11"]),
    ("bad.w.example.com", &["A 203.0.113.66"]),
    ("git.example.com", &["A 203.0.113.17"]),
    ("www.xn--strae-oqa.example", &["A 203.0.113.18"]),
    ("other.example.com", &["A 203.0.113.66"]),
    ("tracker.test", &["A 203.0.113.66"]),
    ("imds.example.com", &["A 169.254.169.254"]),
    ("rfc1918.example.com", &["A 10.0.0.1"]),
    ("mapped.example.com", &["AAAA ::ffff:10.0.0.1"]),
    ("nat64.example.com", &["AAAA 64:ff9b::a9fe:a9fe"]),
    ("wire.example.com", &["A 168.63.129.16"]),
    ("gateway.example.com", &["A 203.0.113.1"]),
    ("inside.example.com", &["A 10.200.0.1"]),
    ("loopback.example.com", &["A 127.0.0.1"]),
    ("multicast.example.com", &["A 224.0.0.1"]),
    ("mixed.example.com", &["A 169.254.169.254", "A 203.0.113.12"]),
    ("cloaked.example.com", &["CNAME tracker.test."]),
    ("metadata.google.internal", &["A 203.0.113.66"]),
];

/// What must come of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Allowed,
    /// The name itself is denied: DNS says NXDOMAIN with the same reason, and nothing is asked upstream.
    NameDenied(&'static str),
    /// The name is right and the port is not: DNS answers.
    PortDenied(&'static str),
    /// Every address is forbidden: DNS gives no address, with the same reason.
    AddressDenied(&'static str),
    /// A person must approve it: DNS says NXDOMAIN, or in a namespace what stands for the name; nothing is asked upstream.
    Asks,
    /// The same of a literal.
    LiteralAsks,
    /// A literal: there is nothing to look up.
    LiteralDenied(&'static str),
    LiteralAllowed,
    /// Allowed, and the world does not know it.
    UpstreamFailed(&'static str),
}

use Answer::{
    AddressDenied, Allowed, Asks, LiteralAllowed, LiteralAsks, LiteralDenied, NameDenied, PortDenied,
    UpstreamFailed,
};

const ASKS: &[(&str, u16, Answer)] = &[
    ("api.example.com", 443, Allowed),
    ("api.example.com", 80, Allowed),
    ("API.Example.com.", 80, Allowed),
    ("a.w.example.com", 80, Allowed),
    ("git.example.com", 22, Allowed),
    ("www.xn--strae-oqa.example", 80, Allowed),
    ("billing.corp.example", 8443, Allowed),
    ("mixed.example.com", 80, Allowed),
    ("api.example.com", 8080, PortDenied("port_not_allowed")),
    ("git.example.com", 80, PortDenied("port_not_allowed")),
    ("billing.corp.example", 80, PortDenied("port_not_allowed")),
    ("asked.example.com", 443, Asks),
    ("asked.example.com", 80, Asks),
    ("x.ask.example.com", 80, Asks),
    ("denied.ask.example.com", 80, NameDenied("denied_by_rule")),
    ("203.0.113.30", 80, LiteralAsks),
    ("203.0.113.30", 8080, LiteralDenied("port_not_allowed")),
    ("other.example.com", 80, NameDenied("not_listed")),
    ("example.com", 443, NameDenied("not_listed")),
    ("w.example.com", 80, NameDenied("not_listed")),
    ("bad.w.example.com", 80, NameDenied("denied_by_rule")),
    ("tracker.test", 443, NameDenied("denied_by_rule")),
    ("metadata.google.internal", 80, NameDenied("metadata_endpoint")),
    ("imds.example.com", 80, AddressDenied("metadata_endpoint")),
    ("rfc1918.example.com", 80, AddressDenied("address_not_public")),
    ("mapped.example.com", 80, AddressDenied("address_not_public")),
    ("nat64.example.com", 80, AddressDenied("metadata_endpoint")),
    ("wire.example.com", 80, AddressDenied("metadata_endpoint")),
    ("gateway.example.com", 80, AddressDenied("gateway_address")),
    ("inside.example.com", 80, AddressDenied("gateway_address")),
    ("loopback.example.com", 80, AddressDenied("gateway_address")),
    ("multicast.example.com", 80, AddressDenied("address_forbidden")),
    ("cloaked.example.com", 80, AddressDenied("denied_by_rule")),
    ("gone.example.com", 80, UpstreamFailed("upstream_dns_failed")),
    ("203.0.113.20", 80, LiteralAllowed),
    ("2001:db8:cafe::20", 80, LiteralAllowed),
    ("10.20.0.5", 5432, LiteralAllowed),
    ("203.0.113.20", 8080, LiteralDenied("port_not_allowed")),
    ("203.0.113.21", 80, LiteralDenied("address_literal_not_listed")),
    ("203.0.113.99", 80, LiteralDenied("denied_by_rule")),
    ("169.254.169.254", 80, LiteralDenied("metadata_endpoint")),
    ("168.63.129.16", 80, LiteralDenied("metadata_endpoint")),
    ("::ffff:169.254.169.254", 80, LiteralDenied("metadata_endpoint")),
    ("64:ff9b::a9fe:a9fe", 80, LiteralDenied("metadata_endpoint")),
    ("203.0.113.1", 80, LiteralDenied("gateway_address")),
    ("127.0.0.1", 80, LiteralDenied("gateway_address")),
    ("::1", 80, LiteralDenied("gateway_address")),
    ("0.0.0.0", 80, LiteralDenied("address_forbidden")),
    ("224.0.0.1", 80, LiteralDenied("address_forbidden")),
];

impl Answer {
    /// The reason that every inbound must give, or none.
    fn reason(self) -> Option<&'static str> {
        match self {
            Allowed | LiteralAllowed => None,
            Asks | LiteralAsks => Some("approval_pending"),
            NameDenied(code) | PortDenied(code) | AddressDenied(code) | LiteralDenied(code)
            | UpstreamFailed(code) => Some(code),
        }
    }

    fn decision(self) -> &'static str {
        match self {
            Allowed | LiteralAllowed | UpstreamFailed(_) => "allow",
            _ => "deny",
        }
    }

    fn status(self) -> u16 {
        match self {
            Allowed | LiteralAllowed => 200,
            UpstreamFailed(_) => 502,
            _ => 403,
        }
    }
}

#[test]
fn invariant_2_one_answer_and_4_a_denied_name_is_never_resolved() {
    let mut builder = Scene::new().policy(POLICY).ports([22, 5432, 8080, 8443]);
    for (name, records) in ZONE {
        builder = builder.resolving(name, records);
    }
    let Some(scene) = builder.start() else { return };

    let mut wrong = String::new();
    for &(host, port, answer) in ASKS {
        for (inbound, found) in [
            ("connect", connect(&scene, host, port)),
            ("http", http(&scene, host, port)),
            ("socks5", socks5(&scene, host, port, answer)),
            ("explain", explain(&scene, host, port)),
        ] {
            // `explain` resolves and judges; it does not dial, so a name without addresses is its failure too.
            let asks = inbound == "explain" && matches!(answer, Asks | LiteralAsks);
            let decision = if asks { "ask" } else { answer.decision() };
            let wanted = (decision.to_owned(), answer.reason().map(str::to_owned));
            if let Some(found) = found
                && found != wanted
            {
                writeln!(wrong, "{inbound} {host}:{port}: {found:?}, wanted {wanted:?}").unwrap();
            }
        }
        if let Err(found) = dns(&scene, host, answer) {
            writeln!(wrong, "dns {host}: {found}, wanted {answer:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");

    for &(host, _, answer) in ASKS {
        let asked = scene.dns().asked_under(host);
        if let NameDenied(_) | Asks = answer
            && !ASKS.iter().any(|(other, _, answer)| {
                other.ends_with(&format!(".{host}")) && !matches!(answer, NameDenied(_))
            })
        {
            assert!(asked.is_empty(), "{host} was asked upstream: {asked:?}");
        }
        let exactly = |name: &str| name.trim_end_matches('.').eq_ignore_ascii_case(host);
        if matches!(answer, NameDenied(_) | Asks) {
            assert!(!asked.iter().any(|asked| exactly(&asked.name)), "{host} was asked upstream");
        }
    }
}

/// The inbound of a sandbox with a network of its own: it dials names by their bound addresses, and literals as they are.
#[test]
fn invariant_2_a_captured_connection_gets_the_answer_of_every_inbound() {
    let mut builder = Inside::new(POLICY).origins(&[22, 80, 443, 5432, 8443], |_| Behaviour::Echo);
    for (name, records) in ZONE {
        builder = builder.resolving(name, records);
    }
    let Some(inside) = builder.start() else { return };

    let mut wrong = String::new();
    for &(host, port, answer) in ASKS {
        let literal = host.parse::<IpAddr>().map(|address| address.to_canonical());
        let to = match literal {
            // These never leave the sandbox: they are its own loopback, or no destination of a stream.
            Ok(own) if own.is_loopback() || own.is_unspecified() || own.is_multicast() => continue,
            Ok(address) => address,
            Err(_) => {
                // A denied name has no address there; whoever had one before is denied as well.
                let name = policy::Hostname::parse(host).unwrap();
                IpAddr::V4(inside.namespace.bind(&name, true).unwrap().v4)
            }
        };
        let client = inside.try_connect(SocketAddr::new(to, port)).map(|mut client| {
            client.send(b"no name\r\n");
            client
        });
        let seen = eventually("its decision", || inside.take_decision());
        let reason = answer.reason().unwrap_or("-");
        let canonical = literal.map_or_else(
            |_| authority(&host.to_ascii_lowercase().replace(".com.", ".com"), port),
            |address| authority(&address.to_string(), port),
        );
        let wanted = format!("tcp {} {reason} {canonical}", answer.decision());
        if seen != wanted {
            writeln!(wrong, "{host}:{port}: {seen}, wanted {wanted}").unwrap();
        }
        drop(client);
        let (policy, local) = (inside.gate.policy(), inside.gate.local_addresses());
        let view = View { policy: &policy, local: &local, now: dns::clock::now(), approved: Approved::NONE };
        let asked = Destination::from_authority(authority(host, port).as_bytes()).unwrap();
        let told = view.explain_captured(&SandboxId::parse("s1").unwrap(), &Ask::Stream(asked));
        let before_resolving = match answer {
            AddressDenied(_) | UpstreamFailed(_) => None,
            answer => answer.reason(),
        };
        if told.reason.map(Reason::code) != before_resolving {
            writeln!(wrong, "explain --captured {host}:{port}: {:?}", told.reason).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    for (host, ..) in ASKS.iter().filter(|(.., answer)| matches!(answer, NameDenied(_) | Asks)) {
        assert!(
            !inside.asked().iter().any(|asked| asked.eq_ignore_ascii_case(host)),
            "{host} was asked upstream"
        );
    }
}

/// Where everything that comes is the sandbox's, where what comes from the address is, and where certificates are shown.
const BY_LISTENER: &str = "10.200.0.1:3129";
const BY_SOURCE: &str = "127.0.0.1:3128";
const BY_CERTIFICATE: &str = "10.200.0.1:3443";

#[test]
fn invariant_2_every_kind_of_identity_gets_one_answer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s1/proxy.sock");
    let identify = format!(
        "identify = [{{ token_sha256 = \"3fb44e6c4bef5d50ae1c497f6c17bc61a7aa3a9e919dd27236f6218d8c523dc3\" }}, \
         {{ listener = \"{BY_LISTENER}\" }}, {{ source = \"127.0.0.1/32\" }}, {{ unix = {socket:?} }}, \
         {{ spiffe = \"spiffe://example.test/s1\" }}]\n{UNLIMITED}"
    );
    let signer = TestAuthority::new();
    let (server, key) = signer.identity_pem(&["10.200.0.1"]);
    let mut tls = "[listen.tls]\n".to_owned();
    for (option, name, text) in [
        ("cert_file", "server.pem", server),
        ("key_file", "server.key", key),
        ("client_ca_file", "ca.pem", signer.pem()),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        writeln!(tls, "{option} = {path:?}").unwrap();
    }
    let names = ClientNames { uris: &["spiffe://example.test/s1"], ..ClientNames::default() };
    let certified = signer.client_showing(Some(&signer.client_identity(1, names)));
    let mut builder = Scene::new()
        .policy(&POLICY.replace("identify = [{ default = true }]", &identify))
        .configure(|config| {
            let certified = format!("https://{BY_CERTIFICATE}");
            config.proxy = vec![PROXY.into(), BY_LISTENER.into(), BY_SOURCE.into(), certified];
            config.listen = tls;
        })
        .ports([22, 5432, 8080, 8443]);
    for (name, records) in ZONE {
        builder = builder.resolving(name, records);
    }
    let Some(scene) = builder.start() else { return };
    let token = "Proxy-Authorization: Basic czE6dG9rZW4tb2YtczE=\r\n";
    let mut wrong = String::new();
    for &(host, port, answer) in ASKS {
        let to = authority(host, port);
        let by = |listener: &str, credentials: &str| {
            let mut client = Client::connect(scene.lab(), listener.parse().unwrap());
            client.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{credentials}\r\n").as_bytes());
            let response = client.response();
            (response.status, response.reason().map(str::to_owned))
        };
        for (kind, (status, shown)) in [
            ("token", by(PROXY, token)),
            ("listener", by(BY_LISTENER, "")),
            ("source", by(BY_SOURCE, "")),
            ("unix", {
                let stream = UnixStream::connect(&socket).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                by_stream(stream, &to)
            }),
            ("certificate", {
                let stream = Client::connect(scene.lab(), BY_CERTIFICATE.parse().unwrap()).into_stream();
                by_stream(certified.handshake(stream, "10.200.0.1").unwrap(), &to)
            }),
        ] {
            let (decision, reason) = logged(&scene, "connect");
            let shown = shown.filter(|_| status != 200);
            let found = (by_status(status, decision), consistent(reason, shown));
            let wanted = (answer.decision().to_owned(), answer.reason().map(str::to_owned));
            if found != wanted {
                writeln!(wrong, "by {kind} {to}: {found:?}, wanted {wanted:?}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let lines = scene.gateway().audit();
    let strangers =
        lines.iter().filter(|line| line["event"] == "decision" && line["sandbox"] != "s1").count();
    assert_eq!(strangers, 0);
}

/// The status and the reason of a CONNECT over a stream.
fn by_stream(mut stream: impl Read + std::io::Write, to: &str) -> (u16, Option<String>) {
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default();
    let reason = head.lines().find_map(|line| line.strip_prefix("Tidegate-Reason: "));
    (status, reason.map(str::to_owned))
}

/// A decision and its reason, as a client and the audit log saw it.
type Found = (String, Option<String>);

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The last decision event, which must be of this inbound.
fn logged(scene: &Scene, inbound: &str) -> Found {
    let events = scene.gateway().audit();
    let event = events.iter().rev().find(|event| event["event"] == "decision").expect("a decision is logged");
    assert_eq!(event["inbound"], inbound, "{event}");
    let text = |field: &str| event.get(field).and_then(Value::as_str).map(str::to_owned);
    (text("decision").expect("a decision event has a decision"), text("reason"))
}

fn connect(scene: &Scene, host: &str, port: u16) -> Option<Found> {
    let mut client = scene.client();
    let to = authority(host, port);
    client.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes());
    let response = client.response();
    let (decision, reason) = logged(scene, "connect");
    let shown = (response.status != 200).then(|| response.reason().map(str::to_owned)).flatten();
    Some((by_status(response.status, decision), consistent(reason, shown)))
}

fn http(scene: &Scene, host: &str, port: u16) -> Option<Found> {
    // Plain HTTP on the TLS port and to servers of other protocols is another question.
    if port != 80 && port != 8080 {
        return None;
    }
    let mut client = scene.client();
    let to = authority(host, port);
    client.send(format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n").as_bytes());
    let response = client.response();
    let (decision, reason) = logged(scene, "http");
    let shown = response.reason().map(str::to_owned);
    Some((by_status(response.status, decision), consistent(reason, shown)))
}

fn socks5(scene: &Scene, host: &str, port: u16, answer: Answer) -> Option<Found> {
    let reply = scene.client().socks5(host, port);
    let (decision, reason) = logged(scene, "socks5");
    let right = match answer.status() {
        200 => reply.0 == 0,
        403 => reply.0 == 2,
        // "Host unreachable" or "general failure" (RFC 1928 §6).
        _ => matches!(reply.0, 1 | 4),
    };
    Some((if right { decision } else { format!("{decision} with reply {}", reply.0) }, reason))
}

fn explain(scene: &Scene, host: &str, port: u16) -> Option<Found> {
    let config = scene.gateway().config_file();
    let target = authority(host, port);
    let args = ["explain", "--config", config.to_str()?, "--sandbox", "s1", "--resolve", "--json", &target];
    let output = run_tidegate(scene.lab(), args);
    let Ok(said) = serde_json::from_slice::<Value>(&output.stdout) else {
        return Some((format!("{:?} {}", output.status, String::from_utf8_lossy(&output.stderr)), None));
    };
    let text = |field: &str| said.get(field).and_then(Value::as_str).map(str::to_owned);
    let decision = text("decision").unwrap_or_default();
    let exit = match decision.as_str() {
        "allow" => 0,
        "ask" => 3,
        _ => 1,
    };
    let decision = if output.status.code() == Some(exit) {
        decision
    } else {
        format!("{decision} with {}", output.status)
    };
    Some((decision, text("reason")))
}

fn dns(scene: &Scene, host: &str, answer: Answer) -> Result<(), String> {
    if host.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let ask = |kind| {
        ask(scene.lab(), PROXY_DNS.parse().expect("an address"), host, kind)
            .map_err(|error| error.to_string())
    };
    let (v4, v6) = (ask(RecordType::A)?, ask(RecordType::AAAA)?);
    let addresses =
        v4.answers.iter().chain(&v6.answers).filter(|record| record.data.ip_addr().is_some()).count();
    let rcodes = [v4.metadata.response_code, v6.metadata.response_code].map(|code| format!("{code:?}"));
    let reasons = [&v4, &v6].map(|message| extended_error(message).map(|(_, text)| text).unwrap_or_default());
    let found = || Err(format!("{rcodes:?}, {addresses} addresses, {reasons:?}"));
    match answer {
        Allowed | PortDenied(_) if addresses > 0 => Ok(()),
        Asks if addresses == 0 && reasons.iter().all(|reason| reason == "approval_pending") => {
            if rcodes.iter().all(|rcode| rcode == "NXDomain") { Ok(()) } else { found() }
        }
        // An ancestor of an allowed name exists, and has nothing (RFC 8020).
        NameDenied(code) if addresses == 0 && reasons.iter().all(|reason| reason.contains(code)) => {
            let ancestor = ASKS.iter().any(|(other, _, answer)| {
                other.ends_with(&format!(".{host}")) && !matches!(answer, NameDenied(_))
            });
            let wanted = if ancestor { "NoError" } else { "NXDomain" };
            if rcodes.iter().all(|rcode| rcode == wanted) { Ok(()) } else { found() }
        }
        AddressDenied(code) if addresses == 0 && reasons.iter().any(|reason| reason.contains(code)) => {
            if rcodes.iter().all(|rcode| rcode == "NoError") {
                Ok(())
            } else {
                found()
            }
        }
        UpstreamFailed(_) if addresses == 0 => Ok(()),
        _ => found(),
    }
}

/// What the log says, unless the client was told something else.
fn by_status(status: u16, decision: String) -> String {
    let told = match status {
        200 | 502 | 504 => "allow",
        _ => "deny",
    };
    if told == decision { decision } else { format!("{decision} in the log, status {status}") }
}

fn consistent(logged: Option<String>, shown: Option<String>) -> Option<String> {
    if logged == shown { logged } else { Some(format!("{logged:?} in the log, {shown:?} shown")) }
}
