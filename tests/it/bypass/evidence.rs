//! What a case left behind: what the client saw, what left the gateway's host, what was asked, what was logged.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::RecordType,
};
use tidegate::lab::{dns::Asked, http::Request, origin::Contact, tap::Sent};

use crate::support::{Response, Scene};

/// What one input did.
#[derive(Debug)]
pub enum Exchange {
    Bytes(Bytes),
    Dns(Dns),
    /// A command: its exit status (none: a signal).
    Command {
        status: Option<i32>,
    },
    /// An address range probe: the address, whether it lies in the range, and the answer to a CONNECT to a name there.
    Probe {
        address: IpAddr,
        inside: bool,
        response: Response,
    },
    /// Two inputs run in turn, and the time of each run.
    Timed {
        a: Vec<Duration>,
        b: Vec<Duration>,
        last: Vec<Exchange>,
    },
    /// Many inputs of one pattern: how each status came out.
    Many {
        pattern: String,
        statuses: Vec<u16>,
    },
}

/// A script of bytes on one connection.
#[derive(Debug, Default)]
pub struct Bytes {
    pub received: Vec<u8>,
    pub responses: Vec<Response>,
    /// What the client sent once a tunnel stood.
    pub sent_in_tunnel: Vec<u8>,
    /// Whether the gateway closed.
    pub ended: bool,
    /// How long the whole took.
    pub took: Duration,
    /// What earlier, allowed connections of the same script brought to an origin.
    pub upstream_before: u64,
}

/// One DNS question.
#[derive(Debug)]
pub struct Dns {
    pub query: Vec<u8>,
    /// The answer; none where none came in time.
    pub reply: Option<Vec<u8>>,
    pub took: Duration,
}

impl Bytes {
    /// What came through the tunnel, where one stood.
    pub fn tunnel(&self) -> Option<&[u8]> {
        self.responses.last().filter(|last| last.is_tunnel()).map(|last| last.body.as_slice())
    }

    /// The second byte of a SOCKS5 reply, where the client spoke SOCKS5.
    pub fn socks_reply(&self) -> Option<u8> {
        (self.received.first() == Some(&5)).then(|| self.received.get(3).copied()).flatten()
    }
}

impl Dns {
    pub fn message(&self) -> Option<Message> {
        Message::from_vec(self.reply.as_deref()?).ok()
    }

    /// The response code as the corpus writes it; `NOERROR-empty` where there is no answer, and the extended code included.
    pub fn rcode(&self) -> Option<String> {
        let message = self.message()?;
        Some(match message.metadata.response_code {
            ResponseCode::NoError if message.answers.is_empty() => "NOERROR-empty".into(),
            ResponseCode::NoError => "NOERROR".into(),
            ResponseCode::FormErr => "FORMERR".into(),
            ResponseCode::ServFail => "SERVFAIL".into(),
            ResponseCode::NXDomain => "NXDOMAIN".into(),
            ResponseCode::NotImp => "NOTIMP".into(),
            ResponseCode::Refused => "REFUSED".into(),
            // Code 16 has two names (RFC 6895 §2.3); without TSIG it is this one.
            ResponseCode::BADVERS | ResponseCode::BADSIG => "BADVERS".into(),
            other => format!("{other:?}"),
        })
    }
}

/// Everything together; the assertions look into it.
pub struct Evidence<'a> {
    pub scene: &'a mut Scene,
    pub exchanges: Vec<Exchange>,
    pub sent: BTreeSet<Sent>,
    pub contacts: Vec<Arc<Contact>>,
    pub asked: Vec<Asked>,
    /// The audit log when the input was done.
    pub log: String,
    /// Verdicts of the steps, in order, for `verdicts[n]`.
    pub verdicts: Vec<&'static str>,
}

impl Evidence<'_> {
    pub fn dials(&self) -> Vec<SocketAddr> {
        self.sent
            .iter()
            .filter_map(|sent| if let Sent::Dial { to, .. } = sent { Some(*to) } else { None })
            .collect()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.contacts.iter().flat_map(|contact| contact.requests()).collect()
    }

    pub fn upstream_bytes(&self) -> u64 {
        self.contacts.iter().map(|contact| contact.total()).sum()
    }
}

/// The types that the corpus asks for by name or number.
pub fn record_type(text: &str) -> Option<RecordType> {
    let number = match text {
        "IXFR" => 251,
        "AXFR" => 252,
        "MAILB" => 253,
        "MAILA" => 254,
        "RP" => 17,
        "SPF" => 99,
        "URI" => 256,
        _ => match text.strip_prefix("TYPE") {
            Some(number) => number.parse().ok()?,
            None => return text.parse().ok(),
        },
    };
    Some(RecordType::from(number))
}
