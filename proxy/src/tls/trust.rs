//! The material in force, and the certificates that clients have shown under it: when other material is put in force, those
//! that it does not trust are withdrawn.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dns::limits::Bucket;
use policy::Certificate;
use policy::identity::CertificateNames;
use ring::digest::{Context, SHA256};
use rustls::pki_types::{CertificateDer, UnixTime};

use super::material::Material;

/// The table of certificates is cleaned up when it has grown to twice what was left of it, and by no less than this.
const CLEANED_UP_AT: usize = 64;

/// The SHA-256 of a chain.
type Digest = [u8; 32];

/// What TLS listeners share.
pub struct Trust {
    held: Mutex<Held>,
    /// What was told of those who are not trusted.
    told: Bucket,
}

struct Held {
    material: Arc<Material>,
    shown: HashMap<Digest, Shown>,
    /// How many there may be before the dead ones are looked for.
    most: usize,
}

/// A chain that some client has shown.
struct Shown {
    certificate: Weak<Certificate>,
    chain: Arc<[CertificateDer<'static>]>,
    at: UnixTime,
}

impl Trust {
    /// Puts the first material in force.
    #[must_use]
    pub fn new(material: Arc<Material>) -> Arc<Self> {
        let held = Held { material, shown: HashMap::new(), most: CLEANED_UP_AT };
        Arc::new(Self { held: Mutex::new(held), told: Bucket::default() })
    }

    /// The material in force.
    #[must_use]
    pub fn material(&self) -> Arc<Material> {
        Arc::clone(&self.held().material)
    }

    /// Puts other material in force and withdraws every certificate that it does not trust. It judges each of them, so
    /// that it may take a while where there are many, and is not for the threads that serve; streams are to be judged anew
    /// afterwards.
    pub fn replace(&self, material: &Arc<Material>) {
        let shown: Vec<_> = {
            let held = self.held();
            let alive = held.shown.iter().filter(|(_, shown)| shown.certificate.strong_count() > 0);
            alive.map(|(digest, shown)| (*digest, Arc::clone(&shown.chain), shown.at)).collect()
        };
        let judged: HashMap<Digest, bool> =
            shown.iter().map(|(digest, chain, at)| (*digest, material.trusts(chain, *at))).collect();
        let mut held = self.held();
        held.material = Arc::clone(material);
        // Those that came meanwhile are few.
        held.shown.retain(|digest, shown| {
            let trusted = judged.get(digest).copied();
            let trusted = trusted.unwrap_or_else(|| material.trusts(&shown.chain, shown.at));
            let certificate = shown.certificate.upgrade();
            if let Some(certificate) = certificate.as_ref().filter(|_| !trusted) {
                certificate.withdraw();
            }
            trusted && certificate.is_some()
        });
    }

    /// The certificate of a chain that was verified just now under `under`; `None` where other material is in force by now
    /// and does not trust it.
    pub(super) fn admit(
        &self,
        chain: &[CertificateDer<'static>],
        names: CertificateNames,
        under: &Arc<Material>,
    ) -> Option<Arc<Certificate>> {
        let (digest, now) = (digest(chain), UnixTime::now());
        let mut held = self.held();
        if !Arc::ptr_eq(&held.material, under) && !held.material.trusts(chain, now) {
            return None;
        }
        if let Some(shown) = held.shown.get_mut(&digest)
            && let Some(certificate) = shown.certificate.upgrade()
        {
            shown.at = now;
            return Some(certificate);
        }
        if held.shown.len() >= held.most {
            held.shown.retain(|_, shown| shown.certificate.strong_count() > 0);
            held.most = CLEANED_UP_AT.max(held.shown.len() * 2);
        }
        let certificate = Arc::new(Certificate::new(names));
        let shown = Shown { certificate: Arc::downgrade(&certificate), chain: chain.into(), at: now };
        held.shown.insert(digest, shown);
        Some(certificate)
    }

    pub(super) const fn told(&self) -> &Bucket {
        &self.told
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Each change of it is whole.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(chain: &[CertificateDer<'static>]) -> Digest {
    let mut context = Context::new(&SHA256);
    for certificate in chain {
        // DER tells its own length, so that no two chains are the same bytes.
        context.update(certificate);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    bytes
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("shown", &self.held().shown.len()).finish_non_exhaustive()
    }
}
