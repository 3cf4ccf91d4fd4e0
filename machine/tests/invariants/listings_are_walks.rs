//! What is listed from an index is what a walk over all rows and workflows finds, in the order that is promised.
//! (Contract, section 6: unsettled workflows, pending routes; section 5: heads.)

use std::collections::BTreeMap;

use holdfast_machine::{
    Millis, PendingRoute, Route, RowCounts, RowStatus, ShardId, Workflow, WorkflowId, WorkflowStatus,
};

use super::Step;

pub fn check(step: &Step<'_>) {
    let after = step.after;
    let listings = &after.listings;
    let unsettled = unsettled(step);
    assert_eq!(listings.unsettled, unsettled, "unsettled workflows");
    assert_eq!(listings.unsettled_by_shard, unsettled, "unsettled workflows, shard by shard");
    assert_eq!(listings.routes, routes(step), "pending routes");

    let by_id = |told: &super::Told| told.workflow.clone();
    let heads: Vec<(WorkflowId, Workflow)> =
        after.workflows.iter().map(|(id, told)| (id.clone(), by_id(told))).collect();
    assert_eq!(listings.heads, heads, "heads");
    let mut by_shard = heads;
    by_shard.sort_by_key(|(id, _)| ShardId::of(id, after.shard_count));
    assert_eq!(listings.heads_by_shard, by_shard, "heads, shard by shard");
    by_shard.retain(|(_, workflow)| !workflow.status.is_terminal());
    assert_eq!(listings.open, by_shard, "heads of open workflows");
}

/// Workflows with live rows, by shard, then by id.
fn unsettled(step: &Step<'_>) -> Vec<(WorkflowId, RowCounts)> {
    let mut counts: BTreeMap<(ShardId, WorkflowId), RowCounts> = BTreeMap::new();
    for (key, row) in step.after.rows.iter().filter(|(_, row)| row.status.is_live()) {
        let shard = ShardId::of(&key.workflow, step.after.shard_count);
        let counts = counts.entry((shard, key.workflow.clone())).or_default();
        match row.status {
            RowStatus::Pending => counts.pending += 1,
            _ => counts.claimed += 1,
        }
    }
    counts.into_iter().map(|((_, workflow), counts)| (workflow, counts)).collect()
}

fn routes(step: &Step<'_>) -> Vec<PendingRoute> {
    let mut routes: BTreeMap<Route, Vec<Millis>> = BTreeMap::new();
    for (key, row) in step.after.rows_in(RowStatus::Pending) {
        if step.after.status(&key.workflow) != WorkflowStatus::Paused {
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
