//! Listings: what an engine asks for right after a start or an adoption, and what an operator looks at. Each call
//! looks at a bounded number of things and says where the next one goes on.

use crate::archive::{Archive, ArchiveResult};
use crate::history::Workflow;
use crate::id::{DispatchKey, Namespace, ShardId, WorkflowId};
use crate::keys;
use crate::outbox::Row;
use crate::row_counts::RowCounts;
use crate::row_index::{PendingRoute, Route};
use crate::state::Machine;

/// A part of the listing of workflows, and where the next one begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heads {
    /// Workflows by id.
    pub workflows: Vec<(WorkflowId, Workflow)>,
    /// The last id that was looked at; none at the end.
    pub next: Option<WorkflowId>,
}

/// A part of a listing of dead letters, and where the next one begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetters {
    /// Failed rows, in the listing's order.
    pub rows: Vec<(DispatchKey, Row)>,
    /// The last key that was looked at; none at the end.
    pub next: Option<DispatchKey>,
}

impl Machine {
    /// Dead letters of a workflow, by ordinal, from the one after `after` on. Looks at up to `limit`.
    ///
    /// # Errors
    /// When the archive cannot be read, as all queries here.
    pub fn dead_letters_of(
        &self,
        archive: &dyn Archive,
        workflow: &WorkflowId,
        after: Option<u64>,
        limit: usize,
    ) -> ArchiveResult<DeadLetters> {
        let key = |ordinal| keys::dead_letter_of(&DispatchKey { workflow: workflow.clone(), ordinal });
        let from = after.map_or_else(|| key(0), |ordinal| keys::after(key(ordinal)));
        let pairs = self.scan(archive, &from, &keys::after(key(u64::MAX)), limit)?;
        self.dead_letters(archive, limit, pairs.iter().map(|(key, _)| keys::parse_live_row(key)))
    }

