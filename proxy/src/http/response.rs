//! Reads the head of a response and writes it anew for the client.

use std::io::Write;

use super::body::Extent;
use super::fields::{self, ResponseTerms};
use super::head::Version;

/// The longest head of a response. Some origins send many large cookies; nobody sends this much.
const LIMIT: usize = 64 * 1024;

/// More header lines than this are refused.
const MOST_FIELDS: usize = 256;

/// Why a response is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadResponse {
    /// Not the head of an HTTP/1 response.
    #[error("malformed response head")]
    Malformed,
    /// Two lengths, a length beside chunks, or a coding that is not taken: two parsers could disagree on where the
    /// next response begins (RFC 9112 §6.3).
    #[error("ambiguous response length")]
    Framing,
    /// Longer than the limit, or too many lines.
    #[error("response head too large")]
    TooLarge,
    /// It changes to a protocol that the client did not ask for.
    #[error("unexpected change of protocol")]
    Upgrade,
}

/// What the request was, as far as it decides how its response is read.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// It was HEAD: the response speaks of a body and has none.
    pub(crate) head: bool,
    /// The version that the client speaks.
    pub(crate) version: Version,
    /// The protocols that it asked to change to, and that were passed on.
    pub(crate) upgrade: Option<Vec<u8>>,
    /// Whether the client's connection goes on after the response.
    pub(crate) keep_alive: bool,
    /// Whether the client's connection ends with the upstream's: the two are one tunnel.
    pub(crate) tied: bool,
}

/// A head that was read off an upstream and written for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relayed {
    /// An interim response (1xx): the final one follows.
    Interim,
    /// The upstream changes to the protocol that was asked for; what follows is that protocol.
    Switched,
    /// The final response.
    Final {
        /// The body as it comes.
        from: Extent,
        /// The body as it goes.
        to: Extent,
        /// Whether the upstream's connection may carry another request.
        keep_upstream: bool,
        /// Whether the client's connection may carry another request.
        keep_client: bool,
    },
}

/// Looks for the end of a head, looking at each byte once however it is cut.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    seen: usize,
}

impl Scan {
    /// The length of the head at the start of `bytes`, once its empty line is there.
    ///
    /// # Errors
    /// Where it is not HTTP/1, or too long.
    pub(crate) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadResponse> {
        const START: &[u8] = b"HTTP/1.";
        if !bytes.iter().zip(START).all(|(byte, wanted)| byte == wanted) {
            return Err(BadResponse::Malformed);
        }
        while let Some(at) =
            bytes.get(self.seen..).and_then(|rest| rest.iter().position(|&byte| byte == b'\n'))
        {
            let at = self.seen + at;
            match bytes.get(at + 1..) {
                // Line feeds alone are read as RFC 9112 §2.2 allows and never passed on.
                Some([b'\n', ..]) => return Ok(Some(at + 2)),
                Some([b'\r', b'\n', ..]) => return Ok(Some(at + 3)),
                // Whether the head ends here is not there yet.
                Some([] | [b'\r']) | None => {
                    self.seen = at;
                    break;
                }
                Some(_) => self.seen = at + 1,
            }
        }
        if bytes.len() > LIMIT { Err(BadResponse::TooLarge) } else { Ok(None) }
    }
}

