//! Changes at run time: each is tried on a copy, written to the disk, put in force, and put on record, in this order.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use policy::file::Mistake;
use policy::identity::{Evidence, Keys};
use policy::source::SandboxSource;
use policy::{Policy, Sandbox, SandboxId, Socket, Timestamp};

use super::held::{Entry, Held};
use super::record::{Added, Record, Tunnels};
use super::span::Span;
use super::table::{self, Names, Table};
use super::{Sandboxes, Store, in_force};
use crate::audit::{By, Notice, SandboxChange};

/// How many may be remembered. Each costs a file, and a few kilobytes of memory.
const MOST: usize = 50_000;

/// What is to be changed of a sandbox.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Keys of its table that replace what was; null takes one away.
    pub table: Table,
    /// How long it lives from now on; `Some(None)` is for ever.
    pub ttl: Option<Option<Duration>>,
    /// How long it may do nothing; `Some(None)` is for ever.
    pub idle_timeout: Option<Option<Duration>>,
}

/// A sandbox that lives as long as somebody's connection: until this is dropped.
#[derive(Debug)]
pub struct Lent {
    all: Arc<Sandboxes>,
    /// Its name.
    pub id: SandboxId,
    /// When it was added: a later one of its name is another.
    at: Timestamp,
    by: u32,
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Without a runtime the gateway has ended, and with it all that it held in memory.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (all, id, at, by) = (Arc::clone(&self.all), self.id.clone(), self.at, self.by);
            runtime.spawn(async move { all.take_back(&id, at, by).await });
        }
    }
}

/// Why nothing was changed.
#[derive(Debug)]
pub enum Refusal {
    /// There is no sandbox of this name, or none that the caller sees.
    Unknown,
    /// Something stands in the way.
    Conflict(String),
    /// What was asked for has mistakes.
    Mistakes(Vec<Mistake>),
    /// The caller may not do that.
    NotPermitted(String),
    /// It could not be written to the disk, or there is no randomness.
    Failed(io::Error),
}

impl From<ring::error::Unspecified> for Refusal {
    fn from(_: ring::error::Unspecified) -> Self {
        Self::Failed(io::Error::other("the system gives no randomness for a token"))
    }
}

impl Sandboxes {
    /// Adds a sandbox; gives the token that was issued for it.
    ///
    /// # Errors
    /// Why it was not added.
    pub async fn add(
        self: &Arc<Self>,
        id: Option<SandboxId>,
        change: Change,
        by: &By,
        span: &Span,
    ) -> Result<(SandboxId, Option<String>), Refusal> {
        let _turn = self.turn.lock().await;
        let disk = Some(self.store()?);
        let (id, token, _) = self.take_in(disk, id, change, by, span).await?;
        Ok((id, token))
    }

    /// Adds a sandbox that lives as long as somebody's connection, and is nowhere but in memory: a gateway that starts
    /// anew has no such connection.
    ///
    /// # Errors
    /// Why it was not added.
    pub async fn lend(
        self: &Arc<Self>,
        id: Option<SandboxId>,
        mut table: Table,
        by: u32,
        span: &Span,
    ) -> Result<Lent, Refusal> {
        let _turn = self.turn.lock().await;
        // Who is inside is known by the namespace.
        table.entry("identify").or_insert_with(|| serde_json::json!([]));
        let change = Change { table, ..Change::default() };
        let (id, _, at) = self.take_in(None, id, change, &By::Uid(by), span).await?;
        Ok(Lent { all: Arc::clone(self), id, at, by })
    }

    /// Takes a lent sandbox back; somebody may have removed it already.
    async fn take_back(&self, id: &SandboxId, at: Timestamp, by: u32) {
        let _turn = self.turn.lock().await;
        let is_it = self.held(|held| {
            let entry = held.entries.get(id).filter(|entry| entry.lent_to.is_some());
            entry.and_then(|entry| entry.record.added.as_ref()).is_some_and(|added| added.at == at.nanos())
        });
        if is_it && let Err(why) = self.remove_known(id, &By::Uid(by)).await {
            tracing::error!(sandbox = %id, "a sandbox whose connection has ended stays: {why}");
        }
    }

