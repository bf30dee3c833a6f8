//! In a sandbox's own namespace an allowed name is answered with the address that stands for it there.
//!
//! A connection to that address is an attempt to reach the name: nothing has to be learned from answers, and no address
//! of a host that serves many names ever stands for one of them. A name that a rule lists is bound without asking
//! anybody; one under a wildcard only where it exists, so that a search list or a typing error ends as it would elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use policy::{Hostname, Peer, Pending, Permit, QType, Reason, Resolved};

use super::{BLOCKED, Content, Handler, Open, Outcome};
use crate::answer::Answer;
use crate::cache::Key;
use crate::clock;
use crate::wire::rcode;

/// The seconds for which a bound address may be kept. It holds as long as its namespace; a policy that no longer allows
/// the name, and a namespace that is attached anew, are to be noticed soon.
pub(super) const TTL: u32 = 1;

/// The same for the name behind one.
pub(super) const NAME_TTL: u32 = 30;

/// An extended error that says nothing by its code (RFC 8914 section 4.1).
const OTHER: u16 = 0;

/// Whether a question is answered from the addresses of its namespace: all types that lead to an address.
pub(super) fn is_for(permit: &Permit, qtype: QType) -> bool {
    permit.attempt().peer.namespace.is_some() && QType::DEFAULT_OPEN.contains(&qtype)
}

/// The name that a reverse name stands for in the client's namespace.
pub(super) fn forward(peer: &Peer, name: &Hostname, qtype: QType) -> Option<Hostname> {
    let namespace = peer.namespace.as_ref().filter(|_| qtype == QType::PTR)?;
    namespace.name_of(reversed(name)?)
}

/// The address of a reverse name (RFC 1035 section 3.5, RFC 3596 section 2.5).
fn reversed(name: &Hostname) -> Option<IpAddr> {
    let text = name.as_str();
    if let Some(octets) = text.strip_suffix(".in-addr.arpa") {
        let mut parts = octets.rsplit('.');
        let forward: Vec<_> = parts.by_ref().take(5).collect();
        return forward.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let nibbles = text.strip_suffix(".ip6.arpa")?;
    let (mut bits, mut count) = (0_u128, 0);
    for nibble in nibbles.rsplit('.') {
        let [digit] = nibble.as_bytes() else { return None };
        bits = bits << 4 | u128::from(char::from(*digit).to_digit(16)?);
        count += 1;
    }
    (count == 32).then(|| Ipv6Addr::from_bits(bits).into())
}

impl Handler {
    /// Binds a name that a rule lists, and finds out whether any other exists.
    pub(super) fn decide_bound(
        &self,
        permit: Permit,
        name: Hostname,
        qtype: QType,
    ) -> Result<Outcome, Box<Open>> {
        if is_listed(&permit) {
            return Ok(self.bind(permit, &name, qtype));
        }
        // That a name exists is told by its addresses, whatever else of it is asked for.
        let family = if qtype == QType::AAAA { QType::AAAA } else { QType::A };
        let key = Key::new(&permit, name, family);
        match self.resolver.cached(&key) {
            Some(answer) => Ok(self.deliver_bound(permit, answer, qtype)),
            None => self.open(permit, key, qtype),
        }
    }

    /// Binds a name that exists, of whose real addresses one could be dialled.
    pub(super) fn deliver_bound(&self, permit: Permit, answer: Arc<Answer>, qtype: QType) -> Outcome {
        let now = clock::now();
        let resolved = Resolved { chain: &answer.chain, addresses: &answer.addresses };
        let vetted = match self.gate.vet(permit, resolved, now) {
            Ok(vetted) => vetted,
            Err(denial) => return Outcome::Denied(denial, Some(BLOCKED)),
        };
        let asks_address = matches!(qtype, QType::A | QType::AAAA);
        if !answer.exists || (asks_address && vetted.addresses().is_empty()) {
            let content = Content::Answer(answer);
            return Outcome::Answered(self.gate.answered(vetted, content.rcode(), now), content);
        }
        let permit = vetted.into_permit();
        let Some(policy::Host::Name(name)) = permit.host() else {
            return Outcome::Denied(self.gate.refuse_binding(permit, now), Some(OTHER));
        };
        self.bind(permit, &name, qtype)
    }

    /// A name that a person must approve is resolved by nobody before. In a namespace what stands for it is told all the
    /// same, so that its client connects, and is then held.
    pub(super) fn decide_pending(&self, pending: Pending, name: &Hostname, qtype: QType) -> Outcome {
        let namespace = pending.attempt().peer.namespace.clone();
        let Some(namespace) = namespace.filter(|_| QType::DEFAULT_OPEN.contains(&qtype)) else {
            return self.refuse_pending(pending, Reason::ApprovalPending);
        };
        let mut address = None;
        if matches!(qtype, QType::A | QType::AAAA) {
            let Some(bound) = namespace.bind(name, pending.is_exact()) else {
                return self.refuse_pending(pending, Reason::LimitNames);
            };
            address = Some(if qtype == QType::A { bound.v4.into() } else { bound.v6.into() });
        }
        Outcome::Asked(self.gate.answered_pending(pending, rcode::NOERROR, clock::now()), address)
    }

    pub(super) fn refuse_pending(&self, pending: Pending, reason: Reason) -> Outcome {
        Outcome::Denied(self.gate.refuse_pending(pending, reason, clock::now()), Some(BLOCKED))
    }

    fn bind(&self, permit: Permit, name: &Hostname, qtype: QType) -> Outcome {
        if !matches!(qtype, QType::A | QType::AAAA) {
            // What a service binding would add are real addresses and other ways to the same name; an alias would be
            // another name, that is not allowed by itself.
            return self.deliver(permit, Content::Bound(None), qtype);
        }
        let listed = is_listed(&permit);
        let namespace = permit.attempt().peer.namespace.as_ref();
        match namespace.and_then(|namespace| namespace.bind(name, listed)) {
            Some(bound) if qtype == QType::A => {
                self.deliver(permit, Content::Bound(Some(bound.v4.into())), qtype)
            }
            Some(bound) => self.deliver(permit, Content::Bound(Some(bound.v6.into())), qtype),
            None => Outcome::Denied(self.gate.refuse_binding(permit, clock::now()), Some(OTHER)),
        }
    }
}

/// Whether nobody needs to be asked for the name.
fn is_listed(permit: &Permit) -> bool {
    permit.is_exact() || permit.known_addresses().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<String> {
        reversed(&Hostname::parse(text).unwrap()).map(|address| address.to_string())
    }

    #[test]
    fn reverse_names_are_read_whole_or_not_at_all() {
        assert_eq!(address("1.0.18.198.in-addr.arpa").as_deref(), Some("198.18.0.1"));
        let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.0.0.0.0.0.0.0.0.2.0.0.0.1.0.0.2.ip6.arpa";
        assert_eq!(address(v6).as_deref(), Some("2001:2::8000:0:0:1"));
        for text in [
            "0.18.198.in-addr.arpa",
            "1.1.0.18.198.in-addr.arpa",
            "01.0.18.198.in-addr.arpa",
            "256.0.18.198.in-addr.arpa",
            "x.0.18.198.in-addr.arpa",
            "in-addr.arpa",
            "1.0.18.198.in-addr.arpa.example.com",
            &v6[2..],
            &format!("0.{v6}"),
            &v6.replacen("1.", "10.", 1),
            &v6.replacen("1.", "g.", 1),
        ] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
