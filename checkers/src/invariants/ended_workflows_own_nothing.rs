//! Invariant 15: a finished workflow owns no pending and no claimed row at any index. (Contract, section 5: when a
//! batch ends the workflow, apply settles its rows in the same entry.)

use crate::{Check, Snapshot, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    for (key, row) in state.rows.iter().filter(|(_, row)| row.status.is_live()) {
        let Some(told) = state.workflows.get(&key.workflow) else {
            ensure_eq!(row.run, 1, "{key} was staged by itself and lives in a later run");
            continue;
        };
        let status = told.workflow.status;
        ensure!(!status.is_terminal(), "{key} is {} and its workflow {status}", row.status);
        ensure_eq!(row.run, told.workflow.run.number, "{key} lives in a run that is over");
    }
    Ok(())
}
