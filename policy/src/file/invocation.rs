//! What one command line adds to a config: a sandbox for this run, or more policies for one that the config has.

use std::sync::Arc;

use super::mistake::{Mistake, did_you_mean, quoted};
use super::reader::Config;
use crate::policy::Mode;
use crate::sandbox::SandboxId;
use crate::source::{Place, PolicySource, SandboxSource};
use crate::time::Timestamp;

/// The sandbox of one run.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Its name.
    pub sandbox: SandboxId,
    /// Whether the config must have it (`Some(true)`), must not (`Some(false)`), or may.
    pub exists: Option<bool>,
    /// The policies that it uses besides those of the config.
    pub policies: Vec<Arc<str>>,
    /// Learn mode until then.
    pub learn: Option<Timestamp>,
}

impl Invocation {
    /// Adds it to what the config says.
    pub(super) fn add_to(
        &self,
        config: &Config<'_>,
        policies: &[PolicySource],
        sandboxes: &mut Vec<SandboxSource>,
    ) {
        let known = policies.iter().map(|policy| &*policy.name);
        for name in &self.policies {
            if config.is_whole() && !known.clone().any(|known| known == &**name) {
                report(config, "policy", "policy", name, known.clone());
            }
        }
        let id = &self.sandbox;
        let held = sandboxes.iter().position(|sandbox| sandbox.id == *id);
        match (held, self.exists) {
            (None, Some(true)) if config.is_whole() => {
                let known = sandboxes.iter().map(|sandbox| sandbox.id.as_str());
                report(config, "sandbox", "sandbox", id.as_str(), known);
            }
            (Some(_), Some(false)) => {
                let what = format!("the config has a [sandbox.{id}] already, the name of a run without one");
                let hint = format!("name it with --sandbox {id}, or another one");
                config.report().add(Mistake::of_file("--sandbox", what, hint));
            }
            _ => {}
        }
        let place = Place { file: "the command line".into(), line: 0, column: 0 };
        let at = held.unwrap_or_else(|| {
            sandboxes.push(SandboxSource::empty(id.clone(), place));
            sandboxes.len() - 1
        });
        if let Some(sandbox) = sandboxes.get_mut(at) {
            let new = self.policies.iter().filter(|name| !sandbox.policies.contains(name));
            let new: Vec<_> = new.cloned().collect();
            sandbox.policies.extend(new);
            if let Some(until) = self.learn {
                sandbox.mode = Mode::Learn { until };
            }
        }
    }
}

fn report<'k>(
    config: &Config<'_>,
    option: &str,
    table: &str,
    name: &str,
    known: impl Iterator<Item = &'k str>,
) {
    let hint = match did_you_mean(name, known) {
        Some(meant) => format!("did you mean {}?", quoted(meant)),
        None => format!("write a table [{table}.NAME] for it, or name another"),
    };
    let what = format!("there is no [{table}.{}]", name.escape_debug());
    config.report().add(Mistake::of_file(format!("--{option} {}", name.escape_debug()), what, hint));
}
