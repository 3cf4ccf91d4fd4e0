//! Putting rows right after something ended: a workflow (settle), a holder (re-arm), or
//! nobody knows (reconcile). Each is one apply, so there is no moment in between to be seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::archive::ArchiveResult;
use crate::dispatch::session_claim;
use crate::event::ClusterEvent;
use crate::id::{DispatchKey, Millis, WorkflowId};
use crate::keys;
use crate::outbox::{NewRow, Row, RowStatus};
use crate::reject::Reject;
use crate::reply::Reply;
use crate::state::Apply;

impl Apply<'_> {
    /// Pending again and visible at once; the delivery count is kept.
    pub fn rearm_row(&mut self, key: &DispatchKey, mut row: Row) {
        row.status = RowStatus::Pending;
        row.claim = None;
        row.visible_after = self.now();
        self.put_row(key, row);
    }

    /// Pending again because the node that held it is gone or lost the shard. The row keeps its place in the
    /// line, for it has waited its turn: interrupted work goes before work that has not begun.
    pub fn put_back_row(&mut self, key: &DispatchKey, mut row: Row) {
        row.status = RowStatus::Pending;
        row.claim = None;
        self.put_row(key, row);
    }

    /// Cancelled for good.
    pub fn cancel_row(&mut self, key: &DispatchKey, mut row: Row) {
        row.status = RowStatus::Cancelled;
        row.claim = None;
        self.put_row(key, row);
    }

    pub fn settle(&mut self, workflow: &WorkflowId) -> Reply {
        let keys = self.cancel_all(workflow);
        self.tell_settled(workflow, keys.len());
        Reply::Settled { keys }
    }

    /// Cancels all live rows of a workflow and returns their keys, ascending.
    pub fn cancel_all(&mut self, workflow: &WorkflowId) -> Vec<DispatchKey> {
        let shard = self.state.shard_of(workflow);
        let rows = self.state.rows.of_workflow(shard, workflow);
        self.cancel_rows(rows.map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    /// Cancels those of the given rows of a workflow that are live and returns their keys, ascending.
    pub fn cancel_ordinals(&mut self, workflow: &WorkflowId, ordinals: &[u64]) -> Vec<DispatchKey> {
        let shard = self.state.shard_of(workflow);
        let mut rows = BTreeMap::new();
        for ordinal in ordinals {
            let key = DispatchKey { workflow: workflow.clone(), ordinal: *ordinal };
            if let Some(row) = self.state.rows.get(shard, &key).cloned() {
                rows.insert(key, row);
            }
        }
        self.cancel_rows(rows.into_iter().collect())
    }

    fn cancel_rows(&mut self, rows: Vec<(DispatchKey, Row)>) -> Vec<DispatchKey> {
        let cancel = |(key, row)| {
            self.cancel_row(&key, row);
            key
        };
        rows.into_iter().map(cancel).collect()
    }

    /// Tells subscribers that rows of a workflow were cancelled.
    pub fn tell_settled(&mut self, workflow: &WorkflowId, rows: usize) {
        if rows > 0 {
            self.events.push(ClusterEvent::SettledRows { workflow: workflow.clone(), rows: rows as u64 });
        }
    }

    pub fn rearm(&mut self, workflow: WorkflowId, rows: Vec<NewRow>) -> ArchiveResult<Result<Reply, Reject>> {
        let Some(state) = self.workflow(&workflow)? else {
            return Ok(Err(Reject::WorkflowNotFound { workflow }));
        };
        if state.status.is_terminal() {
            return Ok(Err(Reject::WorkflowEnded { workflow, status: state.status }));
        }
        let run = state.run.number;
        let mut keys = Vec::with_capacity(rows.len());
        for new in rows {
            let key = DispatchKey { workflow: workflow.clone(), ordinal: new.ordinal };
            match self.row(&key)? {
                None => {
                    let outcome_seq = self.get(&keys::outcome(&workflow, run, key.ordinal))?;
                    let row = self.new_row(&key, &state.namespace, run, new);
                    self.put_row(&key, Row { outcome_seq, ..row });
                }
                Some(row) if row.status.is_live() => self.rearm_row(&key, row),
                Some(row) => self.revive_row(&key, row, run)?,
            }
            keys.push(key);
        }
        Ok(Ok(Reply::Rearmed { keys }))
    }

    /// A finished row is pending again. One of an earlier run becomes a row of the run that is open, and
    /// leaves its outcome behind.
    fn revive_row(&mut self, key: &DispatchKey, mut row: Row, run: u32) -> ArchiveResult<()> {
        let finished = row.clone();
        if row.run != run {
            row.run = run;
            row.outcome_seq = self.get(&keys::outcome(&key.workflow, run, key.ordinal))?;
            row.failure_delivered = false;
        }
        // If it dies again, its workflow has to hear of it again, unless the history says so already.
        row.failure_delivered &= row.outcome_seq.is_some();
        row.status = RowStatus::Pending;
        (row.visible_after, row.scheduled_at) = (self.now(), self.now());
        self.replace_row(key, &finished, row);
        Ok(())
    }

    pub fn reconcile(&mut self, older_than_ms: u64, limit: u32, excluded: Vec<DispatchKey>) -> ArchiveResult<Reply> {
        let (mut rearmed, mut settled, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for key in self.stale(older_than_ms, limit, excluded) {
            let shard = self.state.shard_of(&key.workflow);
            let Some(row) = self.state.rows.get(shard, &key).cloned() else { continue };
            match self.workflow(&key.workflow)? {
                None => unknown.push(key),
                Some(workflow) if workflow.status.is_terminal() => {
                    self.cancel_row(&key, row);
                    settled.push(key);
                }
                Some(_) => {
                    self.rearm_row(&key, row);
                    rearmed.push(key);
                }
            }
        }
        Ok(Reply::Reconciled { rearmed, settled, unknown })
    }

    /// Up to `limit` claims that are old enough and that nothing vouches for. A lease that runs, the claim's own or its
    /// session's, is the proof that its holder lives; the age of the claim says nothing against it.
    fn stale(&self, older_than_ms: u64, limit: u32, excluded: Vec<DispatchKey>) -> Vec<DispatchKey> {
        let now = self.now();
        let Some(until) = now.0.checked_sub(older_than_ms) else { return Vec::new() };
        let excluded: BTreeSet<DispatchKey> = excluded.into_iter().collect();
        let claims = self.state.index.claimed_until(None, Millis(until));
        let lapsed = claims.filter(|(_, deadline)| deadline.is_none_or(|deadline| deadline <= now));
        let stale = lapsed.map(|(key, _)| key).filter(|key| !excluded.contains(key) && !self.is_held_by_session(key));
        stale.take(limit as usize).cloned().collect()
    }

    fn is_held_by_session(&self, key: &DispatchKey) -> bool {
        let row = self.state.rows.get(self.state.shard_of(&key.workflow), key);
        row.is_some_and(|row| session_claim(row).is_some())
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Command;
    use crate::event::Effect;
    use crate::id::DispatchKey;
    use crate::outbox::{Row, RowStatus};
    use crate::reply::Reply;
    use crate::trial::{Trial, id};

    #[test]
    fn nothing_is_rearmed_with_unknown_liveness() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        trial.claim_by("a");
        // A row that was staged by itself; if its workflow has a history, it is kept elsewhere.
        let orphan: DispatchKey = id("order-2:1");
        trial.stage("order-2", [1]);
        trial.claim_by("a");
        let reply = trial.ask(Command::Reconcile { older_than_ms: 0, limit: 9, excluded: Vec::new() });
        let rearmed = vec![id("order-1:1")];
        assert_eq!(reply, Ok(Reply::Reconciled { rearmed, settled: Vec::new(), unknown: vec![orphan] }));
        assert_eq!(trial.row("order-2:1").unwrap().status, RowStatus::Claimed);
    }

    #[test]
    fn a_stale_row_of_a_finished_workflow_is_cancelled() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        trial.claim_by("a");
        let row: Row = trial.row("order-1:1").unwrap();
        trial.append("order-1", crate::NewEvent::of(crate::EventKind::WorkflowCompleted)).unwrap();
        let finished = trial.row("order-1:1").unwrap();
        trial.force(|apply| apply.replace_row(&id("order-1:1"), &finished, row));
        let reply = trial.ask(Command::Reconcile { older_than_ms: 0, limit: 9, excluded: Vec::new() });
        let settled = vec![id("order-1:1")];
        assert_eq!(reply, Ok(Reply::Reconciled { rearmed: Vec::new(), settled, unknown: Vec::new() }));
    }

    #[test]
    fn a_dead_letter_that_is_rearmed_is_told_of_again() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        trial.bury("order-1:1");
        let key: DispatchKey = id("order-1:1");
        trial.ask(Command::MarkFailureDelivered { key: key.clone() }).unwrap();
        trial.ask(Command::Rearm { workflow: id("order-1"), rows: vec![crate::trial::new_row(1)] }).unwrap();
        assert!(!trial.row("order-1:1").unwrap().failure_delivered);
        trial.lease(1, 1_000);
        let retry = Command::Retry { key: key.clone(), token: None, delay_ms: 0 };
        let effects = trial.apply(vec![retry.into()]).effects;
        assert!(effects.iter().any(|effect| matches!(effect, Effect::DeadLetter { .. })), "{effects:?}");
        // One whose failure is in the history is not.
        trial.ask(Command::Rearm { workflow: id("order-1"), rows: vec![crate::trial::new_row(1)] }).unwrap();
        trial
            .ask(Command::Fail { key, token: None, error: Default::default(), error_type: None, retryable: false })
            .unwrap();
        trial.ask(Command::Rearm { workflow: id("order-1"), rows: vec![crate::trial::new_row(1)] }).unwrap();
        assert!(trial.row("order-1:1").unwrap().failure_delivered);
    }

    #[test]
    fn a_dead_letter_that_is_rearmed_keeps_its_count() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        let key: DispatchKey = id("order-1:1");
        let budget = crate::RetryPolicy::default().deliveries_max;
        for _ in 0..budget {
            trial.lease(1, 1_000);
            trial.ask(Command::Retry { key: key.clone(), token: None, delay_ms: 0 }).unwrap();
        }
        assert_eq!(trial.row("order-1:1").map(|row| (row.status, row.deliveries)), Some((RowStatus::Failed, budget)));
        trial.ask(Command::Rearm { workflow: id("order-1"), rows: vec![crate::trial::new_row(1)] }).unwrap();
        assert_eq!(trial.row("order-1:1").map(|row| (row.status, row.deliveries)), Some((RowStatus::Pending, budget)));
    }
}
