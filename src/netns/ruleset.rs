//! The nf_tables rules of a sandbox's namespace, as values: shown in the language of nft(8), encoded for the kernel by
//! `nftables`.
//!
//! The namespace has no way out without them. They send every stream to the gateway, and make the rest fail at once
//! instead of reaching sockets of the sandbox's own; what they drop on other links than `lo` is the second wall behind
//! the first, that there are none. Whoever empties them, root inside included, gets less network, not more.

use std::fmt;

/// A table of family `inet` with all its chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    /// The table's name.
    pub table: &'static str,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// A chain at one of the kernel's hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// Filter or nat.
    pub kind: Kind,
    /// Where packets pass it.
    pub hook: Hook,
    /// Lower comes first.
    pub priority: i32,
    /// What befalls a packet that no rule decides.
    pub policy: Policy,
    /// Asked in this order.
    pub rules: Vec<Rule>,
}

/// The type of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lets pass or drops.
    Filter,
    /// Asked once a flow; changes where it goes.
    Nat,
}

/// A netfilter hook of the families IPv4 and IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// All that arrives.
    Prerouting,
    /// What arrives for this host.
    Input,
    /// What arrives for others.
    Forward,
    /// What this host sends.
    Output,
}

/// What befalls a packet that no rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It passes.
    Accept,
    /// It is gone.
    Drop,
}

/// One rule: where all of its matches hold, its action is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// All must hold.
    pub matches: Vec<Match>,
    /// Whether packets that match are counted.
    pub counted: bool,
    /// What is done.
    pub action: Action,
}

/// A property of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It came over another link than `lo`, whatever that is called.
    CameOverAnotherLink,
    /// It would leave over another link than `lo`.
    LeavesOverAnotherLink,
    /// It is of this protocol.
    Protocol(Protocol),
    /// It is for this port of this protocol.
    To(Protocol, u16),
    /// It is for 127.0.0.0/8.
    ToLoopbackV4,
    /// It is for ::1.
    ToLoopbackV6,
    /// It says that something could not be delivered (RFC 792, type 3).
    UnreachableV4,
    /// It says that something could not be delivered (RFC 4443, type 1).
    UnreachableV6,
    /// It belongs to a flow whose first packet has passed.
    OfKnownFlow,
}

/// A protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet passes this chain.
    Accept,
    /// The packet is gone.
    Drop,
    /// The chain's policy holds.
    Return,
    /// The flow goes to this port of the loopback address of its family.
    Redirect(u16),
    /// The packet is gone, and its sender is told "port unreachable", which ends a connected socket's wait at once.
    RefusePort,
}

/// Before connection tracking (`NF_IP_PRI_RAW`, netfilter_ipv4.h).
const RAW: i32 = -300;
/// Where destinations are rewritten (`NF_IP_PRI_NAT_DST`).
const NAT_DESTINATION: i32 = -100;
/// The usual place of a filter (`NF_IP_PRI_FILTER`).
const FILTER: i32 = 0;

/// The port of DNS, over UDP and TCP.
const DOMAIN: u16 = 53;

impl Ruleset {
    /// The rules of a sandbox whose streams go to `streams` and whose questions go to `questions`.
    #[must_use]
    pub fn capturing(streams: u16, questions: u16) -> Self {
        use Match::{
            CameOverAnotherLink, LeavesOverAnotherLink, OfKnownFlow, Protocol as Is, To, ToLoopbackV4,
            ToLoopbackV6, UnreachableV4, UnreachableV6,
        };
        use Protocol::{Tcp, Udp};
        let capture = vec![
            // Whatever server the sandbox asks, one on its own loopback included.
            rule([To(Udp, DOMAIN)], Action::Redirect(questions)),
            rule([To(Tcp, DOMAIN)], Action::Redirect(questions)),
            rule([ToLoopbackV4], Action::Return),
            rule([ToLoopbackV6], Action::Return),
            rule([Is(Tcp)], Action::Redirect(streams)),
        ];
        let outgoing = vec![
            counted([LeavesOverAnotherLink], Action::Drop),
            rule([Is(Tcp)], Action::Accept),
            // Refused where it arrives, below: here the sender would get EPERM, which QUIC clients do not know.
            rule([Is(Udp)], Action::Accept),
            rule([UnreachableV4], Action::Accept),
            rule([UnreachableV6], Action::Accept),
            // ICMP echo, SCTP, whatever a raw socket makes: nothing leaves, so that nothing seems to be alive.
            counted([], Action::Drop),
        ];
        let incoming = vec![
            rule([OfKnownFlow], Action::Accept),
            rule([Is(Tcp)], Action::Accept),
            rule([ToLoopbackV4], Action::Accept),
            rule([ToLoopbackV6], Action::Accept),
            rule([UnreachableV4], Action::Accept),
            rule([UnreachableV6], Action::Accept),
            counted([Is(Udp)], Action::RefusePort),
        ];
        let chain =
            |name, kind, hook, priority, policy, rules| Chain { name, kind, hook, priority, policy, rules };
        let filter = Kind::Filter;
        Self {
            table: "tidegate",
            chains: vec![
                chain("capture", Kind::Nat, Hook::Output, NAT_DESTINATION, Policy::Accept, capture),
                chain("outgoing", filter, Hook::Output, RAW, Policy::Drop, outgoing),
                chain(
                    "arriving",
                    filter,
                    Hook::Prerouting,
                    RAW,
                    Policy::Accept,
                    vec![counted([CameOverAnotherLink], Action::Drop)],
                ),
                chain("incoming", filter, Hook::Input, FILTER, Policy::Drop, incoming),
                chain("passing", filter, Hook::Forward, FILTER, Policy::Drop, Vec::new()),
            ],
        }
    }
}

fn rule<const N: usize>(matches: [Match; N], action: Action) -> Rule {
    Rule { matches: matches.into(), counted: false, action }
}

fn counted<const N: usize>(matches: [Match; N], action: Action) -> Rule {
    Rule { counted: true, ..rule(matches, action) }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table inet {} {{", self.table)?;
        for chain in &self.chains {
            write!(f, "{chain}")?;
        }
        writeln!(f, "}}")
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, hook, priority, policy, rules } = self;
        writeln!(f, "\tchain {name} {{")?;
        writeln!(f, "\t\ttype {kind} hook {hook} priority {priority}; policy {policy};")?;
        for rule in rules {
            writeln!(f, "\t\t{rule}")?;
        }
        writeln!(f, "\t}}")
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for found in &self.matches {
            write!(f, "{found} ")?;
        }
        if self.counted {
            f.write_str("counter ")?;
        }
        write!(f, "{}", self.action)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Kind {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "accept",
            Self::Drop => "drop",
        })
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CameOverAnotherLink => f.write_str("iif != \"lo\""),
            Self::LeavesOverAnotherLink => f.write_str("oif != \"lo\""),
            Self::Protocol(protocol) => write!(f, "meta l4proto {protocol}"),
            Self::To(protocol, port) => write!(f, "{protocol} dport {port}"),
            Self::ToLoopbackV4 => f.write_str("ip daddr 127.0.0.0/8"),
            Self::ToLoopbackV6 => f.write_str("ip6 daddr ::1"),
            Self::UnreachableV4 => f.write_str("icmp type destination-unreachable"),
            Self::UnreachableV6 => f.write_str("icmpv6 type destination-unreachable"),
            Self::OfKnownFlow => f.write_str("ct state established,related"),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Redirect(port) => write!(f, "redirect to :{port}"),
            Self::RefusePort => f.write_str("reject"),
        }
    }
}
