//! Service bindings (RFC 9460): SVCB and HTTPS records, read to be edited.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use policy::{Hostname, Port};

use crate::answer::target;
use crate::wire::{Reader, write_name};

/// The parameters that pass. Any other is dropped: `ech` (5) would hide the name that a ClientHello shows, `dohpath`
/// (7) leads to another resolver, and what is unknown cannot be judged.
mod key {
    pub(super) const MANDATORY: u16 = 0;
    pub(super) const ALPN: u16 = 1;
    pub(super) const NO_DEFAULT_ALPN: u16 = 2;
    pub(super) const PORT: u16 = 3;
    pub(super) const IPV4_HINT: u16 = 4;
    pub(super) const IPV6_HINT: u16 = 6;
}

/// The data of one SVCB or HTTPS record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    priority: u16,
    target: Option<Hostname>,
    parameters: Vec<(u16, Box<[u8]>)>,
}

/// What is judged of a service binding before it is delivered.
pub(crate) trait Judge {
    fn allows_target(&self, target: &Hostname) -> bool;
    fn allows_port(&self, port: Port) -> bool;
    fn allows_hint(&self, address: IpAddr) -> bool;
}

impl Service {
    /// Reads the record's data. Keys must rise (RFC 9460 section 2.2) and values of known keys must have their form.
    pub(crate) fn read(data: &mut Reader<'_>) -> Option<Self> {
        let priority = data.u16()?;
        let target = target(&data.name()?)?;
        let mut parameters: Vec<(u16, Box<[u8]>)> = Vec::new();
        while !data.is_empty() {
            let key = data.u16()?;
            let length = data.u16()?;
            let value = data.bytes(length.into())?;
            let rises = parameters.last().is_none_or(|(last, _)| *last < key);
            if !rises || !is_well_formed(key, value) {
                return None;
            }
            parameters.push((key, value.into()));
        }
        Some(Self { priority, target, parameters })
    }

    /// The data to deliver, and whether something was taken out of it; `None` where the whole record must not be
    /// delivered.
    pub(crate) fn scrubbed(&self, judge: &impl Judge) -> Option<(Vec<u8>, bool)> {
        if self.target.as_ref().is_some_and(|target| !judge.allows_target(target)) {
            return None;
        }
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(&self.priority.to_be_bytes());
        match &self.target {
            Some(target) => write_name(&mut out, target),
            None => out.push(0),
        }
        let mut kept = Vec::new();
        for (key, value) in &self.parameters {
            if let Some(value) = scrubbed_value(*key, value, judge)? {
                kept.push((*key, value));
            }
        }
        // A client must not use a record without a parameter that it calls mandatory (RFC 9460 section 8).
        let mandatory = self.parameters.iter().find(|(key, _)| *key == key::MANDATORY);
        let needs = mandatory.map(|(_, value)| value.as_chunks::<2>().0).unwrap_or_default();
        let has = |wanted: &[u8; 2]| kept.iter().any(|(key, _)| key.to_be_bytes() == *wanted);
        if !needs.iter().all(has) {
            return None;
        }
        for (key, value) in &kept {
            out.extend_from_slice(&key.to_be_bytes());
            out.extend_from_slice(&u16::try_from(value.len()).ok()?.to_be_bytes());
            out.extend_from_slice(value);
        }
        let whole = kept.len() == self.parameters.len()
            && kept.iter().zip(&self.parameters).all(|((_, kept), (_, value))| kept.len() == value.len());
        Some((out, !whole))
    }
}

fn is_well_formed(key: u16, value: &[u8]) -> bool {
    match key {
        key::MANDATORY => !value.is_empty() && value.len().is_multiple_of(2),
        key::NO_DEFAULT_ALPN => value.is_empty(),
        key::PORT => value.len() == 2,
        key::IPV4_HINT => !value.is_empty() && value.len().is_multiple_of(4),
        key::IPV6_HINT => !value.is_empty() && value.len().is_multiple_of(16),
        _ => true,
    }
}

