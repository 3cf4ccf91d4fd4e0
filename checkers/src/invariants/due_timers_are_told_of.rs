//! Whoever waits for timers is told when there is one to be seen that was not there before: log time has passed
//! it, it was armed for a time that has passed, its workflow was resumed, or its shard has another owner.
//! (Contract, section 8: due times wake, so that idle waiting costs nothing.)

use std::collections::BTreeSet;

use holdfast_machine::{Arming, Effect, NodeName, ShardId, WorkflowId};

use crate::{Check, Snapshot, Step, ensure};

pub fn of_step(step: &Step<'_>) -> Check {
    let told = |shard: ShardId| step.effects.contains(&Effect::TimersDue { shard });
    for (workflow, arming, owner) in due(step.after).difference(&due(step.before)) {
        let shard = ShardId::of(workflow, step.after.shard_count);
        ensure!(told(shard), "nobody heard that {arming:?} of {workflow} is due for {owner:?}");
    }
    Ok(())
}

/// Timers that are due at log time, and who gets to see them.
fn due(state: &Snapshot) -> BTreeSet<(WorkflowId, Arming, Option<NodeName>)> {
    let mut all = BTreeSet::new();
    for due in &state.due_timers {
        let passed = due.timers.iter().filter(|(_, arming)| arming.fire_at <= state.now);
        all.extend(passed.map(|(workflow, arming)| (workflow.clone(), arming.clone(), due.owner.clone())));
    }
    all
}
