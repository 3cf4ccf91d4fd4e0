//! The oracle's view of the outbox: claims and what becomes of them.

use holdfast_machine::{
    Claim, ClaimToken, Claimed, Commit, DispatchKey, ErrorType, EventKind, Holder, Millis, Namespace, NewEvent,
    NewHolder, NewRow, Payload, Reject, Reply, Returned, Row, RowClaim, RowStatus, Staged, WorkflowId, WorkflowStatus,
};

use crate::oracle::deadlines::is_overdue;
use crate::oracle::histories::{fold, fresh, status_after};
use crate::oracle::sessions::session_of;
use crate::oracle::{Answer, Oracle, invalid, to_pending};

impl Oracle {
    pub fn claim(&mut self, claim: &Claim) -> Answer {
        if claim.limit == 0 {
            return invalid();
        }
        let (holder, deadline) = self.holder(claim)?;
        let mut due: Vec<(Millis, DispatchKey)> = Vec::new();
        for (key, row) in &self.rows {
            let owned = match &claim.holder {
                NewHolder::Node { node, .. } => self.owner(self.shard_of(&key.workflow)) == Some(node),
                NewHolder::Lease { .. } => true,
            };
            let (scope, types) = (&claim.scope, &claim.scope.activity_types);
            let wanted = row.namespace == scope.namespace
                && row.task_queue == scope.task_queue
                && (types.is_empty() || types.contains(&row.activity_type))
                && (row.node.is_none() || row.node == scope.node);
            let paused = self.status(&key.workflow).0 == WorkflowStatus::Paused;
            let ready = row.status == RowStatus::Pending && row.visible_after <= self.now && !is_overdue(row, self.now);
            if ready && !paused && owned && wanted && !claim.hold.contains(&key.workflow) {
                due.push((row.visible_after, key.clone()));
            }
        }
        due.sort();
        due.truncate((claim.limit as usize).min(self.room(&claim.scope.namespace)));
        let mut claims = Vec::new();
        for (_, key) in due {
            self.tokens += 1;
            let token = ClaimToken { index: self.index, number: self.tokens };
            let claimed_at = self.now;
            let row = self.row_mut(&key).unwrap();
            row.status = RowStatus::Claimed;
            row.claim =
                Some(RowClaim { token, holder: holder.clone(), claimed_at, deadline, heartbeat_at: claimed_at });
            claims.push(Claimed { key, token, deadline });
        }
        Ok(Reply::Claimed { claims })
    }

    fn holder(&self, claim: &Claim) -> Result<(Holder, Option<Millis>), Reject> {
        match &claim.holder {
            NewHolder::Node { node, boot } => {
                let current = self.members.iter().find(|(member, _)| member.name == *node);
                if current.is_none_or(|(_, current)| current.as_ref() != Some(boot)) {
                    return Err(Reject::NodeState { node: node.clone(), problem: String::new() });
                }
                if claim.scope.node.as_ref().is_some_and(|pinned| pinned != node) {
                    return invalid();
                }
                Ok((Holder::Node { node: node.clone(), boot: boot.clone() }, None))
            }
            NewHolder::Lease { lease_ms: 0, .. } => invalid(),
            NewHolder::Lease { claimant, lease_ms } => {
                let deadline = Millis(self.now.0.saturating_add(*lease_ms));
                Ok((Holder::Lease { claimant: claimant.clone() }, Some(deadline)))
            }
        }
    }

    /// The row that a caller may move, `None` if a caller by key named one that does not exist.
    pub fn held(&self, key: &DispatchKey, token: Option<ClaimToken>) -> Result<Option<Row>, Reject> {
        let Some(row) = self.row(key).cloned() else {
            return if token.is_some() { Err(Reject::RowNotFound { key: key.clone() }) } else { Ok(None) };
        };
        if !row.status.is_live() {
            return Err(Reject::AlreadyTerminal { key: key.clone(), status: Some(row.status) });
        }
        let now = self.now;
        let valid = |token| row.claim.as_ref().is_some_and(|claim| claim.token == token) && !is_overdue(&row, now);
        if token.is_some_and(|token| !valid(token)) {
            return Err(Reject::ClaimLost { key: key.clone() });
        }
        Ok(Some(row))
    }

    pub fn heartbeat(&mut self, key: &DispatchKey, token: ClaimToken, lease_ms: u64) -> Answer {
        if lease_ms == 0 {
            return invalid();
        }
        let Some(mut row) = self.held(key, Some(token))? else { return invalid() };
        let session = session_of(&row).and_then(|(id, _)| self.sessions.iter().find(|(known, _)| known == id));
        let deadline = session.map_or(Millis(self.now.0.saturating_add(lease_ms)), |(_, session)| session.deadline);
        let claim = row.claim.as_mut().unwrap();
        claim.deadline = claim.deadline.and(Some(deadline));
        claim.heartbeat_at = self.now;
        self.put_row(key, row);
        Ok(Reply::Extended { deadline })
    }

