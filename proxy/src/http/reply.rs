//! The gateway's own answers: one visible reason, in the status line, in the headers and in the body.

use std::fmt::Write as _;
use std::time::Duration;

use policy::{Ask, Attempt, Denial, Failure, Host, Reason};

use super::exchange::Fault;
use super::head::{BadHead, RequestHead};
use crate::open::Refused;

/// What the body says to software that reads it for somebody.
const ADVICE: &str = "Blocked by policy; do not retry another way.";

/// How an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    json: bool,
    body: bool,
    keep_alive: bool,
}

impl Form {
    /// As the request wants it; `keep_alive` says whether the connection goes on after the answer.
    pub(crate) fn of(head: &RequestHead, keep_alive: bool) -> Self {
        let accepts =
            |value: &[u8]| value.windows(16).any(|part| part.eq_ignore_ascii_case(b"application/json"));
        let json = head.fields().any(|(name, value)| name.eq_ignore_ascii_case("accept") && accepts(value));
        Self { json, body: head.method() != "HEAD", keep_alive }
    }

    /// For requests that could not be read: the connection ends with the answer.
    const UNREAD: Self = Self { json: false, body: true, keep_alive: false };
}

/// The answer where there is no stream.
pub(crate) fn refused(refused: &Refused, form: Form) -> Vec<u8> {
    match refused {
        Refused::Denied(denied) => denial(denied, form),
        Refused::Failed(failed) => failure(failed, form),
    }
}

/// The answer to an attempt that the policy refuses.
pub(crate) fn denial(denial: &Denial, form: Form) -> Vec<u8> {
    let reason = denial.reason();
    let hints = denial.sandbox().is_some_and(|sandbox| sandbox.hints);
    let mut lines = vec![reason.text().to_owned()];
    if let Some(note) = note(denial) {
        lines.push(note.to_owned());
    }
    lines.extend(stranger(denial));
    if hints && let Some(rule) = denial.rule() {
        let place = rule.place();
        lines.push(format!("rule: {rule} ({}:{})", place.file, place.line));
    }
    if hints && let Some(remedy) = denial.remedy() {
        lines.push(format!(
            "to allow it, add \"{}\" to allow of [policy.{}] in {}",
            remedy.entry, remedy.policy, remedy.file
        ));
    }
    let answer = Answer {
        status: if denial.wants_credentials() { 407 } else { denied_status(reason) },
        error: "http_request_denied",
        verb: "Blocked",
        reason,
        id: denial.attempt().id.to_string(),
        what: what(&denial.attempt().ask),
        lines,
        advice: (!denial.wants_credentials()).then_some(ADVICE),
        wait: denial.wait(),
    };
    answer.write(form)
}

/// The answer to an attempt that failed upstream.
pub(crate) fn failure(failure: &Failure, form: Form) -> Vec<u8> {
    let reason = failure.reason();
    // The types of RFC 9209 §2.3.
    let (status, error) = match reason {
        Reason::UpstreamTimeout => (504, "connection_timeout"),
        Reason::UpstreamDnsFailed => (502, "dns_error"),
        _ => (502, "destination_unavailable"),
    };
    let answer = Answer {
        status,
        error,
        verb: "Not reached",
        reason,
        id: failure.attempt().id.to_string(),
        what: what(&failure.attempt().ask),
        lines: vec![reason.text().to_owned()],
        advice: None,
        wait: None,
    };
    answer.write(form)
}

/// The answer to a request that was let through and that its connection then could not bring to an end.
pub(crate) fn fault(attempt: &Attempt, fault: Fault, form: Form) -> Vec<u8> {
    // The types of RFC 9209 §2.3.
    let (status, error, line) = match fault {
        Fault::Slow => (504, "http_response_timeout", "the destination did not answer in time".to_owned()),
        Fault::Silent | Fault::Closed => (
            502,
            "connection_terminated",
            "the destination closed the connection without an answer".to_owned(),
        ),
        Fault::Bad(bad) => {
            (502, "http_protocol_error", format!("the destination's answer is not passed on: {bad}"))
        }
        Fault::Body => (400, "http_request_error", "malformed chunked body".to_owned()),
    };
    let answer = Answer {
        status,
        error,
        verb: if status == 400 { "Refused" } else { "Not answered" },
        reason: fault.reason(),
        id: attempt.id.to_string(),
        what: what(&attempt.ask),
        lines: vec![line],
        advice: None,
        wait: None,
    };
    answer.write(form)
}

/// The answer to a request that could not be read.
pub(crate) fn bad_head(denial: &Denial, bad: BadHead) -> Vec<u8> {
    let answer = Answer {
        status: bad.status(),
        error: "http_request_error",
        verb: "Refused",
        reason: denial.reason(),
        id: denial.attempt().id.to_string(),
        what: String::new(),
        lines: vec![bad.to_string()],
        advice: None,
        wait: None,
    };
    answer.write(Form::UNREAD)
}

/// What there is to say beyond the reason.
fn note(denial: &Denial) -> Option<&'static str> {
    let host = denial.attempt().ask.host();
    let port = denial.attempt().ask.port().map(policy::Port::get);
    match (denial.reason(), host, port) {
        _ if denial.wants_credentials() => Some(
            "the sandbox's name and token are missing or wrong: write the proxy as http://SANDBOX:TOKEN@HOST:PORT",
        ),
        (Reason::GatewayAddress, Some(Host::Address(address)), _) if address.is_loopback() => Some(
            "this is the loopback of the gateway, not of the sandbox: set NO_PROXY=localhost,127.0.0.1,::1 for \
             the sandbox's own",
        ),
        (Reason::PortNotAllowed, _, Some(80)) => {
            Some("an entry without a port means port 443: plain HTTP needs host:80")
        }
        _ => None,
    }
}

