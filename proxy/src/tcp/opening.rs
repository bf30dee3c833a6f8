//! What a client opens with: TLS, HTTP, or something else.

use policy::Hostname;

use super::client_hello::{ClientHello, HelloReader, Progress};
use super::records::HANDSHAKE;
use crate::http::head::{BadHead, HeadReader, RequestHead, begins_request};

/// What a client's first bytes are.
#[derive(Debug)]
pub(crate) enum Opening {
    /// TLS, with the name that its hello shows, if it shows one that can be read.
    Tls(Option<Hostname>),
    /// The head of an HTTP request.
    Http(Box<RequestHead>),
    /// HTTP, with a head that cannot be read; what was sent in the place of the target.
    BadHttp(BadHead, Vec<u8>),
    /// Anything else.
    Other,
}

/// Reads an opening from a stream that may stop anywhere.
#[derive(Debug, Default)]
pub(crate) enum OpeningReader {
    /// Nothing has come, or the beginning of what may be a request line.
    #[default]
    Unknown,
    Tls(HelloReader),
    Http(HeadReader),
}

impl OpeningReader {
    /// Says what the client opens with, once that is known. `all` is everything that has come, `new` how much of it has
    /// come since the last call.
    pub(crate) fn read(&mut self, all: &[u8], new: usize) -> Option<Opening> {
        let fresh = all.get(all.len().saturating_sub(new)..).unwrap_or_default();
        match self {
            Self::Unknown if all.first() == Some(&HANDSHAKE) => {
                *self = Self::Tls(HelloReader::default());
                self.read(all, all.len())
            }
            Self::Unknown => match begins_request(all) {
                Some(true) => {
                    *self = Self::Http(HeadReader::default());
                    self.read(all, all.len())
                }
                Some(false) => Some(Opening::Other),
                None => None,
            },
            Self::Tls(reader) => match reader.feed(fresh) {
                Progress::NeedMore => None,
                Progress::Hello(ClientHello { server_name, .. }) => Some(Opening::Tls(server_name)),
                Progress::NotTls | Progress::Invalid(_) => Some(Opening::Tls(None)),
            },
            Self::Http(reader) => match reader.feed(fresh) {
                Ok(None) => None,
                Ok(Some(head)) => Some(Opening::Http(Box::new(head))),
                Err(bad) => Some(Opening::BadHttp(bad, reader.shown().to_vec())),
            },
        }
    }

    /// What a client has opened with that says no more.
    pub(crate) fn given_up(&self) -> Opening {
        match self {
            Self::Unknown => Opening::Other,
            Self::Tls(_) => Opening::Tls(None),
            Self::Http(reader) => Opening::BadHttp(BadHead::TooSlow, reader.shown().to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_hello::tests::named;
    use super::*;

    /// The opening as a word, and how many bytes it took to know; `None` where they do not tell.
    fn read(bytes: &[u8], at_once: usize) -> Option<(String, usize)> {
        let mut reader = OpeningReader::default();
        let mut seen = 0;
        for part in bytes.chunks(at_once) {
            seen += part.len();
            if let Some(opening) = reader.read(&bytes[..seen], part.len()) {
                return Some((word(&opening), seen));
            }
        }
        None
    }

    fn word(opening: &Opening) -> String {
        match opening {
            Opening::Tls(name) => format!("tls {}", name.as_ref().map_or("-", Hostname::as_str)),
            Opening::Http(head) => format!("http {}", head.target_as_sent()),
            Opening::BadHttp(bad, _) => format!("bad http {bad}"),
            Opening::Other => "other".to_owned(),
        }
    }

    #[test]
    fn an_opening_is_known_as_soon_as_it_can_be() {
        let request = b"GET /a HTTP/1.1\r\nHost: web.example.com\r\n\r\n";
        for (bytes, opening, after) in [
            (&named(b"api.example.com")[..], "tls api.example.com", named(b"api.example.com").len()),
            (&named(b"203.0.113.1")[..], "tls -", named(b"203.0.113.1").len()),
            (b"\x16\x02", "tls -", 2),
            (&request[..], "http /a", request.len()),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "bad http not an HTTP/1 request: an HTTP/2 preface", 16),
            (b"GET / HTTP/1.1\nHost: a\n\n", "bad http malformed request line", 15),
            (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "other", 31),
            (b"SSH-2.0-Go\r\n", "other", 11),
            (b"EHLO client.example\r\n", "other", 20),
            (b"OPTIONS rtsp://media.example RTSP/1.0\r\n", "other", 30),
            (b"GET /\r\n", "other", 6),
            (b"GET  / HTTP/1.1\r\n", "other", 5),
            (b" / HTTP/1.1\r\n", "other", 1),
            (b"*1\r\n$4\r\nPING\r\n", "other", 3),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", "other", 1),
        ] {
            for at_once in [1, 2, 3, 7, bytes.len()] {
                let found = read(bytes, at_once);
                let least = after.div_ceil(at_once).saturating_mul(at_once).min(bytes.len());
                assert_eq!(
                    found,
                    Some((opening.to_owned(), least)),
                    "{:?} by {at_once}",
                    String::from_utf8_lossy(bytes)
                );
            }
            for end in 0..after {
                assert_eq!(read(&bytes[..end], 1), None, "{:?} {end}", String::from_utf8_lossy(bytes));
            }
        }
    }

    #[test]
    fn what_does_not_end_is_not_read_without_end() {
        for (bytes, opening) in [
            (vec![b'a'; 40_000], "other"),
            ([&b"GET /"[..], &[b'a'; 40_000]].concat(), "bad http request target too long"),
            ([&b"GET / HTTP/1.1\r\nA: "[..], &[b'a'; 40_000]].concat(), "bad http request head too large"),
        ] {
            let (found, after) = read(&bytes, 100).expect("it is given up");
            assert!(found.starts_with(opening) && after < 33_000, "{found} after {after}");
        }
    }

    #[test]
    fn what_stops_in_the_middle_is_what_it_was() {
        for (bytes, opening) in [
            (&b""[..], "other"),
            (b"GE", "other"),
            (b"\x16\x03", "tls -"),
            (b"GET /x HTTP/1.1\r\nHo", "bad http request head too slow"),
        ] {
            let mut reader = OpeningReader::default();
            assert!(reader.read(bytes, bytes.len()).is_none());
            assert_eq!(word(&reader.given_up()), opening);
        }
    }
}