    pub fn complete(&mut self, key: &DispatchKey, token: Option<ClaimToken>, result: &Payload) -> Answer {
        let Some(mut row) = self.held(key, token)? else { return Ok(Reply::NoSuchRow) };
        self.absorb(key, &row)?;
        let seq = self.record(key, &row, EventKind::ActivityCompleted, result);
        row.status = RowStatus::Done;
        row.claim = None;
        self.put_row(key, row);
        Ok(Reply::Completed { seq })
    }

    pub fn fail(
        &mut self,
        key: &DispatchKey,
        token: Option<ClaimToken>,
        error: &Payload,
        error_type: Option<&ErrorType>,
        retryable: bool,
    ) -> Answer {
        let Some(mut row) = self.held(key, token)? else { return Ok(Reply::NoSuchRow) };
        self.absorb(key, &row)?;
        if retryable && !error_type.is_some_and(|error_type| row.retry.non_retryable.contains(error_type)) {
            return self.hand_back(key, row, None);
        }
        let seq = self.record(key, &row, EventKind::ActivityFailed, error);
        row.status = RowStatus::Failed;
        row.claim = None;
        row.deliveries += 1;
        row.failure_delivered = true;
        let (deliveries, visible_after) = (row.deliveries, row.visible_after);
        self.put_row(key, row);
        Ok(Reply::Returned(Returned { status: RowStatus::Failed, deliveries, visible_after, failed_seq: Some(seq) }))
    }

    pub fn retry(&mut self, key: &DispatchKey, token: Option<ClaimToken>, delay_ms: u64) -> Answer {
        let Some(row) = self.held(key, token)? else { return Ok(Reply::NoSuchRow) };
        self.hand_back(key, row, Some(delay_ms))
    }

    /// Only a claimed row can be handed back. `delay_ms` is none for a failed attempt.
    pub fn hand_back(&mut self, key: &DispatchKey, mut row: Row, delay_ms: Option<u64>) -> Answer {
        if row.status != RowStatus::Claimed {
            return Err(Reject::RowNotClaimed { key: key.clone(), status: row.status });
        }
        row.claim = None;
        row.deliveries += 1;
        if row.deliveries >= row.retry.deliveries_max {
            row.status = RowStatus::Failed;
        } else {
            let wait = delay_ms.unwrap_or_else(|| row.retry.backoff_ms(key, row.deliveries));
            row.status = RowStatus::Pending;
            row.visible_after = Millis(self.now.0.saturating_add(wait));
            row.attempt += u32::from(delay_ms.is_none());
        }
        let (status, deliveries, visible_after) = (row.status, row.deliveries, row.visible_after);
        // A row that was re-armed although its activity had failed is a dead letter with an outcome.
        let outcome = self.outcome(&key.workflow, row.run, key.ordinal).map(|event| event.seq);
        let failed_seq = outcome.filter(|_| status == RowStatus::Failed);
        self.put_row(key, row);
        Ok(Reply::Returned(Returned { status, deliveries, visible_after, failed_seq }))
    }

    /// An outcome that stands is final: the caller hears so, and the row is finished in its sense.
    pub fn absorb(&mut self, key: &DispatchKey, row: &Row) -> Result<(), Reject> {
        let Some(outcome) = self.outcome(&key.workflow, row.run, key.ordinal) else { return Ok(()) };
        let status = status_after(&outcome.kind);
        let mut row = row.clone();
        row.status = status;
        row.claim = None;
        row.failure_delivered |= status == RowStatus::Failed;
        self.put_row(key, row);
        Err(Reject::AlreadyTerminal { key: key.clone(), status: Some(status) })
    }

    fn record(&mut self, key: &DispatchKey, row: &Row, kind: EventKind, payload: &Payload) -> u64 {
        if self.head(&key.workflow) == 0 {
            self.begun.push((key.workflow.clone(), row.namespace.clone()));
        }
        let event = NewEvent::activity(kind, key.ordinal).with(payload.clone());
        let (workflow, expected_seq) = (key.workflow.clone(), self.head(&key.workflow));
        let events = vec![event.clone()];
        self.landed.push((Commit { events, ..Commit::new(workflow, expected_seq) }, expected_seq + 1));
        self.append(&key.workflow, event)
    }

