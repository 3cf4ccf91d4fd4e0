//! The demo's work: fan-out workflows whose odd activities run in the engines and whose even ones run in
//! workers, and how long each takes.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_machine::{
    ActivityType, ClaimToken, Commit, DispatchKey, EventKind, Namespace, NewEvent, NewRow, NodeName, Payload,
    ShardEntry, ShardId, TaskQueue, WorkflowId, WorkflowStart, WorkflowType,
};
use serde::{Deserialize, Serialize};

/// The names that the demo uses, checked once.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Everything happens in this namespace.
    pub namespace: Namespace,
    /// Rows for the engines inside the nodes.
    pub engine_queue: TaskQueue,
    /// Rows for the workers.
    pub worker_queue: TaskQueue,
    activity: ActivityType,
    workflow_type: WorkflowType,
}

impl Names {
    /// The names.
    ///
    /// # Errors
    /// None in practice: all of them are valid.
    pub fn new() -> Result<Self, holdfast_machine::InvalidId> {
        Ok(Self {
            namespace: Namespace::new("demo")?,
            engine_queue: TaskQueue::new("engine")?,
            worker_queue: TaskQueue::new("workers")?,
            activity: ActivityType::new("simulate")?,
            workflow_type: WorkflowType::new("fan-out")?,
        })
    }

    /// The commit that starts a workflow and stages all its activities: one atomic write.
    pub fn fan_out(&self, workflow: WorkflowId, activities: u64) -> Commit {
        let start = WorkflowStart {
            namespace: self.namespace.clone(),
            workflow_type: self.workflow_type.clone(),
            run_id: None,
        };
        let started = NewEvent { start: Some(start), ..NewEvent::of(EventKind::WorkflowStarted) };
        let opening = Commit::new(workflow, 0).event(started);
        (1..=activities).fold(opening, |commit, ordinal| commit.activity(self.row(ordinal)))
    }

    fn row(&self, ordinal: u64) -> NewRow {
        let queue = if ordinal % 2 == 1 { &self.engine_queue } else { &self.worker_queue };
        NewRow {
            task_queue: queue.clone(),
            input: Payload::text(format!("input of activity {ordinal}")),
            ..NewRow::new(ordinal, self.activity.clone())
        }
    }
}

/// What an execution leaves in the history: enough to tell which of several executions it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActivityResult {
    /// The claim that it ran under.
    pub token: ClaimToken,
    /// Who ran it.
    pub by: String,
}

impl ActivityResult {
    /// The result as a payload.
    pub fn payload(&self) -> Payload {
        // Two texts always serialize.
        Payload::json(self).unwrap_or_default()
    }

    /// The result in a payload, if it is one.
    pub fn read(payload: &Payload) -> Option<Self> {
        serde_json::from_slice(&payload.data).ok()
    }
}

/// How long the engine works on a row: 150 to 400 ms, always the same for one row.
pub(crate) fn engine_work(key: &DispatchKey) -> Duration {
    spread(key, 150, 400)
}

/// How long a worker works on a row: 400 to 900 ms, so that it outlives a failover of its node.
pub(crate) fn worker_work(key: &DispatchKey) -> Duration {
    spread(key, 400, 900)
}

fn spread(key: &DispatchKey, from_ms: u64, to_ms: u64) -> Duration {
    let seed = key.to_string().bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    Duration::from_millis(from_ms + seed % (to_ms - from_ms))
}

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

fn next_id_in(next: &mut u64, shard: ShardId, shard_count: u32) -> WorkflowId {
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

    #[test]
    fn results_read_back() {
        let result = ActivityResult { token: ClaimToken { index: 7, number: 1 }, by: "worker-1".to_owned() };
        assert_eq!(ActivityResult::read(&result.payload()), Some(result));
        assert_eq!(ActivityResult::read(&Payload::text("done")), None);
    }
}
