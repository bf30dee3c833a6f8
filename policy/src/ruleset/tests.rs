use proptest::prelude::*;

use super::*;
use crate::pattern::{Entry, HostView, PortSet};
use crate::rule::RuleRef;

fn rule(text: &str, action: Action) -> Rule {
    let entry = Entry::parse(text).expect(text);
    let ports = entry.ports.unwrap_or_else(PortSet::any);
    Rule {
        host: entry.host,
        ports,
        action,
        name: RuleName::Listed(action, 0),
        line: 1,
        column: 1,
        terms: None,
    }
}

fn set(allowed: &[&str], denied: &[&str]) -> RuleSet {
    let allowed = allowed.iter().map(|text| rule(text, Action::Allow));
    let rules = allowed.chain(denied.iter().map(|text| rule(text, Action::Deny)));
    RuleSet::new("p".into(), "t.toml".into(), rules.collect())
}

fn name(text: &str) -> Hostname {
    Hostname::parse(text).expect(text)
}

#[test]
fn names_above_allowed_ones_are_known() {
    let set = set(
        &["api.eu.example.com", "*.below.test", ".apex.test", "a.b.*.star.test", "8.8.8.8", "*"],
        &["x.denied.test", "c.*.denied.test"],
    );
    for (text, above) in [
        ("eu.example.com", true),
        ("example.com", true),
        ("com", true),
        ("api.eu.example.com", false),
        ("us.example.com", false),
        ("below.test", true),
        ("x.below.test", false),
        ("apex.test", true),
        ("star.test", true),
        ("x.star.test", true),
        ("b.x.star.test", true),
        ("a.b.x.star.test", false),
        ("c.x.star.test", false),
        ("xb.x.star.test", false),
        ("xstar.test", false),
        ("test", true),
        ("denied.test", false),
        ("x.denied.test", false),
    ] {
        assert_eq!(set.is_above_listed(&name(text)), above, "{text}");
    }
}

#[test]
fn the_next_end_is_the_first_that_is_still_to_come() {
    let ends = |at: u64| {
        let terms = crate::rule::Terms { until: Some(Timestamp::from_secs(at)), ..Default::default() };
        Rule { terms: Some(Box::new(terms)), ..rule("a.test", Action::Allow) }
    };
    let rules = vec![ends(30), rule("b.test", Action::Allow), ends(10), ends(20)];
    let set = RuleSet::new("p".into(), "t.toml".into(), rules);
    let next = |now| set.next_expiry(Timestamp::from_secs(now)).map(|end| end.millis() / 1000);
    let found: Vec<_> = [9, 10, 19, 29, 30, 31].map(next).to_vec();
    assert_eq!(found, [Some(10), Some(20), Some(20), Some(30), None, None]);
}

proptest! {
    #[test]
    fn the_index_finds_what_the_patterns_match(
        entries in prop::collection::vec(
            (prop_oneof!["[ab]\\.[xy]\\.test", "\\*\\.[xy]\\.test", "\\.[xy]\\.test", "[ab]\\.\\*\\.test", Just("*".to_owned())], any::<bool>()),
            0..8,
        ),
        asked in "([ab]\\.)?[ab]\\.[xy]\\.test",
    ) {
        let action = |allows| if allows { Action::Allow } else { Action::Deny };
        let rules: Vec<_> = entries.iter().map(|(text, allows)| rule(text, action(*allows))).collect();
        let set = RuleSet::new("p".into(), "t.toml".into(), rules);
        let asked = name(&asked);
        let mut found = Vec::new();
        set.for_name(&asked, |index, _| found.push(index));
        found.sort_unstable();
        let matching = |(_, rule): &(u32, RuleView<'_>)| rule.host().matches_name(asked.as_str());
        let expected: Vec<u32> = (0..).zip(set.rules()).filter(matching).map(|(index, _)| index).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn the_index_finds_the_ranges_that_hold_an_address(
        entries in prop::collection::vec(prop_oneof!["8\\.8\\.8\\.[0-3]", Just("8.8.8.0/30".to_owned()), Just("8.8.8.2/31".to_owned()), Just("8.8.0.0/16".to_owned()), Just("[2a00::/32]".to_owned()), Just("[2a00::1]".to_owned())], 0..6),
        address in prop_oneof![Just("8.8.8.1"), Just("8.8.8.2"), Just("8.8.9.1"), Just("2a00::1"), Just("2a00::2")],
    ) {
        let set = RuleSet::new("p".into(), "t.toml".into(), entries.iter().map(|text| rule(text, Action::Deny)).collect());
        let address: IpAddr = address.parse().expect("an address");
        let mut found = Vec::new();
        set.for_address(address, |index, _| found.push(index));
        found.sort_unstable();
        let matching = |(_, rule): &(u32, RuleView<'_>)| matches!(rule.host(), HostView::Net(net) if net.contains(&address));
        let expected: Vec<u32> = (0..).zip(set.rules()).filter(matching).map(|(index, _)| index).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_deny_list_judges_the_name_that_is_asked_for_and_no_alias() {
    let list = List::parse("/etc/ads.txt".into(), b"ads.example.com\n*.t.example.com\n").expect("a list");
    let lists = vec![(Arc::new(list), Place { file: "t.toml".into(), line: 3, column: 9 })];
    let set = RuleSet::new("base".into(), "t.toml".into(), Vec::new()).with_lists(lists);
    let name = |text| Hostname::parse(text).expect("a name");
    let named = |text| set.listed(&name(text)).map(|at| set.rule(at).expect("its rule").name());
    assert_eq!(named("ads.example.com"), Some(RuleName::List("/etc/ads.txt".into())));
    assert_eq!(named("x.t.example.com"), named("ads.example.com"));
    assert_eq!(named("t.example.com"), None);
    let mut visited = 0;
    set.for_name(&name("ads.example.com"), |_, _| visited += 1);
    assert_eq!(visited, 0, "as an alias it meets written rules only");
}

#[test]
fn what_says_no_more_than_a_name_and_ports_is_a_record_alone() {
    let plain = set(&["a.example.com:443", "b.example.com"], &["c.example.com:80-90"]);
    assert!(plain.full.is_empty());
    let full = set(&["203.0.113.7:443", "c.*.star.test"], &[]);
    assert_eq!(full.full.len(), 2);
}

#[test]
fn a_reference_is_that_of_one_rule_of_one_set() {
    let (set, same) = (Arc::new(set(&["a.test", "b.test"], &[])), Arc::new(set(&["a.test", "b.test"], &[])));
    let at = |set: &Arc<RuleSet>, index| RuleRef::new(Arc::clone(set), index);
    assert_eq!(at(&set, 1), at(&set, 1));
    assert_ne!(at(&set, 1), at(&set, 0));
    assert_ne!(at(&set, 1), at(&same, 1));
    assert_eq!(at(&set, 1).file(), "t.toml");
}
