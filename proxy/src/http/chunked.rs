//! Takes the chunked transfer coding apart (RFC 9112 §7.1), strictly, however its bytes are cut.

/// A chunk larger than this is refused: nobody sends one, and sums of sizes stay far from overflow.
const MOST_IN_CHUNK: u64 = 1 << 40;

/// A size with leading zeros is still one number, but not for ever.
const MOST_DIGITS: u8 = 16;

/// All chunk extensions of a body together. They are dropped; without a limit they are work for nothing.
const MOST_EXTENSION_BYTES: usize = 16 * 1024;

/// The trailer section, which is kept until its end.
const MOST_TRAILER_BYTES: usize = 16 * 1024;

/// More trailer fields than this are refused.
const MOST_TRAILERS: usize = 64;

/// The bytes are not the chunked coding in its one plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed chunked body")]
pub(crate) struct BadChunk;

/// What the next bytes hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Part of the body.
    Data(&'a [u8]),
    /// The body has ended; what is left of the input belongs to the next message.
    End,
}

/// Where in a body the decoder stands. It keeps no bytes but those of trailers.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    place: Place,
    extension_bytes: usize,
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the first digit of a size.
    #[default]
    Start,
    Size {
        size: u64,
        digits: u8,
    },
    Extension {
        size: u64,
    },
    SizeLf {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the empty line that ends the body.
    TrailerStart,
    Trailer,
    TrailerLf,
    LastLf,
    Done,
}

impl Decoder {
    /// Takes bytes off `input` until there is something to tell. `None`: all of it is used and more is needed.
    ///
    /// # Errors
    /// Where the bytes are anything but `1*HEXDIG [;extension] CRLF data CRLF …`: whatever one server repairs
    /// here, the next one repairs differently.
    pub(crate) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, BadChunk> {
        loop {
            match self.place {
                Place::Done => return Ok(Some(Piece::End)),
                Place::Data { left } => {
                    let most = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                    let (data, rest) = input.split_at(most);
                    if data.is_empty() {
                        return Ok(None);
                    }
                    *input = rest;
                    let left = left - data.len() as u64;
                    self.place = if left == 0 { Place::DataCr } else { Place::Data { left } };
                    return Ok(Some(Piece::Data(data)));
                }
                _ => {
                    let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    self.place = self.step(byte)?;
                }
            }
        }
    }

    fn step(&mut self, byte: u8) -> Result<Place, BadChunk> {
        Ok(match (self.place, byte) {
            (Place::Start, _) => Place::Size { size: digit(byte)?, digits: 1 },
            (Place::Size { size, .. }, b'\r') => Place::SizeLf { size },
            // RFC 9112 §7.1.1 allows blanks before the semicolon; nothing sends them, and "5 x" has been read as 5.
            (Place::Size { size, .. }, b';') => Place::Extension { size },
            (Place::Size { size, digits }, _) => {
                let size = size * 16 + digit(byte)?;
                if size > MOST_IN_CHUNK || digits >= MOST_DIGITS {
                    return Err(BadChunk);
                }
                Place::Size { size, digits: digits + 1 }
            }
            (Place::Extension { size }, b'\r') => Place::SizeLf { size },
            (Place::Extension { size }, _) => {
                self.extension_bytes += 1;
                if is_control(byte) || self.extension_bytes > MOST_EXTENSION_BYTES {
                    return Err(BadChunk);
                }
                Place::Extension { size }
            }
            (Place::SizeLf { size: 0 }, b'\n') => Place::TrailerStart,
            (Place::SizeLf { size }, b'\n') => Place::Data { left: size },
            (Place::DataCr, b'\r') => Place::DataLf,
            (Place::DataLf, b'\n') => Place::Start,
            (Place::TrailerStart, b'\r') => Place::LastLf,
            (Place::TrailerStart | Place::Trailer, _) if byte != b'\r' => self.keep(byte)?,
            (Place::Trailer, b'\r') => Place::TrailerLf,
            (Place::TrailerLf, b'\n') => {
                self.trailers.extend_from_slice(b"\r\n");
                Place::TrailerStart
            }
            (Place::LastLf, b'\n') => {
                self.trailers()?;
                Place::Done
            }
            _ => return Err(BadChunk),
        })
    }

    fn keep(&mut self, byte: u8) -> Result<Place, BadChunk> {
        if is_control(byte) || self.trailers.len() >= MOST_TRAILER_BYTES {
            return Err(BadChunk);
        }
        self.trailers.push(byte);
        Ok(Place::Trailer)
    }

    /// The trailer fields, once the body has ended.
    ///
    /// # Errors
    /// Where a line of them is no header field.
    pub(crate) fn trailers(&self) -> Result<Vec<(&str, &[u8])>, BadChunk> {
        let mut lines = Vec::new();
        for line in self.trailers.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            lines.push(field(line.strip_suffix(b"\r").unwrap_or(line)).ok_or(BadChunk)?);
        }
        if lines.len() > MOST_TRAILERS { Err(BadChunk) } else { Ok(lines) }
    }
}

