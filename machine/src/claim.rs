//! Claims, what keeps them, and what they are the proof of.
//!
//! A claim mints a token. A transition under any other token changes nothing: the first outcome wins,
//! and there is at most one. A transition without a token is an engine driving its own rows by key.

use std::collections::BTreeSet;

use crate::archive::ArchiveResult;
use crate::command::{Claim, NewHolder, Scope};
use crate::id::{ClaimToken, DispatchKey, Millis, Namespace, WorkflowId};
use crate::keys;
use crate::outbox::{Holder, Row, RowClaim, RowStatus};
use crate::payload::Payload;
use crate::planted::is_planted;
use crate::reject::Reject;
use crate::reply::{Claimed, Reply};
use crate::shard::{BOOTED_SINCE, NO_MEMBER};
use crate::state::Apply;

impl Apply<'_> {
    pub fn claim(&mut self, claim: Claim) -> Result<Reply, Reject> {
        if claim.limit == 0 {
            return Err(Reject::invalid("limit must be at least 1"));
        }
        let (holder, deadline) = self.new_holder(claim.holder, &claim.scope)?;
        let owner = match &holder {
            Holder::Node { node, .. } => Some(node),
            Holder::Lease { .. } | Holder::Session { .. } => None,
        };
        let hold: BTreeSet<&WorkflowId> = claim.hold.iter().collect();
        let due = self.state.index.due(&claim.scope, owner, self.now());
        let now = self.now();
        let overdue = |key: &DispatchKey| {
            self.state.rows.get(self.state.shard_of(&key.workflow), key).is_some_and(|row| row.is_overdue(now))
        };
        let due = due.filter(|key| !hold.contains(&key.workflow) && !overdue(key));
        let room = self.state.room_for_claims(&claim.scope.namespace).unwrap_or(u64::MAX);
        let most = room.min(u64::from(claim.limit)) as usize;
        let keys: Vec<DispatchKey> = due.take(most).cloned().collect();

        let mut claims = Vec::with_capacity(keys.len());
        for key in keys {
            // The index lists live rows only, and each of them is in the map.
            let Some((token, _)) = self.take_row(&key, holder.clone(), deadline) else { continue };
            claims.push(Claimed { key, token, deadline });
        }
        Ok(Reply::Claimed { claims })
    }

    /// Gives a live row to a holder. Returns the new claim's token and the row's namespace.
    pub fn take_row(
        &mut self,
        key: &DispatchKey,
        holder: Holder,
        deadline: Option<Millis>,
    ) -> Option<(ClaimToken, Namespace)> {
        let shard = self.state.shard_of(&key.workflow);
        let mut row = self.state.rows.get(shard, key).cloned()?;
        let (token, namespace) = (self.mint(), row.namespace.clone());
        row.status = RowStatus::Claimed;
        let (claimed_at, heartbeat_at) = (self.now(), self.now());
        row.claim = Some(RowClaim { token, holder, claimed_at, deadline, heartbeat_at });
        self.put_row(key, row);
        Some((token, namespace))
    }

    /// Who a claim is for, and until when.
    fn new_holder(&self, holder: NewHolder, scope: &Scope) -> Result<(Holder, Option<Millis>), Reject> {
        match holder {
            NewHolder::Node { node, boot } => {
                let problem = match self.state.members.get(&node) {
                    None => NO_MEMBER,
                    Some(member) if member.boot.as_ref() != Some(&boot) => BOOTED_SINCE,
                    Some(_) if scope.node.as_ref().is_some_and(|pinned| *pinned != node) => {
                        return Err(Reject::invalid("scope.node must be the node that claims, or be left out"));
                    }
                    Some(_) => return Ok((Holder::Node { node, boot }, None)),
                };
                Err(Reject::NodeState { node, problem: problem.to_owned() })
            }
            NewHolder::Lease { lease_ms: 0, .. } => Err(Reject::invalid("lease_ms must be at least 1")),
            NewHolder::Lease { claimant, lease_ms } => {
                Ok((Holder::Lease { claimant }, Some(self.now().plus(lease_ms))))
            }
        }
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
        let deadline = self.now().plus(lease_ms);
        let Some(claim) = row.claim.as_mut() else { return Ok(Err(Reject::ClaimLost { key })) };
        claim.deadline = claim.deadline.map(|_| deadline);
        claim.heartbeat_at = self.now();
        // A session's rows go on as long as it does.
        let deadline = match &claim.holder {
            Holder::Session { session } => self.state.sessions.get(session).map_or(deadline, |of| of.deadline),
            Holder::Node { .. } | Holder::Lease { .. } => deadline,
        };
        if !details.is_empty() {
            self.state.put(keys::details(&key), &details);
        }
        self.put_row(&key, row);
        Ok(Ok(Reply::Extended { deadline }))
    }

    /// The live row `key` if the caller may move it. With a token it has to be the current claim's;
    /// without one (by key) any live row will do, and a missing row is `None`.
    pub fn held_row(&self, key: &DispatchKey, token: Option<ClaimToken>) -> ArchiveResult<Result<Option<Row>, Reject>> {
        let row = self.row(key)?;
        Ok(match (row, token) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Reject::RowNotFound { key: key.clone() }),
            (Some(row), _) if !row.status.is_live() => {
                Err(Reject::AlreadyTerminal { key: key.clone(), status: Some(row.status) })
            }
            (Some(row), Some(token)) if !self.holds(&row, token) && !is_planted("accept-old-token") => {
                Err(Reject::ClaimLost { key: key.clone() })
            }
            (Some(row), _) => Ok(Some(row)),
        })
    }

    /// True while `token` is the row's claim, its lease or session has not ended and no timeout has passed.
    fn holds(&self, row: &Row, token: ClaimToken) -> bool {
        let Some(claim) = row.claim.as_ref().filter(|claim| claim.token == token) else { return false };
        let lives = match &claim.holder {
            Holder::Session { session } => self.state.sessions.is_alive(session, self.now()),
            Holder::Node { .. } | Holder::Lease { .. } => true,
        };
        lives && !row.is_overdue(self.now())
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Command;
    use crate::id::DispatchKey;
    use crate::limits::DEADLINES_PASSED_PER_ENTRY_MAX;
    use crate::outbox::RowStatus;
    use crate::reject::Reject;
    use crate::trial::{Trial, id};

    #[test]
    fn an_ended_lease_is_void_even_before_its_row_is_pending_again() {
        let mut trial = Trial::new();
        let rows = DEADLINES_PASSED_PER_ENTRY_MAX as u64 + 1;
        trial.start("order-1", 0..rows);
        let claims = trial.lease(u32::MAX, 10);
        assert_eq!(claims.len() as u64, rows);
        trial.at += 10;
        let last = claims.last().unwrap();
        // One entry ends so many leases and no more; the last one has ended all the same.
        assert_eq!(trial.complete(&last.key, last.token), Err(Reject::ClaimLost { key: last.key.clone() }));
        let status = |trial: &Trial| trial.row(&last.key.to_string()).unwrap().status;
        assert_eq!(status(&trial), RowStatus::Claimed);
        trial.ask(Command::Tick).unwrap();
        assert_eq!(status(&trial), RowStatus::Pending);
        assert_eq!(trial.machine.next_deadline(), None);
    }

    #[test]
    fn a_node_takes_rows_of_its_own_shards() {
        let mut trial = Trial::new();
        trial.start("order-1", [1]);
        trial.start("held", [1]);
        let keys = |claims: Vec<crate::Claimed>| claims.into_iter().map(|claim| claim.key).collect::<Vec<_>>();
        assert_eq!(keys(trial.claim_by("c")), []);
        assert_eq!(keys(trial.claim_by("b")), [id::<DispatchKey>("held:1")]);
        assert_eq!(keys(trial.claim_by("a")), [id::<DispatchKey>("order-1:1")]);
    }
}
