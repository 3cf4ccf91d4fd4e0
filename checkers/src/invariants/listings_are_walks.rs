//! What is listed from an index is what a walk over all rows and workflows finds, in the order that is promised.
//! (Contract, section 6: unsettled workflows, pending routes; section 5: heads.)

use std::collections::BTreeMap;

use holdfast_machine::{
    Millis, PendingRoute, Route, RowCounts, RowStatus, ShardId, Workflow, WorkflowId, WorkflowStatus,
};

use crate::{Check, Snapshot, Told, ensure_eq};

pub fn of_state(state: &Snapshot) -> Check {
    let listings = &state.listings;
    let unsettled = unsettled(state);
    ensure_eq!(listings.unsettled, unsettled, "unsettled workflows");
    ensure_eq!(listings.unsettled_by_shard, unsettled, "unsettled workflows, shard by shard");
    ensure_eq!(listings.routes, routes(state), "pending routes");

    let by_id = |told: &Told| told.workflow.clone();
    let heads: Vec<(WorkflowId, Workflow)> =
        state.workflows.iter().map(|(id, told)| (id.clone(), by_id(told))).collect();
    ensure_eq!(listings.heads, heads, "heads");
    let mut by_shard = heads;
    by_shard.sort_by_key(|(id, _)| ShardId::of(id, state.shard_count));
    ensure_eq!(listings.heads_by_shard, by_shard, "heads, shard by shard");
    by_shard.retain(|(_, workflow)| !workflow.status.is_terminal());
    ensure_eq!(listings.open, by_shard, "heads of open workflows");
    Ok(())
}

/// Workflows with live rows, by shard, then by id.
fn unsettled(state: &Snapshot) -> Vec<(WorkflowId, RowCounts)> {
    let mut counts: BTreeMap<(ShardId, WorkflowId), RowCounts> = BTreeMap::new();
    for (key, row) in state.rows.iter().filter(|(_, row)| row.status.is_live()) {
        let shard = ShardId::of(&key.workflow, state.shard_count);
        let counts = counts.entry((shard, key.workflow.clone())).or_default();
        match row.status {
            RowStatus::Pending => counts.pending += 1,
            _ => counts.claimed += 1,
        }
    }
    counts.into_iter().map(|((_, workflow), counts)| (workflow, counts)).collect()
}

fn routes(state: &Snapshot) -> Vec<PendingRoute> {
    let mut routes: BTreeMap<Route, Vec<Millis>> = BTreeMap::new();
    for (key, row) in state.rows_in(RowStatus::Pending) {
        if state.status(&key.workflow) != WorkflowStatus::Paused {
            let (namespace, task_queue) = (row.namespace.clone(), row.task_queue.clone());
            let (node, activity_type) = (row.node.clone(), row.activity_type.clone());
            routes.entry(Route { namespace, task_queue, node, activity_type }).or_default().push(row.visible_after);
        }
    }
    let pending = |(route, due): (Route, Vec<Millis>)| {
        Some(PendingRoute { route, pending: due.len() as u64, next_due: due.into_iter().min()? })
    };
    routes.into_iter().filter_map(pending).collect()
}
