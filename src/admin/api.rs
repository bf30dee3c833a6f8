//! What the routes of the admin API work on.

use std::sync::{Arc, PoisonError, RwLock};

use policy::{Certificate, Generation};
use rustix::process::geteuid;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::caller::{Caller, Role};
use crate::app::Core;
use crate::audit::By;
use crate::config::{Admin, ConfigError};

/// So many clients may follow what waits for a person: each keeps one of the socket's places.
const FOLLOWERS: usize = 16;

/// Orders that wait for the gateway's main loop.
const WAITING: usize = 16;

/// The gateway, as the admin socket sees it.
#[derive(Debug)]
pub(crate) struct Api {
    pub(super) core: Core,
    own_uid: u32,
    orders: mpsc::Sender<ReloadOrder>,
    pub(super) followers: Arc<Semaphore>,
}

/// Somebody wants the config read anew.
#[derive(Debug)]
pub struct ReloadOrder {
    /// Who asks.
    pub by: By,
    /// Where the outcome goes.
    pub done: oneshot::Sender<Result<Generation, ConfigError>>,
}

/// The `[admin]` table in force.
#[derive(Debug, Default)]
pub(crate) struct Roles(RwLock<Arc<Admin>>);

impl Roles {
    /// Puts another table in force.
    pub(crate) fn set(&self, admin: Admin) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(admin);
    }

    fn get(&self) -> Arc<Admin> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Api {
    /// The API of a gateway, and the orders that its main loop is to carry out.
    pub(crate) fn new(core: Core) -> (Arc<Self>, mpsc::Receiver<ReloadOrder>) {
        let (orders, waiting) = mpsc::channel(WAITING);
        let followers = Arc::new(Semaphore::new(FOLLOWERS));
        (Arc::new(Self { core, own_uid: geteuid().as_raw(), orders, followers }), waiting)
    }

    /// A user with its role.
    pub(super) fn caller(&self, uid: u32) -> Caller {
        Caller { by: By::Uid(uid), role: Role::of(uid, self.own_uid, &self.core.roles.get()) }
    }

    /// Whoever holds a certificate, with its role.
    pub(super) fn certified(&self, certificate: &Certificate) -> Caller {
        let role = Role::of_certificate(certificate, &self.core.roles.get());
        Caller { by: By::Certificate(certificate.to_string().into()), role }
    }

    /// Has the config read anew. `None` where the gateway does no such thing, or ends.
    pub(super) async fn reload(&self, by: By) -> Option<Result<Generation, ConfigError>> {
        let (done, outcome) = oneshot::channel();
        self.orders.send(ReloadOrder { by, done }).await.ok()?;
        outcome.await.ok()
    }
}
