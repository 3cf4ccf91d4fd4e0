//! Workflows whose run is open, by id and by shard.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::history::Workflow;
use crate::id::{ShardId, WorkflowId};

/// All open workflows. Kept in memory, because whatever happens next happens to one of them.
#[derive(Debug, Default)]
pub(crate) struct OpenWorkflows {
    all: BTreeMap<WorkflowId, Workflow>,
    by_shard: BTreeMap<ShardId, BTreeSet<WorkflowId>>,
}

impl OpenWorkflows {
    pub fn get(&self, id: &WorkflowId) -> Option<&Workflow> {
        self.all.get(id)
    }

    pub fn insert(&mut self, shard: ShardId, id: WorkflowId, workflow: Workflow) {
        if self.all.insert(id.clone(), workflow).is_none() {
            self.by_shard.entry(shard).or_default().insert(id);
        }
    }

    pub fn remove(&mut self, shard: ShardId, id: &WorkflowId) -> Option<Workflow> {
        if let Some(of_shard) = self.by_shard.get_mut(&shard) {
            of_shard.remove(id);
        }
        self.all.remove(id)
    }

    /// Those of all shards, by id, that come after this one.
    pub fn after(&self, after: Option<&WorkflowId>) -> impl Iterator<Item = (&WorkflowId, &Workflow)> {
        self.all.range::<WorkflowId, _>((from(after), Bound::Unbounded))
    }

    /// Those of one shard, by id, that come after this one.
    pub fn of_shard_after(
        &self,
        shard: ShardId,
        after: Option<&WorkflowId>,
    ) -> impl Iterator<Item = (&WorkflowId, &Workflow)> {
        let of_shard = self.by_shard.get(&shard).into_iter();
        let ids = of_shard.flat_map(move |ids| ids.range::<WorkflowId, _>((from(after), Bound::Unbounded)));
        ids.filter_map(|id| self.all.get_key_value(id))
    }

    /// Sorts them into the shards of a cluster that has just been created.
    pub fn spread(&mut self, shard_count: u32) {
        for id in std::mem::take(&mut self.by_shard).into_values().flatten() {
            self.by_shard.entry(ShardId::of(&id, shard_count)).or_default().insert(id);
        }
    }
}

fn from(after: Option<&WorkflowId>) -> Bound<&WorkflowId> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}
