use super::*;

fn read(bytes: &[u8]) -> Result<Option<RequestHead>, BadHead> {
    HeadReader::default().feed(bytes)
}

fn head(text: &str) -> RequestHead {
    match read(text.as_bytes()) {
        Ok(Some(head)) => head,
        other => panic!("{text:?}: {other:?}"),
    }
}

fn refusal(bytes: &[u8]) -> BadHead {
    match read(bytes) {
        Err(bad) => bad,
        Ok(head) => panic!("{:?}: {head:?}", String::from_utf8_lossy(bytes)),
    }
}

fn get(lines: &str) -> String {
    format!("GET http://web.example.com/ HTTP/1.1\r\nHost: web.example.com\r\n{lines}\r\n")
}

fn destination(text: &str) -> Destination {
    Destination::from_authority(text.as_bytes()).unwrap()
}

const CONNECT: &str = "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n";

#[test]
fn a_connect_names_its_destination() {
    let head = head(CONNECT);
    assert_eq!(head.target, Target::Authority(destination("api.example.com:443")));
    assert_eq!((head.method(), head.version()), ("CONNECT", Version::Http11));
    assert_eq!(head.raw(), CONNECT.as_bytes());
}

#[test]
fn a_connect_is_taken_as_old_and_odd_clients_send_it() {
    for text in [
        "CONNECT api.example.com:443 HTTP/1.0\r\n\r\n",
        "CONNECT api.example.com:443 HTTP/1.1\r\n\r\n",
        "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "CONNECT API.example.com.:443 HTTP/1.1\r\nHost: elsewhere.example\r\nContent-Length: 0\r\n\r\n",
        "CONNECT api.example.com:443 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ] {
        assert_eq!(head(text).target, Target::Authority(destination("api.example.com:443")), "{text:?}");
    }
}

#[test]
fn a_plain_request_keeps_path_and_query_byte_for_byte() {
    for (uri, to, path) in [
        ("http://web.example.com/a%2Fb?c=../d%20e", "web.example.com:80", "/a%2Fb?c=../d%20e"),
        ("HTTP://WEB.example.com:8080", "web.example.com:8080", "/"),
        ("http://web.example.com?q={\"a\":1}|\\", "web.example.com:80", "/?q={\"a\":1}|\\"),
        ("http://[2001:db8::1]:80//a//b/", "[2001:db8::1]:80", "//a//b/"),
    ] {
        let head = head(&format!("GET {uri} HTTP/1.1\r\nHost: web.example.com\r\n\r\n"));
        let expected = Target::Absolute { destination: destination(to), path_and_query: path.into() };
        assert_eq!(head.target, expected, "{uri}");
        assert_eq!(head.target_as_sent(), uri);
    }
}

#[test]
fn the_forms_for_an_origin_are_told_apart() {
    let origin = head("GET /metrics?a HTTP/1.1\r\nHost: WEB.example.com\r\n\r\n");
    assert_eq!(origin.target, Target::Origin { path_and_query: "/metrics?a".into() });
    assert_eq!(origin.host, Some(destination("web.example.com:80")));
    assert_eq!(head("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").target, Target::Asterisk);
    assert_eq!(head("GET / HTTP/1.0\r\n\r\n").host, None);
}

#[test]
fn fields_keep_order_case_and_bytes() {
    let head = head(&get("X-b:  1\t \r\nx-A:\u{e9}\r\nX-B: 2\r\nEmpty:\r\n"));
    let fields: Vec<_> = head.fields().map(|(name, value)| (name, String::from_utf8_lossy(value))).collect();
    let expected =
        [("Host", "web.example.com"), ("X-b", "1"), ("x-A", "\u{e9}"), ("X-B", "2"), ("Empty", "")];
    assert_eq!(fields, expected.map(|(name, value)| (name, value.into())));
    assert_eq!(head.field("x-B"), Some(&b"1"[..]));
    assert_eq!(head.field("absent"), None);
}

