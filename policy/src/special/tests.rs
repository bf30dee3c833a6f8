use AddressClass::{Forbidden, Gateway, Metadata, NotPublic, Public};
use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn plain(address: &str) -> AddressClass {
    AddressBook::default().classify(ip(address), &LocalAddresses::default())
}

/// The first and last address of a range, and the ones just outside.
fn edges(range: &str) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let range = net(range);
    let step = |address: IpAddr, by: i128| match address {
        IpAddr::V4(a) => {
            u32::try_from(i128::from(a.to_bits()) + by).ok().map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
        }
        IpAddr::V6(a) => a.to_bits().checked_add_signed(by).map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
    };
    let (first, last) = (range.network(), range.broadcast());
    let inside = [Some(first), step(first, 1), step(last, 0)];
    let outside = [step(first, -1), step(last, 1)];
    let within = |address: &IpAddr| range.contains(address);
    (inside.into_iter().flatten().filter(within).collect(), outside.into_iter().flatten().collect())
}

#[test]
fn ipv4_ranges_end_where_their_rfc_says() {
    for range in [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
    ] {
        let (inside, outside) = edges(range);
        for address in inside {
            assert_ne!(plain(&address.to_string()), Public, "{address} in {range}");
        }
        for address in outside {
            assert_eq!(plain(&address.to_string()), Public, "{address} beside {range}");
        }
    }
    assert_eq!(plain("223.255.255.255"), Public);
    for address in ["224.0.0.0", "239.255.255.255", "240.0.0.0", "255.255.255.254", "255.255.255.255"] {
        assert_ne!(plain(address), Public, "{address}");
    }
}

#[test]
fn ipv6_special_ranges_are_refused_at_both_ends() {
    for range in [
        "::/128",
        "::1/128",
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "100:0:0:1::/64",
        "2001::/23",
        "2001::/32",
        "2001:2::/48",
        "2001:10::/28",
        "2001:20::/28",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
        // Outside 2000::/3 nothing is global unicast.
        "4000::/3",
        "6000::/3",
        "8000::/3",
        "a000::/3",
        "c000::/3",
        "200::/7",
        "400::/6",
        "800::/5",
        "1000::/4",
        "e000::/4",
        "f000::/5",
        "f800::/6",
        "fe00::/9",
    ] {
        for address in edges(range).0 {
            assert_ne!(plain(&address.to_string()), Public, "{address} in {range}");
        }
    }
}

#[test]
fn reachable_special_entries_stay_reachable() {
    for range in [
        "192.0.0.9/32",
        "192.0.0.10/32",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.175.48.0/24",
        "2001:1::1/128",
        "2001:1::2/128",
        "2001:1::3/128",
        "2001:3::/32",
        "2001:4:112::/48",
        "2001:30::/28",
        "2620:4f:8000::/48",
    ] {
        for address in edges(range).0 {
            assert_eq!(plain(&address.to_string()), Public, "{address} in {range}");
        }
    }
    for address in ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "2a00:1450::1", "2003::1", "2001:4860::1"] {
        assert_eq!(plain(address), Public, "{address}");
    }
}

#[test]
fn metadata_endpoints_are_the_worst_whatever_range_they_are_in() {
    for address in [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "169.254.169.253",
        "169.254.169.123",
        "169.254.0.23",
        "169.254.42.42",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd00:ec2::253",
        "fd00:ec2::123",
        "fd20:ce::254",
        "fd00:a9fe:a9fe::1",
        "fd00:42::42",
        "fe80::a9fe:a9fe",
        "fe80::1",
        "febf::1",
    ] {
        assert_eq!(plain(address), Metadata, "{address}");
    }
    for beside in ["168.63.129.15", "168.63.129.17"] {
        assert_eq!(plain(beside), Public, "{beside}");
    }
    assert_eq!(plain("100.100.100.201"), NotPublic);
    assert_eq!(plain("fd00:42::43"), NotPublic);
}

