//! Putting rows right after something ended: a workflow (settle), a lease, a holder (re-arm), or
//! nobody knows (reconcile). Each is one apply, so there is no moment in between to be seen.

use crate::archive::ArchiveResult;
use crate::command::Command;
use crate::event::ClusterEvent;
use crate::id::{DispatchKey, WorkflowId};
use crate::limits::LEASES_ENDED_PER_ENTRY_MAX;
use crate::outbox::{NewRow, Row, RowStatus};
use crate::reject::Reject;
use crate::reply::Reply;
use crate::state::Apply;

impl Apply<'_> {
    /// Ends the leases that log time has passed. Runs before the commands of each entry.
    pub fn end_leases(&mut self) {
        let now = self.now();
        for key in self.state.index.ended_leases(now, LEASES_ENDED_PER_ENTRY_MAX) {
            let shard = self.state.shard_of(&key.workflow);
            if let Some(row) = self.state.rows.get(shard, &key).cloned() {
                self.rearm_row(&key, row);
            }
        }
    }

    /// Pending again and visible at once; the delivery count is kept.
    pub fn rearm_row(&mut self, key: &DispatchKey, mut row: Row) {
        row.status = RowStatus::Pending;
        row.claim = None;
        row.visible_after = self.now();
        self.put_row(key, row);
    }

    /// Cancelled for good.
    pub fn cancel_row(&mut self, key: &DispatchKey, mut row: Row) {
        row.status = RowStatus::Cancelled;
        row.claim = None;
        self.put_row(key, row);
    }

    /// Cancels all live rows of a workflow and returns their keys.
    pub fn settle_rows(&mut self, workflow: &WorkflowId) -> Vec<DispatchKey> {
        let shard = self.state.shard_of(workflow);
        let rows = self.state.rows.of_workflow(shard, workflow);
        let rows: Vec<(DispatchKey, Row)> = rows.map(|(key, row)| (key.clone(), row.clone())).collect();
        self.cancel_rows(workflow, rows)
    }

    /// Cancels those of the given rows of a workflow that are live and returns their keys.
    pub fn settle_ordinals(&mut self, workflow: &WorkflowId, ordinals: &[u64]) -> Vec<DispatchKey> {
        let shard = self.state.shard_of(workflow);
        let mut rows = Vec::new();
        for ordinal in ordinals {
            let key = DispatchKey { workflow: workflow.clone(), ordinal: *ordinal };
            if let Some(row) = self.state.rows.get(shard, &key) {
                rows.push((key, row.clone()));
            }
        }
        self.cancel_rows(workflow, rows)
    }

    fn cancel_rows(&mut self, workflow: &WorkflowId, rows: Vec<(DispatchKey, Row)>) -> Vec<DispatchKey> {
        if !rows.is_empty() {
            self.events.push(ClusterEvent::SettledRows { workflow: workflow.clone(), rows: rows.len() as u64 });
        }
        let mut keys = Vec::with_capacity(rows.len());
        for (key, row) in rows {
            self.cancel_row(&key, row);
            keys.push(key);
        }
        keys
    }

    pub fn rearm(&mut self, workflow: WorkflowId, rows: Vec<NewRow>) -> ArchiveResult<Result<Reply, Reject>> {
        let Some(state) = self.workflow(&workflow)? else {
            return Ok(Err(Reject::invalid(format!("workflow {workflow} has no history to re-arm rows for"))));
        };
        if state.status.is_terminal() {
            return Ok(Err(Reject::invalid(format!(
                "workflow {workflow} is {}; reopen it before its rows are re-armed",
                state.status
            ))));
        }
        let mut keys = Vec::with_capacity(rows.len());
        for new in rows {
            let key = DispatchKey { workflow: workflow.clone(), ordinal: new.ordinal };
            match self.row(&key)? {
                None => self.insert_row(&key, &state.namespace, state.run.number, new, false),
                Some(row) if row.status.is_live() => self.rearm_row(&key, row),
                Some(mut row) => {
                    row.status = RowStatus::Pending;
                    row.run = state.run.number;
                    row.visible_after = self.now();
                    self.revive_row(&key, row);
                }
            }
            keys.push(key);
        }
        Ok(Ok(Reply::Rearmed { keys }))
    }

    pub fn reconcile(&mut self, older_than_ms: u64, limit: u32, excluded: &[DispatchKey]) -> ArchiveResult<Reply> {
        let until = self.now().0.saturating_sub(older_than_ms);
        let stale = self.state.index.claimed_until(crate::id::Millis(until));
        let stale = stale.filter(|key| !excluded.contains(key));
        let keys: Vec<DispatchKey> = stale.cloned().collect();
        let (mut rearmed, mut settled, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for key in keys {
            if rearmed.len() + settled.len() + unknown.len() >= limit as usize {
                break;
            }
            let shard = self.state.shard_of(&key.workflow);
            let Some(row) = self.state.rows.get(shard, &key).cloned() else { continue };
            let Some(workflow) = self.workflow(&key.workflow)? else {
                unknown.push(key);
                continue;
            };
            if workflow.status.is_terminal() {
                self.cancel_row(&key, row);
                settled.push(key);
            } else if !self.has_running_lease(&row) {
                self.rearm_row(&key, row);
                rearmed.push(key);
            }
        }
        Ok(Reply::Reconciled { rearmed, settled, unknown })
    }

    /// A lease that runs is the proof that its holder lives; the age of the claim says nothing against it.
    fn has_running_lease(&self, row: &Row) -> bool {
        let deadline = row.claim.as_ref().and_then(|claim| claim.deadline);
        deadline.is_some_and(|deadline| deadline > self.now())
    }
}

impl Command {
    /// The workflow that the command writes to, if it is about one; its shard's fence applies then.
    pub fn workflow(&self) -> Option<&WorkflowId> {
        match self {
            Self::Commit(commit) => Some(&commit.workflow),
            Self::Heartbeat { key, .. }
            | Self::Complete { key, .. }
            | Self::Fail { key, .. }
            | Self::Retry { key, .. } => Some(&key.workflow),
            Self::Settle { workflow } | Self::Rearm { workflow, .. } => Some(workflow),
            Self::Create { .. }
            | Self::Boot { .. }
            | Self::Assign { .. }
            | Self::Adopt { .. }
            | Self::Transfer { .. }
            | Self::Claim(_)
            | Self::Reconcile { .. }
            | Self::Tick => None,
        }
    }
}