/// A parameter's value to deliver; `Some(None)` where it is taken out, `None` where the record falls with it.
#[expect(clippy::option_option, reason = "three outcomes, one caller")]
fn scrubbed_value(key: u16, value: &[u8], judge: &impl Judge) -> Option<Option<Vec<u8>>> {
    let kept = match key {
        key::MANDATORY | key::ALPN | key::NO_DEFAULT_ALPN => value.to_vec(),
        key::PORT => {
            let port = u16::from_be_bytes(value.try_into().ok()?);
            if !Port::new(port).is_some_and(|port| judge.allows_port(port)) {
                return None;
            }
            value.to_vec()
        }
        key::IPV4_HINT => {
            let allowed = |octets: &&[u8; 4]| judge.allows_hint(Ipv4Addr::from(**octets).into());
            value.as_chunks().0.iter().filter(allowed).flatten().copied().collect()
        }
        key::IPV6_HINT => {
            let allowed = |octets: &&[u8; 16]| judge.allows_hint(Ipv6Addr::from(**octets).into());
            value.as_chunks().0.iter().filter(allowed).flatten().copied().collect()
        }
        _ => return Some(None),
    };
    let emptied = kept.is_empty() && !value.is_empty();
    Some((!emptied).then_some(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows one target, port 443 and addresses of one network.
    struct Strict;

    impl Judge for Strict {
        fn allows_target(&self, target: &Hostname) -> bool {
            target.as_str() == "cdn.example.com"
        }

        fn allows_port(&self, port: Port) -> bool {
            port == Port::HTTPS
        }

        fn allows_hint(&self, address: IpAddr) -> bool {
            matches!(address, IpAddr::V4(v4) if v4.octets().starts_with(&[203, 0, 113]))
        }
    }

    const SELF: &[u8] = b"\0\x01\0";

    fn parameter(key: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len()).unwrap();
        [&key.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
    }

    fn scrubbed(parts: &[&[u8]]) -> Option<(Vec<u8>, bool)> {
        let data = parts.concat();
        Service::read(&mut Reader::new(&data, 0)).expect("well formed").scrubbed(&Strict)
    }

    #[test]
    fn what_is_allowed_passes_unchanged() {
        let whole: &[&[u8]] = &[
            b"\0\x01\x03cdn\x07example\x03com\0",
            &parameter(0, &[0, 1]),
            &parameter(1, b"\x02h2"),
            &parameter(3, &443_u16.to_be_bytes()),
            &parameter(4, &[203, 0, 113, 7]),
        ];
        assert_eq!(scrubbed(whole), Some((whole.concat(), false)));
    }

    #[test]
    fn what_hides_a_name_or_is_unknown_is_taken_out() {
        for key in [5, 7, 8, 9, 65_000] {
            let removed = parameter(key, b"\x01x");
            assert_eq!(
                scrubbed(&[SELF, &parameter(1, b"\x02h2"), &removed]),
                Some(([SELF, &parameter(1, b"\x02h2")].concat(), true,))
            );
            // A record that needs what was taken out falls.
            let needs = parameter(0, &key.to_be_bytes());
            assert_eq!(scrubbed(&[SELF, &needs, &removed]), None, "{key}");
        }
    }

    #[test]
    fn forbidden_hints_are_taken_out_one_by_one() {
        let mixed = parameter(4, &[203, 0, 113, 7, 10, 0, 0, 1]);
        let left = parameter(4, &[203, 0, 113, 7]);
        assert_eq!(scrubbed(&[SELF, &mixed]), Some(([SELF, &left].concat(), true)));
        assert_eq!(scrubbed(&[SELF, &parameter(4, &[10, 0, 0, 1])]), Some((SELF.to_vec(), true)));
        assert_eq!(scrubbed(&[SELF, &parameter(6, &[0; 16])]), Some((SELF.to_vec(), true)));
    }

    #[test]
    fn other_targets_and_ports_take_the_record_with_them() {
        assert_eq!(scrubbed(&[b"\0\x01\x04evil\x04test\0"]), None);
        assert_eq!(scrubbed(&[b"\0\0\x04evil\x04test\0"]), None, "as an alias too");
        assert_eq!(scrubbed(&[SELF, &parameter(3, &8443_u16.to_be_bytes())]), None);
        assert_eq!(scrubbed(&[SELF, &parameter(3, &[0, 0])]), None);
    }
}
