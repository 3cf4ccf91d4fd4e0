//! Nothing unfinished is removed, and what is removed leaves no key behind. (Contract, section 6: the rows of finished
//! workflows are removed by a committed purge.)

use holdfast_machine::{Command, Reject, Reply, Request, WorkflowId};

use super::Snapshot;

/// A workflow that is gone had ended, or was touched in the same entry.
pub fn only_the_finished_are_removed(before: &Snapshot, after: &Snapshot, said: &[(Request, Result<Reply, Reject>)]) {
    for (id, told) in before.workflows.iter().filter(|(id, _)| !after.workflows.contains_key(id)) {
        let is_touched = |request: &Request| match &request.command {
            Command::Delete { .. } => false,
            command => command.workflow() == Some(id),
        };
        let may_have_ended = said.iter().any(|(request, _)| is_touched(request));
        assert!(told.workflow.status.is_terminal() || may_have_ended, "{id} was removed, and it had not ended");
    }
}

/// No key speaks of a workflow that was removed, unless there is one of that id again.
pub fn nothing_is_left_behind(workflow: &WorkflowId, after: &Snapshot) {
    if after.workflows.contains_key(workflow) || after.rows.keys().any(|key| key.workflow == *workflow) {
        return;
    }
    let id = workflow.as_str().as_bytes();
    let speaks = |key: &&Vec<u8>| key.windows(id.len()).any(|part| part == id);
    let left: Vec<_> = after.stored.iter().filter(speaks).map(|key| String::from_utf8_lossy(key)).collect();
    assert!(left.is_empty(), "{workflow} was removed, and left {left:?}");
}
