use std::sync::Mutex;

use policy::file::{Document, load};
use policy::{
    Approver, Ask, Decision, Destination, Event, LocalAddresses, Observer, Peer, Policy, Reason, Receipt,
};
use prometheus::Opts;
use tokio::sync::broadcast::Receiver;

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// The reasons of the decisions so far.
#[derive(Default)]
struct Recorder(Mutex<Vec<&'static str>>);

impl Observer for Recorder {
    fn record(&self, event: &Event<'_>) -> Receipt {
        if let Event::Decision(told) = event {
            self.0.lock().unwrap().push(told.reason.map_or("-", Reason::code));
        }
        Receipt::written()
    }
}

fn policy(rules: &str) -> Arc<Policy> {
    let text = format!(
        "[policy.p]\n{rules}\n[sandbox.a]\npolicies = [\"p\"]\nidentify = [{{ source = \"10.0.0.1\" }}]\n\
         [sandbox.b]\npolicies = [\"p\"]\nidentify = [{{ source = \"10.0.0.2\" }}]\n"
    );
    let document = Document::new("t.toml", text.as_bytes()).unwrap();
    Arc::new(load(&[document], NOW, &LocalAddresses::default()).unwrap())
}

struct Bench {
    gate: Arc<Gate>,
    seen: Arc<Recorder>,
    desk: Arc<Desk>,
    news: Receiver<News>,
}

impl Bench {
    fn new() -> Self {
        let seen = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = Arc::clone(&seen) as _;
        let gate = Gate::new(policy("ask = [\"*:*\"]"), Arc::default(), observer, 7);
        let gate = Arc::new(gate);
        let counts = IntCounterVec::new(Opts::new("x", "x"), &["outcome"]).unwrap();
        let desk = Arc::new(Desk::new(Arc::clone(&gate), counts));
        let (_, news) = desk.follow();
        Self { gate, seen, desk, news }
    }

    fn pending(&self, sandbox: u8, to: &str) -> Pending {
        let peer = Peer::new("x".into(), Some(([10, 0, 0, sandbox], 1).into()));
        let ask = Ask::Stream(Destination::from_authority(to.as_bytes()).unwrap());
        match self.gate.check(self.gate.attempt(NOW, &peer, Inbound::Connect, ask)) {
            Decision::Ask(pending) => pending,
            other => panic!("{other:?}"),
        }
    }

    fn file(&self, sandbox: u8, to: &str) -> Ticket {
        match self.desk.file(self.pending(sandbox, to), NOW) {
            Filed::Waits(ticket) => ticket,
            Filed::Full(_) => panic!("no room"),
        }
    }

    fn only(&self) -> Question {
        let [question] = &self.desk.questions_now()[..] else { panic!("not one question") };
        question.clone()
    }

    fn approve(&self, term: Term) {
        let consent = Consent { term, path: None, at: NOW, by: Approver::Uid(0) };
        self.desk.approve(self.only().id, consent, |_| true).unwrap();
        self.desk.judge_anew(NOW);
    }

    /// The news since the last call: the word, and how many waited.
    fn news(&mut self) -> Vec<(&'static str, usize)> {
        let mut all = Vec::new();
        while let Ok(news) = self.news.try_recv() {
            all.push(match news {
                News::Pending(question) => ("pending", question.waiting),
                News::Decided(question, outcome) => (outcome.as_str(), question.waiting),
            });
        }
        all
    }

    fn recorded(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.seen.0.lock().unwrap())
    }
}

/// Whether it was woken, and why.
async fn woken(ticket: &mut Ticket) -> Option<Woken> {
    tokio::select! {
        biased;
        woken = ticket.woken() => Some(woken),
        () = std::future::ready(()) => None,
    }
}

#[tokio::test]
async fn attempts_of_one_kind_are_one_question() {
    let mut bench = Bench::new();
    let (first, second) = (bench.file(1, "a.example.com:443"), bench.file(1, "a.example.com:443"));
    let question = bench.only();
    assert_eq!((question.waiting, question.id), (2, first.attempt));
    let others = [bench.file(1, "a.example.com:80"), bench.file(2, "a.example.com:443")];
    assert_eq!(bench.desk.questions_now().len(), 3, "another port, and another sandbox");
    assert_eq!(bench.news(), [("pending", 1); 3]);
    drop((first, others));
    assert_eq!(bench.news(), [("left", 0); 2]);
    assert_eq!(bench.only().waiting, 1);
    drop(second);
    assert!(bench.desk.questions_now().is_empty() && bench.desk.questions().of.is_empty());
    assert_eq!(bench.recorded(), ["approval_pending"; 4], "each is on record");
}

