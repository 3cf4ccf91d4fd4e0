//! What happens to live rows by time alone: a lease ends, or one of a row's timeouts has passed.
//!
//! The earliest of a row's deadlines is what happens to it first, however far log time jumps; what is left of the row
//! after that is looked at again. A timeout fails its attempt, or its activity, exactly as its worker would.

use serde::{Deserialize, Serialize};

use crate::archive::ArchiveResult;
use crate::command::RowAction;
use crate::id::{DispatchKey, ErrorType, Millis};
use crate::outbox::{Row, Timeouts};
use crate::payload::{JSON, Payload};
use crate::state::{Apply, Machine};

/// What happens to a row at its deadline. Of two at the same time the first one here counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Deadline {
    /// Its activity fails for good: it has taken too long in all.
    ScheduleToClose,
    /// Its activity fails for good: nobody has taken it.
    ScheduleToStart,
    /// Its attempt has failed: it has taken too long.
    StartToClose,
    /// Its attempt has failed: nothing was heard of it for too long.
    Heartbeat,
    /// It is pending again: its lease has ended.
    Lease,
}

impl Deadline {
    /// What the failure says that it causes, and whether another attempt may mend it; none for the end of a lease.
    fn failure(self) -> Option<(&'static str, bool)> {
        match self {
            Self::ScheduleToClose => Some((r#"{"type":"timeout","timeout":"schedule_to_close"}"#, false)),
            Self::ScheduleToStart => Some((r#"{"type":"timeout","timeout":"schedule_to_start"}"#, false)),
            Self::StartToClose => Some((r#"{"type":"timeout","timeout":"start_to_close"}"#, true)),
            Self::Heartbeat => Some((r#"{"type":"timeout","timeout":"heartbeat"}"#, true)),
            Self::Lease => None,
        }
    }
}

impl Row {
    /// What happens next to a live row if nobody does anything, and when. That of a pending row of a paused workflow
    /// waits until it is resumed.
    pub fn next_deadline(&self) -> Option<(Millis, Deadline)> {
        self.deadlines().min()
    }

    /// The same without the lease, which heartbeats extend: which of its timeouts passes first, and when.
    pub fn next_timeout(&self) -> Option<(Millis, Deadline)> {
        self.deadlines().filter(|(_, deadline)| *deadline != Deadline::Lease).min()
    }

    fn deadlines(&self) -> impl Iterator<Item = (Millis, Deadline)> {
        let is_live = self.status.is_live();
        let Timeouts { start_to_close_ms, schedule_to_close_ms, heartbeat_ms, schedule_to_start_ms: _ } = self.timeouts;
        let claim = self.claim.as_ref();
        let deadlines = [
            (schedule_to_close_ms.map(|ms| self.scheduled_at.plus(ms)), Deadline::ScheduleToClose),
            (self.start_by, Deadline::ScheduleToStart),
            (claim.and_then(|claim| Some(claim.claimed_at.plus(start_to_close_ms?))), Deadline::StartToClose),
            (claim.and_then(|claim| Some(claim.heartbeat_at.plus(heartbeat_ms?))), Deadline::Heartbeat),
            (claim.and_then(|claim| claim.deadline), Deadline::Lease),
        ];
        deadlines.into_iter().filter(move |_| is_live).filter_map(|(at, deadline)| Some((at?, deadline)))
    }

    /// When the attempt under way has to have its outcome at the latest, however well its worker does; none if it may
    /// take as long as it likes, or if there is none.
    pub fn finish_by(&self) -> Option<Millis> {
        self.claim.as_ref()?;
        let ends = |of: &Deadline| matches!(of, Deadline::StartToClose | Deadline::ScheduleToClose);
        self.deadlines().filter(|(_, deadline)| ends(deadline)).map(|(at, _)| at).min()
    }

    /// True once a live row's deadline has passed, even if its entry has yet to come.
    pub(crate) fn is_overdue(&self, now: Millis) -> bool {
        self.next_deadline().is_some_and(|(at, _)| at <= now)
    }

    /// When the row has to be claimed at the latest if it waits from `now` on.
    pub(crate) fn start_by_from(&self, now: Millis) -> Option<Millis> {
        let waits = self.status.is_live() && self.claim.is_none();
        let wait_ms = self.timeouts.schedule_to_start_ms.filter(|_| waits)?;
        Some(self.visible_after.max(now).plus(wait_ms))
    }
}

impl Machine {
    /// When something happens to a row by time alone next: a lease ends, or a timeout passes.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.index.next_deadline()
    }
}

impl Apply<'_> {
    /// Does what the deadlines up to `until` say, the earliest first, up to so many for each entry. Runs before the
    /// commands of each entry, and behind them: a resumed workflow may have rows that are overdue.
    pub fn pass_deadlines(&mut self, until: Millis) -> ArchiveResult<()> {
        self.stirred.presented.clear();
        while self.passable > 0
            && let Some(key) = self.state.index.overdue(until).cloned()
        {
            self.passable -= 1;
            let shard = self.state.shard_of(&key.workflow);
            // The index lists live rows only, and each of them is in the map.
            let Some(row) = self.state.rows.get(shard, &key).cloned() else { break };
            let Some((_, deadline)) = row.next_deadline() else { break };
            self.pass_deadline(&key, row, deadline)?;
        }
        Ok(())
    }

    fn pass_deadline(&mut self, key: &DispatchKey, row: Row, deadline: Deadline) -> ArchiveResult<()> {
        match deadline.failure() {
            None => self.rearm_row(key, row),
            Some((error, retryable)) => {
                let error = Payload { content_type: JSON.to_owned(), data: error.into() };
                let error_type = Some(ErrorType::timeout());
                // An activity that has its outcome already keeps it, as with any failure; there is nobody to tell.
                let _ = self.transition(key.clone(), None, RowAction::Fail { error, error_type, retryable })?;
            }
        }
        Ok(())
    }
}
