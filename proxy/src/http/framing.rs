//! What the header lines say of the connection: where the body ends, and what comes after it.

use super::head::{BadHead, BodyLength, Upgrade, Version};

/// The answers of all header lines together.
#[derive(Debug)]
pub(super) struct Framing<'a> {
    /// The one Host header.
    pub(super) host: Option<&'a [u8]>,
    pub(super) body: BodyLength,
    pub(super) keep_alive: bool,
    pub(super) expect_continue: bool,
    pub(super) upgrade: Upgrade,
}

impl<'a> Framing<'a> {
    /// Reads them strictly: each header that frames may stand once, in its one plain form. Everything that
    /// RFC 9112 §6 lets a server repair is refused, since the next server may repair it in another way.
    pub(super) fn of(
        version: Version,
        fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Self, BadHead> {
        let mut host = None;
        let mut length: Option<u64> = None;
        let mut chunked = false;
        let mut upgrade_to = Upgrade::None;
        let mut expect_continue = false;
        let (mut close, mut keep, mut upgrading) = (false, false, false);
        for (name, value) in fields {
            if name.eq_ignore_ascii_case("host") {
                if host.replace(value).is_some() {
                    return Err(BadHead::Host);
                }
            } else if name.eq_ignore_ascii_case("content-length") {
                if length.replace(content_length(value).ok_or(BadHead::Framing)?).is_some() {
                    return Err(BadHead::Framing);
                }
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                // Exactly "chunked", once: a coding behind it, before it or beside it has been read in two ways
                // by too many pairs of servers.
                if std::mem::replace(&mut chunked, true) || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(BadHead::Framing);
                }
            } else if name.eq_ignore_ascii_case("connection") {
                for option in tokens(value) {
                    close |= option.eq_ignore_ascii_case(b"close");
                    keep |= option.eq_ignore_ascii_case(b"keep-alive");
                    upgrading |= option.eq_ignore_ascii_case(b"upgrade");
                }
            } else if name.eq_ignore_ascii_case("upgrade") {
                let websocket = value.eq_ignore_ascii_case(b"websocket") && upgrade_to == Upgrade::None;
                upgrade_to = if websocket { Upgrade::WebSocket } else { Upgrade::Other };
            } else if name.eq_ignore_ascii_case("expect") {
                expect_continue |= value.eq_ignore_ascii_case(b"100-continue");
            }
        }
        let body = match (length, chunked, version) {
            (None | Some(0), false, _) => BodyLength::None,
            (Some(length), false, _) => BodyLength::Length(length),
            (None, true, Version::Http11) => BodyLength::Chunked,
            // Both lengths; or a coding that HTTP/1.0 does not know (RFC 9112 §6.1).
            (Some(_), true, _) | (None, true, Version::Http10) => return Err(BadHead::Framing),
        };
        Ok(Self {
            host,
            body,
            keep_alive: match version {
                Version::Http11 => !close,
                Version::Http10 => keep && !close,
            },
            expect_continue: expect_continue && version == Version::Http11,
            upgrade: if upgrading { upgrade_to } else { Upgrade::None },
        })
    }
}

/// The items of a comma list.
fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// Plain decimal: no sign, no list, and no leading zero, which some read as octal.
fn content_length(value: &[u8]) -> Option<u64> {
    let plain = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let one_way = value == b"0" || value.first() != Some(&b'0');
    std::str::from_utf8(value).ok().filter(|_| plain && one_way)?.parse().ok()
}
