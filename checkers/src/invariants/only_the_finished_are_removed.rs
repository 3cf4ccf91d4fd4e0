//! Nothing unfinished is removed, and what is removed leaves no key behind. (Contract, section 6: the rows of finished
//! workflows are removed by a committed purge.)

use holdfast_machine::{Command, Request, WorkflowId, WorkflowStatus};

use crate::{Check, Snapshot, Step, ensure};

pub fn of_step(step: &Step<'_>) -> Check {
    for (workflow, status) in step.removed {
        // It had ended, or was touched in the same entry.
        let is_touched = |request: &Request| match &request.command {
            Command::Delete { .. } => false,
            command => command.workflow() == Some(workflow),
        };
        let may_have_ended = step.said.iter().any(|(request, _)| is_touched(request));
        let had_ended = status.is_some_and(WorkflowStatus::is_terminal);
        ensure!(had_ended || may_have_ended, "{workflow} was removed, and it had not ended");
        nothing_is_left_behind(workflow, step.after)?;
    }
    Ok(())
}

/// No key speaks of a workflow that was removed, unless there is one of that id again.
fn nothing_is_left_behind(workflow: &WorkflowId, after: &Snapshot) -> Check {
    if after.workflows.contains_key(workflow) || after.rows.keys().any(|key| key.workflow == *workflow) {
        return Ok(());
    }
    let id = workflow.as_str().as_bytes();
    let speaks = |key: &&Vec<u8>| key.windows(id.len()).any(|part| part == id);
    let left: Vec<_> = after.stored.iter().filter(speaks).map(|key| String::from_utf8_lossy(key)).collect();
    ensure!(left.is_empty(), "{workflow} was removed, and left {left:?}");
    Ok(())
}
