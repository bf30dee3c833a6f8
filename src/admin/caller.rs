//! What a caller of the admin socket may do, by its uid and the `[admin]` table.

use std::sync::Arc;

use crate::config::{Admin, Tenant};

/// Who calls.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The user, as the kernel tells it.
    pub(super) uid: u32,
    /// What that user may do.
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
    use super::*;

    #[test]
    fn each_role_may_what_it_says_and_no_more() {
        let tenant = Tenant { name: "ci".into(), uids: vec![1003], policies: Vec::new() };
        let admin = Admin { readers: vec![1001], operators: vec![1002], tenants: vec![tenant] };
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
