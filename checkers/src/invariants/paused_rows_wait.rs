//! Invariant 16: a paused workflow's rows are never claimed while it is paused. (Contract, section 6: claim.)

use holdfast_machine::{Command, Reply, WorkflowStatus};

use crate::{Check, Snapshot, Step, ensure};

pub fn of_state(state: &Snapshot) -> Check {
    for (_, key) in state.pending.iter().flat_map(|pending| &pending.rows) {
        let is_paused = state.status(&key.workflow) == WorkflowStatus::Paused;
        ensure!(!is_paused, "{key} is to be had while its workflow is paused");
    }
    Ok(())
}

pub fn of_step(step: &Step<'_>) -> Check {
    for (_, reply) in step.said {
        let Ok(Reply::Claimed { claims }) = reply else { continue };
        for claim in claims.iter().filter(|claim| claim.token.index == step.index) {
            let workflow = &claim.key.workflow;
            let paused = |status| status == WorkflowStatus::Paused;
            let was_paused = paused(step.before.status(workflow));
            let moved = step.touching(workflow).any(|request| matches!(request.command, Command::Commit(_)));
            ensure!(!was_paused || moved, "{} was claimed while its workflow was paused", claim.key);
        }
    }
    for (key, _) in step.after.rows.iter().filter(|(key, _)| step.was_given(key)) {
        let by_claim = step.said.iter().any(
            |(_, reply)| matches!(reply, Ok(Reply::Claimed { claims }) if claims.iter().any(|claim| claim.key == *key)),
        );
        let status = step.after.status(&key.workflow);
        ensure!(by_claim || status != WorkflowStatus::Paused, "{key} was given to a session while it was to wait");
    }
    Ok(())
}
