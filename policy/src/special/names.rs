//! Names that stand for special addresses or special meanings, whatever a resolver says.

use crate::hostname::Hostname;
use crate::reason::Reason;

/// How far a special-use name is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialUse {
    /// By any rule: it never means a host on the network (RFC 6761 localhost, RFC 7686 .onion).
    Always,
    /// Where only `*`, an ask rule or learn mode would match. A rule that lists it exactly, or under a suffix of
    /// two or more labels, makes it an ordinary name.
    OnlyBroad,
}

/// What a name, and every name below it, stands for.
#[derive(Clone, Copy, PartialEq)]
enum Meaning {
    Metadata,
    Special(SpecialUse),
}

fn meaning(domain: &str) -> Option<Meaning> {
    Some(match domain {
        "metadata.google.internal"         // Google Cloud
        | "metadata.goog"                  // Google Cloud, short
        | "metadata"                       // Google Cloud, under its search list
        | "instance-data.ec2.internal"     // AWS
        | "instance-data"                  // AWS, under its search list
        | "metadata.azure.internal"        // Azure
        | "metadata.tencentyun.com"        // Tencent Cloud
        | "metadata.platformequinix.com"   // Equinix Metal
        | "metadata.packet.net"            // Equinix Metal, older
        | "api.metadata.cloud.ibm.com"     // IBM Cloud
        => Meaning::Metadata,

        "localhost"                        // RFC 6761 §6.3
        | "onion"                          // RFC 7686
        => Meaning::Special(SpecialUse::Always),

        "local"                            // RFC 6762
        | "invalid"                        // RFC 6761 §6.4
        | "test"                           // RFC 6761 §6.2
        | "example"                        // RFC 6761 §6.5
        | "internal"                       // ICANN resolution of 2024-07-29; host.docker.internal and its relatives
        | "home.arpa"                      // RFC 8375
        | "alt"                            // RFC 9476
        | "svc"                            // Kubernetes service names under the cluster's search list
        | "in-addr.arpa"                   // RFC 6303
        | "ip6.arpa"                       // RFC 6303
        | "resolver.arpa"                  // RFC 9462
        | "ipv4only.arpa"                  // RFC 8880
        // Canaries: their answer tells a client to change its resolver or relay.
        | "use-application-dns.net"        // Firefox
        | "mask.icloud.com"                // iCloud Private Relay
        | "mask-h2.icloud.com"             // iCloud Private Relay
        => Meaning::Special(SpecialUse::OnlyBroad),

        _ => return None,
    })
}

/// What a name stands for whatever a resolver says, found in one walk over the name and those above it.
fn meaning_of(name: &Hostname) -> Option<Meaning> {
    let mut found = None;
    for domain in name.suffixes() {
        match meaning(domain) {
            Some(Meaning::Metadata) => return Some(Meaning::Metadata),
            // The longest says most.
            special => found = found.or(special),
        }
    }
    // AWS answers the same under its regional domains: instance-data.REGION.compute.internal.
    if name.as_str().starts_with("instance-data.") && name.is_below("internal") {
        return Some(Meaning::Metadata);
    }
    // Names of one label mean whatever the search list of the asking machine makes of them.
    found.or_else(|| name.is_single_label().then_some(Meaning::Special(SpecialUse::OnlyBroad)))
}

/// Whether a name is a metadata endpoint's. It is refused by name, without a query, and no rule lifts that.
pub fn metadata_name(name: &Hostname) -> bool {
    meaning_of(name) == Some(Meaning::Metadata)
}

/// Whether a name has a meaning of its own, apart from the public DNS and from metadata endpoints.
pub fn special_use_name(name: &Hostname) -> Option<SpecialUse> {
    match meaning_of(name) {
        Some(Meaning::Special(special)) => Some(special),
        Some(Meaning::Metadata) | None => None,
    }
}

/// The reason for which a name is refused always.
pub(crate) fn name_floor(name: &Hostname) -> Option<Reason> {
    match meaning_of(name)? {
        Meaning::Metadata => Some(Reason::MetadataEndpoint),
        Meaning::Special(SpecialUse::Always) => Some(Reason::SpecialUseName),
        Meaning::Special(SpecialUse::OnlyBroad) => None,
    }
}

/// Whether a name exists by definition, although nothing of it is ever served from the network: localhost (RFC 6761
/// section 6.3) and resolver.arpa (RFC 9462 section 6.4: no records, not NXDOMAIN).
pub fn exists_by_definition(name: &Hostname) -> bool {
    name.is_at_or_below("localhost") || name.is_at_or_below("resolver.arpa")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Hostname {
        Hostname::parse(text).unwrap()
    }

    #[test]
    fn metadata_endpoints_are_known_by_name() {
        for name in [
            "metadata.google.internal.",
            "METADATA.GOOGLE.INTERNAL",
            "metadata",
            "metadata.goog",
            "instance-data",
            "instance-data.ec2.internal",
            "instance-data.eu-west-1.compute.internal",
            "x.metadata.google.internal",
        ] {
            assert!(metadata_name(&host(name)), "{name}");
        }
        for name in [
            "metadata.example.com",
            "mymetadata.google.internal",
            "google.internal",
            "instance-data.example.com",
        ] {
            assert!(!metadata_name(&host(name)), "{name}");
        }
    }

    #[test]
    fn special_names_are_stopped_as_far_as_their_meaning_goes() {
        for name in ["localhost", "api.localhost", "abcdef.onion"] {
            assert_eq!(special_use_name(&host(name)), Some(SpecialUse::Always), "{name}");
        }
        for name in [
            "printer.local",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "host.docker.internal",
            "gateway.docker.internal",
            "host.containers.internal",
            "wpad",
            "api",
            "attacker.test",
            "router.home.arpa",
            "use-application-dns.net",
            "_dns.resolver.arpa",
            "1.0.0.10.in-addr.arpa",
        ] {
            assert_eq!(special_use_name(&host(name)), Some(SpecialUse::OnlyBroad), "{name}");
        }
        for name in ["api.example.com", "notlocalhost.com", "local.example.com", "icloud.com"] {
            assert_eq!(special_use_name(&host(name)), None, "{name}");
        }
    }
}
