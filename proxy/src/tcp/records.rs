//! TLS plaintext records (RFC 8446 §5.1): puts a handshake message together from its fragments.

/// `type` of a record that carries handshake messages.
pub(crate) const HANDSHAKE: u8 = 22;

/// Type, version, length.
pub(super) const HEADER: usize = 5;

/// A plaintext record carries at most 2^14 bytes, and a handshake record at least one.
const LONGEST: usize = 1 << 14;

/// Why records could not be put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadRecord {
    /// Not a handshake record of SSL 3 or later with a legal length. Other records must not stand between
    /// the fragments of one message.
    Header,
    /// The message is of another type than the one that must come here.
    Type,
    /// The message is longer than the caller takes.
    TooLong,
    /// Something follows the message in its last record.
    Trailing,
}

/// The reading of one handshake message; remembers how far it came, so that each byte is looked at once.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    next: usize,
    message: Vec<u8>,
}

impl Fragments {
    /// How many bytes belong to the records that have been read.
    pub(super) fn consumed(&self) -> usize {
        self.next
    }

    /// Reads on in `raw`, which holds everything since the first record's first byte. Returns the body of the
    /// message once it is whole; it must be of type `kind` and at most `limit` bytes long.
    pub(super) fn advance<'a>(
        &'a mut self,
        raw: &'a [u8],
        kind: u8,
        limit: usize,
    ) -> Result<Option<&'a [u8]>, BadRecord> {
        loop {
            let rest = raw.get(self.next..).unwrap_or_default();
            let Some(length) = record_length(rest)? else { return Ok(None) };
            let Some(fragment) = rest.get(HEADER..HEADER + length) else {
                // The type may be known before the record is whole.
                if self.message.is_empty() {
                    rest.get(HEADER).map_or(Ok(()), |&first| expect(first, kind))?;
                }
                return Ok(None);
            };
            self.next += HEADER + length;
            // The usual hello is one record: no copy then.
            if self.message.is_empty()
                && let Some(body) = whole(fragment, kind, limit)?
            {
                return Ok(Some(body));
            }
            self.message.extend_from_slice(fragment);
            if whole(&self.message, kind, limit)?.is_some() {
                break;
            }
        }
        Ok(self.message.get(4..))
    }
}

/// The length that a record's header gives, if the header is there.
pub(super) fn record_length(record: &[u8]) -> Result<Option<usize>, BadRecord> {
    match *record {
        [kind, ..] if kind != HANDSHAKE => Err(BadRecord::Header),
        [_, major, ..] if major != 3 => Err(BadRecord::Header),
        [_, _, _, high, low, ..] => match usize::from(u16::from_be_bytes([high, low])) {
            length @ 1..=LONGEST => Ok(Some(length)),
            _ => Err(BadRecord::Header),
        },
        _ => Ok(None),
    }
}

fn expect(first: u8, kind: u8) -> Result<(), BadRecord> {
    if first == kind { Ok(()) } else { Err(BadRecord::Type) }
}

/// The body of the message, if all of it is there.
fn whole(message: &[u8], kind: u8, limit: usize) -> Result<Option<&[u8]>, BadRecord> {
    if let Some(&first) = message.first() {
        expect(first, kind)?;
    }
    let [_, high, middle, low, body @ ..] = message else { return Ok(None) };
    let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
    if length > limit {
        return Err(BadRecord::TooLong);
    }
    match body.len() {
        have if have < length => Ok(None),
        have if have > length => Err(BadRecord::Trailing),
        _ => Ok(Some(body)),
    }
}
