//! One log entry: the state before it, the state after it, and what was said.

use holdfast_machine::{
    Command, DispatchKey, Effect, Holder, Millis, Reject, Reply, Request, Row, RowClaim, WorkflowId, WorkflowStatus,
};

use crate::Snapshot;

/// Requests with their replies.
pub type Said = [(Request, Result<Reply, Reject>)];

/// One log entry.
pub struct Step<'a> {
    /// Its index.
    pub index: u64,
    /// The state before it, without what was removed by the entry (see [`Snapshot::forget`]).
    pub before: &'a Snapshot,
    /// The state after it.
    pub after: &'a Snapshot,
    /// Its requests; none for an entry of the membership.
    pub said: &'a Said,
    /// Its effects.
    pub effects: &'a [Effect],
    /// Everything that was said before under an idempotency key and is not forgotten.
    pub remembered: &'a Said,
    /// Workflows that the entry removed, with the status that they had before it.
    pub removed: &'a [(WorkflowId, Option<WorkflowStatus>)],
}

impl Step<'_> {
    /// The requests of this entry that may have touched this workflow or its rows, by number.
    pub fn touching<'s>(&'s self, workflow: &'s WorkflowId) -> impl Iterator<Item = &'s Request> {
        self.said.iter().map(|(request, _)| request).filter(move |request| match request.command.workflow() {
            Some(touched) => touched == workflow,
            None => !matches!(request.command, Command::Tick | Command::Create { .. } | Command::Assign { .. }),
        })
    }

    /// True if something could have happened to this row by itself at the entry's time: its lease or its session has
    /// ended, or a timeout has passed.
    pub fn deadline_passed(&self, key: &DispatchKey) -> bool {
        let Some(row) = self.before.rows.get(key).filter(|row| row.status.is_live()) else { return false };
        let session = match row.claim.as_ref().map(|claim| &claim.holder) {
            Some(Holder::Session { session }) => self.before.sessions.get(session).map(|session| session.deadline),
            _ => None,
        };
        deadline(row).into_iter().chain(session).any(|at| at <= self.after.now)
    }

    /// True if this entry gave the row to somebody.
    pub fn was_given(&self, key: &DispatchKey) -> bool {
        let claim = self.after.rows.get(key).and_then(|row| row.claim.as_ref());
        claim.is_some_and(|claim| claim.token.index == self.index)
    }
}

/// The first deadline of a live row.
pub(crate) fn deadline(row: &Row) -> Option<Millis> {
    let claim = row.claim.as_ref();
    let attempt = |from: fn(&RowClaim) -> Millis, ms: Option<u64>| Some(from(claim?).plus(ms?));
    let all = [
        row.timeouts.schedule_to_close_ms.map(|ms| row.scheduled_at.plus(ms)),
        row.start_by,
        attempt(|claim| claim.claimed_at, row.timeouts.start_to_close_ms),
        attempt(|claim| claim.heartbeat_at, row.timeouts.heartbeat_ms),
        claim.and_then(|claim| claim.deadline),
    ];
    all.into_iter().flatten().min()
}
