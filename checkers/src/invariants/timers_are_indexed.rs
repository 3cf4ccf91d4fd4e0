//! The order of timers says what they are armed as: by time, then workflow, then name, without those of paused
//! workflows. (Contract, section 7: expired; section 4: adoption takes timers along.)

use holdfast_machine::{ShardId, WorkflowStatus};

use crate::{Check, Snapshot, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    for due in &state.due_timers {
        let mut expected = state.timers.clone();
        expected.retain(|(workflow, _)| {
            let shard = state.shards.get(&ShardId::of(workflow, state.shard_count));
            let owned = due.owner.is_none() || shard.map(|entry| &entry.owner) == due.owner.as_ref();
            owned && state.status(workflow) != WorkflowStatus::Paused
        });
        expected.sort_by_key(|(workflow, arming)| (arming.fire_at, workflow.clone(), arming.timer.clone()));
        ensure_eq!(due.timers, expected, "the timers of {:?}", due.owner);
        let next = expected.iter().map(|(_, arming)| arming.fire_at).find(|at| *at > state.now);
        ensure_eq!(due.next, next, "when the next timer of {:?} is due", due.owner);
    }
    Ok(())
}
