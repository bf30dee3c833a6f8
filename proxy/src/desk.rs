//! The desk: attempts that wait for a person, as questions by what an approval of them would bind.
//!
//! ```text
//! Pending ─file─▶ Ticket ─woken─▶ the gate judges it anew
//!            └──▶ Question ─▶ a person ─ approve, deny ─┘
//! ```
//!
//! Whoever waits is judged anew when something is approved and when the policy changes, and leaves its place by dropping
//! its ticket. Nothing is kept of a question that nobody waits for.

mod ticket;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use policy::gate::{Awaits, NotApproved};
use policy::{
    Approval, Attempt, AttemptId, Binding, Consent, Gate, Inbound, Pending, RuleRef, Sandbox, SandboxId,
    Term, Timestamp,
};
use prometheus::IntCounterVec;
use tokio::sync::{broadcast, oneshot};

pub(crate) use self::ticket::{Filed, Ticket, Woken};

/// So many questions of one sandbox wait at once.
pub const MOST: usize = 8;

/// So much news is kept for those who read it slowly.
const NEWS: usize = 256;

/// Something that a sandbox wants to do and a person must approve.
#[derive(Clone, Debug)]
pub struct Question {
    /// Its name: that of the first attempt that waits for it.
    pub id: AttemptId,
    /// What an approval would bind.
    pub binding: Binding,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// Whose it is, as the policy knew it then.
    pub sandbox: Arc<Sandbox>,
    /// The way the first attempt came in.
    pub inbound: Inbound,
    /// The rule that asks.
    pub rule: Option<RuleRef>,
    /// How many attempts wait for it.
    pub waiting: usize,
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A person has approved it.
    Approved,
    /// A person has declined it.
    Denied,
    /// Nobody has answered in time.
    TimedOut,
    /// Everybody who waited for it has left.
    Left,
    /// The policy has changed and does not ask for it any more.
    Changed,
}

impl Outcome {
    /// The public word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::TimedOut => "timed_out",
            Self::Left => "left",
            Self::Changed => "policy_changed",
        }
    }
}

/// What is new at the desk.
#[derive(Clone, Debug)]
pub enum News {
    /// A question waits.
    Pending(Question),
    /// One does not wait any more.
    Decided(Question, Outcome),
}

impl News {
    /// The question that it is about.
    #[must_use]
    pub const fn question(&self) -> &Question {
        match self {
            Self::Pending(question) | Self::Decided(question, _) => question,
        }
    }
}

/// Why a question was not answered as a person wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswered {
    /// It has ended, or there was none.
    #[error("no question of this id waits; it may have ended")]
    Unknown,
    /// The path of the approval does not lie above the one that was asked for.
    #[error("the path is not one that holds what was asked for")]
    Path,
    /// The gate has not taken the approval.
    #[error(transparent)]
    NotApproved(#[from] NotApproved),
}

/// Where attempts wait.
pub struct Desk {
    gate: Arc<Gate>,
    questions: Mutex<Questions>,
    news: broadcast::Sender<News>,
    counts: IntCounterVec,
}

#[derive(Debug, Default)]
struct Questions {
    all: HashMap<Binding, Entry>,
    /// How many of them each sandbox has; none that has none.
    of: HashMap<SandboxId, usize>,
}

#[derive(Debug)]
struct Entry {
    id: AttemptId,
    asked_at: Timestamp,
    sandbox: Arc<Sandbox>,
    inbound: Inbound,
    rule: Option<RuleRef>,
    /// The oldest first; never empty while the lock is free.
    waiting: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    attempt: Attempt,
    wake: oneshot::Sender<Woken>,
}

impl Desk {
    pub(crate) fn new(gate: Arc<Gate>, counts: IntCounterVec) -> Self {
        Self { gate, questions: Mutex::default(), news: broadcast::Sender::new(NEWS), counts }
    }

    /// Puts an attempt among those that wait for its question. There is no place for a question too many, nor for what has
    /// no port.
    pub(crate) fn file(self: &Arc<Self>, pending: Pending, now: Timestamp) -> Filed {
        let Some(binding) = pending.binding() else { return Filed::Full(pending) };
        let (wake, woken) = oneshot::channel();
        let mut questions = self.questions();
        let Questions { all, of } = &mut *questions;
        let waiter = Waiter { attempt: pending.attempt().clone(), wake };
        match all.get_mut(&binding) {
            Some(entry) => entry.waiting.push(waiter),
            None => {
                let count = of.entry(binding.sandbox.clone()).or_default();
                if *count >= MOST {
                    return Filed::Full(pending);
                }
                *count += 1;
                let entry = Entry {
                    id: pending.attempt().id,
                    asked_at: pending.attempt().at,
                    sandbox: Arc::clone(pending.sandbox()),
                    inbound: pending.attempt().inbound,
                    rule: pending.rule().cloned(),
                    waiting: vec![waiter],
                };
                self.tell(News::Pending(entry.question(&binding)));
                all.insert(binding.clone(), entry);
            }
        }
        // What has changed since it was decided woke those who stood here then.
        self.judge(&mut questions, &binding, now);
        drop(questions);
        Filed::Waits(Ticket::new(Arc::clone(self), binding, pending, woken))
    }

    /// Wakes whoever need not wait any more, after something was approved or the policy has changed.
    pub(crate) fn judge_anew(&self, now: Timestamp) {
        let mut questions = self.questions();
        let bindings: Vec<_> = questions.all.keys().cloned().collect();
        for binding in bindings {
            self.judge(&mut questions, &binding, now);
        }
    }