#[test]
fn embedded_ipv4_is_judged_as_ipv4() {
    for (address, class) in [
        // Mapped: the socket leaves as IPv4.
        ("::ffff:127.0.0.1", Gateway),
        ("::ffff:169.254.169.254", Metadata),
        ("::ffff:10.0.0.1", NotPublic),
        ("::ffff:192.31.196.1", Public),
        ("::ffff:0.0.0.0", Forbidden),
        // Compatible and translated: deprecated, so never better than not public.
        ("::127.0.0.1", Gateway),
        ("::169.254.169.254", Metadata),
        ("::8.8.8.8", NotPublic),
        ("::0.0.0.2", Forbidden),
        ("::ffff:0:7f00:1", Gateway),
        ("::ffff:0:169.254.169.254", Metadata),
        ("::ffff:0:8.8.8.8", NotPublic),
        // NAT64, well-known prefix.
        ("64:ff9b::7f00:1", Gateway),
        ("64:ff9b::169.254.169.254", Metadata),
        ("64:ff9b::a00:1", NotPublic),
        ("64:ff9b::ac1c:5", NotPublic),
        ("64:ff9b::8.8.8.8", Public),
        // NAT64, local-use prefix: the length is unknown, so each one is tried.
        ("64:ff9b:1:a9fe:a9:fe00::", Metadata),
        ("64:ff9b:1:7f00:0:100::", Gateway),
        ("64:ff9b:1::169.254.169.254", Metadata),
        ("64:ff9b:1::8.8.8.8", NotPublic),
        ("64:ff9b:1:2::10.0.0.1", NotPublic),
        // 6to4 and Teredo.
        ("2002:7f00:1::1", Gateway),
        ("2002:a9fe:a9fe::1", Metadata),
        ("2002:a00:1::1", NotPublic),
        ("2002:808:808::1", NotPublic),
        ("2001:0:cb00:710a:0:0:5601:5601", Forbidden),
        ("2001::1", Forbidden),
        // ISATAP interface identifiers under any prefix.
        ("2a00::5efe:a9fe:a9fe", Metadata),
        ("2a00::200:5efe:a00:1", NotPublic),
        ("2a00::5efe:7f00:1", Gateway),
        ("2a00::5efe:808:808", Public),
        ("fe80::5efe:10.0.0.1", Metadata),
    ] {
        assert_eq!(plain(address), class, "{address}");
    }
}

#[test]
fn configured_nat64_prefixes_are_unwrapped_at_every_length() {
    let cases = [
        ("2a00:db9::/32", "2a00:db9:a9fe:a9fe::", "2a00:db9:808:808::"),
        ("2a00:db9:100::/40", "2a00:db9:1a9:fea9:fe::", "2a00:db9:108:808:8::"),
        ("2a00:db9:122::/48", "2a00:db9:122:a9fe:a9:fe00::", "2a00:db9:122:808:8:800::"),
        ("2a00:db9:122:300::/56", "2a00:db9:122:3a9:fe:a9fe::", "2a00:db9:122:308:8:808::"),
        ("2a00:db9:122:344::/64", "2a00:db9:122:344:a9:fea9:fe00::", "2a00:db9:122:344:8:808:800::"),
        ("2a00:db9:122:344::/96", "2a00:db9:122:344::169.254.169.254", "2a00:db9:122:344::8.8.8.8"),
    ];
    for (prefix, metadata, public) in cases {
        let book = AddressBook::new(vec![], vec![prefix.parse().unwrap()], vec![], vec![]).unwrap();
        let class = |address: &str| book.classify(ip(address), &LocalAddresses::default());
        assert_eq!(class(metadata), Metadata, "{metadata} under {prefix}");
        assert_eq!(class(public), Public, "{public} under {prefix}");
        assert!(book.embedded_v4(ip(public)).eq([Ipv4Addr::new(8, 8, 8, 8)]), "{public}");
    }
    // Bits 64 to 71 must be zero (RFC 6052 §2.2).
    let book = AddressBook::new(vec![], vec!["2a00:db9:122::/48".parse().unwrap()], vec![], vec![]).unwrap();
    assert_eq!(book.classify(ip("2a00:db9:122:808:108:800::"), &LocalAddresses::default()), Forbidden);
}

#[test]
fn a_private_prefix_that_is_declared_nat64_opens_public_ipv4_only() {
    for prefix in ["64:ff9b:1::/96", "fd64::/96"] {
        let book = AddressBook::new(vec![], vec![prefix.parse().unwrap()], vec![], vec![]).unwrap();
        let class = |low: &str| {
            let text = prefix.replace("/96", low);
            book.classify(ip(&text), &LocalAddresses::default())
        };
        assert_eq!(class("8.8.8.8"), Public);
        assert_eq!(class("10.0.0.1"), NotPublic);
        assert_eq!(class("127.0.0.1"), Gateway);
    }
}

