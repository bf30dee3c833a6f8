//! Which header fields go on, and how those that belong to one connection alone are written anew.
//!
//! What goes on keeps its order and its spelling; nothing is added that says a gateway was on the way.

use super::body::Extent;

/// A message may name so many fields in `Connection`; each is compared with every field.
const MOST_NOMINATED: usize = 32;

/// A message names more fields in `Connection` than anybody has reason to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many names in Connection")]
pub(crate) struct TooManyNominated;

/// A field as it stands in a head.
pub(crate) type Field<'a> = (&'a str, &'a [u8]);

/// What a request gets on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTerms<'a> {
    /// The value of Host, from the absolute URI: the header is not what decided.
    pub(crate) authority: &'a str,
    /// The body that follows.
    pub(crate) body: Extent,
    /// Whether the client's wish for another protocol is passed on.
    pub(crate) upgrade: bool,
    /// The rule allows only some methods: fields that override the method are dropped.
    pub(crate) limits_methods: bool,
    /// The rule allows only some paths: fields that override the URL are dropped.
    pub(crate) limits_paths: bool,
}

/// Whether the fields can be written anew: not where too many are named in `Connection`.
pub(crate) fn are_sane<'a>(fields: impl Iterator<Item = Field<'a>>) -> bool {
    nominated(fields).is_ok()
}

