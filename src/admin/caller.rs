//! What a caller of the admin API may do, by its uid or its certificate and the `[admin]` table.

use std::sync::Arc;

use policy::Certificate;

use crate::audit::By;
use crate::config::{Admin, Tenant};

/// Who calls.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The user, as the kernel tells it, or the name in its certificate.
    pub(super) by: By,
    /// What it may do.
    pub(super) role: Role,
}

/// What a user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Everything.
    All,
    /// See everything, change nothing.
    Reader,
    /// See and change the sandboxes that carry its name as the label `tenant`.
    Tenant(Arc<Tenant>),
    /// Nothing that a role gives. A route may still know the uid by other means, as an owner of a sandbox.
    None,
}

/// What a route asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing: it tells nothing of this gateway's sandboxes.
    Nothing,
    /// To see. A tenant sees its own.
    See,
    /// To change sandboxes. A tenant changes its own.
    Change,
    /// To direct the gateway itself.
    Operate,
}

impl Role {
    /// The role of a uid. `own` is the gateway's own user.
    pub(super) fn of(uid: u32, own: u32, admin: &Admin) -> Self {
        // Root and the gateway's own user could change its memory as well.
        if uid == 0 || uid == own || admin.operators.contains(&uid) {
            return Self::All;
        }
        if admin.readers.contains(&uid) {
            return Self::Reader;
        }
        let tenant = admin.tenants.iter().find(|tenant| tenant.uids.contains(&uid));
        tenant.map_or(Self::None, |tenant| Self::Tenant(Arc::new(tenant.clone())))
    }

    /// The role of whoever holds a certificate: that of its name. One with the names of two is nobody's.
    pub(super) fn of_certificate(certificate: &Certificate, admin: &Admin) -> Self {
        let names = |listed: &[Arc<str>]| listed.iter().any(|name| certificate.is_called(name));
        let tenants = admin.tenants.iter().filter(|tenant| names(&tenant.certificates));
        let all = names(&admin.operator_certificates).then_some(Self::All);
        let reader = names(&admin.reader_certificates).then_some(Self::Reader);
        let mut roles =
            all.into_iter().chain(reader).chain(tenants.map(|tenant| Self::Tenant(Arc::new(tenant.clone()))));
        match (roles.next(), roles.next()) {
            (Some(role), None) => role,
            (None, _) | (Some(_), Some(_)) => Self::None,
        }
    }

    /// Whether the role is enough for a route at all.
    pub(super) const fn is_enough(&self, need: Need) -> bool {
        match (self, need) {
            (_, Need::Nothing) | (Self::All, _) | (Self::Reader, Need::See) => true,
            (Self::Tenant(_), Need::See | Need::Change) => true,
            (Self::Reader, Need::Change | Need::Operate) => false,
            (Self::Tenant(_), Need::Operate) | (Self::None, _) => false,
        }
    }

    /// The tenant whose sandboxes are the only ones there are to this role.
    pub(super) fn tenant(&self) -> Option<&Tenant> {
        match self {
            Self::Tenant(tenant) => Some(tenant),
            Self::All | Self::Reader | Self::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::Hostname;
    use policy::identity::CertificateNames;

    use super::*;

    #[test]
    fn each_role_may_what_it_says_and_no_more() {
        let tenant = Tenant {
            name: "ci".into(),
            uids: vec![1003],
            certificates: vec!["ci.example".into()],
            policies: Vec::new(),
        };
        let admin = Admin {
            readers: vec![1001],
            operators: vec![1002],
            reader_certificates: vec!["spiffe://example.org/dashboard".into()],
            operator_certificates: vec!["ops.example".into()],
            tenants: vec![tenant],
        };
        let by = |uri: Option<&str>, dns: &[&str], cn: Option<&str>| {
            let dns = dns.iter().map(|name| Hostname::parse(name).expect("a name")).collect();
            let names = CertificateNames { uri: uri.map(Into::into), dns, cn: cn.map(Into::into) };
            Role::of_certificate(&Certificate::new(names), &admin)
        };
        assert_eq!(by(Some("spiffe://example.org/dashboard"), &[], None), Role::Reader);
        assert_eq!(by(None, &["x.example", "ops.example"], None), Role::All);
        assert!(matches!(by(None, &["ci.example"], None), Role::Tenant(tenant) if *tenant.name == *"ci"));
        assert_eq!(
            by(None, &["ci.example", "ops.example"], None),
            Role::None,
            "which of them is not to be guessed"
        );
        assert_eq!(
            by(Some("spiffe://example.org/dashboard/x"), &["a.example"], Some("ops.example")),
            Role::None
        );
        let needs = [Need::Nothing, Need::See, Need::Change, Need::Operate];
        for (uid, may) in [
            (0, [true; 4]),
            (999, [true; 4]),
            (1002, [true; 4]),
            (1001, [true, true, false, false]),
            (1003, [true, true, true, false]),
            (1004, [true, false, false, false]),
        ] {
            let role = Role::of(uid, 999, &admin);
            assert_eq!(needs.map(|need| role.is_enough(need)), may, "uid {uid}: {role:?}");
        }
        assert_eq!(Role::of(1003, 999, &admin).tenant().map(|tenant| &*tenant.name), Some("ci"));
    }
}
