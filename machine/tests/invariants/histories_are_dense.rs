//! Invariant 9: histories are dense from 1, in order, and what was written stays as it was. (Contract, section 5.)

use super::Step;

pub fn check(step: &Step<'_>) {
    for (id, told) in &step.after.workflows {
        assert_eq!(told.events.len() as u64, told.workflow.head, "the head of {id} is not its last event");
        for (position, event) in told.events.iter().enumerate() {
            assert_eq!(event.seq, position as u64 + 1, "the history of {id} has a gap");
        }
        assert!(told.events.is_sorted_by_key(|event| event.at), "the history of {id} goes back in time");
        if let Some(before) = step.before.workflows.get(id) {
            assert!(told.events.starts_with(&before.events), "the history of {id} was rewritten");
        }
        for (position, run) in told.runs.iter().enumerate() {
            assert_eq!(run.number as usize, position + 1, "the runs of {id} have a gap");
            let parent = position.checked_sub(1).map(|parent| told.runs[parent].run_id.clone());
            assert_eq!(run.parent, parent, "run {} of {id} continues another run", run.number);
        }
        assert_eq!(told.runs.last(), Some(&told.workflow.run), "the last run of {id} is not its open one");
        assert_eq!(told.workflow.status, told.workflow.run.status);
        assert_eq!(told.workflow.run.closed_at.is_some(), told.workflow.status.is_terminal());
    }
    for id in step.before.workflows.keys() {
        assert!(step.after.workflows.contains_key(id), "{id} was forgotten");
    }
}
