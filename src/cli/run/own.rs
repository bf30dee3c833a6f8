//! A run that is its own gateway.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use super::{Decided, FAILED, Failed, let_go_of_streams};
use crate::app::{App, Happened, Running};
use crate::audit::{self, SandboxChange};
use crate::config::Config;
use crate::namespaces::Open;
use crate::summary::Told;
use crate::workload::{Helper, Outcome, Published, RunError, Session};

/// How long streams may take to end after the command has: nobody is left at their near ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where contacts are written. Standard output is the command's.
pub(super) fn audit_settings(config: &Config, audit: Option<PathBuf>) -> audit::Settings {
    match audit {
        Some(path) => {
            let rotation =
                config.audit.rotation.map(|one| audit::Rotation { size: one.size, keep: one.keep });
            audit::Settings { place: audit::Place::File(path), required: config.audit.required, rotation }
        }
        None => audit::Settings { place: audit::Place::Nowhere, required: false, rotation: None },
    }
}

/// Serves the command for as long as it runs: in its namespace, or weakly where there is a listener for it.
pub(super) async fn serve(
    run: &Decided,
    config: &Config,
    audit: &audit::Settings,
    helper: Helper,
    proxy: Option<TcpListener>,
    publish: &[Published],
    told: &mut Told,
) -> Result<Outcome, Failed> {
    let sandbox = &run.sandbox;
    let shape = run.prepared.launch.terminal.as_ref().map(|(shape, _)| shape.clone());
    let has_terminal = shape.is_some();
    let mut session = Session::new(helper, shape)?;
    let app = App::for_one_command(config.clone(), audit).await?;
    let summary = app.core().summaries.keep(sandbox.clone());
    let mut running = app.serve();
    let open = match proxy {
        Some(listener) => {
            running.serve_weakly(sandbox.clone(), listener)?;
            None
        }
        None => {
            let checked = session.receive(|offered| Ok(offered.check()?)).await?;
            Some(running.open_namespace(sandbox.clone(), checked)?)
        }
    };
    if open.is_some() {
        session.publish(publish).await?;
    }
    running.note_workload(sandbox, SandboxChange::Start).await;
    session.release()?;
    if !has_terminal {
        let_go_of_streams()?;
    }
    let ended = session.wait(broken(&mut running, open)).await;
    let status = ended.as_ref().map_or(FAILED, |ended| ended.code);
    running.note_workload(sandbox, SandboxChange::Exit { status: Some(status) }).await;
    running.end(LAST_WORDS).await;
    *told = summary.told();
    Ok(ended?)
}

/// Serves the namespace, where there is one. Ends only where that must not go on.
async fn broken(running: &mut Running, open: Option<Open>) -> RunError {
    let mut shut = std::pin::pin!(async {
        match open {
            None => std::future::pending().await,
            Some(mut open) => open.watch().await,
        }
    });
    loop {
        tokio::select! {
            happened = running.happening() => match happened {
                Happened::Broken(error) => return RunError::Broken(error),
                // The policy of a run is read once.
                Happened::Order(_) => {}
            },
            why = &mut shut => return RunError::Shut(why.to_string()),
        }
    }
}
