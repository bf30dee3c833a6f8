//! Approvals: what a person has let through of what ask rules hold back.
//!
//! A table of them is in force beside the policy. An ask rule that matches is looked up there: with an approval it lets
//! the attempt through, without one the attempt waits. So an approval opens nothing by itself: deny rules, the floor and
//! the judgement of addresses come before and after it as ever, and it ends with the rule that asked.

mod path;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use self::path::PathPrefix;
use crate::attempt::{Ask, AttemptId};
use crate::destination::{Destination, Host, Port};
use crate::hostname::Hostname;
use crate::sandbox::SandboxId;
use crate::shared::SharedMap;
use crate::time::Timestamp;

/// So many approvals of one sandbox stand at once.
pub const MOST: usize = 256;

/// Who gives an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approver {
    /// A user of this host.
    Uid(u32),
    /// Whoever holds a certificate of this name.
    Certificate(Box<str>),
}

impl fmt::Display for Approver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "uid {uid}"),
            Self::Certificate(name) => write!(f, "certificate {}", name.escape_debug()),
        }
    }
}

/// What an approval binds: whoever asks for anything else asks anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// Whose attempts.
    pub sandbox: SandboxId,
    /// To this host; never to the others that the ask rule covers.
    pub host: Host,
    /// On this port.
    pub port: Port,
    /// With this method; `None` for a stream, whose requests it then covers too.
    pub method: Option<Box<str>>,
    /// On this path and below; `None` for a stream.
    pub path: Option<PathPrefix>,
}

impl Binding {
    /// What an approval of an attempt would bind; `None` for what has no port.
    pub(crate) fn of(sandbox: &SandboxId, ask: &Ask) -> Option<Self> {
        let Destination { host, port } = ask.destination()?.clone();
        let (method, path) = match ask {
            Ask::Request { method, path, .. } => (Some(method.clone()), Some(PathPrefix::of(path))),
            Ask::Stream(_) | Ask::Lookup { .. } | Ask::Unreadable { .. } => (None, None),
        };
        Some(Self { sandbox: sandbox.clone(), host, port, method, path })
    }

    fn covers(&self, destination: &Destination, request: Option<(&str, &str)>) -> bool {
        if self.host != destination.host || self.port != destination.port {
            return false;
        }
        match (&self.method, &self.path, request) {
            (None, None, _) => true,
            (method, path, Some((asked, on))) => {
                method.as_ref().is_none_or(|method| **method == *asked)
                    && path.as_ref().is_none_or(|path| path.covers(on))
            }
            (_, _, None) => false,
        }
    }
}

/// How long an approval holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// For the one attempt whose id it has, and what is asked for inside its tunnel.
    Once,
    /// For as long as its sandbox is there and the gateway runs.
    Session,
    /// Until then, unless the session ends before.
    Until(Timestamp),
}

impl Term {
    /// The public word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Session => "session",
            Self::Until(_) => "until",
        }
    }
}

/// One thing that a person has let through.
#[derive(Debug)]
pub struct Approval {
    /// Its name: that of an attempt which waited for it.
    pub id: AttemptId,
    /// What it binds.
    pub binding: Binding,
    /// What was asked for, word for word: the approval stands for as long as a rule asks for that.
    pub asked: Ask,
    /// When it was asked for.
    pub asked_at: Timestamp,
    /// How long it holds.
    pub term: Term,
    /// When it was given.
    pub given_at: Timestamp,
    /// Who gave it.
    pub by: Approver,
    /// Its one attempt has ended.
    over: AtomicBool,
}

impl PartialEq for Approval {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

/// What a person says to a question.
#[derive(Clone, Debug)]
pub struct Consent {
    /// How long it holds.
    pub term: Term,
    /// On which path and below, where that is more than was asked for.
    pub path: Option<PathPrefix>,
    /// When it is given.
    pub at: Timestamp,
    /// Who gives it.
    pub by: Approver,
}

impl Approval {
    /// The approval of an attempt of a sandbox; `None` for what cannot be approved: it has no port, or the path of the
    /// consent does not lie above the one that was asked for.
    #[must_use]
    pub fn new(id: AttemptId, sandbox: &SandboxId, asked: (Ask, Timestamp), given: Consent) -> Option<Self> {
        let (asked, asked_at) = asked;
        let mut binding = Binding::of(sandbox, &asked)?;
        if let Some(wider) = given.path {
            binding.path = Some(wider.above(binding.path.as_ref()?)?);
        }
        let Consent { term, at, by, .. } = given;
        Some(Self { id, binding, asked, asked_at, term, given_at: at, by, over: AtomicBool::new(false) })
    }

