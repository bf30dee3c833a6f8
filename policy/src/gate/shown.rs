//! Judging what a tunnel shows of its destination in its first bytes (step 9).

use super::Gate;
use crate::decision::Permit;
use crate::destination::Host;
use crate::hostname::Hostname;
use crate::reason::Reason;

/// A name that a tunnel showed in its first bytes.
#[derive(Clone, Copy, Debug)]
pub enum Shown<'a> {
    /// The server name of a TLS ClientHello.
    Sni(&'a Hostname),
    /// A TLS ClientHello without a server name.
    NoSni,
    /// The host of a plain HTTP request.
    Host(&'a Host),
}

impl Gate {
    /// Judges a name that a tunnel showed against the one that was allowed (step 9).
    ///
    /// # Errors
    /// The reason for which the tunnel must be closed.
    pub fn judge_shown(&self, permit: &Permit, shown: Shown<'_>) -> Result<(), Reason> {
        // TLS passes unread, so that a narrowed host could not be held to its methods and paths.
        if permit.grant.narrowed && matches!(shown, Shown::Sni(_) | Shown::NoSni) {
            let by_method = permit.limits_methods();
            return Err(if by_method { Reason::MethodNotAllowed } else { Reason::PathNotAllowed });
        }
        match (permit.host(), shown) {
            (Some(Host::Name(allowed)), Shown::Sni(name)) if allowed != *name => Err(Reason::SniMismatch),
            (Some(Host::Name(_)), Shown::NoSni) => Err(Reason::SniMissing),
            (Some(Host::Name(allowed)), Shown::Host(host)) if host.name() != Some(&allowed) => {
                Err(Reason::HostMismatch)
            }
            (Some(Host::Address(_)), Shown::Sni(name)) => {
                self.judge_beside_literal(permit, &Host::Name(name.clone()))?;
                // A second hello, after a HelloRetryRequest, repeats the name of the first (RFC 8446 section 4.1.2).
                let first = permit.shown.get_or_init(|| name.clone());
                if first == name { Ok(()) } else { Err(Reason::SniMismatch) }
            }
            (Some(Host::Address(_)), Shown::Host(host)) => self.judge_beside_literal(permit, host),
            _ => Ok(()),
        }
    }

    /// The name beside a literal destination meets the floor and deny rules only.
    fn judge_beside_literal(&self, permit: &Permit, host: &Host) -> Result<(), Reason> {
        let held = self.in_force.load();
        let view = held.view(self.now());
        view.judge_beside_literal(&permit.sandbox, host, &permit.attempt.ask)
    }
}
