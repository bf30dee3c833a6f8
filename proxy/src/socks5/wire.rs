//! The messages of SOCKS5 (RFC 1928) and of its user name and password (RFC 1929).
//!
//! Each reader takes what has come so far and says what it is; each message has a greatest length, so nothing
//! grows with what a client sends.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use policy::destination::{BadDestination, Destination};

/// The first byte of every message but the password.
pub const VERSION: u8 = 5;

/// The longest message: a password of 255 bytes behind a user name of 255 bytes.
pub const LONGEST: usize = 3 + 255 + 255;

/// A message that is whole, and how many bytes it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read<T> {
    /// The message.
    pub message: T,
    /// Its length; what follows it belongs to the next message or to the stream.
    pub length: usize,
}

/// What a client offers to identify itself with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Nothing.
    pub none: bool,
    /// User name and password.
    pub password: bool,
}

/// A method of authentication, as the server picks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// None.
    None,
    /// User name and password (RFC 1929).
    Password,
    /// None of those that were offered: the client must close.
    NotAcceptable,
}

/// A user name and a password, as sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name.
    pub user: Box<[u8]>,
    /// The password.
    pub password: Box<[u8]>,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A stream to a destination.
    Connect(Destination),
    /// A stream to something that is no destination.
    Unreadable {
        /// Why it is not.
        why: BadDestination,
        /// The host, as sent.
        host: Box<[u8]>,
    },
    /// BIND or UDP ASSOCIATE, which would be ways out that no policy speaks of, or an unknown command.
    OtherCommand,
    /// An address of a kind that RFC 1928 does not know.
    OtherAddress,
}

/// Why bytes are no SOCKS5 message: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The version byte is another one.
    #[error("wrong SOCKS version")]
    Version,
    /// A field that must not be empty is, or a reserved one is not zero.
    #[error("malformed SOCKS message")]
    Field,
}

/// The answers to a request (RFC 1928 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The stream is open.
    Succeeded,
    /// Something failed here.
    GeneralFailure,
    /// The policy refuses.
    NotAllowed,
    /// The name could not be resolved, or no address of it answered.
    HostUnreachable,
    /// The destination refused the connection.
    ConnectionRefused,
    /// The destination did not answer in time.
    TimedOut,
    /// BIND, UDP ASSOCIATE or anything else but CONNECT.
    CommandNotSupported,
    /// An unknown kind of address.
    AddressNotSupported,
}

impl Reply {
    /// The message. The bound address is not given: it would tell the sandbox about the gateway's network.
    pub const fn bytes(self) -> [u8; 10] {
        let code = match self {
            Self::Succeeded => 0x00,
            Self::GeneralFailure => 0x01,
            Self::NotAllowed => 0x02,
            Self::HostUnreachable => 0x04,
            Self::ConnectionRefused => 0x05,
            Self::TimedOut => 0x06,
            Self::CommandNotSupported => 0x07,
            Self::AddressNotSupported => 0x08,
        };
        [VERSION, code, 0, ADDRESS_V4, 0, 0, 0, 0, 0, 0]
    }
}

impl Method {
    /// The message that picks it.
    pub const fn bytes(self) -> [u8; 2] {
        let code = match self {
            Self::None => METHOD_NONE,
            Self::Password => METHOD_PASSWORD,
            Self::NotAcceptable => 0xff,
        };
        [VERSION, code]
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither half is for a log.
        f.write_str("Credentials")
    }
}

const PASSWORD_VERSION: u8 = 1;
const METHOD_NONE: u8 = 0;
const METHOD_PASSWORD: u8 = 2;
const CONNECT: u8 = 1;
const ADDRESS_V4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_V6: u8 = 4;

/// The answer to a user name and a password (RFC 1929 §2).
pub const fn password_reply(accepted: bool) -> [u8; 2] {
    [PASSWORD_VERSION, !accepted as u8]
}

/// Reads the greeting; `None` while it is not whole.
pub fn greeting(bytes: &[u8]) -> Result<Option<Read<Greeting>>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    if !reader.version(VERSION)? {
        return Ok(None);
    }
    let Some(methods) = reader.counted() else { return Ok(None) };
    if methods.is_empty() {
        return Err(Malformed::Field);
    }
    let offers = |method| methods.contains(&method);
    Ok(Some(reader.whole(Greeting { none: offers(METHOD_NONE), password: offers(METHOD_PASSWORD) })))
}