/// Writes the fields of a request and the empty line behind them.
///
/// # Errors
/// Where too many fields are named in `Connection`.
pub(crate) fn write_request<'a>(
    fields: impl Iterator<Item = Field<'a>> + Clone,
    terms: RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Result<(), TooManyNominated> {
    let nominated = nominated(fields.clone())?;
    let mut host = false;
    let mut upgrading = false;
    if !fields.clone().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        line(out, "Host", terms.authority.as_bytes());
    }
    for (name, value) in fields {
        match Kind::of(name) {
            Kind::Host if !std::mem::replace(&mut host, true) => line(out, name, terms.authority.as_bytes()),
            Kind::ContentLength => match terms.body {
                Extent::Length(length) => line(out, name, length.to_string().as_bytes()),
                Extent::Empty => line(out, name, b"0"),
                Extent::Chunked | Extent::UntilClose => {}
            },
            Kind::TransferEncoding if terms.body == Extent::Chunked => line(out, name, b"chunked"),
            Kind::Upgrade if terms.upgrade => {
                if !std::mem::replace(&mut upgrading, true) {
                    line(out, "Connection", b"Upgrade");
                }
                line(out, name, value);
            }
            Kind::Host | Kind::TransferEncoding | Kind::Upgrade | Kind::Hop => {}
            Kind::EndToEnd | Kind::Origin
                if is_nominated(&nominated, name)
                    || (terms.limits_methods && overrides_method(name))
                    || (terms.limits_paths && overrides_url(name)) => {}
            Kind::EndToEnd | Kind::Origin => line(out, name, value),
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// What a response gets on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseTerms {
    /// The body that follows, as the client gets it.
    pub(crate) body: Extent,
    /// The length that is told: that of the body, or of one that HEAD and 304 only speak of.
    pub(crate) length: Option<u64>,
    /// Whether chunks are told of: they follow, or HEAD only speaks of them.
    pub(crate) chunked: bool,
    /// Whether the protocols of `Upgrade` are passed on (101 and 426).
    pub(crate) upgrade: bool,
    /// Whether the connection ends with this response.
    pub(crate) close: bool,
}

/// Writes the fields of a response and the empty line behind them.
///
/// # Errors
/// Where too many fields are named in `Connection`.
pub(crate) fn write_response<'a>(
    fields: impl Iterator<Item = Field<'a>> + Clone,
    terms: ResponseTerms,
    out: &mut Vec<u8>,
) -> Result<(), TooManyNominated> {
    let nominated = nominated(fields.clone())?;
    let mut length = terms.length;
    let mut chunked = terms.chunked;
    let mut upgrading = false;
    for (name, value) in fields {
        match Kind::of(name) {
            Kind::ContentLength => {
                if let Some(length) = length.take() {
                    line(out, name, length.to_string().as_bytes());
                }
            }
            Kind::TransferEncoding if std::mem::take(&mut chunked) => line(out, name, b"chunked"),
            Kind::Upgrade if terms.upgrade => {
                upgrading = true;
                line(out, name, value);
            }
            Kind::TransferEncoding | Kind::Upgrade | Kind::Hop | Kind::Origin => {}
            Kind::EndToEnd if name.eq_ignore_ascii_case("trailer") && terms.body != Extent::Chunked => {}
            Kind::EndToEnd | Kind::Host if !is_nominated(&nominated, name) => line(out, name, value),
            Kind::EndToEnd | Kind::Host => {}
        }
    }
    if chunked {
        line(out, "Transfer-Encoding", b"chunked");
    }
    match (upgrading, terms.close) {
        (true, true) => line(out, "Connection", b"Upgrade, close"),
        (true, false) => line(out, "Connection", b"Upgrade"),
        (false, true) => line(out, "Connection", b"close"),
        (false, false) => {}
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends one header line.
pub(crate) fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// What a field is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// For the far end.
    EndToEnd,
    Host,
    ContentLength,
    TransferEncoding,
    Upgrade,
    /// For this connection only, or for a proxy: never goes on.
    Hop,
    /// Something that an origin must not say to a client: it would speak for the gateway, or lead past it.
    Origin,
}

impl Kind {
    fn of(name: &str) -> Self {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        match name.as_bytes().first().map(u8::to_ascii_lowercase) {
            Some(b'h') if is("host") => Self::Host,
            // RFC 9113 §3.1 retired it with h2c, whose requests nobody would see.
            Some(b'h') if is("http2-settings") => Self::Hop,
            Some(b'c') if is("content-length") => Self::ContentLength,
            Some(b'c') if is("connection") => Self::Hop,
            Some(b't') if is("transfer-encoding") => Self::TransferEncoding,
            // The codings that this connection takes (RFC 9110 §10.1.4): here, chunked alone.
            Some(b't') if is("te") => Self::Hop,
            // "Tidegate-*" from an origin would pass for the gateway's own word.
            Some(b't') if starts_with(name, "tidegate-") => Self::Origin,
            Some(b'u') if is("upgrade") => Self::Upgrade,
            Some(b'k') if is("keep-alive") => Self::Hop,
            // Proxy-Authorization, Proxy-Authenticate, Proxy-Connection, Proxy-Status and the like: written for or by
            // a proxy, and this is the proxy.
            Some(b'p') if starts_with(name, "proxy-") => Self::Hop,
            // A client would try QUIC, or another host, and stall (RFC 7838).
            Some(b'a') if is("alt-svc") => Self::Origin,
            _ => Self::EndToEnd,
        }
    }
}

fn starts_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// The fields that `Connection` names beside its own options: they end here too (RFC 9110 §7.6.1).
fn nominated<'a>(fields: impl Iterator<Item = Field<'a>>) -> Result<Vec<&'a [u8]>, TooManyNominated> {
    const OPTIONS: [&[u8]; 3] = [b"close", b"keep-alive", b"upgrade"];
    let mut names = Vec::new();
    for (_, value) in fields.filter(|(name, _)| name.eq_ignore_ascii_case("connection")) {
        for token in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            if token.is_empty() || OPTIONS.iter().any(|option| option.eq_ignore_ascii_case(token)) {
                continue;
            }
            if names.len() == MOST_NOMINATED {
                return Err(TooManyNominated);
            }
            names.push(token);
        }
    }
    Ok(names)
}

fn is_nominated(nominated: &[&[u8]], name: &str) -> bool {
    nominated.iter().any(|token| token.eq_ignore_ascii_case(name.as_bytes()))
}

/// Fields by which frameworks run another method than the request line says.
fn overrides_method(name: &str) -> bool {
    const NAMES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
    NAMES.iter().any(|other| is_twin(name, other))
}

/// Fields by which servers and frameworks route to another URL than the request line says.
fn overrides_url(name: &str) -> bool {
    const NAMES: [&str; 8] = [
        "x-original-url",
        "x-rewrite-url",
        "x-original-uri",
        "x-override-url",
        "x-forwarded-uri",
        "x-forwarded-path",
        "x-forwarded-prefix",
        "x-envoy-original-path",
    ];
    NAMES.iter().any(|other| is_twin(name, other))
}

/// Whether two names are one for a CGI-like server, which turns `-` and `_` into the same thing (RFC 3875 §4.1.18).
fn is_twin(name: &str, other: &str) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == other.len() && name.bytes().zip(other.bytes()).all(|(left, right)| folded(left) == right)
}