/// Reads `name: value`. A folded line has no name and is refused (RFC 9112 §5.2).
fn field(line: &[u8]) -> Option<(&str, &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = line.split_at_checked(colon)?;
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| !name.is_empty() && name.bytes().all(|b| is_token(&b)))?;
    Some((name, value.get(1..)?.trim_ascii()))
}

fn digit(byte: u8) -> Result<u64, BadChunk> {
    char::from(byte).to_digit(16).map(u64::from).ok_or(BadChunk)
}

/// Line ends, NUL and the rest of the controls, but not the tab.
const fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && byte != b'\t'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Trailers = Vec<(String, Vec<u8>)>;

    type Decoded = (Vec<u8>, Trailers, Vec<u8>);

    /// The body, the trailers and what was left, feeding `step` bytes at a time.
    fn decode(bytes: &[u8], step: usize) -> Result<Decoded, BadChunk> {
        let mut decoder = Decoder::default();
        let mut body = Vec::new();
        for (at, part) in bytes.chunks(step).enumerate() {
            let mut input = part;
            while let Some(piece) = decoder.next(&mut input)? {
                match piece {
                    Piece::Data(data) => body.extend_from_slice(data),
                    Piece::End => {
                        let rest = [input, &bytes[((at + 1) * step).min(bytes.len())..]].concat();
                        let trailers = decoder.trailers()?;
                        let owned = trailers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec()));
                        return Ok((body, owned.collect(), rest));
                    }
                }
            }
            assert!(input.is_empty(), "asks for more only when all is used");
        }
        Err(BadChunk)
    }

    #[test]
    fn chunks_extensions_and_trailers_are_taken_apart_at_every_cut() {
        let bytes = b"5;a=\"b\"\r\nhello\r\n001\r\n!\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1 \r\nY:\r\n\r\nGET";
        for step in 1..=bytes.len() {
            let (body, trailers, rest) = decode(bytes, step).unwrap();
            assert_eq!(body, b"hello!0123456789");
            assert_eq!(trailers, [("X-Sum".to_owned(), b"1".to_vec()), ("Y".to_owned(), Vec::new())]);
            assert_eq!(rest, b"GET");
        }
    }

    #[test]
    fn whatever_servers_repair_differently_is_refused() {
        for bytes in [
            "+5\r\nhello\r\n0\r\n\r\n",
            "-5\r\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "0_5\r\nhello\r\n0\r\n\r\n",
            " 5\r\nhello\r\n0\r\n\r\n",
            "\t5\r\nhello\r\n0\r\n\r\n",
            "5 \r\nhello\r\n0\r\n\r\n",
            "5 x\r\nhello\r\n0\r\n\r\n",
            "5Z\r\nhello\r\n0\r\n\r\n",
            "\r\nhello\r\n0\r\n\r\n",
            ";a\r\nhello\r\n0\r\n\r\n",
            "5\nhello\r\n0\r\n\r\n",
            "5;a\nb\r\nhello\r\n0\r\n\r\n",
            "5\r\r;ABCD\r\nhello\r\n0\r\n\r\n",
            "5;a=b\r\rX\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhelloXX0\r\n\r\n",
            "5\r\nhello\r0\r\n\r\n",
            "10000000000000005\r\nhello\r\n0\r\n\r\n",
            "ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
            "7fffffffffffffff\r\nhello\r\n0\r\n\r\n",
            "00000000000000005\r\nhello\r\n0\r\n\r\n",
            "0\r\n\n",
            "0\r\nX\r\n\r\n",
            "0\r\nX : 1\r\n\r\n",
            "0\r\nX: 1\r\n y\r\n\r\n",
            "0\r\nX: a\rb\r\n\r\n",
            "0\r\nX: a\0b\r\n\r\n",
        ] {
            for step in [1, 2, 3, bytes.len()] {
                assert_eq!(decode(bytes.as_bytes(), step), Err(BadChunk), "{bytes:?}");
            }
        }
    }

    #[test]
    fn endless_extensions_and_trailers_are_cut_off() {
        let extension = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(MOST_EXTENSION_BYTES + 1));
        assert_eq!(decode(extension.as_bytes(), 4096), Err(BadChunk));
        let spread = "1;ee\r\nx\r\n".repeat(MOST_EXTENSION_BYTES / 2 + 1);
        assert_eq!(decode(spread.as_bytes(), 4096), Err(BadChunk));
        let trailer = format!("0\r\nX: {}\r\n\r\n", "t".repeat(MOST_TRAILER_BYTES));
        assert_eq!(decode(trailer.as_bytes(), 4096), Err(BadChunk));
        let trailers = format!("0\r\n{}\r\n", "X: 1\r\n".repeat(MOST_TRAILERS + 1));
        assert_eq!(decode(trailers.as_bytes(), 4096), Err(BadChunk));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..8), step in 1_usize..64) {
            let mut bytes = Vec::new();
            for chunk in &chunks {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\nrest");
            let (body, trailers, rest) = decode(&bytes, step).unwrap();
            prop_assert_eq!(body, chunks.concat());
            prop_assert!(trailers.is_empty());
            prop_assert_eq!(rest, b"rest");
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), step in 1_usize..20) {
            let _ = decode(&bytes, step);
        }
    }
}
