//! Carries a body from one message to the other: takes its framing off and puts the other side's on.

use std::io::Write;

use super::chunked::{self, BadChunk, Piece};
use super::fields;
use super::head::BodyLength;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// There is no body.
    Empty,
    /// After so many bytes.
    Length(u64),
    /// By the last chunk.
    Chunked,
    /// By the end of the connection; responses only.
    UntilClose,
}

impl From<BodyLength> for Extent {
    fn from(body: BodyLength) -> Self {
        match body {
            BodyLength::None => Self::Empty,
            BodyLength::Length(length) => Self::Length(length),
            BodyLength::Chunked => Self::Chunked,
        }
    }
}

/// Why a body cannot be carried to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadBody {
    /// Its chunks are malformed.
    #[error(transparent)]
    Chunk(#[from] BadChunk),
    /// Its sender closed before its end.
    #[error("the body was cut short")]
    Short,
}

/// One body on its way.
#[derive(Debug)]
pub(crate) struct Transfer {
    from: Incoming,
    chunks: bool,
}

#[derive(Debug)]
enum Incoming {
    Length(u64),
    Chunked(Box<chunked::Decoder>),
    UntilClose,
    Done,
}

impl Transfer {
    /// A body that comes as `from` and goes on as `to`.
    ///
    /// The one change that is made on purpose is to [`Extent::Chunked`] from [`Extent::UntilClose`], so that the end
    /// of a connection can be told from its loss. Chunks become a plain stream for a client that knows none.
    pub(crate) fn new(from: Extent, to: Extent) -> Self {
        let from = match from {
            Extent::Empty | Extent::Length(0) => Incoming::Done,
            Extent::Length(length) => Incoming::Length(length),
            Extent::Chunked => Incoming::Chunked(Box::default()),
            Extent::UntilClose => Incoming::UntilClose,
        };
        Self { from, chunks: to == Extent::Chunked }
    }

    /// Whether everything has been taken from the sender.
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.from, Incoming::Done)
    }

    /// How many of `waiting` bytes pass exactly as they are; 0 where any of them must be looked at.
    pub(crate) fn plain(&self, waiting: usize) -> usize {
        match self.from {
            Incoming::Length(left) if !self.chunks => {
                usize::try_from(left).map_or(waiting, |left| left.min(waiting))
            }
            Incoming::UntilClose if !self.chunks => waiting,
            _ => 0,
        }
    }

    /// Notes that so many bytes, no more than [`Self::plain`] said, passed as they are.
    pub(crate) fn passed(&mut self, bytes: usize) {
        if let Incoming::Length(left) = &mut self.from {
            *left = left.saturating_sub(bytes as u64);
            if *left == 0 {
                self.from = Incoming::Done;
            }
        }
    }

    /// Takes what belongs to the body off `input` and appends what goes on to `out`.
    ///
    /// # Errors
    /// Where the chunks are malformed.
    pub(crate) fn digest(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<(), BadBody> {
        match &mut self.from {
            Incoming::Done => {}
            Incoming::UntilClose => append(self.chunks, out, std::mem::take(input)),
            Incoming::Length(left) => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                let (data, rest) = input.split_at(most);
                *input = rest;
                append(self.chunks, out, data);
                self.passed(most);
            }
            Incoming::Chunked(decoder) => {
                while let Some(piece) = decoder.next(input)? {
                    match piece {
                        Piece::Data(data) => append(self.chunks, out, data),
                        Piece::End => {
                            if self.chunks {
                                last_chunk(&decoder.trailers()?, out);
                            }
                            self.from = Incoming::Done;
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The sender has closed.
    ///
    /// # Errors
    /// Where its end was not that of the body.
    pub(crate) fn closed(&mut self, out: &mut Vec<u8>) -> Result<(), BadBody> {
        match self.from {
            Incoming::Done => Ok(()),
            Incoming::UntilClose => {
                if self.chunks {
                    last_chunk(&[], out);
                }
                self.from = Incoming::Done;
                Ok(())
            }
            Incoming::Length(_) | Incoming::Chunked(_) => Err(BadBody::Short),
        }
    }
}

fn append(chunks: bool, out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    if chunks {
        // Writing to a vector cannot fail.
        let _ = write!(out, "{:x}\r\n", data.len());
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    } else {
        out.extend_from_slice(data);
    }
}

fn last_chunk(trailers: &[(&str, &[u8])], out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.iter().filter(|(name, _)| fields::may_be_trailer(name)) {
        fields::line(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carry(from: Extent, to: Extent, input: &[u8]) -> Result<(String, bool, usize), BadBody> {
        let mut transfer = Transfer::new(from, to);
        let (mut out, mut rest) = (Vec::new(), input);
        transfer.digest(&mut rest, &mut out)?;
        Ok((String::from_utf8(out).unwrap(), transfer.is_done(), rest.len()))
    }

    #[test]
    fn a_length_takes_its_bytes_and_no_more() {
        assert_eq!(carry(Extent::Length(3), Extent::Length(3), b"oneGET"), Ok(("one".into(), true, 3)));
        assert_eq!(carry(Extent::Length(5), Extent::Length(5), b"one"), Ok(("one".into(), false, 0)));
        assert_eq!(carry(Extent::Empty, Extent::Empty, b"GET"), Ok((String::new(), true, 3)));
    }

    #[test]
    fn chunks_are_rewritten_without_extensions_and_with_harmless_trailers() {
        let input = b"5;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\nHost: h.test\r\n\r\nGET";
        let told = "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n".to_owned();
        assert_eq!(carry(Extent::Chunked, Extent::Chunked, input), Ok((told, true, 3)));
    }

    #[test]
    fn a_client_without_chunks_gets_a_plain_stream() {
        let input = b"5\r\nhello\r\n1\r\n!\r\n0\r\nX: 1\r\n\r\n";
        assert_eq!(carry(Extent::Chunked, Extent::UntilClose, input), Ok(("hello!".into(), true, 0)));
    }

    #[test]
    fn the_end_of_a_connection_ends_only_a_body_that_had_no_other_end() {
        let mut out = Vec::new();
        let mut body = Transfer::new(Extent::UntilClose, Extent::Chunked);
        body.digest(&mut &b"abc"[..], &mut out).unwrap();
        assert_eq!(body.closed(&mut out), Ok(()));
        assert_eq!(out, b"3\r\nabc\r\n0\r\n\r\n");
        for from in [Extent::Length(1), Extent::Chunked] {
            assert_eq!(Transfer::new(from, from).closed(&mut Vec::new()), Err(BadBody::Short));
        }
    }

    #[test]
    fn only_what_needs_no_look_passes_plain() {
        let mut body = Transfer::new(Extent::Length(10), Extent::Length(10));
        assert_eq!(body.plain(100), 10);
        body.passed(4);
        assert_eq!(body.plain(100), 6);
        body.passed(6);
        assert!(body.is_done());
        assert_eq!(Transfer::new(Extent::UntilClose, Extent::UntilClose).plain(7), 7);
        for (from, to) in [(Extent::Chunked, Extent::Chunked), (Extent::UntilClose, Extent::Chunked)] {
            assert_eq!(Transfer::new(from, to).plain(7), 0);
        }
    }
}