#[test]
fn a_head_reads_the_same_at_every_split() {
    let text = get("Content-Length: 3\r\nX: y\r\n");
    for at in 0..text.len() {
        let (first, second) = text.as_bytes().split_at(at);
        let mut reader = HeadReader::default();
        assert!(reader.feed(first).unwrap().is_none(), "{at}");
        let head = reader.feed(second).unwrap().unwrap();
        assert_eq!((head.raw(), head.body), (text.as_bytes(), BodyLength::Length(3)), "{at}");
        assert!(reader.is_empty());
    }
}

#[test]
fn what_follows_a_head_is_the_next_one_or_the_rest() {
    let mut reader = HeadReader::default();
    let sent = [get("").as_bytes(), CONNECT.as_bytes(), &[22, 3, 1]].concat();
    assert!(matches!(reader.feed(&sent).unwrap().unwrap().target, Target::Absolute { .. }));
    assert!(matches!(reader.feed(&[]).unwrap().unwrap().target, Target::Authority(_)));
    assert_eq!(reader.take_rest(), [22, 3, 1]);
}

#[test]
fn bodies_are_read_in_one_way() {
    for (lines, body) in [
        ("", BodyLength::None),
        ("Content-Length: 0\r\n", BodyLength::None),
        ("content-length: 5 \r\n", BodyLength::Length(5)),
        ("Content-Length: 18446744073709551615\r\n", BodyLength::Length(u64::MAX)),
        ("Transfer-Encoding: Chunked\r\n", BodyLength::Chunked),
        ("Content_Length: 99\r\nContent-Length: 5\r\n", BodyLength::Length(5)),
    ] {
        assert_eq!(head(&get(lines)).body, body, "{lines}");
    }
}

#[test]
fn bodies_that_could_be_read_in_two_ways_are_refused() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: \r\nContent-Length: 5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 010\r\n",
        "Content-Length: 00\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 1e1\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding:\r\n",
    ] {
        assert_eq!(refusal(get(lines).as_bytes()), BadHead::Framing, "{lines}");
    }
    let nbsp = b"POST http://a.test/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \xa0chunked\xa0\r\n\r\n";
    assert_eq!(refusal(nbsp), BadHead::Framing);
    let old = "POST http://a.test/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refusal(old.as_bytes()), BadHead::Framing);
    for line in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
        let connect = format!("CONNECT api.example.com:443 HTTP/1.1\r\n{line}\r\n\r\n");
        assert_eq!(refusal(connect.as_bytes()), BadHead::Framing, "{line}");
    }
}

#[test]
fn malformed_lines_are_refused() {
    for lines in [
        "Host : attacker.test\r\n",
        " folded: x\r\n",
        "X: a\r\n b\r\n",
        "X: a\r\n\tb\r\n",
        "X: a\rTransfer-Encoding: chunked\r\n",
        "X: a\nY: b\r\n",
        "X: a\0b\r\n",
        "X: a\x0bb\r\n",
        "X: a\x7fb\r\n",
        "X y: a\r\n",
        ": a\r\n",
        "no colon\r\n",
        "X\u{e9}: a\r\n",
    ] {
        assert_eq!(refusal(get(lines).as_bytes()), BadHead::Field, "{lines:?}");
    }
    assert_eq!(refusal(b"GET http://a.test/ HTTP/1.1\r\n Host: a\r\n\r\n"), BadHead::Field);
    assert_eq!(refusal(b"GET http://a.test/ HTTP/1.1\r\nHost: a\n\n"), BadHead::Field);
}

#[test]
fn the_host_must_be_one_host() {
    for lines in ["Host: web.example.com\r\n", "host: attacker.test\r\n"] {
        assert_eq!(refusal(get(lines).as_bytes()), BadHead::Host, "{lines}");
    }
    for host in [
        "",
        "Host:\r\n",
        "Host: a.test, b.test\r\n",
        "Host: a.test b.test\r\n",
        "Host: u@a.test\r\n",
        "Host: 0x7f.1\r\n",
    ] {
        let text = format!("GET http://web.example.com/ HTTP/1.1\r\n{host}\r\n");
        assert_eq!(refusal(text.as_bytes()), BadHead::Host, "{host:?}");
    }
    let twice = b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
    assert_eq!(refusal(twice), BadHead::Host);
}

