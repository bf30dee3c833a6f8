//! `[listen.tls]` and `[listen.admin_https]`: the certificate of TLS listeners and whose clients they take, and the files that
//! hold them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::file::{Item, Mistake, Report, Table, quoted};
use proxy::tls::{BadMaterial, Clients, Material};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateRevocationListDer, PrivateKeyDer};

use super::files::{Fingerprint, read_key, read_one};
use super::shown;

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["cert_file", "key_file", "client_ca_file", "client_crl_files"];

/// The table: the files that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_crls: Vec<PathBuf>,
}

/// What the files held when they were read.
#[derive(Clone, Debug)]
pub struct Tls {
    files: Files,
    seen: Vec<Fingerprint>,
    /// What listeners are made of.
    pub material: Arc<Material>,
}

impl Files {
    /// Reads the table. Mistakes are reported; without certificate or key there is none.
    pub(super) fn read(item: &Item<'_>) -> Option<Self> {
        let mut table = item.table()?;
        let files = Self::take(&mut table);
        table.finish();
        files
    }

    /// Takes the files out of a table that may hold more.
    pub(super) fn take(table: &mut Table<'_>) -> Option<Self> {
        let cert = required(table, "cert_file", "write cert_file = \"/etc/tidegate/tls/proxy.pem\"");
        let key = required(table, "key_file", "write key_file = \"/etc/tidegate/tls/proxy.key\"");
        let client_ca = table.take("client_ca_file").and_then(|item| path(item.string()?, &item));
        let crls = table.take("client_crl_files");
        let listed = crls.as_ref().and_then(Item::strings).unwrap_or_default();
        let client_crls: Vec<_> = listed.iter().filter_map(|(text, item)| path(text, item)).collect();
        if let Some(item) = crls {
            let is_alone = client_ca.is_none();
            if is_alone || listed.is_empty() {
                let what = if is_alone {
                    "revoked certificates of authorities that are not named"
                } else {
                    "the list is empty, so that nothing is ever revoked"
                };
                item.mistake(
                    what,
                    "name the authorities in client_ca_file and their lists here, or remove it",
                );
            }
        }
        Some(Self { cert: cert?, key: key?, client_ca, client_crls })
    }

    /// Whether clients must show a certificate.
    pub(super) const fn asks_for_certificates(&self) -> bool {
        self.client_ca.is_some()
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        let Self { cert, key, client_ca, client_crls } = self;
        let own = [Some(cert), Some(key), client_ca.as_ref()];
        own.into_iter().flatten().chain(client_crls).map(PathBuf::as_path)
    }

    /// Reads the files: what was read `before` is used again where all of them have stayed the same. Mistakes go to
    /// `report`.
    pub(super) fn load(self, before: Option<&Tls>, report: &Report) -> Option<Tls> {
        // Before they are read: what changes meanwhile is seen next time.
        let seen: Vec<_> = self.paths().filter_map(|path| Fingerprint::of(path).ok()).collect();
        if let Some(before) = before
            && before.files == self
            && before.seen == seen
            && seen.len() == self.paths().count()
        {
            return Some(before.clone());
        }
        match self.material() {
            Ok(material) => Some(Tls { files: self, seen, material: Arc::new(material) }),
            Err(mistakes) => {
                mistakes.into_iter().for_each(|mistake| report.add(mistake));
                None
            }
        }
    }

    fn material(&self) -> Result<Material, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let mut keep = |mistake: Box<Mistake>| mistakes.push(*mistake);
        let chain = every(&self.cert, "certificate").map_err(&mut keep).ok();
        let key = key(&self.key).map_err(&mut keep).ok();
        let authorities =
            self.client_ca.as_ref().map(|path| every(path, "certificate").map_err(&mut keep).ok());
        let revoked: Vec<Option<Vec<CertificateRevocationListDer<'static>>>> = self
            .client_crls
            .iter()
            .map(|path| every(path, "revocation list").map_err(&mut keep).ok())
            .collect();
        let revoked = revoked.into_iter().collect::<Option<Vec<_>>>();
        let clients = match authorities {
            None => Some(None),
            Some(authorities) => {
                authorities.zip(revoked).map(|(authorities, revoked)| Some(Clients { authorities, revoked }))
            }
        };
        let (Some(chain), Some(key), Some(clients)) = (chain, key, clients) else { return Err(mistakes) };
        Material::new(chain, key, clients).map_err(|why| vec![self.unusable(&why)])
    }

    fn unusable(&self, why: &BadMaterial) -> Mistake {
        let (path, hint) = match why {
            BadMaterial::Mismatch => {
                (Some(&self.key), "write both files anew, then the config is read again")
            }
            BadMaterial::Identity(_) => {
                (Some(&self.cert), "a certificate of RSA, ECDSA P-256 or P-384, or Ed25519")
            }
            BadMaterial::Authority(_) => (self.client_ca.as_ref(), ""),
            BadMaterial::Revoked(place, _) => (self.client_crls.get(*place), ""),
        };
        Mistake::of_file(shown(path.unwrap_or(&self.cert)), why.to_string(), hint)
    }
}

impl Tls {
    /// Where it is read from.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.paths()
    }

    /// What the files were when they were read.
    pub(crate) fn seen(&self) -> impl Iterator<Item = &Fingerprint> {
        self.seen.iter()
    }

    /// What the files are now.
    pub(crate) fn look(&self) -> Vec<Fingerprint> {
        self.paths().filter_map(|path| Fingerprint::of(path).ok()).collect()
    }
}

fn required(table: &mut Table<'_>, key: &'static str, hint: &str) -> Option<PathBuf> {
    let item = table.require(key, hint)?;
    path(item.string()?, &item)
}

fn path(text: &str, item: &Item<'_>) -> Option<PathBuf> {
    if !text.starts_with('/') || text.ends_with('/') || text.contains('\0') {
        let what = format!("{} is no absolute path of a file", quoted(text));
        item.mistake(what, "the gateway's working directory is not to be relied upon");
        return None;
    }
    Some(text.into())
}

/// Every item of a kind in a PEM file; at least one. Other kinds may stand beside it.
fn every<T: PemObject>(path: &Path, kind: &str) -> Result<Vec<T>, Box<Mistake>> {
    let bytes = read_one(path)?;
    let refuse = |what: String, hint: &str| Err(Box::new(Mistake::of_file(shown(path), what, hint)));
    match T::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>() {
        Ok(found) if found.is_empty() => {
            refuse(format!("the file holds no {kind} in PEM form"), "convert it with openssl")
        }
        Ok(found) => Ok(found),
        Err(error) => refuse(format!("this is no PEM: {error}"), ""),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, Box<Mistake>> {
    let bytes = read_key(path)?;
    let found = PrivateKeyDer::from_pem_slice(&bytes);
    found.map_err(|_| {
        let hint = "PKCS#8, PKCS#1 and SEC1 are read, without a passphrase";
        Box::new(Mistake::of_file(shown(path), "the file holds no private key in PEM form", hint))
    })
}
