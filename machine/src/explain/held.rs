//! Who holds a claimed row, and for how long yet.

use super::row::RowReason;
use super::{OVERDUE_GRACE_MS, since, until};
use crate::id::{DispatchKey, Millis, SessionId};
use crate::outbox::{Holder, Row, RowClaim};
use crate::state::Machine;

/// Overdue claims that are counted.
const OVERDUE_COUNTED_MAX: usize = 10_000;

impl Machine {
    /// How many claims ended more than [`OVERDUE_GRACE_MS`] ago and hold all the same, by the caller's clock: log time
    /// stands still. Counts ten thousand leases, and the rows of sessions that were looked at with them.
    pub fn overdue_claims(&self, now: Millis) -> u64 {
        let Some(ended_by) = now.0.checked_sub(OVERDUE_GRACE_MS + 1).map(Millis) else { return 0 };
        let leases = self.index.all_overdue(ended_by).take(OVERDUE_COUNTED_MAX).count() as u64;
        if self.next_session_end().is_none_or(|at| at > ended_by) {
            return leases;
        }
        let sessions = self.sessions_after(None).filter(|(_, session)| session.deadline <= ended_by);
        let of_sessions: u64 = sessions.take(OVERDUE_COUNTED_MAX).map(|(id, _)| self.session_row_count(id)).sum();
        leases + of_sessions
    }

    /// When the oldest claim was made.
    pub fn oldest_claim(&self) -> Option<Millis> {
        self.index.oldest_claim()
    }

    /// The reason of a claimed row.
    pub(super) fn claimed(&self, key: &DispatchKey, row: &Row, claim: &RowClaim, now: Millis) -> RowReason {
        if let Some(ended_at) = self.claim_end(row, claim).filter(|at| since(now, *at) > OVERDUE_GRACE_MS) {
            return RowReason::ClaimOverdue { ended_at, overdue_ms: since(now, ended_at) };
        }
        let (claimed_for_ms, attempt) = (since(now, claim.claimed_at), row.attempt);
        let times_out_in_ms = attempt_end(row, claim).map(|at| until(now, at));
        match &claim.holder {
            Holder::Lease { claimant } => RowReason::ClaimedByLease {
                claimant: claimant.clone(),
                claimed_for_ms,
                lease_left_ms: claim.deadline.map_or(0, |deadline| until(now, deadline)),
                attempt,
                times_out_in_ms,
            },
            Holder::Node { node, boot } => {
                let member = self.member(node);
                if member.is_some_and(|member| !member.is_down() && member.boot.as_ref() == Some(boot)) {
                    return RowReason::ClaimedByNode { node: node.clone(), claimed_for_ms, attempt, times_out_in_ms };
                }
                let down_since = member.filter(|member| member.is_down()).map(|member| member.since);
                let adopter = self.adopter(self.shard_of(&key.workflow));
                RowReason::HolderAway { node: node.clone(), down_since, adopter }
            }
            Holder::Session { session } => self.held_by_session(session, claimed_for_ms, attempt, times_out_in_ms, now),
        }
    }

    /// When a claim ends if nobody does anything: with its lease, its session, or its attempt's time.
    pub(super) fn claim_end(&self, row: &Row, claim: &RowClaim) -> Option<Millis> {
        let session = match &claim.holder {
            Holder::Session { session } => self.session(session).map(|session| session.deadline),
            Holder::Lease { .. } | Holder::Node { .. } => None,
        };
        [claim.deadline, session, attempt_end(row, claim)].into_iter().flatten().min()
    }

    fn held_by_session(
        &self,
        id: &SessionId,
        claimed_for_ms: u64,
        attempt: u32,
        times_out_in_ms: Option<u64>,
        now: Millis,
    ) -> RowReason {
        // The end of a session takes its rows along in the same entry.
        let Some(session) = self.session(id) else { return RowReason::AboutToBeDelivered };
        let (identity, left) = (session.worker.identity.clone(), until(now, session.deadline));
        let session_id = id.clone();
        match &session.attached {
            Some(attached) => RowReason::ClaimedBySession {
                session: session_id,
                identity,
                node: attached.node.clone(),
                claimed_for_ms,
                lease_left_ms: left,
                heartbeat_ago_ms: since(now, Millis(session.deadline.0.saturating_sub(session.worker.lease_ms))),
                attempt,
                times_out_in_ms,
            },
            None => RowReason::SessionAway {
                session: session_id,
                identity,
                claimed_for_ms,
                ends_in_ms: left,
                times_out_in_ms,
            },
        }
    }
}

/// When an attempt times out, if it does.
fn attempt_end(row: &Row, claim: &RowClaim) -> Option<Millis> {
    let timeouts = &row.timeouts;
    let ends = [
        timeouts.start_to_close_ms.map(|ms| claim.claimed_at.plus(ms)),
        timeouts.heartbeat_ms.map(|ms| claim.heartbeat_at.plus(ms)),
        timeouts.schedule_to_close_ms.map(|ms| row.scheduled_at.plus(ms)),
    ];
    ends.into_iter().flatten().min()
}