    fn judge(&self, questions: &mut Questions, binding: &Binding, now: Timestamp) {
        let Some(entry) = questions.all.get_mut(binding) else { return };
        let before = entry.question(binding);
        let mut outcome = None;
        for waiter in std::mem::take(&mut entry.waiting) {
            let found = match self.gate.awaits(&waiter.attempt, now) {
                Awaits::Still => {
                    entry.waiting.push(waiter);
                    continue;
                }
                Awaits::Approved => Outcome::Approved,
                Awaits::Changed => Outcome::Changed,
            };
            if outcome != Some(Outcome::Approved) {
                outcome = Some(found);
            }
            // Who has left meanwhile does not hear of it.
            let _ = waiter.wake.send(Woken::Judge);
        }
        match (outcome, entry.waiting.first()) {
            (Some(outcome), None) => self.end(questions, binding, outcome),
            // It was approved for one of those who wait: the rest is another question.
            (Some(Outcome::Approved), Some(next)) => {
                (entry.id, entry.asked_at, entry.inbound) =
                    (next.attempt.id, next.attempt.at, next.attempt.inbound);
                let after = entry.question(binding);
                self.count(Outcome::Approved);
                self.tell(News::Decided(before, Outcome::Approved));
                self.tell(News::Pending(after));
            }
            (Some(_) | None, _) => {}
        }
    }

    /// Puts an approval of a question in force. The gateway is then to be told that the policy has changed, so that who
    /// waits is woken. `may` says whether the question is there for whoever approves it.
    ///
    /// # Errors
    /// Where there is no such question, or it cannot be approved so.
    pub fn approve(
        &self,
        id: AttemptId,
        consent: Consent,
        may: impl Fn(&Question) -> bool,
    ) -> Result<Arc<Approval>, NotAnswered> {
        let at = consent.at;
        let questions = self.questions();
        let (_, entry) = questions.find(id, may).ok_or(NotAnswered::Unknown)?;
        let first = &entry.waiting.first().ok_or(NotAnswered::Unknown)?.attempt;
        // One that stands for many attempts is called as the question; no other approval was ever called so.
        let name = if consent.term == Term::Once { first.id } else { entry.id };
        let asked = (first.ask.clone(), entry.asked_at);
        let approval = Approval::new(name, &entry.sandbox.id, asked, consent).ok_or(NotAnswered::Path)?;
        // Under the lock: whoever leaves meanwhile would leave an approval for itself alone that nobody uses up.
        let approved = self.gate.approve(approval, at);
        drop(questions);
        Ok(approved?)
    }

    /// Declines a question: everybody who waits for it is denied.
    ///
    /// # Errors
    /// Where there is no such question.
    pub fn deny(&self, id: AttemptId, may: impl Fn(&Question) -> bool) -> Result<Question, NotAnswered> {
        let mut questions = self.questions();
        let binding = questions.find(id, may).ok_or(NotAnswered::Unknown)?.0.clone();
        let entry = questions.all.get_mut(&binding).ok_or(NotAnswered::Unknown)?;
        let question = entry.question(&binding);
        for waiter in entry.waiting.drain(..) {
            let _ = waiter.wake.send(Woken::Denied);
        }
        self.end(&mut questions, &binding, Outcome::Denied);
        Ok(question)
    }

    /// The questions that wait, the oldest first.
    #[must_use]
    pub fn questions_now(&self) -> Vec<Question> {
        self.questions().list()
    }

    /// How many questions wait.
    pub(crate) fn count_now(&self) -> usize {
        self.questions().all.len()
    }

    /// The questions that wait, and the news from then on.
    #[must_use]
    pub fn follow(&self) -> (Vec<Question>, broadcast::Receiver<News>) {
        let questions = self.questions();
        (questions.list(), self.news.subscribe())
    }

    /// Takes an attempt away that waits no longer.
    fn leave(&self, binding: &Binding, attempt: AttemptId, outcome: Outcome) {
        let mut questions = self.questions();
        let Some(entry) = questions.all.get_mut(binding) else { return };
        let before = entry.waiting.len();
        entry.waiting.retain(|waiter| waiter.attempt.id != attempt);
        if entry.waiting.is_empty() && before > 0 {
            self.end(&mut questions, binding, outcome);
        }
    }

    fn end(&self, questions: &mut Questions, binding: &Binding, outcome: Outcome) {
        let Some(entry) = questions.all.remove(binding) else { return };
        if let Some(count) = questions.of.get_mut(&binding.sandbox) {
            *count -= 1;
            if *count == 0 {
                questions.of.remove(&binding.sandbox);
            }
        }
        self.count(outcome);
        self.tell(News::Decided(entry.question(binding), outcome));
    }

    fn count(&self, outcome: Outcome) {
        self.counts.with_label_values(&[outcome.as_str()]).inc();
    }

    fn tell(&self, news: News) {
        // Nobody may be listening.
        let _ = self.news.send(news);
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        // What a panic leaves behind is a question that somebody waits for or nobody.
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Questions {
    fn find(&self, id: AttemptId, may: impl Fn(&Question) -> bool) -> Option<(&Binding, &Entry)> {
        self.all.iter().find(|(binding, entry)| entry.id == id && may(&entry.question(binding)))
    }

    fn list(&self) -> Vec<Question> {
        let mut all: Vec<_> = self.all.iter().map(|(binding, entry)| entry.question(binding)).collect();
        all.sort_by_key(|question| question.id);
        all
    }
}

impl Entry {
    fn question(&self, binding: &Binding) -> Question {
        Question {
            id: self.id,
            binding: binding.clone(),
            asked_at: self.asked_at,
            sandbox: Arc::clone(&self.sandbox),
            inbound: self.inbound,
            rule: self.rule.clone(),
            waiting: self.waiting.len(),
        }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("questions", &self.count_now()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