/// Whether a field may stand behind a body: nothing that frames, routes, authenticates or says how to read what came
/// before it (RFC 9110 §6.5.1), and nothing that would be dropped from a head.
pub(crate) fn may_be_trailer(name: &str) -> bool {
    const NEVER: [&str; 18] = [
        "age",
        "authorization",
        "cache-control",
        "content-encoding",
        "content-range",
        "content-type",
        "cookie",
        "date",
        "expect",
        "expires",
        "location",
        "max-forwards",
        "pragma",
        "range",
        "retry-after",
        "set-cookie",
        "trailer",
        "www-authenticate",
    ];
    let overriding = overrides_method(name) || overrides_url(name);
    Kind::of(name) == Kind::EndToEnd && !overriding && !NEVER.iter().any(|other| is_twin(name, other))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: RequestTerms<'static> = RequestTerms {
        authority: "web.example",
        body: Extent::Empty,
        upgrade: false,
        limits_methods: false,
        limits_paths: false,
    };

    const BARE: ResponseTerms =
        ResponseTerms { body: Extent::Empty, length: None, chunked: false, upgrade: false, close: false };

    fn request(fields: &[(&str, &str)], terms: RequestTerms<'_>) -> String {
        let mut out = Vec::new();
        write_request(fields.iter().map(|(name, value)| (*name, value.as_bytes())), terms, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn response(fields: &[(&str, &str)], terms: ResponseTerms) -> String {
        let mut out = Vec::new();
        write_response(fields.iter().map(|(name, value)| (*name, value.as_bytes())), terms, &mut out)
            .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn order_and_spelling_stay_and_nothing_is_added() {
        let fields = [
            ("user-agent", "x/1"),
            ("HOST", "other.test:81"),
            ("Mcp-Session-Id", "s"),
            ("X-Forwarded-For", "192.0.2.1"),
            ("cookie", "a=1"),
            ("Cookie", "b=2"),
        ];
        assert_eq!(
            request(&fields, PLAIN),
            "user-agent: x/1\r\nHOST: web.example\r\nMcp-Session-Id: s\r\nX-Forwarded-For: 192.0.2.1\r\n\
             cookie: a=1\r\nCookie: b=2\r\n\r\n"
        );
    }

    #[test]
    fn a_request_without_host_gets_one() {
        assert_eq!(request(&[("Accept", "*/*")], PLAIN), "Host: web.example\r\nAccept: */*\r\n\r\n");
    }

    #[test]
    fn what_belongs_to_the_connection_stays_on_it() {
        let fields = [
            ("Host", "web.example"),
            ("Connection", "connection, X-Secret ,proxy-connection, close"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authorization", "Basic AAAA"),
            ("proxy-anything", "1"),
            ("Keep-Alive", "timeout=5"),
            ("TE", "trailers, gzip"),
            ("HTTP2-Settings", "AAMAAABk"),
            ("Upgrade", "h2c"),
            ("x-secret", "1"),
            ("X-Kept", "1"),
        ];
        assert_eq!(request(&fields, PLAIN), "Host: web.example\r\nX-Kept: 1\r\n\r\n");
    }

    #[test]
    fn nominating_host_or_the_framing_changes_neither() {
        let fields = [
            ("Host", "a.test"),
            ("Connection", "host, content-length, transfer-encoding"),
            ("Content-Length", "5"),
        ];
        let terms = RequestTerms { body: Extent::Length(5), ..PLAIN };
        assert_eq!(request(&fields, terms), "Host: web.example\r\nContent-Length: 5\r\n\r\n");
        let fields =
            [("Connection", "transfer-encoding"), ("Host", "a.test"), ("transfer-encoding", "Chunked")];
        let terms = RequestTerms { body: Extent::Chunked, ..PLAIN };
        assert_eq!(request(&fields, terms), "Host: web.example\r\ntransfer-encoding: chunked\r\n\r\n");
    }

    #[test]
    fn more_nominated_names_than_anybody_needs_are_refused() {
        let many = "a,".repeat(MOST_NOMINATED + 1);
        let fields = [("Connection", many.as_bytes())];
        assert_eq!(write_request(fields.into_iter(), PLAIN, &mut Vec::new()), Err(TooManyNominated));
        assert_eq!(write_response(fields.into_iter(), BARE, &mut Vec::new()), Err(TooManyNominated));
    }

    #[test]
    fn a_wish_to_upgrade_is_passed_on_with_its_connection_option() {
        let fields = [
            ("Host", "a.test"),
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Expect", "100-continue"),
        ];
        assert_eq!(
            request(&fields, RequestTerms { upgrade: true, ..PLAIN }),
            "Host: web.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nExpect: 100-continue\r\n\r\n"
        );
    }

    #[test]
    fn rules_with_methods_or_paths_strip_what_overrides_them() {
        let fields = [
            ("Host", "a.test"),
            ("X-HTTP-Method-Override", "DELETE"),
            ("X_HTTP_Method", "DELETE"),
            ("X-Method-Override", "DELETE"),
            ("X-Original-URL", "/admin"),
            ("X_Rewrite-URL", "/admin"),
        ];
        let methods = request(&fields, RequestTerms { limits_methods: true, ..PLAIN });
        assert_eq!(methods, "Host: web.example\r\nX-Original-URL: /admin\r\nX_Rewrite-URL: /admin\r\n\r\n");
        let paths = request(&fields, RequestTerms { limits_paths: true, limits_methods: true, ..PLAIN });
        assert_eq!(paths, "Host: web.example\r\n\r\n");
        assert_eq!(request(&fields, PLAIN).lines().count(), 7);
    }

    #[test]
    fn an_origin_cannot_speak_for_the_gateway_or_lead_past_it() {
        let fields = [
            ("Tidegate-Reason", "not_listed"),
            ("proxy-status", "tidegate; error=x"),
            ("Proxy-Authenticate", "Basic"),
            ("Alt-Svc", "h3=\"attacker.test:443\""),
            ("Connection", "X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Upgrade", "h2c"),
            ("Set-Cookie", "a"),
            ("set-cookie", "b"),
        ];
        assert_eq!(response(&fields, BARE), "Set-Cookie: a\r\nset-cookie: b\r\n\r\n");
    }

    #[test]
    fn the_framing_told_is_the_framing_sent() {
        let fields = [("Content-Length", "5"), ("Trailer", "X"), ("Transfer-Encoding", "chunked")];
        let length = ResponseTerms { body: Extent::Length(5), length: Some(5), ..BARE };
        assert_eq!(response(&fields, length), "Content-Length: 5\r\n\r\n");
        let chunked = ResponseTerms { body: Extent::Chunked, chunked: true, ..BARE };
        assert_eq!(response(&fields, chunked), "Trailer: X\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(
            response(&[], ResponseTerms { close: true, ..chunked }),
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        );
        let switching = ResponseTerms { upgrade: true, ..BARE };
        assert_eq!(
            response(&[("Upgrade", "websocket"), ("Connection", "Upgrade")], switching),
            "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        );
    }

    proptest! {
        /// Whatever a client names and nominates: one Host, ours; no hop-by-hop field; no broken line.
        #[test]
        fn a_rewritten_request_has_one_host_and_no_hop_by_hop_field(
            names in prop::collection::vec("(?i)(host|connection|te|keep-alive|proxy-[a-z]{1,5}|upgrade|x-[a-z_]{1,9}|cookie|transfer-encoding)", 0..12),
            values in prop::collection::vec("[ -~]{0,20}", 12),
            upgrade in any::<bool>(),
        ) {
            let fields: Vec<(&str, &[u8])> =
                names.iter().zip(&values).map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            let mut out = Vec::new();
            write_request(fields.iter().copied(), RequestTerms { upgrade, ..PLAIN }, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let lines: Vec<&str> = text.strip_suffix("\r\n\r\n").unwrap().split("\r\n").collect();
            let named = |name: &str| lines.iter().filter(|line| {
                line.split_once(": ").is_some_and(|(other, _)| other.eq_ignore_ascii_case(name))
            }).count();
            prop_assert_eq!(named("host"), 1);
            prop_assert!(text.to_ascii_lowercase().contains("host: web.example\r\n"));
            prop_assert_eq!(named("te") + named("keep-alive") + named("transfer-encoding"), 0);
            prop_assert!(named("connection") <= usize::from(upgrade));
            let for_proxies = lines.iter().any(|line| line.to_ascii_lowercase().starts_with("proxy-"));
            prop_assert!(!for_proxies);
            prop_assert!(lines.len() <= fields.len() + 2);
        }
    }
}
