//! What is known of sandboxes: the config's policy, and the records of what was changed at run time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use policy::life::Stage;
use policy::roster::Clash;
use policy::source::SandboxSource;
use policy::{Policy, Sandbox, SandboxId, Timestamp};

use super::record::Record;
use super::table::{self, Names};
use super::{in_force, missing};

/// Everything that is known.
#[derive(Debug)]
pub(super) struct Held {
    /// What the config says.
    pub(super) base: Arc<Policy>,
    pub(super) entries: BTreeMap<SandboxId, Entry>,
}

/// What was changed of one sandbox at run time.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: Record,
    /// What was added; none for a sandbox of the config.
    pub(super) source: Option<SandboxSource>,
    /// Why it is not served: the config has something that stands in its way.
    pub(super) clash: Option<String>,
    /// The uid whose connection it was made for: it ends with that, and nothing of it is written to the disk.
    pub(super) lent_to: Option<u32>,
}

/// A sandbox, as it is shown.
#[derive(Debug)]
pub struct Known<'a> {
    /// Its name.
    pub id: &'a SandboxId,
    /// Where it comes from.
    pub origin: Origin<'a>,
    /// How far it is in its life.
    pub state: State,
    /// As the policy in force has it; none where it is shadowed.
    pub sandbox: Option<Arc<Sandbox>>,
    /// The policies and internal tables that it names and the config in force does not have.
    pub missing: Vec<Arc<str>>,
}

/// Where a sandbox comes from.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// It stands in the config.
    Config,
    /// It was added at run time.
    RunTime {
        /// What is remembered of it.
        record: &'a Record,
        /// What was read from that; none where it can no longer be read.
        source: Option<&'a SandboxSource>,
        /// Why it is not served.
        clash: Option<&'a str>,
    },
}

/// How far a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// What its policies allow is let through.
    Active,
    /// Nothing is let through until it is resumed.
    Paused,
    /// Its time is over.
    Expired,
    /// The config has something that stands in its way.
    Shadowed,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Active, Self::Paused, Self::Expired, Self::Shadowed];

    /// The public word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Expired => "expired",
            Self::Shadowed => "shadowed",
        }
    }
}

impl Held {
    /// Reads what was remembered. A record that cannot be read any more is kept and not served.
    pub(super) fn new(base: Arc<Policy>, records: Vec<Record>, now: Timestamp) -> Self {
        let entries = records.into_iter().map(|record| {
            let id = record.id.clone();
            (id, Entry::remembered(record, &base, now))
        });
        Self { entries: entries.collect(), base }
    }

    /// The policy that comes of everything. Where the config stands in the way of something that was added at run time,
    /// the config holds.
    pub(super) fn join(&mut self) -> Policy {
        let mut policy = Policy::clone(&self.base);
        let added = self.entries.values().filter_map(|entry| {
            let source = entry.source.clone()?;
            Some(SandboxSource { life: entry.record.life(), ..source })
        });
        let clashes: BTreeMap<SandboxId, Clash> = policy.join_all(added).into_iter().collect();
        for (id, entry) in &mut self.entries {
            if entry.source.is_some() {
                entry.clash = clashes.get(id).map(ToString::to_string);
            } else if entry.record.added.is_none() {
                policy.set_life(id, entry.record.life());
            }
        }
        policy
    }

    /// Says in the log what is remembered and not served.
    pub(super) fn complain(&self) {
        for (id, entry) in &self.entries {
            if let Some(clash) = &entry.clash {
                tracing::error!(sandbox = %id, "a sandbox that was added at run time is not served: {clash}");
            }
        }
    }

    /// The idle timeouts of those whose time is not over.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = (&SandboxId, Duration)> {
        self.entries.iter().filter(|(_, entry)| !entry.record.over).filter_map(|(id, entry)| {
            let millis = entry.record.added.as_ref()?.idle_timeout_ms?;
            Some((id, Duration::from_millis(millis)))
        })
    }

    pub(super) fn each(&self, policy: &Policy, show: &mut impl FnMut(&Known<'_>)) {
        let added = |id: &&SandboxId| self.entries.get(*id).is_some_and(|entry| entry.record.added.is_some());
        let mut names: Vec<_> = self.base.sandboxes.keys().filter(|id| !added(id)).collect();
        names.extend(self.entries.iter().filter(|(_, entry)| entry.record.added.is_some()).map(|(id, _)| id));
        names.sort_unstable();
        for id in names {
            if let Some(known) = self.one(policy, id) {
                show(&known);
            }
        }
    }

    pub(super) fn one<'h>(&'h self, policy: &Policy, id: &SandboxId) -> Option<Known<'h>> {
        let entry = self.entries.get_key_value(id).filter(|(_, entry)| entry.record.added.is_some());
        let Some((id, entry)) = entry else {
            let (id, _) = self.base.sandboxes.get_key_value(id)?;
            let sandbox = in_force(policy, id)?;
            let state = stage(sandbox.life.at(now()));
            return Some(Known {
                id,
                origin: Origin::Config,
                state,
                sandbox: Some(sandbox),
                missing: Vec::new(),
            });
        };
        let (source, clash) = (entry.source.as_ref(), entry.clash.as_deref());
        let sandbox = clash.is_none().then(|| in_force(policy, id)).flatten();
        let state = match clash {
            Some(_) => State::Shadowed,
            None => stage(entry.record.life().at(now())),
        };
        let origin = Origin::RunTime { record: &entry.record, source, clash };
        let missing = source.map(|source| missing(source, &self.base)).unwrap_or_default();
        Some(Known { id, origin, state, sandbox, missing })
    }
}

fn now() -> Timestamp {
    dns::clock::now()
}

const fn stage(stage: Stage) -> State {
    match stage {
        Stage::Active => State::Active,
        Stage::Paused(_) => State::Paused,
        Stage::Over => State::Expired,
    }
}

impl Entry {
    /// One that is on the disk.
    pub(super) const fn kept(record: Record) -> Self {
        Self { record, source: None, clash: None, lent_to: None }
    }

    fn remembered(record: Record, base: &Policy, now: Timestamp) -> Self {
        let Some(added) = &record.added else { return Self::kept(record) };
        match table::read(&record.id, &added.table, Names::MayBeGone, now, base) {
            Ok(source) => Self { source: Some(source), ..Self::kept(record) },
            Err(mistakes) => {
                let listed: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
                let clash = format!("what is remembered of it cannot be read: {}", listed.join("; "));
                Self { clash: Some(clash), ..Self::kept(record) }
            }
        }
    }
}