/// Reads a user name and a password; `None` while they are not whole.
pub fn credentials(bytes: &[u8]) -> Result<Option<Read<Credentials>>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    if !reader.version(PASSWORD_VERSION)? {
        return Ok(None);
    }
    let (Some(user), Some(password)) = (reader.counted(), reader.counted()) else { return Ok(None) };
    Ok(Some(reader.whole(Credentials { user: user.into(), password: password.into() })))
}

/// Reads a request; `None` while it is not whole.
pub fn request(bytes: &[u8]) -> Result<Option<Read<Request>>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    if !reader.version(VERSION)? {
        return Ok(None);
    }
    let (Some(command), Some(reserved), Some(kind)) = (reader.u8(), reader.u8(), reader.u8()) else {
        return Ok(None);
    };
    if reserved != 0 {
        return Err(Malformed::Field);
    }
    let host = match kind {
        ADDRESS_V4 => reader.array().map(|octets| Host::Address(Ipv4Addr::from_octets(octets).into())),
        ADDRESS_V6 => reader.array().map(|octets| Host::Address(Ipv6Addr::from_octets(octets).into())),
        ADDRESS_NAME => reader.counted().map(Host::Name),
        _ => return Ok(Some(reader.whole(Request::OtherAddress))),
    };
    let (Some(host), Some(port)) = (host, reader.array().map(u16::from_be_bytes)) else {
        return Ok(None);
    };
    Ok(Some(reader.whole(if command == CONNECT { host.connect(port) } else { Request::OtherCommand })))
}

enum Host<'a> {
    Address(IpAddr),
    Name(&'a [u8]),
}

impl Host<'_> {
    fn connect(self, port: u16) -> Request {
        match self {
            Self::Address(address) => match Destination::from_socket(SocketAddr::new(address, port)) {
                Ok(destination) => Request::Connect(destination),
                Err(why) => Request::Unreadable { why, host: address.to_string().into_bytes().into() },
            },
            // Clients send literals this way too; odd spellings of addresses are refused as everywhere.
            Self::Name(name) => match Destination::from_parts(name, port) {
                Ok(destination) => Request::Connect(destination),
                Err(why) => Request::Unreadable { why, host: name.into() },
            },
        }
    }
}

/// Takes a message apart from the front; `None` where it is too short.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at + length)?;
        self.at += length;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// A field behind a byte that counts it.
    fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// Whether the version is there, which must be this one.
    fn version(&mut self, version: u8) -> Result<bool, Malformed> {
        match self.u8() {
            None => Ok(false),
            Some(byte) if byte == version => Ok(true),
            Some(_) => Err(Malformed::Version),
        }
    }

    fn whole<T>(&self, message: T) -> Read<T> {
        Read { message, length: self.at }
    }
}

#[cfg(test)]
mod tests {
    use policy::hostname::BadHost;

    use super::*;

    fn connect(kind: u8, host: &[u8], port: u16) -> Vec<u8> {
        [&[5, CONNECT, 0, kind][..], host, &port.to_be_bytes()].concat()
    }

    fn named(host: &[u8], port: u16) -> Vec<u8> {
        connect(ADDRESS_NAME, &[&[host.len() as u8], host].concat(), port)
    }

    fn asked(bytes: &[u8]) -> Request {
        let read = request(bytes).unwrap().unwrap();
        assert_eq!(read.length, bytes.len());
        read.message
    }

    #[test]
    fn a_greeting_says_what_it_offers() {
        for (bytes, none, password) in [
            (&[5, 1, 0][..], true, false),
            (&[5, 1, 2], false, true),
            (&[5, 3, 1, 2, 0], true, true),
            (&[5, 1, 1], false, false),
        ] {
            let expected = Read { message: Greeting { none, password }, length: bytes.len() };
            assert_eq!(greeting(bytes), Ok(Some(expected)));
        }
        assert_eq!(greeting(&[4, 1]), Err(Malformed::Version));
        assert_eq!(greeting(&[5, 0]), Err(Malformed::Field));
        assert_eq!([Method::None, Method::Password].map(Method::bytes), [[5, 0], [5, 2]]);
        assert_eq!(Method::NotAcceptable.bytes(), [5, 0xff]);
    }