/// Who the kernel says that a stranger on a unix socket is, or its certificate: whoever runs it can then be found in the
/// config.
fn stranger(denial: &Denial) -> Option<String> {
    let peer = &denial.attempt().peer;
    if let Some(certificate) = peer.certificate.as_ref().filter(|_| denial.reason() == Reason::UnknownSandbox)
    {
        return Some(match certificate.is_withdrawn() {
            true => "the client certificate is not trusted any more".to_owned(),
            false => format!("the certificate {:?} is no sandbox's", certificate.to_string()),
        });
    }
    let user = peer.user.as_ref().filter(|_| denial.reason() == Reason::UnknownSandbox)?;
    Some(format!("uid {} (gid {}) is no sandbox on {}", user.uid, user.gid, peer.listener))
}

/// What was asked for, from parsed values only.
fn what(ask: &Ask) -> String {
    match ask {
        Ask::Stream(destination) => destination.to_string(),
        Ask::Request { destination, method, .. } => format!("{method} {destination}"),
        Ask::Lookup { name, .. } => name.to_string(),
        Ask::Unreadable { .. } => String::new(),
    }
}

fn denied_status(reason: Reason) -> u16 {
    match reason {
        Reason::BadRequest => 400,
        Reason::LimitConnections
        | Reason::LimitDownload
        | Reason::LimitLifetime
        | Reason::LimitNames
        | Reason::LimitRate
        | Reason::LimitUpload => 429,
        Reason::UpstreamConnectFailed | Reason::UpstreamDnsFailed => 502,
        Reason::UpstreamTimeout => 504,
        Reason::AddressForbidden
        | Reason::AddressLiteralNotListed
        | Reason::AddressNotPublic
        | Reason::ApprovalDenied
        | Reason::ApprovalPending
        | Reason::ApprovalTimeout
        | Reason::AuditUnavailable
        | Reason::DeniedByRule
        | Reason::EchPresent
        | Reason::EndedByOperator
        | Reason::GatewayAddress
        | Reason::HelloInvalid
        | Reason::HostMismatch
        | Reason::IdentityMismatch
        | Reason::LinkAppeared
        | Reason::MetadataEndpoint
        | Reason::MethodNotAllowed
        | Reason::NotListed
        | Reason::PathNotAllowed
        | Reason::PolicyChanged
        | Reason::PortNotAllowed
        | Reason::QtypeNotAllowed
        | Reason::SandboxExpired
        | Reason::SandboxPaused
        | Reason::SniMismatch
        | Reason::SniMissing
        | Reason::SpecialUseName
        | Reason::TlsRequired
        | Reason::UnknownSandbox => 403,
    }
}

/// Everything that an answer says.
struct Answer {
    status: u16,
    error: &'static str,
    verb: &'static str,
    reason: Reason,
    id: String,
    what: String,
    lines: Vec<String>,
    advice: Option<&'static str>,
    wait: Option<Duration>,
}

impl Answer {
    fn write(&self, form: Form) -> Vec<u8> {
        let Self { status, error, verb, reason, id, .. } = self;
        let code = reason.code();
        let (kind, body) = match form.json {
            true => ("application/json", self.json()),
            false => ("text/plain; charset=utf-8", self.text()),
        };
        let length = body.len();
        let connection = if form.keep_alive { "keep-alive" } else { "close" };
        // The longest line has 95 bytes: "Blocked by tidegate: address_literal_not_listed, id " and 26 more.
        let mut answer = format!(
            "HTTP/1.1 {status} {verb} by tidegate: {code}, id {id}\r\n\
             Proxy-Status: tidegate; error={error}; details=\"{code}\"\r\n\
             Tidegate-Reason: {code}\r\n\
             Tidegate-Id: {id}\r\n\
             Content-Type: {kind}\r\n\
             Content-Length: {length}\r\n\
             Cache-Control: no-store\r\n\
             Connection: {connection}\r\n"
        );
        if *status == 407 {
            // RFC 9110 §11.7.1.
            answer.push_str("Proxy-Authenticate: Basic realm=\"tidegate\"\r\n");
        }
        if *status == 429 {
            // Whole seconds (RFC 9110 §10.2.3), rounded up.
            let seconds = self.wait.map_or(1, |wait| wait.as_millis().div_ceil(1000).max(1));
            answer.push_str(&format!("Retry-After: {seconds}\r\n"));
        }
        if *status == 405 {
            // RFC 9110 §15.5.6: a 405 says what is allowed; the list is open.
            answer.push_str("Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, CONNECT\r\n");
        }
        answer.push_str("\r\n");
        if form.body {
            answer.push_str(&body);
        }
        answer.into_bytes()
    }

    fn text(&self) -> String {
        let mut text = match self.what.is_empty() {
            true => format!("{}: {}\n", self.verb, self.reason.code()),
            false => format!("{}: {} ({})\n", self.verb, self.what, self.reason.code()),
        };
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        let _ = writeln!(text, "id: {}", self.id);
        if let Some(advice) = self.advice {
            text.push_str(advice);
            text.push('\n');
        }
        text
    }

    fn json(&self) -> String {
        let error = if self.advice.is_some() { "policy_denied" } else { self.error };
        let details: Vec<String> = self.lines.iter().map(|line| quoted(line)).collect();
        format!(
            "{{\"error\":{},\"reason\":{},\"what\":{},\"details\":[{}],\"id\":{},\"advice\":{}}}\n",
            quoted(error),
            quoted(self.reason.code()),
            quoted(&self.what),
            details.join(","),
            quoted(&self.id),
            self.advice.map_or_else(|| "null".to_owned(), quoted),
        )
    }
}

/// A JSON string (RFC 8259 §7).
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
