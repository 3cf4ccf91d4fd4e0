//! A timer is armed for a run that is open; the end of the run takes it away. (Contract, section 7: retired ones do
//! not come back, and an ended workflow has nothing left to wake up for.)

use crate::{Check, Snapshot, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    for (workflow, arming) in &state.timers {
        let told = state.workflows.get(workflow);
        let open = told.is_some_and(|told| !told.workflow.status.is_terminal());
        ensure!(open, "{arming:?} is armed for {workflow}, which is not open");
    }
    ensure_eq!(state.stored_in(b'F'), state.timers.len(), "timers on disk are not those that are armed");
    Ok(())
}