/// Writes the head of a response, as [`Scan::end`] measured it, for the client.
///
/// # Errors
/// Where it must not be passed on; nothing is written then.
pub(crate) fn relay(head: &[u8], asked: &Asked, out: &mut Vec<u8>) -> Result<Relayed, BadResponse> {
    if head.len() > LIMIT {
        return Err(BadResponse::TooLarge);
    }
    let mut lines = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut response = httparse::Response::new(&mut lines);
    match response.parse(head) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(BadResponse::TooLarge),
        Ok(_) | Err(_) => return Err(BadResponse::Malformed),
    }
    let (Some(status), Some(minor)) = (response.code, response.version) else {
        return Err(BadResponse::Malformed);
    };
    if status < 100 {
        return Err(BadResponse::Malformed);
    }
    let facts = Facts::of(response.headers, minor)?;
    let begun = out.len();
    // The version is the gateway's own (RFC 9110 §2.5), the phrase is the origin's.
    let _ = write!(out, "HTTP/1.1 {status:03} ");
    out.extend_from_slice(response.reason.unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    let (relayed, terms) = judge(status, &facts, asked).inspect_err(|_| out.truncate(begun))?;
    let found = response.headers.iter().map(|line| (line.name, line.value));
    if fields::write_response(found, terms, out).is_err() {
        out.truncate(begun);
        return Err(BadResponse::TooLarge);
    }
    if relayed == Relayed::Interim && asked.version == Version::Http10 {
        // HTTP/1.0 has no interim responses (RFC 9110 §15.2).
        out.truncate(begun);
    }
    Ok(relayed)
}

/// What the header lines say of the connection.
#[derive(Debug)]
struct Facts {
    length: Option<u64>,
    chunked: bool,
    keep_alive: bool,
    upgrade: Option<Vec<u8>>,
}

impl Facts {
    fn of(lines: &[httparse::Header<'_>], minor: u8) -> Result<Self, BadResponse> {
        let mut facts = Self { length: None, chunked: false, keep_alive: false, upgrade: None };
        let (mut close, mut keep) = (false, false);
        for line in lines {
            let is = |name: &str| line.name.eq_ignore_ascii_case(name);
            if is("content-length") {
                let length = plain_decimal(line.value).ok_or(BadResponse::Framing)?;
                if facts.length.replace(length).is_some() {
                    return Err(BadResponse::Framing);
                }
            } else if is("transfer-encoding") {
                let chunked = line.value.eq_ignore_ascii_case(b"chunked");
                if std::mem::replace(&mut facts.chunked, true) || !chunked || minor == 0 {
                    return Err(BadResponse::Framing);
                }
            } else if is("connection") {
                close |= has_token(line.value, b"close");
                keep |= has_token(line.value, b"keep-alive");
            } else if is("upgrade") {
                let all = facts.upgrade.get_or_insert_default();
                all.extend_from_slice(line.value);
                all.push(b',');
            }
        }
        if facts.chunked && facts.length.is_some() {
            return Err(BadResponse::Framing);
        }
        facts.keep_alive = !close && (minor == 1 || keep);
        Ok(facts)
    }
}

/// How a response is read and told on (RFC 9112 §6.3).
fn judge(status: u16, facts: &Facts, asked: &Asked) -> Result<(Relayed, ResponseTerms), BadResponse> {
    let bare =
        ResponseTerms { body: Extent::Empty, length: None, chunked: false, upgrade: false, close: false };
    match status {
        101 => {
            let (Some(offered), Some(taken)) = (&asked.upgrade, &facts.upgrade) else {
                return Err(BadResponse::Upgrade);
            };
            if tokens(taken).next().is_none() || !tokens(taken).all(|token| has_token(offered, token)) {
                return Err(BadResponse::Upgrade);
            }
            return Ok((Relayed::Switched, ResponseTerms { upgrade: true, ..bare }));
        }
        100..200 => return Ok((Relayed::Interim, bare)),
        _ => {}
    }
    let from = match (status, facts) {
        _ if asked.head => Extent::Empty,
        (204 | 304, _) => Extent::Empty,
        (_, Facts { chunked: true, .. }) => Extent::Chunked,
        (_, Facts { length: Some(length), .. }) => Extent::Length(*length),
        _ => Extent::UntilClose,
    };
    let to = match (from, asked.version) {
        (Extent::Chunked | Extent::UntilClose, Version::Http11) => Extent::Chunked,
        (Extent::Chunked | Extent::UntilClose, Version::Http10) => Extent::UntilClose,
        (Extent::Empty | Extent::Length(_), _) => from,
    };
    let keep_upstream = facts.keep_alive && from != Extent::UntilClose;
    let keep_client = asked.keep_alive && asked.version == Version::Http11 && (keep_upstream || !asked.tied);
    let relayed = Relayed::Final { from, to, keep_upstream, keep_client };
    let terms = ResponseTerms {
        body: to,
        // RFC 9110 §8.6: never with 204. With HEAD and 304 it speaks of a body that is not there.
        length: facts.length.filter(|_| status != 204),
        chunked: to == Extent::Chunked || (asked.head && facts.chunked && asked.version == Version::Http11),
        upgrade: status == 426,
        close: !keep_client,
    };
    Ok((relayed, terms))
}

fn tokens(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

fn has_token(list: &[u8], wanted: &[u8]) -> bool {
    tokens(list).any(|token| token.eq_ignore_ascii_case(wanted))
}

/// Digits and nothing else: a sign, a list or a second reading as octal would be somebody's length.
fn plain_decimal(value: &[u8]) -> Option<u64> {
    let plain = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| plain)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn get() -> Asked {
        Asked { head: false, version: Version::Http11, upgrade: None, keep_alive: true, tied: false }
    }

    fn relayed(head: &str, asked: &Asked) -> Result<(Relayed, String), BadResponse> {
        let mut scan = Scan::default();
        let end = scan.end(head.as_bytes())?.expect("a whole head");
        assert_eq!(end, head.len());
        let mut out = Vec::new();
        let relayed = relay(head.as_bytes(), asked, &mut out)?;
        Ok((relayed, String::from_utf8(out).unwrap()))
    }

    fn kept(from: Extent, to: Extent) -> Relayed {
        Relayed::Final { from, to, keep_upstream: true, keep_client: true }
    }

    #[test]
    fn an_ordinary_head_passes_with_its_phrase_order_and_spelling() {
        let head = "HTTP/1.1 200 Fine by me\r\nserver: x\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\n";
        assert_eq!(relayed(head, &get()), Ok((kept(Extent::Length(5), Extent::Length(5)), head.to_owned())));
    }

    #[test]
    fn ambiguous_lengths_are_refused() {
        for lines in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: \r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: identity\r\n",
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
            assert_eq!(relayed(&head, &get()), Err(BadResponse::Framing), "{lines}");
            let asked = Asked { head: true, ..get() };
            assert_eq!(relayed(&head, &asked), Err(BadResponse::Framing), "HEAD: {lines}");
        }
        let old = "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(relayed(old, &get()), Err(BadResponse::Framing));
    }

