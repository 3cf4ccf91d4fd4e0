//! Invariant 10: at most one terminal event for each run and ordinal; at most one terminal event for each run
//! between two openings; done, failed and cancelled rows leave only by the transitions that the contract names
//! (section 6: re-arm, redrive, and a later run's row with the same key).

use std::collections::BTreeSet;

use holdfast_machine::{Command, EventKind, RowStatus};

use crate::{Check, Snapshot, Step, Told, broken, ensure};

pub fn of_state(state: &Snapshot) -> Check {
    state.workflows.iter().try_for_each(|(id, told)| history(id.as_str(), told))
}

pub fn of_step(step: &Step<'_>) -> Check {
    for (key, before) in step.before.rows.iter().filter(|(_, row)| !row.status.is_live()) {
        let Some(after) = step.after.rows.get(key) else { broken!("the finished row {key} is gone") };
        if after.status == before.status && after.run == before.run {
            continue;
        }
        let by_hand = step.touching(&key.workflow).any(|request| match &request.command {
            Command::Rearm { .. } => true,
            Command::Redrive { .. } => before.status == RowStatus::Failed,
            _ => false,
        });
        ensure!(by_hand || after.run > before.run, "the finished row {key} left: {before:?} -> {after:?}");
    }
    Ok(())
}

fn history(id: &str, told: &Told) -> Check {
    let mut outcomes = BTreeSet::new();
    let mut open = true;
    for (position, event) in told.events.iter().enumerate() {
        if matches!(event.kind, EventKind::ActivityCompleted | EventKind::ActivityFailed | EventKind::ActivityCancelled)
        {
            let Some(ordinal) = event.ordinal else { broken!("event {} of {id} is the outcome of nothing", event.seq) };
            let activity = (told.run_of(position), ordinal);
            ensure!(outcomes.insert(activity), "activity {activity:?} of {id} has two outcomes");
        }
        match event.kind {
            EventKind::WorkflowStarted | EventKind::WorkflowReopened => open = true,
            EventKind::WorkflowCompleted
            | EventKind::WorkflowFailed
            | EventKind::WorkflowCancelled
            | EventKind::WorkflowTimedOut
            | EventKind::WorkflowContinuedAsNew => {
                ensure!(open, "a run of {id} ends twice, at event {}", event.seq);
                open = false;
            }
            _ => {}
        }
    }
    Ok(())
}
