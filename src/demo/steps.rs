//! What the demo asks for, and the policy under which it asks.

use policy::Reason;

/// The policy of the demo: the part of its config that a person would write.
pub(super) const POLICY: &str = r#"[policy.demo]
allow = ["api.example.com", "web.example.com:80", "*.svc.example.com"]
deny  = ["gist.svc.example.com"]

[[policy.demo.rule]]
id      = "read-reports"
host    = "reports.example.com"
ports   = [80]
methods = ["GET"]
paths   = ["/public/**"]

[sandbox.agent]
policies = ["demo"]
identify = [{ default = true }]
hints    = true
"#;

/// The names of the stand-in internet and where they lead.
pub(super) const ZONE: &[(&str, &[&str])] = &[
    ("api.example.com", &["A 203.0.113.10", "AAAA 2001:db8:cafe::10"]),
    ("web.example.com", &["A 203.0.113.11"]),
    ("reports.example.com", &["A 203.0.113.12"]),
    ("gist.svc.example.com", &["A 203.0.113.13"]),
    ("private.svc.example.com", &["A 10.0.3.7"]),
    ("metadata.svc.example.com", &["A 169.254.169.254"]),
    ("mapped.svc.example.com", &["AAAA ::ffff:10.0.3.7"]),
    ("gateway.svc.example.com", &["A 203.0.113.1"]),
    ("attacker.test", &["A 203.0.113.66"]),
];

/// One thing that a client tries.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) asks: Asks,
    /// The reason that the log must give; `None` where it is let through.
    pub(super) expected: Option<Reason>,
    /// Decided only after a look-up or a connection: it needs the stand-in internet.
    pub(super) needs_world: bool,
}

/// How it tries.
#[derive(Debug)]
pub(super) enum Asks {
    /// CONNECT, and then a TLS ClientHello with this name.
    Connect { to: &'static str, sni: &'static str },
    /// A plain HTTP request in absolute form.
    Http { method: &'static str, host: &'static str, path: &'static str },
    /// SOCKS5 with a domain name, to port 443.
    Socks5 { host: &'static str },
    /// A connection by a client in a network of its own, which knows of no proxy, and then a TLS ClientHello with this
    /// name. Where it is to a name, the client looks that up.
    Captured { to: &'static str, sni: &'static str },
    /// A DNS look-up of A records.
    Lookup { name: &'static str },
}

const fn denied(asks: Asks, reason: Reason) -> Step {
    Step { asks, expected: Some(reason), needs_world: false }
}

const fn denied_late(asks: Asks, reason: Reason) -> Step {
    Step { asks, expected: Some(reason), needs_world: true }
}

const fn allowed(asks: Asks) -> Step {
    Step { asks, expected: None, needs_world: true }
}

const fn connect(to: &'static str, sni: &'static str) -> Asks {
    Asks::Connect { to, sni }
}

const fn captured(to: &'static str, sni: &'static str) -> Asks {
    Asks::Captured { to, sni }
}

const fn http(method: &'static str, host: &'static str, path: &'static str) -> Asks {
    Asks::Http { method, host, path }
}

pub(super) const STEPS: &[Step] = &[
    allowed(connect("api.example.com:443", "api.example.com")),
    denied(connect("attacker.test:443", "attacker.test"), Reason::NotListed),
    denied(connect("api.example.com:22", ""), Reason::PortNotAllowed),
    denied(connect("gist.svc.example.com:443", "gist.svc.example.com"), Reason::DeniedByRule),
    denied(connect("203.0.113.66:443", "api.example.com"), Reason::AddressLiteralNotListed),
    denied(connect("169.254.169.254:80", ""), Reason::MetadataEndpoint),
    denied(connect("0x7f000001:443", ""), Reason::BadRequest),
    denied_late(connect("metadata.svc.example.com:443", ""), Reason::MetadataEndpoint),
    denied_late(connect("private.svc.example.com:443", ""), Reason::AddressNotPublic),
    denied_late(connect("mapped.svc.example.com:443", ""), Reason::AddressNotPublic),
    denied_late(connect("gateway.svc.example.com:443", ""), Reason::GatewayAddress),
    denied_late(connect("api.example.com:443", "attacker.test"), Reason::SniMismatch),
    allowed(http("GET", "web.example.com", "/")),
    allowed(http("GET", "reports.example.com", "/public/2026")),
    denied(http("POST", "reports.example.com", "/public/2026"), Reason::MethodNotAllowed),
    denied(http("GET", "reports.example.com", "/private/2026"), Reason::PathNotAllowed),
    denied(http("GET", "attacker.test", "/?data=secret"), Reason::NotListed),
    allowed(Asks::Socks5 { host: "api.example.com" }),
    denied(Asks::Socks5 { host: "attacker.test" }, Reason::NotListed),
    allowed(captured("api.example.com:443", "api.example.com")),
    // The address that the client chose is not dialled: the name is resolved by the gateway.
    allowed(captured("203.0.113.66:443", "api.example.com")),
    denied_late(captured("203.0.113.66:443", "attacker.test"), Reason::NotListed),
    denied_late(captured("169.254.169.254:443", "api.example.com"), Reason::MetadataEndpoint),
    allowed(Asks::Lookup { name: "api.example.com" }),
    denied(Asks::Lookup { name: "secret.attacker.test" }, Reason::NotListed),
    denied_late(Asks::Lookup { name: "private.svc.example.com" }, Reason::AddressNotPublic),
    denied_late(Asks::Lookup { name: "metadata.svc.example.com" }, Reason::MetadataEndpoint),
];