    #[test]
    fn what_is_no_response_head_is_refused() {
        for head in [
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 099 No\r\n\r\n",
            "HTTP/1.1 200 OK\r\nName : x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.2 200 OK\r\n\r\n",
        ] {
            assert_eq!(relayed(head, &get()), Err(BadResponse::Malformed), "{head:?}");
        }
        for start in ["HTTP/2 200\r\n", "\r\nHTTP/1.1", "hello", "SSH-2.0-x\r\n", "HTTP/0.9 200"] {
            assert_eq!(Scan::default().end(start.as_bytes()), Err(BadResponse::Malformed), "{start:?}");
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_at_every_cut() {
        for head in
            ["HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "HTTP/1.0 200 OK\nA: b\n\n", "HTTP/1.1 200 OK\r\n\r\n"]
        {
            let bytes = [head.as_bytes(), b"body\r\n\r\n"].concat();
            let mut scan = Scan::default();
            for length in 0..bytes.len() {
                let found = scan.end(&bytes[..length]).unwrap();
                assert_eq!(found, (length >= head.len()).then_some(head.len()), "{head:?} at {length}");
            }
        }
    }

    #[test]
    fn endless_heads_are_cut_off() {
        let long = format!("HTTP/1.1 200 OK\r\n{}", "A: b\r\n".repeat(LIMIT / 6));
        assert_eq!(Scan::default().end(long.as_bytes()), Err(BadResponse::TooLarge));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(MOST_FIELDS + 1));
        assert_eq!(relayed(&many, &get()), Err(BadResponse::TooLarge));
    }

    #[test]
    fn heads_and_empty_statuses_have_no_body_whatever_they_say() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let asked = Asked { head: true, ..get() };
        assert_eq!(relayed(head, &asked), Ok((kept(Extent::Empty, Extent::Empty), head.to_owned())));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(relayed(chunked, &asked), Ok((kept(Extent::Empty, Extent::Empty), chunked.to_owned())));
        let unchanged = "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(
            relayed(unchanged, &get()),
            Ok((kept(Extent::Empty, Extent::Empty), unchanged.to_owned()))
        );
        let nothing = "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n";
        let told = "HTTP/1.1 204 No Content\r\n\r\n".to_owned();
        assert_eq!(relayed(nothing, &get()), Ok((kept(Extent::Empty, Extent::Empty), told)));
    }