#[test]
fn malformed_request_lines_are_refused_as_soon_as_they_end() {
    for line in [
        "GET http://web.example.com/",
        "GET",
        "",
        "GET  http://web.example.com/ HTTP/1.1",
        "GET http://web.example.com/ HTTP/1.1 ",
        "GET http://web.example.com/ HTTP/1.1 x",
        "GET\thttp://web.example.com/\tHTTP/1.1",
        "GET http://web.example.com/ HTTP/1.2",
        "GET http://web.example.com/ HTTP/1.32",
        "GET http://web.example.com/ HTTP/2.0",
        "GET http://web.example.com/ HTTP/0.9",
        "GET http://web.example.com/ HTTP/1.",
        "GET http://web.example.com/ HTTP/",
        "GET http://web.example.com/ http/1.1",
        "G(T http://web.example.com/ HTTP/1.1",
        "CONNECT attacker.test .example.com:443 HTTP/1.1",
        "EHLO x",
        "*1",
        "SSH-2.0-OpenSSH_9.9",
    ] {
        let bad = refusal(format!("{line}\r\n").as_bytes());
        let expected =
            if line.is_empty() { BadHead::Foreign(Foreign::EmptyLine) } else { BadHead::RequestLine };
        assert_eq!(bad, expected, "{line:?}");
    }
    assert_eq!(refusal(b"GET http://web.example.com/ HTTP/1.1\n"), BadHead::RequestLine);
    assert_eq!(refusal(b"CONNECT attacker.test\r.example.com:443 HTTP/1.1\r\n"), BadHead::RequestLine);
    assert_eq!(refusal(b"GET\0 http://web.example.com/ HTTP/1.1\r\n"), BadHead::RequestLine);
}

#[test]
fn other_protocols_are_refused_by_name() {
    for (bytes, foreign) in [
        (&b"\x16\x03\x01\x00\x05hello"[..], Foreign::Tls),
        (b"\x04\x01\x01\xbb\x00\x00\x00\x01u\x00attacker.test\x00", Foreign::Socks4),
        (b"\r\nGET http://a.test/ HTTP/1.1\r\n", Foreign::EmptyLine),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11", Foreign::EmptyLine),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", Foreign::ProxyProtocol),
        (b"PROXY UNKNOWN\r\n", Foreign::ProxyProtocol),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Foreign::Http2),
    ] {
        assert_eq!(refusal(bytes), BadHead::Foreign(foreign), "{bytes:?}");
    }
    assert_eq!(refusal(b"\x05\x01\x00"), BadHead::RequestLine);
}

#[test]
fn malformed_targets_are_refused() {
    for target in [
        "ftp://web.example.com/",
        "https://web.example.com/",
        "http:web.example.com/",
        "http:/web.example.com/",
        "http:\\\\web.example.com/",
        "http://web.example.com/a#b",
        "http://attacker.test#@web.example.com/",
        "http://web.example.com/..\\admin",
        "/a\\b",
        "web.example.com",
        "*",
        "unix:/run/docker.sock|http://web.example.com/",
        "http+unix://%2Frun%2Fdocker.sock/info",
        "http://web.example.com/\x7f",
        "http://web.example.com/\u{e9}",
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: web.example.com\r\n\r\n");
        assert_eq!(refusal(text.as_bytes()), BadHead::Target, "{target}");
    }
    for target in [
        "http:///attacker.test/",
        "http://",
        "http://web.example.com@attacker.test/",
        "http://attacker.test\\@web.example.com/",
        "http://web.example.com:80:443/",
        "http://web.example.com:/",
        "http://unix:/run/docker.sock:/info",
        "http://2130706433/",
        "http://127.1/",
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: web.example.com\r\n\r\n");
        assert!(matches!(refusal(text.as_bytes()), BadHead::Destination(_)), "{target}");
    }
    for target in ["/foo", "http://api.example.com:443/", "api.example.com", "[::1%25eth0]:443", "0x7f.1:443"]
    {
        let text = format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(matches!(refusal(text.as_bytes()), BadHead::Destination(_)), "{target}");
    }
}

