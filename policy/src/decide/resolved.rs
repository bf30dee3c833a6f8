//! Step 8: what a name resolved to is judged, alias by alias and address by address.

use std::net::{IpAddr, SocketAddr};

use super::lookup::Openings;
use super::{Trace, View};
use crate::attempt::Ask;
use crate::destination::{Host, Port};
use crate::gate::Resolved;
use crate::hostname::Hostname;
use crate::policy::Sandbox;
use crate::reason::Reason;
use crate::rule::RuleRef;
use crate::ruleset::RuleView;
use crate::special::canonical;

impl View<'_> {
    /// The addresses that may be dialled or shown, of all that was found for an attempt that `rule` allows. Those that
    /// may not are dropped. There may be none where none was found.
    ///
    /// # Errors
    /// The reason for which an alias is refused, or the strongest one where every address is dropped.
    pub(crate) fn vet(
        &self,
        sandbox: &Sandbox,
        rule: Option<&RuleRef>,
        ask: &Ask,
        found: Resolved<'_>,
        trace: &mut impl Trace,
    ) -> Result<Vec<IpAddr>, Reason> {
        for (name, at) in found.chain.iter().zip(0..) {
            let before = found.chain.get(..at).unwrap_or_default();
            let judged = self.judge_alias(sandbox, ask, before, name);
            trace.step(|| match judged {
                Ok(()) => format!("alias: {name} passes"),
                Err(reason) => format!("alias: {name} is refused ({reason})"),
            });
            judged?;
        }
        let mut addresses = Vec::with_capacity(found.addresses.len());
        let mut strongest: Option<Reason> = None;
        for address in found.addresses {
            let judged = self.judge_address(sandbox, rule, ask, found.chain, *address);
            trace.step(|| match judged {
                Ok(()) => format!("address: {address} may be dialled"),
                Err(reason) => format!("address: {address} is dropped ({reason})"),
            });
            match judged {
                Ok(()) => addresses.push(canonical(*address)),
                Err(reason) => strongest = Reason::stronger(strongest, reason),
            }
        }
        match strongest {
            Some(reason) if addresses.is_empty() => Err(reason),
            Some(_) | None => Ok(addresses),
        }
    }

    /// Judges one address, to which `chain` led, of an attempt that `rule` allows; `None` is learn mode.
    ///
    /// # Errors
    /// The reason for which the address is dropped.
    pub(crate) fn judge_address(
        &self,
        sandbox: &Sandbox,
        rule: Option<&RuleRef>,
        ask: &Ask,
        chain: &[Hostname],
        address: IpAddr,
    ) -> Result<(), Reason> {
        let address = canonical(address);
        if let (Some(Host::Address(literal)), Some(_)) = (ask.host(), rule) {
            // It met the floor, the deny rules and the address rule that lists it when the attempt was decided.
            return if literal == address { Ok(()) } else { Err(Reason::AddressForbidden) };
        }
        let internal = rule.and_then(|rule| rule.rule().internal());
        let host_port = internal.and_then(|table| table.host_port).filter(|local| local.ip() == address);
        if host_port.is_none()
            && let Some(reason) = self.address_floor(address)
        {
            return Err(reason);
        }
        let host = Host::Address(address);
        let denied_there = host_port
            .and_then(|local| Port::new(local.port()))
            .is_some_and(|port| self.deny_rule(sandbox, &host, port).is_some());
        if denied_there || self.denies(sandbox, ask, chain, &host) {
            return Err(Reason::DeniedByRule);
        }
        let open = match internal {
            Some(table) => table.opens(address),
            None => self.is_public(address),
        };
        if open { Ok(()) } else { Err(Reason::AddressNotPublic) }
    }

    /// Judges an open stream that `rule` allows: the aliases that led there, its address, and its port, which a host
    /// port may have changed.
    ///
    /// # Errors
    /// The reason for which it must not be used.
    pub(crate) fn judge_open(
        &self,
        sandbox: &Sandbox,
        rule: Option<&RuleRef>,
        ask: &Ask,
        chain: &[Hostname],
        socket: SocketAddr,
    ) -> Result<(), Reason> {
        for alias in chain {
            // A stream has one port, so that what stands before an alias adds nothing.
            self.judge_alias(sandbox, ask, &[], alias)?;
        }
        self.judge_address(sandbox, rule, ask, chain, socket.ip())?;
        let port = port_to_dial(rule.map(RuleRef::rule), ask);
        if port == Some(socket.port()) { Ok(()) } else { Err(Reason::AddressForbidden) }
    }

    /// Judges the host that a tunnel to a literal showed: it meets the floor, deny rules and deny lists only.
    ///
    /// # Errors
    /// The reason for which the tunnel must be closed.
    pub(crate) fn judge_beside_literal(
        &self,
        sandbox: &Sandbox,
        host: &Host,
        ask: &Ask,
    ) -> Result<(), Reason> {
        if ask.host().as_ref() == Some(host) {
            return Ok(());
        }
        match (self.floor(host), ask.port()) {
            (Some(reason), _) => Err(reason),
            (None, Some(port))
                if self.deny_rule(sandbox, host, port).is_some() || self.listed(sandbox, host).is_some() =>
            {
                Err(Reason::DeniedByRule)
            }
            (None, _) => Ok(()),
        }
    }

    /// Judges a name further down a chain of CNAMEs, behind `before`: the floor and written deny rules judge it, allow
    /// rules do not.
    ///
    /// # Errors
    /// The reason for which the whole answer is refused.
    pub(crate) fn judge_alias(
        &self,
        sandbox: &Sandbox,
        ask: &Ask,
        before: &[Hostname],
        name: &Hostname,
    ) -> Result<(), Reason> {
        let host = Host::Name(name.clone());
        match self.floor(&host) {
            Some(reason) => Err(reason),
            None if self.denies(sandbox, ask, before, &host) => Err(Reason::DeniedByRule),
            None => Ok(()),
        }
    }

    /// Whether deny rules close an alias or an address to an attempt: on its port, or for a look-up on every port that
    /// is open for its name and for the aliases before.
    fn denies(&self, sandbox: &Sandbox, ask: &Ask, before: &[Hostname], host: &Host) -> bool {
        if let Some(port) = ask.port() {
            return self.deny_rule(sandbox, host, port).is_some();
        }
        let here = Openings::of(self, sandbox, host);
        let (Some(_), Some(asked)) = (here.denied().next(), ask.host()) else { return false };
        let passed = before.iter().map(|name| Openings::of(self, sandbox, &Host::Name(name.clone())));
        let passed: Vec<_> = passed.collect();
        let closed: Vec<_> = passed.iter().flat_map(Openings::denied).chain(here.denied()).collect();
        !Openings::of(self, sandbox, &asked).some_port_is_left(&closed)
    }
}

/// The port that a stream is dialled on: its own, unless a host port stands for it.
pub(crate) fn port_to_dial(rule: Option<RuleView<'_>>, ask: &Ask) -> Option<u16> {
    let local = rule.and_then(|rule| rule.internal()?.host_port);
    local.map(|local| local.port()).or_else(|| ask.port().map(Port::get))
}