    /// Adds a sandbox, which is remembered on `disk`, or is lent.
    async fn take_in(
        &self,
        disk: Option<Arc<Store>>,
        id: Option<SandboxId>,
        change: Change,
        by: &By,
        span: &Span,
    ) -> Result<(SandboxId, Option<String>, Timestamp), Refusal> {
        let (now, mut table) = (dns::clock::now(), change.table);
        span.mark(&mut table);
        let id = match id {
            Some(id) => id,
            None => SandboxId::parse(&table::make_up_name()?).ok_or(ring::error::Unspecified)?,
        };
        self.held(|held| {
            if held.entries.len() >= MOST {
                return Err(Refusal::Conflict(format!("there are {MOST} sandboxes, and no more are taken")));
            }
            let taken = held.entries.get(&id).is_some_and(|entry| entry.record.added.is_some());
            if taken || held.base.sandboxes.contains_key(&id) {
                return Err(Refusal::Conflict(format!("there is a sandbox {id} already")));
            }
            Ok(())
        })?;
        let token = table::issue(&mut table)?;
        let added = Added {
            table,
            at: now.nanos(),
            by: by.clone(),
            ends: change.ttl.flatten().map(|ttl| end(now, ttl)),
            idle_timeout_ms: change.idle_timeout.flatten().map(millis),
            folders: Vec::new(),
        };
        let lent_to = if disk.is_none() { by.uid() } else { None };
        let (mut entry, policy) = self.try_out(Record::added(id.clone(), added), lent_to, now, span, None)?;
        let timeout = change.idle_timeout.flatten();
        let sockets = self.bind(&mut entry)?;
        self.carry_out(disk, entry, policy, SandboxChange::Add, by).await?;
        sockets.serve(&self.parts.doors);
        self.parts.activity.watch(&id, timeout, now);
        Ok((id, token, now))
    }