#[test]
fn limits_have_their_own_statuses() {
    let long = |length: usize| format!("GET http://web.example.com/{} HTTP/1.1\r\n", "a".repeat(length));
    assert_eq!(refusal(long(TARGET_LIMIT).as_bytes()), BadHead::TargetTooLong);
    assert_eq!(refusal(long(70_000).as_bytes()), BadHead::TargetTooLong);
    assert_eq!(refusal(format!("CONNECT {}", "a".repeat(70_000)).as_bytes()), BadHead::Target);
    let fits = format!("{}Host: a\r\nX: {}\r\n\r\n", long(8 * 1024), "b".repeat(16 * 1024));
    assert!(read(fits.as_bytes()).unwrap().is_some());
    assert_eq!(refusal(get(&format!("X: {}\r\n", "b".repeat(LIMIT))).as_bytes()), BadHead::TooLarge);
    assert_eq!(refusal(get(&"X: y\r\n".repeat(MOST_FIELDS)).as_bytes()), BadHead::TooLarge);
    assert!(read(get(&"X: y\r\n".repeat(MOST_FIELDS - 1)).as_bytes()).unwrap().is_some());
    for method in ["TRACE", "TRACK"] {
        let text = format!("{method} http://web.example.com/ HTTP/1.1\r\n");
        assert_eq!(refusal(text.as_bytes()).status(), 405);
    }
    assert_eq!((BadHead::TargetTooLong.status(), BadHead::TooLarge.status()), (414, 431));
    assert_eq!((BadHead::TooSlow.status(), BadHead::Framing.status()), (408, 400));
}

#[test]
fn the_connection_headers_decide_what_comes_next() {
    let of = |version: &str, lines: &str| {
        let head = head(&format!("GET http://a.test/ {version}\r\nHost: a.test\r\n{lines}\r\n"));
        (head.keep_alive, head.upgrade)
    };
    assert_eq!(of("HTTP/1.1", ""), (true, Upgrade::None));
    assert_eq!(of("HTTP/1.0", ""), (false, Upgrade::None));
    assert_eq!(of("HTTP/1.0", "Connection: Keep-Alive\r\n"), (true, Upgrade::None));
    assert_eq!(of("HTTP/1.1", "Connection: x, Close\r\n"), (false, Upgrade::None));
    assert_eq!(of("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n"), (false, Upgrade::None));
    assert_eq!(of("HTTP/1.1", "Connection: Upgrade\r\nUpgrade: WebSocket\r\n"), (true, Upgrade::WebSocket));
    assert_eq!(of("HTTP/1.1", "Upgrade: websocket\r\n"), (true, Upgrade::None));
    assert_eq!(of("HTTP/1.1", "Connection: upgrade\r\nUpgrade: h2c\r\n"), (true, Upgrade::Other));
    assert_eq!(of("HTTP/1.1", "Connection: upgrade\r\nUpgrade: websocket, h2c\r\n"), (true, Upgrade::Other));
    assert!(head(&get("Expect: 100-Continue\r\n")).expect_continue);
    assert!(!head(&get("")).expect_continue);
}

#[test]
fn a_refused_head_shows_its_target() {
    let mut reader = HeadReader::default();
    assert!(reader.feed(b"CONNECT 0x7f.1:443 HTTP/1.1\r\n\r\n").is_err());
    assert_eq!(reader.shown(), b"0x7f.1:443");
    let mut reader = HeadReader::default();
    assert!(reader.feed(b"\x16\x03\x01").is_err());
    assert_eq!(reader.shown(), b"\x16\x03\x01");
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        let _ = read(&bytes);
        let _ = read(&[b"GET http://a.test/ HTTP/1.1\r\nHost: a\r\n", &bytes[..]].concat());
        let _ = read(&[&bytes[..], b"\r\n\r\n"].concat());
    }
}
