use proptest::prelude::*;

use super::*;
use crate::destination::Port;

fn entry(text: &str) -> Entry {
    Entry::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> EntryErrorKind {
    let error = Entry::parse(text).expect_err(text);
    assert!(!error.to_string().is_empty() && !error.hint().is_empty());
    error.kind
}

fn host(text: &str) -> Hostname {
    Hostname::parse(text).unwrap()
}

fn port(number: u16) -> Port {
    Port::new(number).unwrap()
}

#[test]
fn entries_have_one_form() {
    for (text, canonical) in [
        ("API.Example.COM", "api.example.com"),
        ("api.example.com.:443", "api.example.com:443"),
        ("bücher.example:443", "xn--bcher-kva.example:443"),
        ("*.example.com:*", "*.example.com:*"),
        (".example.com", ".example.com"),
        ("EC2.*.Example.com:443", "ec2.*.example.com:443"),
        ("a.b.*.example.com", "a.b.*.example.com"),
        ("1.*.example.com", "1.*.example.com"),
        ("*", "*"),
        ("*:443", "*:443"),
        ("api.example.com:9000-9010,443,8443,443", "api.example.com:443,8443,9000-9010"),
        ("api.example.com:1-65535", "api.example.com:*"),
        ("api.example.com:80-81,82", "api.example.com:80-82"),
        ("203.0.113.10", "203.0.113.10"),
        ("203.0.113.10/32:443", "203.0.113.10:443"),
        ("10.0.0.0/24:5432", "10.0.0.0/24:5432"),
        ("0.0.0.0/0:443", "0.0.0.0/0:443"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("[2001:db8::1/128]", "[2001:db8::1]"),
        ("[2001:db8::/64]:443", "[2001:db8::/64]:443"),
        ("[::/0]:443", "[::/0]:443"),
        ("localhost:3000", "localhost:3000"),
    ] {
        let read = entry(text);
        assert_eq!(read.to_string(), canonical, "{text}");
        assert_eq!(entry(canonical), read, "{canonical}");
    }
}

#[test]
fn mistakes_are_refused_by_kind() {
    use EntryErrorKind::*;
    for (text, kind) in [
        ("", Empty),
        ("   ", Empty),
        ("**:443", Star),
        ("*.*.*:443", Star),
        ("*.*.example.com:443", Star),
        ("api*.example.com", Star),
        ("api.*", Star),
        ("*example.com", Star),
        ("api.example.*:443", Star),
        ("*.:443", Host),
        (".:443", Host),
        ("..example.com", Host),
        ("*..example.com", Host),
        ("api..example.com", Host),
        ("api.example.com|attacker.test:443", Host),
        ("^api.example.com$:443", Host),
        ("{api,www}.example.com:443", Host),
        ("xn--api-.example.com:443", Host),
        ("https://api.example.com/", NotAHost),
        ("api.example.com:443/v1", NotAHost),
        ("api.example.com/v1", NotAHost),
        ("user@api.example.com:443", NotAHost),
        ("api.example.com:443?x", NotAHost),
        ("api.example.com:443, www.example.com:443", NotAHost),
        ("api.example.com:443\nhttp_access allow all", NotAHost),
        ("api.example.com:443 # prod", NotAHost),
        ("api.example.com\0:443", NotAHost),
        ("${API_HOST}:443", Placeholder),
        ("$API_HOST:443", Placeholder),
        ("{{ host }}", Placeholder),
        ("api.example.com:9000-8000", Ports),
        ("api.example.com:8000-", Ports),
        ("api.example.com:-80", Ports),
        ("api.example.com:0443", Ports),
        ("api.example.com:https", Ports),
        ("api.example.com:", Ports),
        ("api.example.com:0", Ports),
        ("api.example.com:65536", Ports),
        ("api.example.com:+443", Ports),
        ("api.example.com:443,", Ports),
        ("api.example.com:443,*", Ports),
        ("api.example.com:1-2-3", Ports),
        ("10.0.0.0/33:443", Address),
        ("10.0.0.1/8:443", Address),
        ("10.0.0.0/08:443", Address),
        ("10.0.0.0/+8:443", Address),
        ("10.0.0.0/:443", Address),
        ("10.0.0.0/255.0.255.0:443", Address),
        ("010.0.0.1:80", Address),
        ("10.1:80", Address),
        ("0x7f.1:80", Address),
        ("10.0.0.0.0/8:80", Address),
        ("2001:db8::1", Address),
        ("2001:db8::1:443", Address),
        ("[2001:db8::1", Address),
        ("[2001:db8::1]443", Address),
        ("[::]/0:443", Address),
        ("[2001:DB8::1]:443", Address),
        ("[2001:db8:0:0::1]:443", Address),
        ("[2001:db8::1/64]:443", Address),
        ("[2001:db8::/129]:443", Address),
        ("[fe80::1%eth0]:443", Address),
        ("[203.0.113.10]:443", Address),
        ("[::ffff:10.0.0.0]/104:80", Address),
        ("[::ffff:10.0.0.0/104]:80", Address),
        ("[::ffff:10.0.0.1]:80", Address),
        ("аpi.example.com:443", MixedScript),
        ("*.exαmple.com", MixedScript),
    ] {
        assert_eq!(refused(text), kind, "{text}");
    }
}

#[test]
fn hints_say_what_to_write_instead() {
    let hint = |text: &str| Entry::parse(text).expect_err(text).hint().to_owned();
    assert!(hint("https://api.example.com:8443/v1").contains("`api.example.com:8443`"));
    assert!(hint("[::ffff:10.0.0.0/104]:80").contains("`10.0.0.0/8`"));
    assert!(hint("10.0.0.1/8").contains("`10.0.0.0/8`"));
    assert!(hint("[2001:db8::1/64]").contains("`[2001:db8::/64]`"));
    assert!(hint("[2001:DB8::1]:443").contains("`[2001:db8::1]`"));
    assert!(hint("2001:db8::1").contains("`[2001:db8::1]`"));
    assert!(hint("api.example.com:https").contains("443"));
    assert!(hint("аpi.example.com").contains("xn--"));
}

#[test]
fn scripts_that_are_written_together_may_be() {
    for text in
        ["東京abc.example", "テスト漢字.example", "почта.example", "日本語.почта.example", "bücher.example"]
    {
        assert!(matches!(entry(text).host, HostPattern::Exact(_)), "{text}");
    }
    // Written as an A-label it is somebody's considered choice.
    assert_eq!(entry("xn--pi-7kc.example.com").to_string(), "xn--pi-7kc.example.com");
}

#[test]
fn name_patterns_match_whole_labels() {
    let cases: [(&str, &[&str], &[&str]); 6] = [
        ("cdn.eu.example", &["cdn.eu.example"], &["cdnxeu.example", "a.cdn.eu.example", "eu.example"]),
        (
            "*.corp.example",
            &["a.corp.example", "a.b.c.corp.example"],
            &["corp.example", "evilcorp.example", "corp.example.attacker.test", "example"],
        ),
        (".corp.example", &["corp.example", "a.corp.example"], &["evilcorp.example", "example"]),
        (
            "ec2.*.example.com",
            &["ec2.eu-west-1.example.com"],
            &[
                "ec2.example.com",
                "ec2.a.b.example.com",
                "xec2.a.example.com",
                "ec2.a.example.com.test",
                "ec2.a.xexample.com",
            ],
        ),
        ("*", &["a.b"], &["localhost"]),
        (".test", &["a.test", "a.b.test"], &["test"]),
    ];
    for (pattern, yes, no) in cases {
        let pattern = HostPattern::parse(pattern).unwrap();
        for name in yes {
            assert!(pattern.matches_name(&host(name)), "{pattern} {name}");
        }
        for name in no {
            assert!(!pattern.matches_name(&host(name)), "{pattern} {name}");
        }
    }
    // The labels around the star must not overlap.
    assert!(!HostPattern::parse("a.b.*.b.example").unwrap().matches_name(&host("a.b.example")));
}

#[test]
fn names_and_literals_never_meet() {
    let range = HostPattern::parse("10.0.0.0/24").unwrap();
    assert!(range.matches_address("10.0.0.9".parse().unwrap()));
    assert!(range.matches_address("::ffff:10.0.0.9".parse().unwrap()));
    assert!(!range.matches_address("10.0.1.0".parse().unwrap()));
    assert!(!range.matches_name(&host("a.example.com")));
    assert!(!HostPattern::Any.matches_address("8.8.8.8".parse().unwrap()));
}

#[test]
fn ports_are_found_at_both_ends_of_a_range() {
    let ports = PortSet::parse("443,8000-8010").unwrap();
    for number in [443, 8000, 8005, 8010] {
        assert!(ports.contains(port(number)), "{number}");
    }
    for number in [1, 442, 444, 7999, 8011, 65535] {
        assert!(!ports.contains(port(number)), "{number}");
    }
    assert_eq!((ports.len(), PortSet::any().len(), PortSet::from(Port::HTTPS).len()), (12, 65535, 1));
    assert!(PortSet::any().contains(port(65535)) && PortSet::any().contains(port(1)));
    assert!(ports.overlaps(&PortSet::parse("8010-9000").unwrap()));
    assert!(!ports.overlaps(&PortSet::parse("80,444-7999").unwrap()));
    assert_eq!(PortSet::from_ports([]), None);
    assert_eq!(PortSet::from_ports([port(444), Port::HTTPS]).unwrap().to_string(), "443-444");
    assert_eq!(ports.union(&PortSet::from(port(444))).to_string(), "443-444,8000-8010");
}

#[test]
fn sets_of_ports_are_unions_of_ranges() {
    let set = |text: &str| PortSet::parse(text).unwrap();
    for (text, other, union, overlaps, covered) in [
        ("443", "443", "443", true, true),
        ("443", "80", "80,443", false, false),
        ("1-10", "11-20", "1-20", false, false),
        ("1-10", "10-20", "1-20", true, false),
        ("5-7", "1-10", "1-10", true, true),
        ("1-10", "5-7", "1-10", true, false),
        ("80,443", "1-100,400-500", "1-100,400-500", true, true),
        ("80,443", "1-100", "1-100,443", true, false),
        ("65535", "1-65534", "*", false, false),
        ("*", "1-65534", "*", true, false),
        ("1", "*", "*", true, true),
    ] {
        let (one, two) = (set(text), set(other));
        assert_eq!((one.union(&two).to_string(), two.union(&one).to_string()), (union.into(), union.into()));
        assert_eq!((one.overlaps(&two), two.overlaps(&one)), (overlaps, overlaps), "{text} {other}");
        assert_eq!(one.is_covered_by([&two]), covered, "{text} {other}");
    }
    assert!(!set("443").is_covered_by([]));
    assert!(set("1-20").is_covered_by([&set("1-9"), &set("15-30"), &set("10-14")]));
    assert!(PortSet::any().is_covered_by([&set("1-1000"), &set("1001-65535")]));
    let is_any = ["*", "1-65535", "1-100,101-65535", "1-65534", "2-65535"].map(|text| set(text).is_any());
    assert_eq!(is_any, [true, true, true, false, false]);
    let len = ["1", "1-2", "80,443", "1-10,20-29", "*"].map(|text| set(text).len());
    assert_eq!(len, [1, 2, 2, 20, 65535]);
    assert_eq!(set("80,443,8000-8010,9000").to_string(), "80,443,8000-8010,9000");
}

#[test]
fn every_port_mistake_has_its_own_words() {
    let told = |text: &str| {
        let error = PortSet::parse(text).expect_err(text);
        format!("{error}; {}", error.hint())
    };
    let plain = "a port is a plain decimal number from 1 to 65535";
    let service = "service names are not read: they differ between machines";
    let any = "write `443`, `443,8443`, `9000-9010` or `*`";
    for (text, expected) in [
        ("", "nothing after the colon; write a port, or leave the colon out".to_owned()),
        ("0", format!("{plain}; {any}")),
        ("https", format!("{service}; write `443`")),
        ("http", format!("{service}; write `80`")),
        ("ssh", format!("{service}; write `22`")),
        ("imap", format!("{service}; {any}")),
        ("443,*", format!("{plain}; `*` stands alone: every port")),
        ("443,", format!("{plain}; {any}")),
        ("1-0", format!("{plain}; {any}")),
        ("x-9", format!("{service}; {any}")),
        ("9-x", format!("{service}; {any}")),
        ("9-8", "the port range runs backwards; write the lower port first, as in `9000-9010`".to_owned()),
        ("-8", "the port range is open; write the lower port first, as in `9000-9010`".to_owned()),
        ("8-", "the port range is open; write the lower port first, as in `9000-9010`".to_owned()),
    ] {
        assert_eq!(told(text), expected, "{text}");
    }
}

#[test]
fn brackets_and_addresses_are_told_apart() {
    let told = |text: &str| Entry::parse(text).expect_err(text).to_string();
    for (text, expected) in [
        ("[2001:db8::1", "the closing bracket is missing"),
        ("[2001:db8::1]443", "after the closing bracket only `:` and ports can follow"),
        ("[2001:db8::]/64", "the prefix length stands outside the brackets"),
        ("2001:db8::1", "an IPv6 address without brackets: where the port begins is anyone's guess"),
        ("2001:db8::/64", "an IPv6 address without brackets: where the port begins is anyone's guess"),
        ("a.example.com:1:2", "more than one colon"),
        ("a].example.com", "the host name has a character that host names do not have"),
        ("[2001:db8::/129]", "the prefix length is not a plain number in range"),
        ("10.0.0.0/33", "the prefix length is not a plain number in range"),
        ("10.0.0.1/31", "the range has host bits set"),
        ("[2001:db8::1/64]", "the range has host bits set"),
        ("[2001:0db8::1]", "not the canonical spelling (RFC 5952)"),
        ("[::ffff:8.8.8.8]", "an IPv4-mapped address is reached and compared as IPv4"),
    ] {
        assert_eq!(told(text), expected, "{text}");
    }
    // A host alone, as `host = "…"` holds it.
    for text in ["2001:db8::1", "2001:db8::/64"] {
        let bad = HostPattern::parse(text).expect_err(text).to_string();
        assert_eq!(
            bad, "an IPv6 address without brackets: where the port begins is anyone's guess",
            "{text}"
        );
    }
}

#[test]
fn wide_patterns_need_broad() {
    use Broadness::*;
    for (pattern, expected) in [
        ("*", Some(AnyName)),
        ("*.com", Some(PublicSuffix)),
        (".com", Some(PublicSuffix)),
        ("*.test", Some(PublicSuffix)),
        ("*.co.uk", Some(PublicSuffix)),
        ("*.github.io", Some(PublicSuffix)),
        (".github.io", Some(PublicSuffix)),
        ("*.kawasaki.jp", Some(PublicSuffix)),
        ("*.xn--p1ai", Some(PublicSuffix)),
        ("*.xn--55qx5d.cn", Some(PublicSuffix)),
        ("api.*.com", Some(PublicSuffix)),
        ("*.example.com", None),
        ("*.corp.example", None),
        ("*.user.github.io", None),
        ("api.*.example.com", None),
        ("github.io", None),
        ("10.0.0.0/24", None),
        ("10.0.0.0/23", Some(PrivateRange)),
        ("10.0.0.0/15", Some(PublicRange)),
        ("203.0.112.0/20", Some(PrivateRange)),
        ("198.20.0.0/16", None),
        ("198.20.0.0/15", Some(PublicRange)),
        ("0.0.0.0/0", Some(PublicRange)),
        ("[fd00:1::/64]", None),
        ("[fd00:1::/63]", Some(PrivateRange)),
        ("[2a00:1::/32]", None),
        ("[2a00::/31]", Some(PublicRange)),
        ("[::/0]", Some(PublicRange)),
        ("203.0.113.10", None),
    ] {
        assert_eq!(HostPattern::parse(pattern).unwrap().needs_broad(), expected, "{pattern}");
    }
}

#[test]
fn a_pattern_covers_what_it_contains() {
    let order =
        ["*", ".example.com", "*.example.com", "*.a.example.com", "b.*.a.example.com", "b.c.a.example.com"];
    let read: Vec<_> = order.iter().map(|text| HostPattern::parse(text).unwrap()).collect();
    for (i, wide) in read.iter().enumerate() {
        for (j, narrow) in read.iter().enumerate() {
            assert_eq!(wide.view().covers(narrow.view()), i <= j, "{wide} covers {narrow}");
        }
    }
    let covers = |wide: &str, narrow: &str| {
        HostPattern::parse(wide).unwrap().view().covers(HostPattern::parse(narrow).unwrap().view())
    };
    assert!(covers(".example.com", ".a.example.com") && covers("*.example.com", ".a.example.com"));
    assert!(!covers("*.example.com", ".example.com") && !covers("*.example.com", "example.com"));
    assert!(
        !covers("*", "localhost")
            && !covers("*", "10.0.0.0/24")
            && !covers("b.*.example.com", "*.example.com")
    );
    assert!(covers("10.0.0.0/24", "10.0.0.7") && !covers("10.0.0.0/24", "10.0.0.0/23"));
}

#[test]
fn specificity_orders_patterns() {
    let order = ["*", "*.example.com", "api.*.example.com", "api.example.com"];
    let read: Vec<_> = order.iter().map(|text| HostPattern::parse(text).unwrap().specificity()).collect();
    assert!(read.is_sorted_by(|a, b| a < b));
    assert_eq!(HostPattern::parse("10.0.0.1").unwrap().specificity(), Specificity::Exact);
    assert_eq!(HostPattern::parse("10.0.0.0/24").unwrap().specificity(), Specificity::Suffix);
}

#[test]
fn a_host_key_holds_no_port() {
    assert_eq!(HostPattern::parse("api.example.com:443").map_err(|e| e.kind), Err(EntryErrorKind::NotAHost));
    assert_eq!(HostPattern::parse("[2001:db8::1]:443").map_err(|e| e.kind), Err(EntryErrorKind::Address));
}

proptest! {
    #[test]
    fn what_is_printed_reads_back(text in "(\\*\\.|\\.|[a-z]{1,3}\\.\\*\\.)?[a-z0-9-]{1,6}(\\.[a-z]{1,4}){0,2}(:(\\*|[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})?(,[1-9][0-9]{0,3}){0,2}))?") {
        if let Ok(entry) = Entry::parse(&text) {
            prop_assert_eq!(Entry::parse(&entry.to_string()), Ok(entry));
        }
    }

    #[test]
    fn ranges_read_back(address: IpAddr, len in 0u8..=128) {
        let len = if address.is_ipv4() { len % 33 } else { len };
        let net = special::canonical_net(IpNet::new(address, len).unwrap());
        let entry = Entry { host: HostPattern::Net(net), ports: Some(PortSet::any()) };
        prop_assert_eq!(Entry::parse(&entry.to_string()), Ok(entry));
    }

    #[test]
    fn any_text_is_read_without_panic(text in "\\PC{0,40}") {
        let _ = Entry::parse(&text);
        let _ = HostPattern::parse(&text);
    }

    #[test]
    fn a_pattern_that_matches_is_a_suffix(name in "[a-z]{1,3}(\\.[a-z]{1,3}){1,4}", domain in "[a-z]{1,3}(\\.[a-z]{1,3}){0,2}") {
        let (name, domain) = (host(&name), host(&domain));
        let below = HostPattern::Below(domain.clone()).matches_name(&name);
        let expected = name.suffixes().skip(1).any(|suffix| suffix == domain.as_str());
        prop_assert_eq!(below, expected);
    }
}

#[test]
fn a_set_covers_what_lies_in_its_ranges() {
    let set = |text: &str| PortSet::parse(text).unwrap();
    for (wide, narrow, covers) in [
        ("*", "1-65535", true),
        ("443", "443", true),
        ("443", "80", false),
        ("80,443,9000-9010", "443,9000-9003", true),
        ("80,443,9000-9010", "443,8999", false),
        ("1-10,11-20", "5-15", true),
        ("1-10,12-20", "5-15", false),
    ] {
        assert_eq!(set(wide).covers(&set(narrow)), covers, "{wide} {narrow}");
    }
}
