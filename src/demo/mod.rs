//! `tidegate demo`: the main job on a stand-in internet of its own, so that it can be seen without one.
//!
//! A real gateway is started from a config file, as `serve` does; real requests go through every inbound; what is shown is
//! what the clients got and what the audit log says. Nothing leaves the machine.

mod client;
mod report;
mod sandbox;
mod stage;
mod steps;

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use policy::Reason;
use tokio::sync::oneshot;

use crate::app::StartError;
use crate::audit::{History, Line};
use crate::error_chain;
use stage::Stage;
use steps::{STEPS, Step};

pub use report::Report;

/// An end of a tunnel is on record this long after it at the latest.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The stage could not be set up.
    #[error("cannot set up the demo")]
    Stage(#[from] io::Error),
    /// The gateway did not start.
    #[error("the gateway of the demo did not start")]
    Start(#[source] StartError),
}

/// What one step showed.
#[derive(Debug)]
struct Shown {
    step: &'static Step,
    /// What the client got, in its own protocol's words.
    client: String,
    /// What the log says of it: the attempt's last word.
    reason: Option<Reason>,
}

/// Runs the demo. To be called before the process has a second thread: an ordinary user then gets namespaces of his own.
///
/// # Errors
/// Where the stage or the gateway cannot be set up.
pub fn run() -> Result<Report, DemoError> {
    let began = Instant::now();
    let stage = Stage::build()?;
    let (ready, started) = mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let (shown, lines) = thread::scope(|scope| {
        let gateway = scope.spawn(|| stage.serve(&ready, stopped));
        let played = match started.recv() {
            Ok(Ok(())) => play(&stage).map_err(DemoError::from),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the gateway's thread ended before it served").into()),
        };
        drop(stop);
        let ended = gateway.join().unwrap_or_else(|_| Err(io::Error::other("the gateway panicked")));
        let (shown, mut history, mut lines) = played?;
        ended?;
        read(&mut history, &mut lines)?;
        Ok::<_, DemoError>((shown, lines))
    })?;
    Ok(Report::new(&stage, shown, lines, began.elapsed()))
}

/// Takes every step that this stage can play, one after the other.
fn play(stage: &Stage) -> io::Result<(Vec<Shown>, History, Vec<Line>)> {
    let mut history = History::open(&stage.audit())?;
    let mut lines = Vec::new();
    let mut shown = Vec::new();
    for step in STEPS.iter().filter(|step| stage.can_play(step)) {
        let before = lines.len();
        let client = client::ask(stage, step).unwrap_or_else(|error| error_chain(&error));
        // The decision was on record before the client had its answer; the end of a tunnel comes a little later.
        let until = Instant::now() + PATIENCE;
        loop {
            read(&mut history, &mut lines)?;
            let of_step = lines.get(before..).unwrap_or_default();
            if reason(of_step) == step.expected || Instant::now() > until {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let reason = reason(lines.get(before..).unwrap_or_default());
        shown.push(Shown { step, client, reason });
    }
    Ok((shown, history, lines))
}

fn reason(lines: &[Line]) -> Option<Reason> {
    lines.iter().filter_map(|line| Reason::from_code(line.reason.as_deref()?)).next_back()
}

fn read(history: &mut History, lines: &mut Vec<Line>) -> io::Result<()> {
    while let Some(text) = history.next_line()? {
        lines.extend(Line::parse(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_of_the_demo_is_as_the_policy_says() {
        let report = run().expect("the demo runs, with namespaces or without");
        assert!(report.is_as_expected(), "{report}");
        // Where the machine permits a network of its own.
        let text = report.to_string();
        assert!(
            text.contains("\ntcp ") || text.contains("permits no") || text.contains("not shown"),
            "{text}"
        );
        for word in ["connect", "http", "socks5", "dns", "not_listed", "metadata_endpoint"] {
            assert!(report.to_string().contains(word), "{word}: {report}");
        }
    }
}
