//! Claims and what a claimant may do: heartbeat, complete, fail, hand back.
//!
//! A claim mints a token. A transition under any other token changes nothing: the first outcome wins,
//! and there is at most one. A transition without a token is an engine driving its own rows by key.

use crate::archive::ArchiveResult;
use crate::command::{Claim, NewHolder};
use crate::history::{EventKind, NewEvent};
use crate::id::{ClaimToken, DispatchKey};
use crate::outbox::{Holder, Row, RowClaim, RowStatus};
use crate::payload::Payload;
use crate::reject::Reject;
use crate::reply::{Claimed, Reply, Returned};
use crate::state::Apply;

impl Apply<'_> {
    pub fn claim(&mut self, claim: Claim) -> Result<Reply, Reject> {
        if claim.limit == 0 {
            return Err(Reject::invalid("limit must be at least 1"));
        }
        let (holder, deadline) = match claim.holder {
            NewHolder::Node { node, boot } => {
                if self.state.boot_of(&node) != Some(&boot) {
                    let problem = "has started again since; its last process holds nothing".to_owned();
                    return Err(Reject::NodeState { node, problem });
                }
                (Holder::Node { node, boot }, None)
            }
            NewHolder::Lease { claimant, lease_ms } => {
                if lease_ms == 0 {
                    return Err(Reject::invalid("lease_ms must be at least 1"));
                }
                (Holder::Lease { claimant }, Some(self.now().plus(lease_ms)))
            }
        };
        let takes = |key: &DispatchKey| {
            let owned = match &holder {
                Holder::Node { node, .. } => self.state.directory.is_owner(self.state.shard_of(&key.workflow), node),
                Holder::Lease { .. } => true,
            };
            owned && !claim.hold.contains(&key.workflow)
        };
        let due = self.state.index.due(&claim.scope, self.now());
        let keys: Vec<DispatchKey> = due.filter(|key| takes(key)).take(claim.limit as usize).cloned().collect();

        let mut claims = Vec::with_capacity(keys.len());
        for key in keys {
            let shard = self.state.shard_of(&key.workflow);
            // The index lists live rows only, and each of them is in the map.
            let Some(mut row) = self.state.rows.get(shard, &key).cloned() else { continue };
            let token = self.mint();
            row.status = RowStatus::Claimed;
            row.claim = Some(RowClaim { token, holder: holder.clone(), claimed_at: self.now(), deadline });
            self.put_row(&key, row);
            claims.push(Claimed { key, token, deadline });
        }
        Ok(Reply::Claimed { claims })
    }

    fn mint(&mut self) -> ClaimToken {
        self.tokens += 1;
        ClaimToken { index: self.log_index, number: self.tokens }
    }

    pub fn heartbeat(
        &mut self,
        key: DispatchKey,
        token: ClaimToken,
        lease_ms: u64,
        details: Payload,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        if lease_ms == 0 {
            return Ok(Err(Reject::invalid("lease_ms must be at least 1")));
        }
        let mut row = match self.held_row(&key, Some(token))? {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(Err(Reject::RowNotFound { key })),
            Err(reject) => return Ok(Err(reject)),
        };
        let now = self.now();
        let Some(claim) = row.claim.as_mut() else { return Ok(Err(Reject::ClaimLost { key })) };
        if claim.deadline.is_some_and(|deadline| deadline <= now) {
            return Ok(Err(Reject::ClaimLost { key }));
        }
        let deadline = now.plus(lease_ms);
        claim.deadline = claim.deadline.map(|_| deadline);
        if !details.is_empty() {
            self.state.put(crate::keys::details(&key), &details);
        }
        self.put_row(&key, row);
        Ok(Ok(Reply::Extended { deadline }))
    }

    pub fn complete(
        &mut self,
        key: DispatchKey,
        token: Option<ClaimToken>,
        result: Payload,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        let mut row = match self.held_row(&key, token)? {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(Ok(Reply::NoSuchRow)),
            Err(reject) => return Ok(Err(reject)),
        };
        row.claim = None;
        row.status = RowStatus::Done;
        let Some(seq) = self.record(&key, &mut row, EventKind::ActivityCompleted, result)? else {
            // A dead letter that was judged, then forced back: its outcome stands, its row is finished.
            let status = Some(row.status);
            self.put_row(&key, row);
            return Ok(Err(Reject::AlreadyTerminal { key, status }));
        };
        self.put_row(&key, row);
        Ok(Ok(Reply::Completed { seq }))
    }

    pub fn fail(
        &mut self,
        key: DispatchKey,
        token: Option<ClaimToken>,
        error: Payload,
        retryable: bool,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        let mut row = match self.held_row(&key, token)? {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(Ok(Reply::NoSuchRow)),
            Err(reject) => return Ok(Err(reject)),
        };
        let mut failed_seq = None;
        if retryable {
            self.hand_back(&key, &mut row, None);
        } else {
            row.deliveries = row.deliveries.saturating_add(1);
            row.claim = None;
            row.status = RowStatus::Failed;
            row.failure_delivered = true;
            failed_seq = self.record(&key, &mut row, EventKind::ActivityFailed, error)?;
        }
        if row.status == RowStatus::Pending {
            row.attempt = row.attempt.saturating_add(1);
        }
        Ok(Ok(self.returned(&key, row, failed_seq)))
    }

    pub fn retry(
        &mut self,
        key: DispatchKey,
        token: Option<ClaimToken>,
        delay_ms: u64,
    ) -> ArchiveResult<Result<Reply, Reject>> {
        let mut row = match self.held_row(&key, token)? {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(Ok(Reply::NoSuchRow)),
            Err(reject) => return Ok(Err(reject)),
        };
        self.hand_back(&key, &mut row, Some(delay_ms));
        Ok(Ok(self.returned(&key, row, None)))
    }

    /// Pending again after a wait, or a dead letter if the budget is spent.
    fn hand_back(&self, key: &DispatchKey, row: &mut Row, delay_ms: Option<u64>) {
        row.deliveries = row.deliveries.saturating_add(1);
        row.claim = None;
        if row.deliveries >= row.retry.deliveries_max {
            row.status = RowStatus::Failed;
            return;
        }
        let wait = delay_ms.unwrap_or_else(|| row.retry.backoff_ms(key, row.deliveries));
        row.status = RowStatus::Pending;
        row.visible_after = self.now().plus(wait);
    }

    fn returned(&mut self, key: &DispatchKey, row: Row, failed_seq: Option<u64>) -> Reply {
        let Row { status, deliveries, visible_after, .. } = row;
        self.put_row(key, row);
        Reply::Returned(Returned { status, deliveries, visible_after, failed_seq })
    }

    /// Appends an activity's outcome, unless it has one.
    fn record(
        &mut self,
        key: &DispatchKey,
        row: &mut Row,
        kind: EventKind,
        payload: Payload,
    ) -> ArchiveResult<Option<u64>> {
        if row.outcome_seq.is_some() {
            return Ok(None);
        }
        // A live row's workflow exists: rows are staged together with events.
        let Some(workflow) = self.workflow(&key.workflow)? else { return Ok(None) };
        let event = NewEvent::activity(kind, key.ordinal).with(payload);
        let seq = self.append_next(&key.workflow, workflow, event);
        row.outcome_seq = Some(seq);
        Ok(Some(seq))
    }

    /// The live row `key` if the caller may move it. With a token it has to be the current claim's;
    /// without one (by key) any live row will do, and a missing row is `None`.
    fn held_row(&self, key: &DispatchKey, token: Option<ClaimToken>) -> ArchiveResult<Result<Option<Row>, Reject>> {
        let row = self.row(key)?;
        Ok(match (row, token) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Reject::RowNotFound { key: key.clone() }),
            (Some(row), _) if !row.status.is_live() => {
                Err(Reject::AlreadyTerminal { key: key.clone(), status: Some(row.status) })
            }
            (Some(row), Some(token)) if row.claim.as_ref().is_none_or(|claim| claim.token != token) => {
                Err(Reject::ClaimLost { key: key.clone() })
            }
            (Some(row), _) => Ok(Some(row)),
        })
    }
}
