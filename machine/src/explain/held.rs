//! Who holds a claimed row, and for how long yet; and what happens to rows by time alone.

use serde::{Deserialize, Serialize};

use super::row::RowReason;
use super::{OVERDUE_GRACE_MS, since, until};
use crate::archive::{Archive, ArchiveResult};
use crate::deadline::Deadline;
use crate::id::{DispatchKey, Millis, SessionId};
use crate::outbox::{Holder, Row, RowClaim};
use crate::state::Machine;

/// The timeout of a row that passes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NextTimeout {
    /// Which one.
    pub timeout: Deadline,
    /// When it passes.
    pub at: Millis,
    /// How long that is.
    pub in_ms: u64,
}

/// Deadlines that are counted, of rows and of sessions each.
const OVERDUE_COUNTED_MAX: usize = 10_000;

impl Machine {
    /// How many deadlines of rows (leases, timeouts) and of sessions passed more than [`OVERDUE_GRACE_MS`] ago, by the
    /// caller's clock, and nothing has come of them: log time stands still. Counts ten thousand of each.
    pub fn overdue_deadlines(&self, now: Millis) -> u64 {
        let Some(by) = now.0.checked_sub(OVERDUE_GRACE_MS + 1).map(Millis) else { return 0 };
        let rows = self.index.all_overdue(by).take(OVERDUE_COUNTED_MAX).count();
        (rows + self.sessions.ended(by).take(OVERDUE_COUNTED_MAX).count()) as u64
    }

    /// When the oldest claim was made.
    pub fn oldest_claim(&self) -> Option<Millis> {
        self.index.oldest_claim()
    }

    /// The reason of a claimed row.
    pub(super) fn claimed(&self, key: &DispatchKey, row: &Row, claim: &RowClaim, now: Millis) -> RowReason {
        let (claimed_for_ms, attempt) = (since(now, claim.claimed_at), row.attempt);
        match &claim.holder {
            Holder::Lease { claimant } => RowReason::ClaimedByLease {
                claimant: claimant.clone(),
                claimed_for_ms,
                lease_left_ms: claim.deadline.map_or(0, |deadline| until(now, deadline)),
                attempt,
            },
            Holder::Node { node, boot } => {
                let member = self.member(node);
                if member.is_some_and(|member| !member.is_down() && member.boot.as_ref() == Some(boot)) {
                    return RowReason::ClaimedByNode { node: node.clone(), claimed_for_ms, attempt };
                }
                let down_since = member.filter(|member| member.is_down()).map(|member| member.since);
                let adopter = self.adopter(self.shard_of(&key.workflow));
                RowReason::HolderAway { node: node.clone(), down_since, adopter }
            }
            Holder::Session { session } => self.held_by_session(session, claimed_for_ms, attempt, now),
        }
    }

    /// The reason of a row that something was to happen to a while ago.
    pub(super) fn overdue(&self, row: &Row, now: Millis) -> Option<RowReason> {
        let session = match row.claim.as_ref().map(|claim| &claim.holder) {
            Some(Holder::Session { session }) => self.session(session).map(|session| session.deadline),
            _ => None,
        };
        let passed_at = row.next_deadline().map(|(at, _)| at).into_iter().chain(session).min()?;
        let overdue_ms = since(now, passed_at);
        (overdue_ms > OVERDUE_GRACE_MS).then_some(RowReason::DeadlineOverdue { passed_at, overdue_ms })
    }

    /// Which timeout of a row that moves by log time passes first; none for one that has ended or is held by a pause,
    /// nor once it has passed.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn timeout_of(
        &self,
        archive: &dyn Archive,
        key: &DispatchKey,
        now: Millis,
    ) -> ArchiveResult<Option<NextTimeout>> {
        let row = self.row(archive, key)?.filter(|row| row.claim.is_some() || !self.is_held(&key.workflow));
        let next = row.and_then(|row| row.next_timeout()).filter(|(at, _)| *at > now);
        Ok(next.map(|(at, timeout)| NextTimeout { timeout, at, in_ms: until(now, at) }))
    }

    fn held_by_session(&self, id: &SessionId, claimed_for_ms: u64, attempt: u32, now: Millis) -> RowReason {
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
            },
            None => RowReason::SessionAway { session: session_id, identity, claimed_for_ms, ends_in_ms: left },
        }
    }
}