    #[test]
    fn credentials_are_read_and_not_shown() {
        let read = credentials(b"\x01\x07agent-7\x05token!").unwrap().unwrap();
        assert_eq!((&*read.message.user, &*read.message.password), (&b"agent-7"[..], &b"token"[..]));
        assert_eq!(read.length, 15);
        assert_eq!(format!("{:?}", read.message), "Credentials");
        assert_eq!(credentials(&[5]), Err(Malformed::Version));
        assert_eq!((password_reply(true), password_reply(false)), ([1, 0], [1, 1]));
    }

    #[test]
    fn a_request_names_its_destination() {
        for (bytes, expected) in [
            (named(b"API.example.com", 443), "api.example.com:443"),
            (named(b"203.0.113.10", 443), "203.0.113.10:443"),
            (connect(ADDRESS_V4, &[203, 0, 113, 10], 22), "203.0.113.10:22"),
            (connect(ADDRESS_V6, &Ipv6Addr::LOCALHOST.octets(), 80), "[::1]:80"),
            (connect(ADDRESS_V6, &Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(), 80), "127.0.0.1:80"),
        ] {
            let expected = Destination::from_authority(expected.as_bytes()).unwrap();
            assert_eq!(asked(&bytes), Request::Connect(expected));
        }
    }

    #[test]
    fn hosts_that_are_no_destination_are_unreadable() {
        for (host, port, why) in [
            (&b"attacker.test\0.example.com"[..], 443, BadHost::Character.into()),
            (b"", 443, BadHost::Empty.into()),
            (b"api.example.com:443", 443, BadHost::Character.into()),
            (b"127.1", 443, BadHost::AddressSpelling.into()),
            (b"2130706433", 443, BadHost::AddressSpelling.into()),
            (b"0x7f000001", 443, BadHost::AddressSpelling.into()),
            (b"::1", 443, BadHost::Ipv6.into()),
            (b"api.example.com", 0, BadDestination::Port),
        ] {
            assert_eq!(asked(&named(host, port)), Request::Unreadable { why, host: host.into() });
        }
        let unreadable = Request::Unreadable { why: BadDestination::Port, host: b"192.0.2.1"[..].into() };
        assert_eq!(asked(&connect(ADDRESS_V4, &[192, 0, 2, 1], 0)), unreadable);
    }

    #[test]
    fn other_commands_and_addresses_have_their_own_answer() {
        for command in [0, 2, 3, 4, 255] {
            let mut bytes = named(b"api.example.com", 443);
            bytes[1] = command;
            assert_eq!(asked(&bytes), Request::OtherCommand);
        }
        assert_eq!(asked(&[5, 1, 0, 2]), Request::OtherAddress);
        assert_eq!(request(&[5, 1, 1, 1]), Err(Malformed::Field));
        assert_eq!(request(&[4]), Err(Malformed::Version));
        assert_eq!(Reply::CommandNotSupported.bytes()[..2], [5, 7]);
        assert_eq!(Reply::NotAllowed.bytes(), [5, 2, 0, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn every_prefix_needs_more_and_what_follows_is_left() {
        type Outcome<T> = Result<Option<Read<T>>, Malformed>;
        fn check<T: fmt::Debug + PartialEq>(read: fn(&[u8]) -> Outcome<T>, whole: &[u8]) {
            for end in 0..whole.len() {
                assert_eq!(read(&whole[..end]), Ok(None), "{end}");
            }
            let expected = read(whole).unwrap().unwrap();
            assert_eq!(expected.length, whole.len());
            assert_eq!(read(&[whole, b"rest"].concat()).unwrap().unwrap(), expected);
        }
        check(greeting, &[5, 2, 0, 2]);
        check(credentials, b"\x01\x07agent-7\x05token");
        check(request, &named(b"api.example.com", 443));
        check(request, &named(&[b'a'; 255], 443));
        check(request, &connect(ADDRESS_V4, &[192, 0, 2, 1], 443));
        check(request, &connect(ADDRESS_V6, &[9; 16], 443));
    }
}
