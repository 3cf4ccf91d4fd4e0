//! Invariant 9: histories are dense from 1, in order, and what was written stays as it was. (Contract, section 5.)

use crate::{Check, Snapshot, Step, broken, ensure, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    for (id, told) in &state.workflows {
        ensure_eq!(told.events.len() as u64, told.workflow.head, "the head of {id} is not its last event");
        for (position, event) in told.events.iter().enumerate() {
            ensure_eq!(event.seq, position as u64 + 1, "the history of {id} has a gap");
        }
        ensure!(told.events.is_sorted_by_key(|event| event.at), "the history of {id} goes back in time");
        for (position, run) in told.runs.iter().enumerate() {
            ensure_eq!(run.number as usize, position + 1, "the runs of {id} have a gap");
            let parent = position.checked_sub(1).map(|parent| told.runs[parent].run_id.clone());
            ensure_eq!(run.parent, parent, "run {} of {id} continues another run", run.number);
        }
        ensure_eq!(told.runs.last(), Some(&told.workflow.run), "the last run of {id} is not its open one");
        ensure_eq!(told.workflow.status, told.workflow.run.status, "the status of {id}");
        ensure_eq!(told.workflow.run.closed_at.is_some(), told.workflow.status.is_terminal(), "{id} is closed");
    }
    Ok(())
}

pub fn of_step(step: &Step<'_>) -> Check {
    for (id, before) in &step.before.workflows {
        let Some(told) = step.after.workflows.get(id) else { broken!("{id} was forgotten") };
        ensure!(told.events.starts_with(&before.events), "the history of {id} was rewritten");
    }
    Ok(())
}