    /// Changes a sandbox that was added at run time; gives the token that was issued, if one was.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub async fn update(
        self: &Arc<Self>,
        id: &SandboxId,
        change: Change,
        by: &By,
        span: &Span,
    ) -> Result<Option<String>, Refusal> {
        let _turn = self.turn.lock().await;
        let now = dns::clock::now();
        let (mut record, lent_to) =
            self.held(|held| held.added(id, span).map(|entry| (entry.record.clone(), entry.lent_to)))?;
        let disk = self.disk(lent_to)?;
        let Some(added) = &mut record.added else { return Err(Refusal::Unknown) };
        let mut fresh = change.table;
        let token = match fresh.get("identify") {
            Some(serde_json::Value::Array(_)) => table::issue(&mut fresh)?,
            _ => None,
        };
        for (key, value) in fresh {
            match value {
                serde_json::Value::Null => added.table.remove(&key),
                value => added.table.insert(key, value),
            };
        }
        if let Some(ttl) = change.ttl {
            added.ends = ttl.map(|ttl| end(now, ttl));
        }
        if let Some(timeout) = change.idle_timeout {
            added.idle_timeout_ms = timeout.map(millis);
        }
        // More time is what brings back one whose time was over; nothing else does.
        record.over &= change.ttl.is_none() && change.idle_timeout.is_none();
        let timeout =
            record.added.as_ref().and_then(|added| added.idle_timeout_ms).map(Duration::from_millis);
        let over = record.over;
        let (mut entry, policy) = self.try_out(record, lent_to, now, span, Some(id))?;
        let sockets = self.bind(&mut entry)?;
        self.carry_out(disk, entry, policy, SandboxChange::Update, by).await?;
        sockets.serve(&self.parts.doors);
        self.parts.activity.watch(id, timeout.filter(|_| !over), now);
        Ok(token)
    }

    /// Pauses a sandbox, whether it stands in the config or was added.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub async fn pause(
        self: &Arc<Self>,
        id: &SandboxId,
        tunnels: Tunnels,
        by: &By,
        span: &Span,
    ) -> Result<(), Refusal> {
        self.turn_to(id, Some(tunnels), by, span).await
    }

    /// Lets a paused sandbox go on.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub async fn resume(self: &Arc<Self>, id: &SandboxId, by: &By, span: &Span) -> Result<(), Refusal> {
        self.turn_to(id, None, by, span).await
    }

    async fn turn_to(
        self: &Arc<Self>,
        id: &SandboxId,
        paused: Option<Tunnels>,
        by: &By,
        span: &Span,
    ) -> Result<(), Refusal> {
        let _turn = self.turn.lock().await;
        let mut policy = Policy::clone(&self.parts.gate.policy());
        let entry = self.held(|held| held.paused(id, paused, span))?;
        let disk = self.disk(entry.lent_to)?;
        policy.set_life(id, entry.record.life());
        let change = if paused.is_some() { SandboxChange::Pause } else { SandboxChange::Resume };
        self.carry_out(disk, entry, policy, change, by).await?;
        self.parts.activity.excuse(id, dns::clock::now());
        Ok(())
    }

    /// Removes a sandbox that was added at run time.
    ///
    /// # Errors
    /// Why it was not removed.
    pub async fn remove(self: &Arc<Self>, id: &SandboxId, by: &By, span: &Span) -> Result<(), Refusal> {
        let _turn = self.turn.lock().await;
        self.held(|held| held.added(id, span).map(|_| ()))?;
        self.remove_known(id, by).await
    }

    /// Removes every sandbox whose time is over.
    ///
    /// # Errors
    /// Why one was not removed; those before it were.
    pub async fn clean_up(self: &Arc<Self>, by: &By, span: &Span) -> Result<Vec<SandboxId>, Refusal> {
        let _turn = self.turn.lock().await;
        let over = self.held(|held| {
            let over = held.entries.iter().filter(|(_, entry)| entry.record.over);
            let mine = over.filter(|(_, entry)| entry.is_within(span));
            mine.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        });
        for id in &over {
            self.remove_known(id, by).await?;
        }
        Ok(over)
    }

    async fn remove_known(&self, id: &SandboxId, by: &By) -> Result<(), Refusal> {
        let lent_to = self.held(|held| held.entries.get(id).and_then(|entry| entry.lent_to));
        if let Some(store) = self.disk(lent_to)? {
            let gone = id.clone();
            on_disk(move || store.remove(&gone)).await?;
        }
        let before = in_force(&self.parts.gate.policy(), id);
        let entry = self.held(|held| held.entries.remove(id));
        let is_served = entry.as_ref().is_some_and(|entry| entry.clash.is_none());
        if is_served {
            let mut policy = Policy::clone(&self.parts.gate.policy());
            policy.leave(id);
            self.put_in_force(&Arc::new(policy));
        }
        let folders = entry.and_then(|entry| entry.record.added).map(|added| added.folders);
        self.close(id, &folders.unwrap_or_default());
        self.parts.activity.watch(id, None, dns::clock::now());
        self.parts.denials.forget(id);
        if let Some(sandbox) = before.filter(|_| is_served) {
            self.note(&sandbox, SandboxChange::Remove, Some(by)).await;
        }
        Ok(())
    }

    /// Reads what a record says and joins it with a copy of the policy in force, in place of what stands there as
    /// `before`.
    fn try_out(
        &self,
        record: Record,
        lent_to: Option<u32>,
        now: Timestamp,
        span: &Span,
        before: Option<&SandboxId>,
    ) -> Result<(Entry, Policy), Refusal> {
        let Some(added) = &record.added else { return Err(Refusal::Unknown) };
        let mut policy = Policy::clone(&self.parts.gate.policy());
        let mut source = table::read(&record.id, &added.table, Names::MustExist, now, &policy)
            .map_err(Refusal::Mistakes)?;
        span.permits(&added.table, &source)?;
        // Should the config get a sandbox of this name, it is another one, and names others.
        source.owners.extend(lent_to);
        self.check_listeners(&source)?;
        self.check_sockets(&source)?;
        if let Some(before) = before {
            policy.leave(before);
        }
        let joining = SandboxSource { life: record.life(), ..source.clone() };
        policy.join(joining).map_err(|clash| Refusal::Conflict(clash.to_string()))?;
        Ok((Entry { source: Some(source), lent_to, ..Entry::kept(record) }, policy))
    }

    fn check_listeners(&self, source: &SandboxSource) -> Result<(), Refusal> {
        let named = source.identify.iter().filter_map(|evidence| match evidence {
            Evidence::All(Keys { listener, .. }) => listener.as_ref(),
            Evidence::Default => None,
        });
        let own: Vec<_> = source.sockets.iter().map(Socket::name).collect();
        let mut unknown = named.filter(|name| !self.parts.listeners.contains(name) && !own.contains(name));
        match unknown.next() {
            Some(name) if name.starts_with("unix:") => {
                let hint = "to have the socket opened for the sandbox, write its path as `unix`";
                Err(Refusal::Conflict(format!("the gateway has no listener {name:?}: {hint}")))
            }
            Some(name) => Err(Refusal::Conflict(format!("the gateway has no listener {name:?}"))),
            None => Ok(()),
        }
    }

    /// Writes an entry to the disk, unless it is lent, puts its policy in force and the change on record.
    async fn carry_out(
        &self,
        disk: Option<Arc<Store>>,
        entry: Entry,
        policy: Policy,
        change: SandboxChange<'_>,
        by: &By,
    ) -> Result<(), Refusal> {
        let (record, id) = (entry.record.clone(), entry.record.id.clone());
        // A sandbox of the config that goes on has nothing to be remembered.
        let is_plain = record.added.is_none() && record.paused.is_none();
        if let Some(store) = disk {
            on_disk(move || if is_plain { store.remove(&record.id) } else { store.write(&record) }).await?;
        }
        self.held(|held| match held.entries.entry(id.clone()) {
            Slot::Occupied(slot) if is_plain => drop(slot.remove()),
            Slot::Occupied(mut slot) => drop(slot.insert(entry)),
            Slot::Vacant(slot) => drop(slot.insert(entry)),
        });
        let policy = Arc::new(policy);
        self.put_in_force(&policy);
        if let Some(sandbox) = in_force(&policy, &id) {
            self.note(&sandbox, change, Some(by)).await;
        }
        Ok(())
    }

    pub(super) async fn note(&self, sandbox: &Sandbox, change: SandboxChange<'_>, by: Option<&By>) {
        // The change is made; a lost line is told by the audit itself.
        let _ = self.parts.audit.note(Notice::Sandbox { sandbox, change, by }).await;
    }

    /// Where a change of a sandbox is remembered: nowhere where it is lent.
    pub(super) fn disk(&self, lent_to: Option<u32>) -> Result<Option<Arc<Store>>, Refusal> {
        if lent_to.is_some() { Ok(None) } else { self.store().map(Some) }
    }

    pub(super) fn store(&self) -> Result<Arc<Store>, Refusal> {
        self.store.clone().ok_or_else(|| {
            let detail = "a restart would forget it: write `path` in [state] of the config, and restart";
            Refusal::Conflict(detail.to_owned())
        })
    }
}

