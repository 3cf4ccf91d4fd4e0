//! The names that the demo uses, and the ids of its workflows.

use std::collections::BTreeMap;

use holdfast_machine::{NodeName, ShardEntry, ShardId, WorkflowId};

/// Everything happens in this namespace.
pub(crate) const NAMESPACE: &str = "demo";
/// Activities for the engines inside the nodes.
pub(crate) const ENGINE_QUEUE: &str = "engine";
/// Activities for the workers.
pub(crate) const WORKER_QUEUE: &str = "workers";
/// The only workflow type.
pub(crate) const FAN_OUT: &str = "fan-out";
/// The only activity type.
pub(crate) const SIMULATE: &str = "simulate";

/// `count` new workflow ids, spread over all shards and, before that, evenly over the owners: the first
/// ids take one shard of each owner in turn.
pub(crate) fn workflow_ids(first: &mut u64, count: usize, directory: &[ShardEntry]) -> Vec<WorkflowId> {
    let shards = one_of_each_owner_in_turn(directory);
    let shard_count = u32::try_from(directory.len()).unwrap_or(u32::MAX);
    let mut ids = Vec::with_capacity(count);
    for shard in shards.iter().cycle().take(count) {
        ids.push(next_id_in(first, *shard, shard_count));
    }
    ids
}

/// The next workflow id that belongs to this shard.
pub(crate) fn next_id_in(next: &mut u64, shard: ShardId, shard_count: u32) -> WorkflowId {
    loop {
        let candidate = WorkflowId::new(format!("order-{next}"));
        *next += 1;
        if let Ok(id) = candidate
            && ShardId::of(&id, shard_count) == shard
        {
            return id;
        }
    }
}

fn one_of_each_owner_in_turn(directory: &[ShardEntry]) -> Vec<ShardId> {
    let mut taken = BTreeMap::<&NodeName, usize>::new();
    let mut order: Vec<(usize, ShardId)> = Vec::with_capacity(directory.len());
    for entry in directory {
        let turn = taken.entry(&entry.owner).or_default();
        order.push((*turn, entry.shard));
        *turn += 1;
    }
    order.sort();
    order.into_iter().map(|(_, shard)| shard).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use holdfast_machine::{Epoch, Millis};

    use super::*;

    fn entry(shard: u32, owner: &str) -> ShardEntry {
        let owner = NodeName::new(owner).unwrap();
        ShardEntry { shard: ShardId(shard), owner, epoch: Epoch(1), since: Millis(0), previous: None }
    }

    #[test]
    fn workflows_are_spread_over_owners_and_shards() {
        let directory = [entry(0, "a"), entry(1, "a"), entry(2, "b"), entry(3, "b")];
        let mut first = 0;
        let ids = workflow_ids(&mut first, 6, &directory);
        let shards: Vec<u32> = ids.iter().map(|id| ShardId::of(id, 4).0).collect();
        assert_eq!(shards, [0, 2, 1, 3, 0, 2]);
        let more = workflow_ids(&mut first, 6, &directory);
        assert!(more.iter().all(|id| !ids.contains(id)));
    }
}