#[tokio::test]
async fn a_sandbox_has_so_many_questions_and_no_more() {
    let bench = Bench::new();
    let mut held: Vec<_> =
        (0..MOST).map(|number| bench.file(1, &format!("n{number}.example.com:443"))).collect();
    for to in ["one.more.example.com:443", "n0.example.com:80"] {
        assert!(matches!(bench.desk.file(bench.pending(1, to), NOW), Filed::Full(_)), "{to}");
    }
    drop(bench.file(1, "n0.example.com:443"));
    drop(bench.file(2, "one.more.example.com:443"));
    held.pop();
    drop(bench.file(1, "one.more.example.com:443"));
}

#[tokio::test]
async fn once_wakes_the_one_who_has_waited_longest() {
    let mut bench = Bench::new();
    let (mut first, mut second) = (bench.file(1, "a.example.com:443"), bench.file(1, "a.example.com:443"));
    let before = bench.only().id;
    bench.approve(Term::Once);
    assert_eq!(woken(&mut first).await, Some(Woken::Judge));
    assert_eq!(woken(&mut second).await, None);
    let after = bench.only();
    assert!(after.id != before && after.waiting == 1, "the rest is another question");
    assert_eq!(bench.news(), [("pending", 1), ("approved", 2), ("pending", 1)]);
    let pending = first.give_back(Woken::Judge);
    assert!(matches!(bench.gate.resume(pending, NOW), Decision::Allow(_)));
    bench.approve(Term::Once);
    assert_eq!(woken(&mut second).await, Some(Woken::Judge));
    assert!(bench.desk.questions_now().is_empty());
}

#[tokio::test]
async fn an_approval_for_the_session_wakes_everybody() {
    let mut bench = Bench::new();
    let mut held = [bench.file(1, "a.example.com:443"), bench.file(1, "a.example.com:443")];
    let mut other = bench.file(2, "b.example.com:443");
    let question = bench.desk.questions_now().into_iter().find(|question| question.waiting == 2).unwrap();
    let consent = Consent { term: Term::Session, path: None, at: NOW, by: Approver::Uid(0) };
    bench.desk.approve(question.id, consent, |_| true).unwrap();
    bench.desk.judge_anew(NOW);
    for ticket in &mut held {
        assert_eq!(woken(ticket).await, Some(Woken::Judge));
    }
    assert_eq!(woken(&mut other).await, None);
    assert_eq!(bench.news(), [("pending", 1), ("pending", 1), ("approved", 0)]);
}

#[tokio::test]
async fn a_denial_is_for_everybody_who_waits() {
    let mut bench = Bench::new();
    let mut held = [bench.file(1, "a.example.com:443"), bench.file(1, "a.example.com:443")];
    let id = bench.only().id;
    assert_eq!(
        bench.desk.deny(id, |_| false).unwrap_err(),
        NotAnswered::Unknown,
        "not there for this caller"
    );
    assert_eq!(bench.desk.deny(id, |_| true).unwrap().waiting, 2);
    for ticket in &mut held {
        assert_eq!(woken(ticket).await, Some(Woken::Denied));
    }
    assert_eq!(bench.desk.deny(id, |_| true).unwrap_err(), NotAnswered::Unknown);
    assert_eq!(bench.news(), [("pending", 1), ("denied", 0)]);
}

#[tokio::test]
async fn a_policy_that_asks_no_more_wakes_whoever_waits() {
    let mut bench = Bench::new();
    let mut ticket = bench.file(1, "a.example.com:443");
    bench.gate.install(policy("ask = [\"*\"]"));
    bench.desk.judge_anew(NOW);
    assert_eq!(woken(&mut ticket).await, None, "it still asks");
    bench.gate.install(policy("ask = [\"*\"]\ndeny = [\"a.example.com\"]"));
    let id = bench.only().id;
    let consent = Consent { term: Term::Session, path: None, at: NOW, by: Approver::Uid(0) };
    let refused = bench.desk.approve(id, consent, |_| true).unwrap_err();
    assert_eq!(refused, NotAnswered::NotApproved(NotApproved::NotAsked));
    bench.desk.judge_anew(NOW);
    assert_eq!(woken(&mut ticket).await, Some(Woken::Judge));
    assert_eq!(bench.news(), [("pending", 1), ("policy_changed", 0)]);
    let Decision::Deny(denial) = bench.gate.resume(ticket.give_back(Woken::Judge), NOW) else {
        panic!("allowed")
    };
    assert_eq!(denial.settle().await.reason(), Reason::DeniedByRule);
}

/// What is approved between the decision and the filing must not be missed.
#[tokio::test]
async fn who_comes_after_the_approval_does_not_wait() {
    let bench = Bench::new();
    let late = bench.pending(1, "a.example.com:443");
    let _waits = bench.file(1, "a.example.com:443");
    bench.approve(Term::Session);
    let Filed::Waits(mut ticket) = bench.desk.file(late, NOW) else { panic!("no room") };
    assert_eq!(woken(&mut ticket).await, Some(Woken::Judge));
    assert!(bench.desk.questions_now().is_empty());
}