    /// Whether it has not ended by itself.
    #[must_use]
    pub fn holds_at(&self, now: Timestamp) -> bool {
        let in_time = match self.term {
            Term::Until(end) => now < end,
            Term::Once | Term::Session => true,
        };
        in_time && !self.over.load(Ordering::Relaxed)
    }

    /// Notes that an attempt has ended: an approval for it alone is used up.
    pub(crate) fn spend(&self, attempt: AttemptId) {
        if self.term == Term::Once && self.id == attempt {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    fn counts_for(&self, attempt: AttemptIds) -> bool {
        self.term != Term::Once || [attempt.own, attempt.tunnel].contains(&Some(self.id))
    }
}

/// The approvals of a gateway. Copies share what neither of them has changed.
#[derive(Clone, Debug, Default)]
pub struct Approvals(SharedMap<SandboxId, Arc<[Arc<Approval>]>>);

impl Approvals {
    /// Every approval, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Approval>> {
        self.0.values().flat_map(|all| all.iter())
    }

    /// The approvals of a sandbox, the oldest first.
    #[must_use]
    pub fn of(&self, sandbox: &SandboxId) -> &[Arc<Approval>] {
        self.0.get(sandbox).map(|all| &**all).unwrap_or_default()
    }

    /// The first moment after `now` at which one ends by itself.
    #[must_use]
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = self.iter().filter_map(|approval| match approval.term {
            Term::Until(end) => Some(end),
            Term::Once | Term::Session => None,
        });
        ends.filter(|end| *end > now).min()
    }

    /// The same with one more; `None` where its sandbox has as many as it may have.
    pub(crate) fn with(&self, approval: &Arc<Approval>) -> Option<Self> {
        let held = self.of(&approval.binding.sandbox);
        (held.len() < MOST).then(|| {
            let all = held.iter().chain([approval]).cloned().collect();
            let mut more = self.clone();
            more.0.insert(approval.binding.sandbox.clone(), all);
            more
        })
    }

    /// The same without those that are not to be kept.
    pub(crate) fn retaining(&self, keep: impl Fn(&Approval) -> bool) -> Self {
        let mut fewer = self.clone();
        for (sandbox, all) in self.0.iter().filter(|(_, all)| !all.iter().all(|each| keep(each))) {
            let kept: Arc<[_]> = all.iter().filter(|each| keep(each)).cloned().collect();
            match kept.is_empty() {
                true => drop(fewer.0.remove(sandbox)),
                false => drop(fewer.0.insert(sandbox.clone(), kept)),
            }
        }
        fewer
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A table of these; of one sandbox no more than it may have.
impl FromIterator<Approval> for Approvals {
    fn from_iter<I: IntoIterator<Item = Approval>>(approvals: I) -> Self {
        approvals.into_iter().fold(Self::default(), |all, each| all.with(&Arc::new(each)).unwrap_or(all))
    }
}

/// The attempt that is judged, and that of the tunnel which it was read in.
#[derive(Clone, Copy, Debug, Default)]
struct AttemptIds {
    own: Option<AttemptId>,
    tunnel: Option<AttemptId>,
}

/// The approvals that count for one judgement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Approved<'a> {
    all: Option<&'a Approvals>,
    attempt: AttemptIds,
}

impl<'a> Approved<'a> {
    /// None: what ask rules match waits.
    pub const NONE: Self = Self { all: None, attempt: AttemptIds { own: None, tunnel: None } };

    /// All but those for one attempt alone.
    #[must_use]
    pub const fn standing(all: &'a Approvals) -> Self {
        Self { all: Some(all), ..Self::NONE }
    }

    /// The same with those for this attempt alone, or for the tunnel that it was read in.
    pub(crate) fn of_attempt(self, own: AttemptId, tunnel: Option<AttemptId>) -> Self {
        Self { attempt: AttemptIds { own: Some(own), tunnel }, ..self }
    }

    fn holding(self, sandbox: &SandboxId, now: Timestamp) -> impl Iterator<Item = &'a Arc<Approval>> {
        let all = self.all.map(|all| all.of(sandbox)).unwrap_or_default();
        all.iter().filter(move |approval| approval.holds_at(now) && approval.counts_for(self.attempt))
    }

    /// The approval of a stream or a request.
    pub(crate) fn find(
        self,
        sandbox: &SandboxId,
        destination: &Destination,
        request: Option<(&str, &str)>,
        now: Timestamp,
    ) -> Option<&'a Arc<Approval>> {
        self.holding(sandbox, now).find(|approval| approval.binding.covers(destination, request))
    }

    /// The approvals of anything on a name, on whatever port: with one it may be looked up.
    pub(crate) fn of_name(
        self,
        sandbox: &SandboxId,
        name: &Hostname,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Arc<Approval>> {
        self.holding(sandbox, now).filter(move |approval| approval.binding.host.name() == Some(name))
    }
}

#[cfg(test)]
mod tests;
