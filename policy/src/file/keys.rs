//! Every key that this crate reads, for documentation, schema and tests to be held against.

use super::limits;

/// The tables of this crate and their keys. `NAME` stands for a name that the author chooses.
pub const KEYS: &[(&str, &[&str])] = &[
    ("addresses", &["own", "nat64", "treat_as_private", "treat_as_public"]),
    ("policy.NAME", &["allow", "deny", "ask", "registries", "lists", "rule"]),
    (
        "policy.NAME.rule",
        &[
            "id", "action", "broad", "host", "ports", "methods", "paths", "inspect", "inject", "until",
            "raw", "ech", "qtypes", "limits",
        ],
    ),
    ("policy.NAME.rule.limits", limits::KEYS),
    ("internal.NAME", &["host", "host_port", "addresses", "ports", "methods", "paths", "ca_file"]),
    ("registry.NAME", &["hosts", "ports", "addresses", "inspect", "methods", "from"]),
    (
        "sandbox.NAME",
        &[
            "policies",
            "internal",
            "identify",
            "labels",
            "local_peers",
            "mode",
            "until",
            "hints",
            "limits",
            "owners",
        ],
    ),
    ("sandbox.NAME.limits", limits::KEYS),
    (
        "sandbox.NAME.identify",
        &[
            "source",
            "listener",
            "default",
            "token_sha256",
            "unix",
            "uid",
            "gid",
            "mode",
            "owner",
            "spiffe",
            "dns",
            "cn",
            "netns",
        ],
    ),
];
