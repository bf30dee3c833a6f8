use super::*;

fn list(text: &str) -> List {
    List::parse("/etc/list".into(), text.as_bytes()).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))
}

fn blocks(list: &List, name: &str) -> bool {
    list.blocks(&Hostname::parse(name).expect("a name"))
}

/// The names of these that a list blocks.
fn blocked<'n>(text: &str, names: &[&'n str]) -> Vec<&'n str> {
    let list = list(text);
    names.iter().copied().filter(|name| blocks(&list, name)).collect()
}

const NAMES: &[&str] =
    &["ads.example.com", "x.ads.example.com", "b.example.net", "x.b.example.net", "example.com"];

#[test]
fn each_form_blocks_what_it_says() {
    for (text, expected) in [
        ("ads.example.com\n", vec!["ads.example.com"]),
        (
            "ADS.Example.COM.\r\n# comment\n\n  b.example.net  # why\n",
            vec!["ads.example.com", "b.example.net"],
        ),
        ("*.ads.example.com", vec!["x.ads.example.com"]),
        (".ads.example.com", vec!["ads.example.com", "x.ads.example.com"]),
        (
            "127.0.0.1 localhost\n::1 ip6-localhost\n0.0.0.0 0.0.0.0\n0.0.0.0\tads.example.com b.example.net # both\n",
            vec!["ads.example.com", "b.example.net"],
        ),
        (
            "[Adblock Plus 2.0]\n! Title: x\n||ads.example.com^\n||b.example.net^$important\n",
            vec!["ads.example.com", "x.ads.example.com", "b.example.net", "x.b.example.net"],
        ),
        ("||*.ads.example.com^", vec!["x.ads.example.com"]),
        (
            "$TTL 300\n@ IN SOA rpz.example. hostmaster.rpz.example. (\n  1 ; serial\n  3600 600 86400 300 )\n  IN NS localhost.\n\
          ads.example.com CNAME .\n*.b.example.net 300 IN CNAME *. ; below\n",
            vec!["ads.example.com", "x.b.example.net"],
        ),
        (
            "$ORIGIN rpz.example.\nads.example.com.rpz.example. CNAME rpz-drop.\nb.example.net A 192.0.2.1\n",
            vec!["ads.example.com", "b.example.net"],
        ),
        (
            "rpz.example. 60 IN SOA a. b. 1 2 3 4 5\n*.ads.example.com.rpz.example. IN CNAME walled.example.\n",
            vec!["x.ads.example.com"],
        ),
        ("", vec![]),
    ] {
        assert_eq!(blocked(text, NAMES), expected, "{text}");
    }
}

#[test]
fn what_is_not_understood_is_a_mistake_with_its_line() {
    for (line, what) in [
        ("@@||ads.example.com^", "an exception: a deny list cannot allow"),
        ("||ads.example.com^$third-party", "an adblock rule that is about more than a name"),
        ("||ads.example.com/banner", "an adblock rule that is about more than a name"),
        ("||ad*.example.com^", "an adblock rule that is about more than a name"),
        ("example.com##.ad", "an adblock rule that is about more than a name"),
        ("/banner/", "an adblock rule that is about more than a name"),
        ("ads.example.com CNAME rpz-passthru.", "an RPZ action that lets something through"),
        ("32.1.2.0.192.rpz-ip CNAME .", "an RPZ trigger that is about more than a name"),
        ("ads.example.com. CNAME .", "a name outside of the zone"),
        ("ads.example.com IN", "neither a name, a hosts line, an adblock domain nor an RPZ record"),
        ("$INCLUDE other", "neither a name, a hosts line, an adblock domain nor an RPZ record"),
        ("0.0.0.0 a..b", "the host name has an empty label"),
        ("https://ads.example.com", "an adblock rule that is about more than a name"),
        ("a*b.example.com", "the host name has a character that host names do not have"),
    ] {
        let text = format!("good.example.com\n{line}\n");
        let mistakes = List::parse("/etc/list".into(), text.as_bytes()).expect_err(line);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert_eq!((mistakes[0].line, mistakes[0].what.as_str()), (2, what), "{line}");
        assert!(!mistakes[0].hint.is_empty());
    }
    let mistakes = List::parse("/etc/list".into(), b"a.example\nb\xff.example\n").expect_err("not UTF-8");
    assert_eq!((mistakes[0].line, mistakes[0].what.as_str()), (2, "the line is not UTF-8"));
}

#[test]
fn many_mistakes_are_counted_behind_the_first() {
    let text = "||x\n".repeat(50);
    let mistakes = List::parse("/etc/list".into(), text.as_bytes()).expect_err("mistakes");
    assert_eq!(mistakes.len(), TOLD + 1);
    assert_eq!(mistakes[TOLD].what, "30 more lines of this list are not understood");
    let all = List::parse("/etc/list".into(), "?\n".repeat(TOLD).as_bytes()).expect_err("nothing is a name");
    assert!(all.len() == TOLD && all.iter().all(|mistake| mistake.line > 0), "{all:?}");
    assert!(list("# nothing\n").is_empty() && !list("ads.example.com").is_empty());
}

#[test]
fn a_name_and_what_lies_below_it_may_come_from_two_lines() {
    let list = list("*.a.example\na.example\n||b.example^\nb.example\n");
    assert_eq!(list.len(), 2);
    for (name, expected) in [
        ("a.example", true),
        ("x.y.a.example", true),
        ("b.example", true),
        ("c.b.example", true),
        ("ca.example", false),
        ("example", false),
    ] {
        assert_eq!(blocks(&list, name), expected, "{name}");
    }
}
