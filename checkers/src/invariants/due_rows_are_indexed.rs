//! The indexes say what the rows say: what waits in a scope, in the order of claims, and what is claimed, by age.
//! (Contract, section 6: claim, list stale. A leak in an index would be a row that nobody gets, or two get.)

use holdfast_machine::{DispatchKey, Millis, RowStatus, ShardId, WorkflowStatus};

use crate::{Check, Snapshot, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    for pending in &state.pending {
        let scope = &pending.scope;
        let mut expected: Vec<(Millis, DispatchKey)> = Vec::new();
        for (key, row) in state.rows_in(RowStatus::Pending) {
            let in_pool = row.namespace == scope.namespace && row.task_queue == scope.task_queue;
            let placed = row.node.is_none() || row.node == scope.node;
            let held = state.status(&key.workflow) == WorkflowStatus::Paused;
            let shard = state.shards.get(&ShardId::of(&key.workflow, state.shard_count));
            let owned = pending.owner.is_none() || shard.map(|entry| &entry.owner) == pending.owner.as_ref();
            if in_pool && placed && owned && !held {
                expected.push((row.visible_after, key.clone()));
            }
        }
        expected.sort();
        ensure_eq!(pending.rows, expected, "what {:?} may claim in {scope:?}", pending.owner);
    }
    let mut claimed: Vec<(Millis, DispatchKey)> = Vec::new();
    for (key, row) in state.rows_in(RowStatus::Claimed) {
        claimed.extend(row.claim.as_ref().map(|claim| (claim.claimed_at, key.clone())));
    }
    claimed.sort();
    let claimed: Vec<DispatchKey> = claimed.into_iter().map(|(_, key)| key).collect();
    ensure_eq!(state.claimed, claimed, "what is claimed, by age");
    Ok(())
}
