//! A run that a gateway serves which runs already: the namespace's sockets are handed over, and the summary comes back.

use std::path::Path;

use serde_json::Value;

use super::{Decided, FAILED, Failed, let_go_of_streams};
use crate::cli::registration::{End, Registration, Served};
use crate::error_chain;
use crate::netns::handover::Offered;
use crate::summary::Told;
use crate::workload::{Helper, Outcome, Published, RunError, Session, eprint};

/// Has the command served for as long as it runs, in a sandbox that there is, or in one that is made by `table`.
pub(super) async fn serve(
    run: &Decided,
    socket: &Path,
    table: Option<&Value>,
    helper: Helper,
    publish: &[Published],
    told: &mut Told,
) -> Result<Outcome, Failed> {
    let shape = run.prepared.launch.terminal.as_ref().map(|(shape, _)| shape.clone());
    let has_terminal = shape.is_some();
    let mut session = Session::new(helper, shape)?;
    let hand_over = |offered: Offered| {
        let refused = |error: &dyn std::error::Error| RunError::NotTaken(error_chain(error));
        let registration = match table {
            Some(table) => Registration::of_new(table, socket),
            None => Registration::of(&run.sandbox, socket),
        };
        let registration = registration.map_err(|error| refused(&error))?;
        offered.hand_on(registration.stream()).map_err(|error| refused(&error))?;
        Ok(registration)
    };
    let mut served = session.receive(hand_over).await?.served()?;
    session.publish(publish).await?;
    session.release()?;
    if !has_terminal {
        let_go_of_streams()?;
    }
    let ended = session.wait(broken(&mut served)).await;
    let status = ended.as_ref().map_or(FAILED, |ended| ended.code);
    match served.end(status).await {
        Some(summary) => *told = summary,
        None if ended.is_ok() => eprint("the gateway has gone, and with it the summary of this run"),
        None => {}
    }
    Ok(ended?)
}

/// Resolves when the gateway serves the namespace no more.
async fn broken(served: &mut Served) -> RunError {
    match served.ended().await {
        Ok(End::Shut(why)) => RunError::Shut(why),
        Ok(End::Gone) | Err(_) => RunError::GatewayGone,
    }
}