#[test]
fn nat64_of_a_test_network_follows_the_operators_word() {
    let public = vec![net("203.0.113.0/24"), net("2001:db8:cafe::/48")];
    let book = AddressBook::new(vec![], vec![], vec![], public).unwrap();
    let class = |address: &str| book.classify(ip(address), &LocalAddresses::default());
    assert_eq!(class("64:ff9b::cb00:710a"), Public);
    assert_eq!(class("203.0.113.10"), Public);
    assert_eq!(class("2001:db8:cafe::10"), Public);
    assert_eq!(class("2001:db8:cafe::5efe:a9fe:a9fe"), Metadata);
    assert_eq!(class("2001:db8:cafe::200:5efe:a00:1"), NotPublic);
    assert_eq!(class("2001:db8:beef::10"), NotPublic);
    assert_eq!(class("198.51.100.1"), NotPublic);
    assert_eq!(plain("203.0.113.10"), NotPublic);
}

#[test]
fn the_gateway_and_private_lists_win_over_public() {
    let book = AddressBook::new(
        vec![net("198.51.100.7/32")],
        vec![],
        vec![net("25.0.0.0/8"), net("203.0.113.128/25")],
        vec![net("203.0.113.0/24"), net("198.51.100.0/24")],
    )
    .unwrap();
    let local =
        LocalAddresses::new([net("203.0.113.1/32"), net("10.200.0.0/24"), net("::ffff:203.0.113.2/128")]);
    let class = |address: &str| book.classify(ip(address), &local);
    assert_eq!(class("198.51.100.7"), Gateway);
    assert_eq!(class("64:ff9b::198.51.100.7"), Gateway);
    assert_eq!(class("198.51.100.8"), Public);
    assert_eq!(class("203.0.113.1"), Gateway);
    assert_eq!(class("203.0.113.2"), Gateway);
    assert_eq!(class("10.200.0.77"), Gateway);
    assert_eq!(class("25.1.2.3"), NotPublic);
    assert_eq!(class("203.0.113.129"), NotPublic);
    assert_eq!(class("203.0.113.127"), Public);
    // A link-local interface address is still metadata space.
    let local = LocalAddresses::new([net("169.254.1.1/32")]);
    assert_eq!(book.classify(ip("169.254.1.1"), &local), Metadata);
}

#[test]
fn a_translated_prefix_that_the_operator_calls_private_is_not_public() {
    let nat64 = vec!["2a00:64::/96".parse().unwrap()];
    let private = vec![net("2a00:64::/96"), net("64:ff9b::808:0/112")];
    let book = AddressBook::new(vec![], nat64, private, vec![]).unwrap();
    let class = |address: &str| book.classify(ip(address), &LocalAddresses::default());
    assert_eq!(class("2a00:64::8.8.8.8"), NotPublic);
    assert_eq!(class("64:ff9b::8.8.8.8"), NotPublic);
    assert_eq!(class("64:ff9b::8.9.8.8"), Public);
    assert_eq!(class("2a00:64::127.0.0.1"), Gateway);
}

#[test]
fn deny_rules_see_every_ipv4_address_that_may_be_reached() {
    let book = AddressBook::new(vec![], vec!["2a00:64::/96".parse().unwrap()], vec![], vec![]).unwrap();
    let inner = |address: &str| book.embedded_v4(ip(address)).map(|v4| v4.to_string()).collect::<Vec<_>>();
    for (address, expected) in [
        ("8.8.8.8", &[][..]),
        ("::ffff:8.8.8.8", &[]),
        ("2a00::1", &[]),
        ("2a00:64::8.8.8.8", &["8.8.8.8"]),
        ("64:ff9b::8.8.8.8", &["8.8.8.8"]),
        ("2002:808:808::1", &["8.8.8.8"]),
        ("::8.8.8.8", &["8.8.8.8"]),
        ("2a00::5efe:808:808", &["8.8.8.8"]),
        ("64:ff9b:1:808:8:800::", &["8.8.8.8", "8.8.8.0", "8.8.0.0", "0.0.0.0"]),
    ] {
        assert_eq!(inner(address), expected, "{address}");
    }
}

#[test]
fn loopback_is_the_gateway_without_being_listed() {
    for address in ["127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1", "127.0.0.11"] {
        assert!(LocalAddresses::default().contains(ip(address)), "{address}");
        assert_eq!(plain(address), Gateway, "{address}");
    }
}

