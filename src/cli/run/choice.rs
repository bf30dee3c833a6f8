//! Which gateway serves a run: one that runs already, or one of the run's own.
//!
//! ```text
//! --admin PATH, or [listen] admin of the config, and somebody there ──▶ that one: --sandbox ID, or a sandbox made by
//!                                                                       --policy that ends with the run
//! nobody there; --own-gateway; what only this command line says    ──▶ one of its own
//! ```

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};

use policy::SandboxId;
use serde_json::{Value, json};

use super::{Failed, Run, create};
use crate::cli::admin::Admin;
use crate::config::{self, Config, Invocation};
use crate::host;
use crate::workload::{Served, eprint};

/// Who serves.
pub(super) enum Gateway {
    /// The run itself.
    Own { config: Box<Config>, audit: Option<PathBuf> },
    /// The one at this admin socket, in a sandbox that it has, or in one that is made by this table.
    Running { socket: PathBuf, table: Option<Value> },
}

/// A gateway that runs, and what it says of the sandbox that is asked for.
struct Found {
    socket: PathBuf,
    served: Served,
}

impl Run {
    /// Decides who serves, and whom.
    pub(super) fn choose(&mut self) -> Result<(Gateway, SandboxId, Served), Failed> {
        let invocation = self.invocation();
        let named = self.config.config.take();
        // Entries alone are a whole policy: then no file that happens to lie somewhere changes it.
        let needs_a_file = named.is_some() || (invocation.needs_a_file() && self.admin.is_none());
        let path = if needs_a_file { Some(config::find(named)?) } else { None };
        match self.find(path.as_deref(), &invocation)? {
            Some(found) => handed(found, path, &invocation),
            None => self.own(path.as_deref(), &invocation),
        }
    }

    /// Looks for a gateway that runs and is to serve this.
    fn find(&mut self, path: Option<&Path>, invocation: &Invocation) -> Result<Option<Found>, Failed> {
        let asked = self.admin.take();
        let is_asked = asked.is_some();
        let socket = match (asked, path) {
            (Some(socket), _) => Some(socket),
            (None, Some(path)) if !self.own_gateway => config::admin_socket(path)?,
            (None, _) => None,
        };
        let Some(socket) = socket else { return Ok(None) };
        let at = format!("unix:{}", socket.display());
        if let Some(option) = self.alone(invocation) {
            if is_asked {
                return Err(Failed::Refused(format!(
                    "{option} is not for a gateway that runs already ({at})"
                )));
            }
            eprint(&format!(
                "{option} is this run's alone: it has a gateway of its own, beside the one at {at}"
            ));
            return Ok(None);
        }
        let admin = Admin::socket(socket.clone());
        let place = match &invocation.sandbox {
            Some(name) => format!("/v1/namespaces/{}", named(name)?),
            None => "/v1/namespaces".to_owned(),
        };
        let answer = match is_asked {
            true => admin.ask("GET", &place, None).map(Some),
            false => admin.ask_if_there("GET", &place),
        };
        let beside = if is_asked { "" } else { "; --own-gateway runs it beside that gateway" };
        let answer = answer.map_err(|why| Failed::Refused(format!("{at}: {why}{beside}")))?;
        let Some(answer) = answer else {
            eprint(&format!("no gateway runs at {at}: this run has one of its own"));
            return Ok(None);
        };
        let served = serde_json::from_value(answer)
            .map_err(|_| Failed::Refused(format!("{at}: the gateway's answer is not understood")))?;
        Ok(Some(Found { socket, served }))
    }

    /// The option that makes a policy, or a place, of this run alone.
    fn alone(&self, invocation: &Invocation) -> Option<&'static str> {
        let Invocation { sandbox, policies, registries, allow, deny, learn } = invocation;
        let given = [
            ("--allow", !allow.is_empty()),
            ("--deny", !deny.is_empty()),
            ("--registry", !registries.is_empty()),
            ("--policy beside --sandbox", sandbox.is_some() && !policies.is_empty()),
            ("--learn", *learn),
            ("--audit", self.audit.is_some()),
            ("--allow-weak", self.allow_weak),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    fn own(
        &mut self,
        path: Option<&Path>,
        invocation: &Invocation,
    ) -> Result<(Gateway, SandboxId, Served), Failed> {
        let local = host::local_addresses()?;
        let (config, sandbox) = config::load_for(path, invocation, dns::clock::now(), &local)?;
        let audit = self.audit.take().or_else(|| config.audit.path.clone());
        if let Some(path) = &audit {
            // It must be there before the plan, which hides it.
            drop(create(path)?);
        }
        let written = config::Audit { path: audit.clone(), ..config.audit.clone() };
        let local_peers = config
            .policy
            .sandbox(&sandbox)
            .map(|sandbox| sandbox.local_peers.iter().map(ToString::to_string).collect());
        let mut own_files = config.own_files().and(written.own_files());
        // Everything was read, and is read no more; the audit alone is written on.
        own_files.replaced = if written.rotation.is_some() { written.own_files().logs } else { Vec::new() };
        let served = Served { local_peers: local_peers.unwrap_or_default(), own_files };
        Ok((Gateway::Own { config: Box::new(config), audit }, sandbox, served))
    }
}

fn handed(
    found: Found,
    path: Option<PathBuf>,
    invocation: &Invocation,
) -> Result<(Gateway, SandboxId, Served), Failed> {
    let Found { socket, mut served } = found;
    // Whatever the gateway knows of: what was read here is kept from the workload as well.
    served
        .own_files
        .paths
        .extend(path.iter().chain([&socket]).filter_map(|path| std::path::absolute(path).ok()));
    let (sandbox, table) = match &invocation.sandbox {
        Some(name) => (named(name)?, None),
        None => {
            // No secret hangs on it: a name that is taken is refused.
            let name = format!("run-{:016x}", RandomState::new().hash_one(std::process::id()));
            let table = json!({ "id": name, "policies": invocation.policies });
            (named(&name)?, Some(table))
        }
    };
    Ok((Gateway::Running { socket, table }, sandbox, served))
}

fn named(name: &str) -> Result<SandboxId, Failed> {
    let hint = "1 to 64 characters of a-z A-Z 0-9 . _ -, starting with a letter or a digit";
    let what = || {
        Failed::Refused(format!("--sandbox {}: it is no name for a sandbox — {hint}", name.escape_debug()))
    };
    SandboxId::parse(name).ok_or_else(what)
}
