//! The order of timers says what they are armed as: by time, then workflow, then name, without those of paused
//! workflows. (Contract, section 7: expired; section 4: adoption takes timers along.)

use holdfast_machine::{ShardId, WorkflowStatus};

use super::Step;

pub fn check(step: &Step<'_>) {
    let after = step.after;
    for due in &after.due_timers {
        let mut expected = after.timers.clone();
        expected.retain(|(workflow, _)| {
            let shard = after.shards.get(&ShardId::of(workflow, after.shard_count));
            let owned = due.owner.is_none() || shard.map(|entry| &entry.owner) == due.owner.as_ref();
            owned && after.status(workflow) != WorkflowStatus::Paused
        });
        expected.sort_by_key(|(workflow, arming)| (arming.fire_at, workflow.clone(), arming.timer.clone()));
        assert_eq!(due.timers, expected, "the timers of {:?}", due.owner);
        let next = expected.iter().map(|(_, arming)| arming.fire_at).find(|at| *at > after.now);
        assert_eq!(due.next, next, "when the next timer of {:?} is due", due.owner);
    }
}