impl Held {
    /// One that was added at run time and that the caller may touch.
    fn added(&self, id: &SandboxId, span: &Span) -> Result<&Entry, Refusal> {
        let entry = self.entries.get(id).filter(|entry| entry.record.added.is_some());
        let Some(entry) = entry else {
            let seen = self.base.sandbox(id).is_some_and(|sandbox| span.covers(&sandbox.labels));
            return Err(match seen {
                true => Refusal::Conflict(format!("sandbox {id} stands in the config: change it there")),
                false => Refusal::Unknown,
            });
        };
        // What a caller may not touch is not there for it.
        if entry.is_within(span) { Ok(entry) } else { Err(Refusal::Unknown) }
    }

    /// The entry of a sandbox once it is paused, or goes on.
    fn paused(&self, id: &SandboxId, paused: Option<Tunnels>, span: &Span) -> Result<Entry, Refusal> {
        let entry = match self.entries.get(id) {
            Some(entry) if entry.record.added.is_some() => self.added(id, span)?.copy(),
            Some(entry) => entry.copy(),
            None => Entry::kept(Record::of_config(id.clone(), None)),
        };
        let in_config = || self.base.sandbox(id).is_some_and(|sandbox| span.covers(&sandbox.labels));
        if entry.record.added.is_none() && !in_config() {
            return Err(Refusal::Unknown);
        }
        if entry.record.over {
            return Err(Refusal::Conflict(format!("the time of sandbox {id} is over")));
        }
        if paused.is_none() && entry.record.paused.is_none() {
            return Err(Refusal::Conflict(format!("sandbox {id} is not paused")));
        }
        Ok(Entry { record: entry.record.with_paused(paused), ..entry })
    }
}

impl Entry {
    /// Whether it is there for a caller. What can no longer be read is there for those who may touch everything.
    fn is_within(&self, span: &Span) -> bool {
        match &self.source {
            Some(source) => span.covers(&source.labels),
            None => span.covers(&BTreeMap::new()),
        }
    }

    fn copy(&self) -> Self {
        let Self { record, source, clash, lent_to } = self;
        Self { record: record.clone(), source: source.clone(), clash: clash.clone(), lent_to: *lent_to }
    }
}

/// Does what waits for a disk on a thread of its own.
pub(super) async fn on_disk(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> Result<(), Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other).flatten().map_err(Refusal::Failed)
}

fn end(now: Timestamp, ttl: Duration) -> u64 {
    now.plus_nanos(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)).nanos()
}

fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such sandbox"),
            Self::Conflict(detail) | Self::NotPermitted(detail) => f.write_str(detail),
            Self::Mistakes(mistakes) => {
                let listed: Vec<_> = mistakes.iter().map(|mistake| mistake.what.as_str()).collect();
                f.write_str(&listed.join("; "))
            }
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}