    pub fn stage_alone(&mut self, workflow: &WorkflowId, namespace: &Namespace, rows: &[NewRow]) -> Answer {
        let (status, run) = self.status(workflow);
        if status.is_terminal() {
            return Err(Reject::WorkflowEnded { workflow: workflow.clone(), status });
        }
        let is_new = self.head(workflow) == 0;
        if is_new {
            self.takes_new_workflows(namespace)?;
            self.mint_namespace(namespace);
        }
        let namespace = if is_new { namespace.clone() } else { self.namespace(workflow) };
        let mut staged = Vec::new();
        for new in rows {
            let key = DispatchKey { workflow: workflow.clone(), ordinal: new.ordinal };
            let makes_way = |row: &Row| !row.status.is_live() && row.run < run;
            let written = self.outcome(workflow, run, new.ordinal).is_none() && self.row(&key).is_none_or(makes_way);
            if written {
                self.put_row(&key, fresh(new, run, namespace.clone(), self.now));
            }
            staged.push(Staged { key, written });
        }
        Ok(Reply::Staged { rows: staged })
    }

    pub fn mark(&mut self, key: &DispatchKey) -> Answer {
        let Some(row) = self.row_mut(key) else { return Ok(Reply::NoSuchRow) };
        if row.status != RowStatus::Failed {
            return Err(Reject::NotDeadLetter { key: key.clone(), status: row.status });
        }
        row.failure_delivered = true;
        Ok(Reply::FailureDelivered)
    }

    pub fn redrive(&mut self, key: &DispatchKey, forced: bool) -> Answer {
        let (key, now) = (key.clone(), self.now);
        let Some(row) = self.row(&key).cloned() else { return Err(Reject::RowNotFound { key }) };
        if row.status != RowStatus::Failed {
            return Err(Reject::NotDeadLetter { key, status: row.status });
        }
        let status = self.status_in_run(&key.workflow, row.run);
        if status.is_terminal() {
            return Err(Reject::WorkflowEnded { workflow: key.workflow, status });
        }
        if row.failure_delivered && !forced {
            return Err(Reject::AlreadyJudged { key });
        }
        let row = self.row_mut(&key).unwrap();
        to_pending(row, now);
        row.scheduled_at = now;
        row.deliveries = 0;
        row.failure_delivered = false;
        Ok(Reply::Redriven)
    }

    /// The last status that a run had.
    fn status_in_run(&self, workflow: &WorkflowId, run: u32) -> WorkflowStatus {
        let history = self.history(workflow);
        let of = |end: usize| fold(history[..end].iter().map(|event| (&event.kind, event.ordinal)));
        let last = (0..=history.len()).map(of).rfind(|(_, of_run)| *of_run == run);
        last.map_or(WorkflowStatus::Running, |(status, _)| status)
    }

    pub fn rearm(&mut self, workflow: &WorkflowId, rows: &[NewRow]) -> Answer {
        let (status, run) = self.status(workflow);
        if self.head(workflow) == 0 {
            return Err(Reject::WorkflowNotFound { workflow: workflow.clone() });
        }
        if status.is_terminal() {
            return Err(Reject::WorkflowEnded { workflow: workflow.clone(), status });
        }
        let mut keys = Vec::new();
        for new in rows {
            let key = DispatchKey { workflow: workflow.clone(), ordinal: new.ordinal };
            let row = match self.row(&key).cloned() {
                None => fresh(new, run, self.namespace(workflow), self.now),
                Some(mut row) => {
                    let is_recorded = self.outcome(workflow, run, new.ordinal).is_some();
                    row.failure_delivered &= row.run == run && is_recorded;
                    row.run = run;
                    row.scheduled_at = if row.status.is_live() { row.scheduled_at } else { self.now };
                    to_pending(&mut row, self.now);
                    row
                }
            };
            self.put_row(&key, row);
            keys.push(key);
        }
        Ok(Reply::Rearmed { keys })
    }

    pub fn reconcile(&mut self, older_than_ms: u64, limit: u32, excluded: &[DispatchKey]) -> Answer {
        let now = self.now;
        let mut stale: Vec<(Millis, DispatchKey)> = Vec::new();
        for (key, row) in &self.rows {
            let Some(claim) = &row.claim else { continue };
            let is_old = now.0 >= claim.claimed_at.0 && now.0 - claim.claimed_at.0 >= older_than_ms;
            let lives = claim.deadline.is_some_and(|deadline| deadline > now) || session_of(row).is_some();
            if is_old && !lives && !excluded.contains(key) {
                stale.push((claim.claimed_at, key.clone()));
            }
        }
        stale.sort();
        stale.truncate(limit as usize);
        let keys = stale.into_iter().map(|(_, key)| key);
        let (unknown, rearmed): (Vec<_>, Vec<_>) = keys.partition(|key| self.head(&key.workflow) == 0);
        for key in &rearmed {
            to_pending(self.row_mut(key).unwrap(), now);
        }
        Ok(Reply::Reconciled { rearmed, settled: Vec::new(), unknown })
    }
}
