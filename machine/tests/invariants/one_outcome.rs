//! Invariant 10: at most one terminal event for each run and ordinal; at most one terminal event for each run
//! between two openings; done, failed and cancelled rows leave only by the transitions that the contract names
//! (section 6: re-arm, redrive, and a later run's row with the same key).

use std::collections::BTreeSet;

use holdfast_machine::{Command, EventKind, RowStatus};

use super::{Step, Told};

pub fn check(step: &Step<'_>) {
    for (id, told) in &step.after.workflows {
        check_history(id.as_str(), told);
    }
    for (key, before) in step.before.rows.iter().filter(|(_, row)| !row.status.is_live()) {
        let Some(after) = step.after.rows.get(key) else { panic!("the finished row {key} is gone") };
        if after.status == before.status && after.run == before.run {
            continue;
        }
        let by_hand = step.touching(&key.workflow).any(|request| match &request.command {
            Command::Rearm { .. } => true,
            Command::Redrive { .. } => before.status == RowStatus::Failed,
            _ => false,
        });
        assert!(by_hand || after.run > before.run, "the finished row {key} left: {before:?} -> {after:?}");
    }
}

fn check_history(id: &str, told: &Told) {
    let mut outcomes = BTreeSet::new();
    let mut open = true;
    for (position, event) in told.events.iter().enumerate() {
        if matches!(event.kind, EventKind::ActivityCompleted | EventKind::ActivityFailed | EventKind::ActivityCancelled)
        {
            let activity = (told.run_of(position), event.ordinal.unwrap());
            assert!(outcomes.insert(activity), "activity {activity:?} of {id} has two outcomes");
        }
        match event.kind {
            EventKind::WorkflowStarted | EventKind::WorkflowReopened => open = true,
            EventKind::WorkflowCompleted
            | EventKind::WorkflowFailed
            | EventKind::WorkflowCancelled
            | EventKind::WorkflowTimedOut
            | EventKind::WorkflowContinuedAsNew => {
                assert!(open, "a run of {id} ends twice, at event {}", event.seq);
                open = false;
            }
            _ => {}
        }
    }
}