    #[test]
    fn a_body_that_ends_with_the_connection_gets_chunks_where_the_client_knows_them() {
        let head = "HTTP/1.0 200 OK\r\nA: b\r\n\r\n";
        let ends = |to, keep_client| Relayed::Final {
            from: Extent::UntilClose,
            to,
            keep_upstream: false,
            keep_client,
        };
        let chunked = "HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
        assert_eq!(relayed(head, &get()), Ok((ends(Extent::Chunked, true), chunked)));
        let old = Asked { version: Version::Http10, ..get() };
        let plain = "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n".to_owned();
        assert_eq!(relayed(head, &old), Ok((ends(Extent::UntilClose, false), plain)));
    }

    #[test]
    fn each_connection_is_kept_or_closed_by_its_own_word() {
        for (head, upstream) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 0\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", true),
            (
                "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
                false,
            ),
        ] {
            for client in [true, false] {
                let asked = Asked { keep_alive: client, ..get() };
                let (relayed, text) = relayed(head, &asked).unwrap();
                let Relayed::Final { keep_upstream, keep_client, .. } = relayed else {
                    panic!("{relayed:?}")
                };
                assert_eq!((keep_upstream, keep_client), (upstream, client), "{head}");
                assert_eq!(text.contains("Connection: close\r\n"), !client, "{text}");
            }
        }
    }

    #[test]
    fn the_two_ends_of_a_tunnel_end_together() {
        let asked = Asked { tied: true, ..get() };
        for (head, kept) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ] {
            let (relayed, text) = relayed(head, &asked).unwrap();
            let Relayed::Final { keep_upstream, keep_client, .. } = relayed else { panic!("{relayed:?}") };
            assert_eq!((keep_upstream, keep_client), (kept, kept), "{head}");
            assert_eq!(text.contains("Connection: close\r\n"), !kept, "{text}");
        }
    }

    #[test]
    fn interim_responses_pass_to_clients_that_know_them() {
        let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        assert_eq!(relayed(early, &get()), Ok((Relayed::Interim, early.to_owned())));
        let old = Asked { version: Version::Http10, ..get() };
        assert_eq!(relayed("HTTP/1.1 100 Continue\r\n\r\n", &old), Ok((Relayed::Interim, String::new())));
    }

    #[test]
    fn only_a_change_that_was_asked_for_is_a_tunnel() {
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(relayed(head, &get()), Err(BadResponse::Upgrade));
        let other = Asked { upgrade: Some(b"foo, bar".to_vec()), ..get() };
        assert_eq!(relayed(head, &other), Err(BadResponse::Upgrade));
        let asked = Asked { upgrade: Some(b"foo, WebSocket".to_vec()), ..get() };
        let told = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        assert_eq!(relayed(head, &asked), Ok((Relayed::Switched, told.to_owned())));
        let refused = "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n";
        let (outcome, text) = relayed(refused, &asked).unwrap();
        assert_eq!(outcome, kept(Extent::Length(0), Extent::Length(0)));
        assert!(
            text.contains("Upgrade: websocket\r\n") && text.ends_with("Connection: Upgrade\r\n\r\n"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let head = [b"HTTP/1.1 200 ", bytes.as_slice(), b"\r\n\r\n"].concat();
            if let Ok(Some(end)) = Scan::default().end(&head) {
                let _ = relay(&head[..end], &get(), &mut Vec::new());
            }
        }
    }
}
