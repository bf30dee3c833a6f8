//! A corpus case as it stands in the file, and the forms its input can have.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// One line of `tests/corpus/cases.jsonl`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub id: String,
    pub layer: String,
    pub title: String,
    #[serde(default)]
    pub policy: Value,
    pub dns_zone: Option<Value>,
    #[serde(default)]
    pub upstream: BTreeMap<String, String>,
    pub input: Input,
    pub expect: Expect,
    #[expect(dead_code, reason = "for the reader of the corpus")]
    pub source: String,
    #[expect(dead_code, reason = "for the reader of the corpus")]
    pub severity: String,
}

/// What must come of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub verdict: Verdict,
    pub status: Option<u16>,
    pub rcode: Option<String>,
    #[serde(default)]
    pub rcode_any: Vec<String>,
    #[serde(default)]
    pub why: String,
    #[serde(default)]
    pub assert: Vec<String>,
    pub alt: Option<Box<Expect>>,
    #[expect(dead_code, reason = "the form an HTTP/2 refusal takes; read once inspection is built")]
    pub h2: Option<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "whether a warning is enough; a warning has no exit status")]
    pub warn: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Allow,
    Deny,
    Error,
}

/// What is done; the kinds of the corpus' README.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Input {
    Tcp {
        to: Target,
        /// The address that a captured connection is made to.
        dst: Option<String>,
        send: Vec<Item>,
    },
    TcpEach {
        to: Target,
        send_each: Vec<Item>,
    },
    TcpGen {
        pattern: String,
        count: u64,
    },
    Dns {
        transport: Transport,
        q: (String, String),
    },
    DnsEach {
        transport: Transport,
        q_each: Vec<(String, String)>,
    },
    DnsWire {
        transport: Transport,
        hex: String,
    },
    DnsWireEach {
        transport: Transport,
        hex_each: Vec<String>,
    },
    DnsGen {
        pattern: String,
        #[serde(rename = "type")]
        kind: String,
        count: u64,
    },
    Tls(TlsInput),
    TlsScript {
        target: String,
        steps: Vec<TlsStep>,
    },
    Classify(Ranges),
    Policy {
        text: String,
        then: Option<Box<Input>>,
    },
    PolicyWrite {
        chunks: Vec<String>,
        pause_ms: u64,
        then: Box<Input>,
    },
    Shell {
        cmd: String,
        #[serde(rename = "where")]
        at: Option<String>,
    },
    Multi {
        steps: Vec<Step>,
    },
    PolicyReload {
        policy: Value,
    },
    Timing {
        runs: u32,
        a: Box<Input>,
        b: Box<Input>,
    },
    Fault {
        what: String,
    },
    #[serde(other)]
    Unknown,
}

/// One step of several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Step {
    /// What must hold then.
    Check {
        check: String,
    },
    Do(Input),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Target {
    #[serde(rename = "proxy")]
    Proxy,
    #[serde(rename = "dns-tcp")]
    DnsTcp,
    #[serde(rename = "transparent")]
    Transparent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Udp,
    Tcp,
}

/// One step of a byte script.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Item {
    /// Bytes: code point U+00xx is byte xx.
    Text(String),
    Hex {
        hex: String,
    },
    Repeat {
        repeat: String,
        times: usize,
    },
    Wait {
        wait_ms: u64,
    },
    ReadUntil {
        read_until: String,
    },
    HalfClose {
        #[expect(dead_code, reason = "its presence is the step")]
        half_close: bool,
    },
    Ask {
        dns: (String, String),
    },
    Other(Value),
}

#[derive(Debug, Clone, Deserialize)]
pub struct TlsInput {
    #[serde(default)]
    pub target: String,
    /// The address that a captured connection is made to, instead of a tunnel to `target`.
    pub dst: Option<String>,
    pub hello: Hello,
    #[serde(default)]
    pub then: Vec<Item>,
    pub upstream_cert: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    pub sni: Option<String>,
    #[serde(default)]
    pub alpn: Vec<String>,
    #[serde(default)]
    pub client_cert: bool,
    /// `upstream-ca-only`: trust the origin's authority alone, so that a minted leaf fails.
    pub verify: Option<String>,
    pub max_version: Option<String>,
    pub check_san: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsStep {
    /// The name to shake hands with in full, through a tunnel to that name.
    pub full_handshake: Option<String>,
    #[serde(default)]
    pub save_ticket: bool,
    #[serde(default)]
    pub resume: bool,
    pub sni: Option<String>,
    pub early_data: Option<String>,
}

/// Address ranges whose ends, and the neighbours just outside, are to be judged.
#[derive(Debug, Clone, Deserialize)]
pub struct Ranges {
    pub cidr: Option<String>,
    #[serde(default)]
    pub cidrs: Vec<Range>,
    #[serde(default)]
    pub probe: Vec<String>,
    #[serde(default)]
    pub outside: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Range {
    pub cidr: String,
}

/// The bytes of a corpus string: code point U+00xx is byte xx.
pub fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(c).unwrap_or_else(|_| panic!("{c:?} is no byte"))).collect()
}

/// The bytes of a hex string.
pub fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd hex: {text}");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
