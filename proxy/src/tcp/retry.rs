//! HelloRetryRequest (RFC 8446 §4.1.4): a server may ask for a second hello, which may name another server.
//!
//! A client that knows that it will be asked can send both hellos in one go, so what follows the first one is
//! watched record by record until the server has answered.

use super::records::{HANDSHAKE, HEADER, record_length};

/// `msg_type` of a ServerHello, which a HelloRetryRequest is in disguise.
const SERVER_HELLO: u8 = 2;

/// SHA-256 of "HelloRetryRequest": the `random` that tells it from a ServerHello (RFC 8446 §4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, //
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// What a server's first bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not enough bytes to tell; at most some 230 are needed.
    NeedMore,
    /// It asks for a second hello.
    Retry,
    /// Anything else: the handshake goes on without another hello in clear.
    Other,
}

/// Tells what a server answers to a hello, from everything it has sent so far.
pub fn answer(mut raw: &[u8]) -> Answer {
    // Type, length, version and random of the message; the rest does not matter.
    let mut head = [0; 4 + 2 + 32];
    let mut have = 0;
    while have < head.len() {
        let length = match record_length(raw) {
            Ok(Some(length)) => length,
            Ok(None) => return Answer::NeedMore,
            Err(_) => return Answer::Other,
        };
        let rest = raw.get(HEADER..).unwrap_or_default();
        let (fragment, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        for (to, from) in head.iter_mut().skip(have).zip(fragment) {
            *to = *from;
        }
        have += fragment.len();
        raw = after;
    }
    if head.starts_with(&[SERVER_HELLO]) && head.ends_with(&RETRY_RANDOM) {
        Answer::Retry
    } else {
        Answer::Other
    }
}

/// Watches what a client sends after its first hello, for a handshake record in clear.
///
/// Early data (application records) and the change_cipher_spec of middlebox compatibility may come before a
/// second hello (RFC 8446 §4.2.10, §D.4) and pass.
#[derive(Debug, Default)]
pub struct AfterHello {
    /// Bytes of the present record that are still to come.
    left: usize,
    /// The beginning of a header, or everything since a handshake record began.
    held: Vec<u8>,
    handshake: bool,
}

impl AfterHello {
    /// Takes the next bytes and returns those that may be passed on. From a handshake record on, everything
    /// is held.
    pub fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.held);
        input.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            if self.left > 0 {
                let passing = self.left.min(rest.len());
                if passing == 0 {
                    break;
                }
                self.left -= passing;
                at += passing;
                continue;
            }
            match *rest {
                [HANDSHAKE, ..] => self.handshake = true,
                [_, _, _, high, low, ..] => {
                    self.left = HEADER + usize::from(u16::from_be_bytes([high, low]));
                    continue;
                }
                _ => {}
            }
            break;
        }
        self.held = input.split_off(at);
        input
    }

    /// Whether a handshake record has begun.
    pub fn is_handshake(&self) -> bool {
        self.handshake
    }

    /// What is held back.
    pub fn into_held(self) -> Vec<u8> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_hello::tests::{message, named, record};
    use super::*;

    fn server_hello(random: [u8; 32]) -> Vec<u8> {
        message(SERVER_HELLO, &[&[3, 3][..], &random, &[0, 0x13, 1, 0, 0, 0]].concat())
    }

    #[test]
    fn a_retry_is_told_from_a_hello_in_records_of_any_length() {
        for (random, expected) in [(RETRY_RANDOM, Answer::Retry), ([7; 32], Answer::Other)] {
            let message = server_hello(random);
            for length in [1, 5, 37, message.len()] {
                let sent: Vec<u8> =
                    message.chunks(length).flat_map(|fragment| record(22, fragment)).collect();
                assert_eq!(answer(&sent), expected, "{length}");
                let first = (0..=sent.len()).find(|&end| answer(&sent[..end]) != Answer::NeedMore).unwrap();
                assert!(first <= 228, "{first}");
                assert!((first..=sent.len()).all(|end| answer(&sent[..end]) == expected));
            }
        }
    }

    #[test]
    fn anything_else_is_another_answer() {
        let other_message = record(22, &message(11, &[&[3, 3][..], &RETRY_RANDOM].concat()));
        for sent in [&b"HTTP/1.1 400 Bad Request"[..], &record(21, &[2, 40]), &other_message, &[22, 2]] {
            assert_eq!(answer(sent), Answer::Other);
        }
    }

    #[test]
    fn early_data_passes_and_a_second_hello_is_held() {
        let (passing, held) = ([record(23, &[9; 300]), record(20, &[1])].concat(), named(b"other.test"));
        let sent = [passing.clone(), held.clone(), record(23, b"more")].concat();
        for split in 1..sent.len() {
            let mut after = AfterHello::default();
            let mut passed = Vec::new();
            for piece in sent.chunks(split) {
                passed.extend(after.pass(piece));
            }
            assert_eq!(passed, passing, "{split}");
            assert!(after.is_handshake());
            assert_eq!(after.into_held(), sent[passing.len()..]);
        }
    }

    #[test]
    fn a_header_is_held_until_it_is_whole() {
        let mut after = AfterHello::default();
        assert_eq!(after.pass(&[23, 3, 3]), b"");
        assert_eq!(after.pass(&[0, 2, b'a']), [23, 3, 3, 0, 2, b'a']);
        assert_eq!(after.pass(b"b"), b"b");
        assert!(!after.is_handshake());
        assert_eq!(after.pass(&[22]), b"");
        assert!(after.is_handshake());
    }
}