    /// Dead letters of a namespace, by workflow, then by ordinal, from the one after `after` on. Looks at up to
    /// `limit`.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn dead_letters_in(
        &self,
        archive: &dyn Archive,
        namespace: &Namespace,
        after: Option<&DispatchKey>,
        limit: usize,
    ) -> ArchiveResult<DeadLetters> {
        let (first, to) = keys::dead_letters_in(namespace);
        let from = after.map_or(first, |after| keys::after(keys::dead_letter_in(namespace, after)));
        let pairs = self.scan(archive, &from, &to, limit)?;
        self.dead_letters(archive, limit, pairs.iter().map(|(key, _)| keys::parse_dead_letter_in(namespace, key)))
    }

    fn dead_letters(
        &self,
        archive: &dyn Archive,
        limit: usize,
        keys: impl Iterator<Item = ArchiveResult<DispatchKey>>,
    ) -> ArchiveResult<DeadLetters> {
        let keys: Vec<DispatchKey> = keys.collect::<ArchiveResult<_>>()?;
        let next = keys.last().filter(|_| keys.len() == limit).cloned();
        // One of a workflow that is being removed is not to be seen any more.
        let row = |key: DispatchKey| Ok(self.row(archive, &key)?.map(|row| (key, row)));
        let rows = keys.into_iter().map(row).filter_map(Result::transpose).collect::<ArchiveResult<_>>()?;
        Ok(DeadLetters { rows, next })
    }

    /// Up to `limit` workflows that have pending or claimed rows, by shard, then by id, from the one after `after`
    /// on; of one shard or of all.
    pub fn unsettled(
        &self,
        shard: Option<ShardId>,
        after: Option<&WorkflowId>,
        limit: usize,
    ) -> Vec<(WorkflowId, RowCounts)> {
        let after = after.map(|after| (self.shard_of(after), after));
        let counts = self.rows.unsettled(shard, after);
        counts.take(limit).map(|(workflow, counts)| (workflow.clone(), counts)).collect()
    }

    /// Up to `limit` routes that have rows which a claim may take now or later, by namespace, task queue, node and
    /// activity type, from the one after `after` on. Rows of paused workflows are not among them.
    pub fn pending_routes(&self, after: Option<&Route>, limit: usize) -> Vec<PendingRoute> {
        self.index.routes(after, limit)
    }

    /// Workflows by id, from the one after `after` on, open ones and, unless `open_only`, finished ones; of one
    /// shard or of all. Looks at up to `limit` of each, so it may bring fewer and still say where to go on.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn heads(
        &self,
        archive: &dyn Archive,
        shard: Option<ShardId>,
        open_only: bool,
        after: Option<&WorkflowId>,
        limit: usize,
    ) -> ArchiveResult<Heads> {
        let mut workflows: Vec<(WorkflowId, Workflow)> = self.open_after(shard, after, limit);
        let mut seen_to = (workflows.len() == limit).then(|| workflows.last().map(|(id, _)| id.clone())).flatten();
        if !open_only {
            let (first, to) = keys::table(keys::CLOSED_WORKFLOWS);
            let from = after.map_or(first, |after| keys::after(keys::closed_workflow(after)));
            let pairs = self.scan(archive, &from, &to, limit)?;
            let full = pairs.len() == limit;
            for (position, (key, value)) in pairs.iter().enumerate() {
                let id: WorkflowId = keys::parse_id(key)?;
                if full && position + 1 == limit {
                    seen_to = Some(seen_to.map_or(id.clone(), |seen| seen.min(id.clone())));
                }
                if shard.is_none_or(|shard| self.shard_of(&id) == shard) {
                    workflows.push((id, keys::decode(key, value)?));
                }
            }
            workflows.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        // What comes after it has been looked at in one of the two places only.
        if let Some(seen_to) = &seen_to {
            workflows.retain(|(id, _)| id <= seen_to);
        }
        if workflows.len() > limit {
            workflows.truncate(limit);
            seen_to = workflows.last().map(|(id, _)| id.clone());
        }
        Ok(Heads { workflows, next: seen_to })
    }

    fn open_after(
        &self,
        shard: Option<ShardId>,
        after: Option<&WorkflowId>,
        limit: usize,
    ) -> Vec<(WorkflowId, Workflow)> {
        let pair = |(id, workflow): (&WorkflowId, &Workflow)| (id.clone(), workflow.clone());
        match shard {
            Some(shard) => self.open.of_shard_after(shard, after).take(limit).map(pair).collect(),
            None => self.open.after(after).take(limit).map(pair).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::command::{Command, Commit};
    use crate::history::{EventKind, NewEvent};
    use crate::id::DispatchKey;
    use crate::limits::KEYS_REMOVED_PER_ENTRY_MAX;
    use crate::trial::{Trial, id};

    #[test]
    fn what_is_being_removed_is_passed_over_and_ends_no_listing() {
        let mut trial = Trial::new();
        for workflow in ["order-1", "order-2"] {
            trial.start(workflow, [1]);
            trial.bury(&format!("{workflow}:1"));
        }
        // More events than one entry removes, so that the row outlives its workflow for a while.
        let events = vec![NewEvent::of(EventKind::SignalReceived); KEYS_REMOVED_PER_ENTRY_MAX];
        trial.ask(Command::Commit(Commit { events, ..Commit::new(id("order-1"), 3) })).unwrap();
        trial.append("order-1", NewEvent::of(EventKind::WorkflowCompleted)).unwrap();
        trial.ask(Command::Delete { workflow: id("order-1") }).unwrap();
        assert!(trial.machine.is_being_removed(&id("order-1")));
        let (mut after, mut keys, mut looks) = (None, Vec::new(), 0);
        loop {
            let part = trial.machine.dead_letters_in(&trial.archive, &Default::default(), after.as_ref(), 1).unwrap();
            keys.extend(part.rows.into_iter().map(|(key, _)| key));
            looks += 1;
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((keys, looks), (vec![id::<DispatchKey>("order-2:1")], 3));
        let heads = trial.machine.heads(&trial.archive, None, false, None, 9).unwrap();
        let heads: Vec<&str> = heads.workflows.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(heads, ["order-2"]);
    }
}
