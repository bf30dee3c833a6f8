//! What a client presents: each piece must be right by itself, and all of them must mean one sandbox, which must be at home
//! in the place that the client comes from.

use super::{Certificate, Credentials, Identities, Keys, Means, Place, Presented, Stranger};
use crate::sandbox::{Peer, SandboxId};

/// Entries that ask for one thing, of whatever sandboxes.
type Owners<'a> = &'a [(SandboxId, Keys)];

impl Identities {
    /// Judges a token, a certificate or both.
    pub(super) fn presented<'a>(
        &'a self,
        token: Option<&Credentials>,
        certificate: Option<&Certificate>,
        peer: &Peer,
        place: &Place<'a>,
    ) -> Result<(&'a SandboxId, Means), Stranger> {
        let by_token = token.map(|token| self.by_token(token, peer, place)).transpose()?;
        let by_certificate =
            certificate.map(|certificate| self.by_certificate(certificate, peer, place)).transpose()?;
        match (by_token, by_certificate) {
            (Some(one), Some(other)) if one != other => Err(Stranger::Mismatch),
            (_, Some(id)) => Ok((id, Means::Certificate)),
            (Some(id), None) => Ok((id, Means::Token)),
            (None, None) => Err(Stranger::Unknown),
        }
    }

    fn by_token<'a>(
        &'a self,
        credentials: &Credentials,
        peer: &Peer,
        place: &Place<'a>,
    ) -> Result<&'a SandboxId, Stranger> {
        let Credentials::Token { name, hash } = credentials else { return Err(Stranger::Unauthenticated) };
        let named = |id: &SandboxId| name.as_deref().is_none_or(|name| name == id.as_str());
        let owners = self.owners(&Presented::Token(*hash)).iter().filter(|(id, _)| named(id));
        match one_of(owners, peer, place) {
            Ok(id) => Ok(id),
            Err(NotOne::Nobody | NotOne::Lacking { .. }) => Err(Stranger::Unauthenticated),
            Err(NotOne::Several) => Err(Stranger::Mismatch),
        }
    }

    fn by_certificate<'a>(
        &'a self,
        certificate: &Certificate,
        peer: &Peer,
        place: &Place<'a>,
    ) -> Result<&'a SandboxId, Stranger> {
        let known = || certificate.names().iter().map(|name| self.owners(name));
        let id = match one_of(known().flatten(), peer, place) {
            Ok(id) => id,
            Err(NotOne::Lacking { token: true }) => return Err(Stranger::Unauthenticated),
            Err(NotOne::Nobody | NotOne::Lacking { token: false }) => return Err(Stranger::Unknown),
            Err(NotOne::Several) => return Err(Stranger::Mismatch),
        };
        // A name of another sandbox in it is evidence too, though that one asks for more.
        let is_its = |owners: Owners<'_>| owners.is_empty() || owners.iter().any(|(owner, _)| owner == id);
        if known().all(is_its) { Ok(id) } else { Err(Stranger::Mismatch) }
    }

    fn owners(&self, presented: &Presented) -> Owners<'_> {
        self.presented.get(presented).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Why entries name no one sandbox.
enum NotOne {
    /// There is none.
    Nobody,
    /// The client lacks something else that they ask for: a token, or the right place.
    Lacking { token: bool },
    /// They are of other sandboxes than the place, or of several.
    Several,
}

/// The one sandbox whose entry holds in full.
fn one_of<'a>(
    owners: impl Iterator<Item = &'a (SandboxId, Keys)>,
    peer: &Peer,
    place: &Place<'_>,
) -> Result<&'a SandboxId, NotOne> {
    let mut found = Err(NotOne::Nobody);
    for (id, keys) in owners {
        if !place.fits(id) {
            if matches!(found, Err(NotOne::Nobody)) {
                found = Err(NotOne::Several);
            }
        } else if keys.holds(peer) {
            match found {
                Ok(other) if other != id => return Err(NotOne::Several),
                Ok(_) | Err(_) => found = Ok(id),
            }
        } else if found.is_err() {
            let before = matches!(found, Err(NotOne::Lacking { token: true }));
            let token = before || (keys.token.is_some() && peer.credentials.is_none());
            found = Err(NotOne::Lacking { token });
        }
    }
    found
}
