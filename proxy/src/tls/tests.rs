use std::sync::Arc;

use policy::identity::CertificateNames;
use policy::{Certificate, Hostname};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa,
    Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SanType, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivatePkcs8KeyDer};

use super::names::{self, BadNames};
use super::{BadMaterial, Clients, Material, Trust};

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a certificate").der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn certificate(
        &self,
        serial: u64,
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name = DistinguishedName::new();
        params.serial_number = Some(serial.into());
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        params.signed_by(&key, &self.issuer).expect("a certificate").der().clone()
    }

    fn revoking(&self, serials: &[u64]) -> CertificateRevocationListDer<'static> {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2096, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).expect("a list").into()
    }
}

/// Material with a certificate of its own, which takes clients of an authority.
fn material(clients: Option<Clients>) -> Result<Material, BadMaterial> {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["proxy.example".to_owned()]).expect("parameters");
    let certificate = params.self_signed(&key).expect("a certificate").der().clone();
    Material::new(vec![certificate], PrivatePkcs8KeyDer::from(key.serialize_der()).into(), clients)
}

fn taking(authority: &Authority, revoked: &[u64]) -> Arc<Material> {
    let authorities = vec![authority.certificate.clone()];
    let clients = Clients { authorities, revoked: vec![vec![authority.revoking(revoked)]] };
    Arc::new(material(Some(clients)).expect("material"))
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().expect("ASCII"))
}

#[test]
fn the_names_of_a_certificate_are_read_whole() {
    let authority = Authority::new("authority");
    let certificate = authority.certificate(0x1ff, |params| {
        let dns = |name: &str| SanType::DnsName(name.try_into().expect("ASCII"));
        params.subject_alt_names = vec![
            dns("Agent-7.Example"),
            uri("spiffe://example.org/agent-7"),
            dns("*.example"),
            SanType::IpAddress([192, 0, 2, 1].into()),
        ];
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        params.distinguished_name.push(DnType::CommonName, "Agent 7");
    });
    let read = names::read(&certificate).expect("its names");
    let expected = CertificateNames {
        uri: Some("spiffe://example.org/agent-7".into()),
        dns: vec![Hostname::parse("agent-7.example").expect("a name")],
        cn: Some("Agent 7".into()),
    };
    assert_eq!((read.names, read.serial.as_str()), (expected, "01ff"));
    let bare = names::read(&authority.certificate(1, |_| {})).expect("no names");
    assert_eq!(bare.names, CertificateNames::default());
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let authority = Authority::new("authority");
    let two =
        authority.certificate(1, |params| params.subject_alt_names = vec![uri("spiffe://a/b"), uri("x:y")]);
    assert!(matches!(names::read(&two), Err(BadNames::TwoUris)));
    let one = authority.certificate(1, |params| params.subject_alt_names = vec![uri("spiffe://a/b")]);
    for end in 0..one.len() {
        assert!(matches!(names::read(&one[..end]), Err(BadNames::Der(_))), "cut at {end}");
    }
    assert!(names::read(&[&one[..], &[0]].concat()).is_err(), "bytes behind it");
}

/// What a client that has shown a certificate is known by.
fn shown(trust: &Trust, certificate: &CertificateDer<'static>) -> Option<Arc<Certificate>> {
    let names = names::read(certificate).expect("its names").names;
    trust.admit(std::slice::from_ref(certificate), names, &trust.material())
}

#[test]
fn what_other_material_does_not_trust_is_withdrawn_and_nothing_else() {
    let authority = Authority::new("authority");
    let trust = Trust::new(taking(&authority, &[]));
    let [one, two] = [1, 2].map(|serial| authority.certificate(serial, |_| {}));
    let (first, again, other) = (shown(&trust, &one), shown(&trust, &one), shown(&trust, &two));
    let (first, again, other) = (first.expect("one"), again.expect("one"), other.expect("two"));
    assert!(Arc::ptr_eq(&first, &again), "connections share it");
    trust.replace(&taking(&authority, &[1]));
    assert!(first.is_withdrawn() && !other.is_withdrawn());
    trust.replace(&taking(&authority, &[]));
    assert!(first.is_withdrawn(), "what was withdrawn stays so");
    assert!(!shown(&trust, &one).expect("trusted anew").is_withdrawn());
    trust.replace(&taking(&Authority::new("another"), &[]));
    assert!(other.is_withdrawn(), "its authority is none any more");
    trust.replace(&Arc::new(material(None).expect("material")));
    assert!(format!("{trust:?}").contains("shown: 0"));
}

#[test]
fn a_handshake_under_older_material_is_judged_by_the_newer() {
    let authority = Authority::new("authority");
    let trust = Trust::new(taking(&authority, &[]));
    let (older, chain) = (trust.material(), [authority.certificate(1, |_| {})]);
    trust.replace(&taking(&authority, &[2]));
    assert!(trust.admit(&chain, CertificateNames::default(), &older).is_some());
    trust.replace(&taking(&authority, &[1]));
    assert!(trust.admit(&chain, CertificateNames::default(), &older).is_none());
}

#[test]
fn certificates_that_nobody_holds_are_forgotten() {
    let authority = Authority::new("authority");
    let trust = Trust::new(taking(&authority, &[]));
    for serial in 0..200 {
        drop(shown(&trust, &authority.certificate(serial, |_| {})));
    }
    let held = format!("{trust:?}");
    let count: usize = held
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .split(',')
        .next()
        .and_then(|n| n.trim().parse().ok())
        .expect("a count");
    assert!(count <= 64, "{held}");
}

#[test]
fn material_that_does_not_fit_is_refused() {
    let authority = Authority::new("authority");
    let own = |revoked| Clients { authorities: vec![authority.certificate.clone()], revoked };
    assert!(material(Some(own(Vec::new()))).is_ok());
    let good = vec![authority.revoking(&[])];
    let bad: Vec<CertificateRevocationListDer<'static>> = vec![vec![0x30, 0].into()];
    assert!(matches!(material(Some(own(vec![good, bad]))), Err(BadMaterial::Revoked(1, _))));
    let none = Clients { authorities: vec![vec![0x30, 0].into()], revoked: Vec::new() };
    assert!(matches!(material(Some(none)), Err(BadMaterial::Authority(_))));
    let (key, other) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let params = CertificateParams::new(Vec::new()).expect("parameters");
    let chain = vec![params.self_signed(&key).expect("a certificate").der().clone()];
    let key = PrivatePkcs8KeyDer::from(other.serialize_der()).into();
    assert!(matches!(Material::new(chain, key, None), Err(BadMaterial::Mismatch)));
}