#[test]
fn private_space_and_the_floor_cannot_be_declared_public() {
    for range in [
        "10.1.0.0/16",
        "172.16.0.0/12",
        "192.168.1.0/24",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "100.64.0.0/10",
        "100.100.0.0/16",
        "224.0.0.0/4",
        "0.0.0.0/0",
        "168.63.129.16/32",
        "::ffff:10.0.0.0/104",
        "fc00::/7",
        "fd00:1::/32",
        "fe80::/10",
        "198.18.0.0/15",
        "2001:2::/64",
        "::/0",
        "2001::/32",
    ] {
        let range = net(range);
        assert_eq!(check_public(range), Err(BadAddressRange::NeverPublic(range)));
        assert!(AddressBook::new(vec![], vec![], vec![], vec![range]).is_err());
    }
    for range in ["203.0.113.0/24", "2001:db8::/32", "192.0.2.0/24", "240.0.0.0/5"] {
        assert_eq!(check_public(net(range)), Ok(()), "{range}");
    }
}

#[test]
fn a_range_wholly_under_the_floor_is_recognised() {
    let book = AddressBook::new(vec![net("198.51.100.0/28")], vec![], vec![], vec![]).unwrap();
    let local = LocalAddresses::new([net("10.200.0.1/32")]);
    let floor = |range: &str| book.floor_of(net(range), &local);
    assert_eq!(floor("169.254.169.254/32"), Some(Metadata));
    assert_eq!(floor("169.254.0.0/17"), Some(Metadata));
    assert_eq!(floor("10.200.0.1/32"), Some(Gateway));
    assert_eq!(floor("198.51.100.8/29"), Some(Gateway));
    assert_eq!(floor("224.0.0.0/8"), Some(Forbidden));
    assert_eq!(floor("::ffff:127.0.0.0/104"), Some(Gateway));
    assert_eq!(floor("10.200.0.0/24"), None);
    let routed = LocalAddresses::new([net("10.201.0.0/24")]);
    assert_eq!(book.floor_of(net("10.201.0.128/25"), &routed), Some(Gateway));
    assert_eq!(book.floor_of(net("10.201.0.0/16"), &routed), None);
    assert_eq!(floor("10.0.0.0/24"), None);
    assert_eq!(floor("203.0.113.0/24"), None);
}

#[test]
fn what_is_treated_as_public_can_be_told() {
    let nets: Vec<IpNet> = vec!["203.0.113.0/24".parse().unwrap()];
    let book = AddressBook::new(vec![], vec![], vec![], nets.clone());
    assert_eq!(book.unwrap().treated_as_public(), nets);
}

proptest! {
    #[test]
    fn mapped_and_plain_ipv4_are_one_address(bits: u32) {
        let v4 = Ipv4Addr::from_bits(bits);
        let mapped = IpAddr::V6(v4.to_ipv6_mapped());
        prop_assert_eq!(canonical(mapped), IpAddr::V4(v4));
        prop_assert_eq!(plain(&mapped.to_string()), plain(&v4.to_string()));
    }

    #[test]
    fn no_embedding_is_better_than_what_it_embeds(bits: u32, prefix in prop::sample::select(vec![
        "64:ff9b::", "64:ff9b:1::", "::", "::ffff:0:0", "2a00::5efe:0:0", "2a00::200:5efe:0:0",
    ])) {
        let v4 = Ipv4Addr::from_bits(bits);
        let outer: Ipv6Addr = prefix.parse().unwrap();
        let carried = Ipv6Addr::from_bits(outer.to_bits() | u128::from(bits));
        let class = plain(&carried.to_string());
        // Local-use padding is ambiguous below the floor; everything else must not improve.
        let inner = plain(&v4.to_string());
        prop_assert!(class >= inner || inner == Forbidden && class == NotPublic, "{} {:?} {:?}", carried, class, inner);
    }

    #[test]
    fn classification_never_panics(address: IpAddr, prefix: [u8; 16], len in prop::sample::select(vec![32u8, 40, 48, 56, 64, 96])) {
        let mut prefix = prefix;
        prefix[8] = 0;
        let prefix = Ipv6Net::new(Ipv6Addr::from(prefix), len).unwrap().trunc();
        let book = AddressBook::new(vec![], vec![prefix], vec![], vec![]).unwrap();
        let _ = book.classify(address, &LocalAddresses::default());
        let _ = special_range(address);
    }
}
