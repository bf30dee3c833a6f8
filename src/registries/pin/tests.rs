use std::path::PathBuf;

use super::super::{Index, Url};
use super::*;

fn reached(url: &str, address: Option<&str>) -> Reached {
    Reached {
        url: Url::parse(url).expect("a URL"),
        address: address.map(|address| address.parse().expect("an address")),
    }
}

fn found(client: &'static str, hosts: Vec<Reached>) -> Found {
    let index = Index { url: hosts[0].url.clone(), from: "/etc/x.conf".to_owned(), hosts, unread: None };
    Found {
        client,
        program: PathBuf::from("/usr/bin/x"),
        indexes: vec![index],
        notes: Vec::new(),
        seen: Vec::new(),
    }
}

fn local() -> LocalAddresses {
    LocalAddresses::new(["192.0.2.2/32".parse().expect("a net"), "127.0.0.0/8".parse().expect("a net")])
}

#[test]
fn public_hosts_are_one_table() {
    let hosts = vec![
        reached("https://index.example/simple", Some("8.8.8.8")),
        reached("https://files.example:8443/x", Some("8.8.4.4")),
        reached("https://other.example/", None),
    ];
    let (tables, notes) = pin(&found("pip", hosts), &local());
    let expected = "[registry.pip]\nhosts = [\"index.example\", \"files.example:8443\", \"other.example\"]\nfrom = \"/etc/x.conf\"\n";
    assert_eq!((tables.len(), tables[0].to_string().as_str(), notes.len()), (1, expected, 0));
}

#[test]
fn a_private_mirror_has_its_addresses_and_a_table_of_its_own() {
    let hosts = vec![
        reached("https://mirror.example/simple", Some("10.0.3.9")),
        reached("https://files.example/x", Some("8.8.8.8")),
    ];
    let (tables, _) = pin(&found("pip", hosts), &local());
    let all: String = tables.iter().map(ToString::to_string).collect();
    let expected = "[registry.pip]\nhosts = [\"mirror.example\"]\naddresses = [\"10.0.3.9/32\"]\nfrom = \"/etc/x.conf\"\n\
        [registry.pip-2]\nhosts = [\"files.example\"]\nfrom = \"/etc/x.conf\"\n";
    assert_eq!(all, expected);
}

#[test]
fn plain_http_is_held_to_reading() {
    let (tables, _) =
        pin(&found("apt", vec![reached("http://deb.example/debian/", Some("8.8.8.8"))]), &local());
    let expected = "[registry.apt]\nhosts = [\"deb.example\"]\nports = [80]\nmethods = [\"GET\", \"HEAD\"]\nfrom = \"/etc/x.conf\"\n";
    assert_eq!(tables[0].to_string(), expected);
    let (tables, _) =
        pin(&found("apt", vec![reached("http://10.0.0.5:3142/debian/", Some("10.0.0.5"))]), &local());
    let expected = "[registry.apt]\nhosts = [\"10.0.0.5:3142\"]\nmethods = [\"GET\", \"HEAD\"]\nfrom = \"/etc/x.conf\"\n";
    assert_eq!(tables[0].to_string(), expected);
}

#[test]
fn what_no_table_opens_is_told() {
    let hosts = vec![
        reached("http://localhost.example:3141/", Some("127.0.0.1")),
        reached("http://meta.example/", Some("169.254.169.254")),
    ];
    let (tables, notes) = pin(&found("pip", hosts), &local());
    assert!(tables.is_empty());
    assert!(
        notes[0].contains("localhost.example:3141 is this host") && notes[1].contains("no rule opens"),
        "{notes:?}"
    );
}

#[test]
fn what_is_printed_is_a_config_that_is_right() {
    let odd = Pinned {
        name: "pip".to_owned(),
        hosts: vec!["a.example".to_owned()],
        port: None,
        addresses: vec!["10.0.3.9/32".parse().expect("a net")],
        reads_only: false,
        from: "a \"quoted\" \\ ü file".to_owned(),
    };
    let text = format!("{odd}\n[policy.p]\nregistries = [\"pip\"]\n");
    let document = policy::file::Document::new("t", text.as_bytes()).expect("text");
    policy::file::load(&[document], policy::Timestamp::from_secs(0), &local())
        .unwrap_or_else(|bad| panic!("{bad:?}\n{text}"));
}
