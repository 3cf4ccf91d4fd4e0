//! Why a workflow does not move.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::row::RowReason;
use super::shard::ShardReason;
use super::{NoQuorum, OVERDUE_GRACE_MS, Outlook, Vantage, since, until};
use crate::archive::{Archive, ArchiveResult};
use crate::history::WorkflowStatus;
use crate::id::{DispatchKey, Epoch, Millis, NodeName, ShardId, TimerId, WorkflowId};
use crate::state::Machine;

/// Rows of a workflow that are looked at for one that is held up.
const ROWS_LOOKED_AT_MAX: usize = 1_000;
/// Dead letters that are looked at for one that the workflow has not heard of.
const DEAD_LETTERS_LOOKED_AT_MAX: usize = 100;
/// Timers that are looked at for the first one to be due.
const TIMERS_LOOKED_AT_MAX: usize = 10_000;

/// What a workflow waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum WorkflowReason {
    /// Nobody has written to it, and it has no rows.
    NoSuchWorkflow,
    /// It is being removed.
    BeingRemoved,
    /// Its run has ended.
    Finished {
        /// How.
        status: WorkflowStatus,
        /// When.
        closed_at: Option<Millis>,
        /// The last event's number.
        head: u64,
    },
    /// The node that answers does not reach a majority, so nothing can be written through it.
    NoQuorum(NoQuorum),
    /// A disk is full, so nothing can be written.
    StorageFull {
        /// The node whose disk it is.
        node: NodeName,
    },
    /// It is paused.
    Paused {
        /// Since when; none if the pause is far behind in its history.
        since: Option<Millis>,
        /// Its rows that wait for the end of the pause.
        pending: u64,
        /// Its rows that are under way all the same.
        claimed: u64,
    },
    /// Its shard has no live owner, so no engine drives it.
    ShardWithoutOwner {
        /// The shard.
        shard: ShardId,
        /// How it stands.
        shard_reason: ShardReason,
    },
    /// A row of it is held up.
    RowHeldUp {
        /// How many of its rows wait.
        pending: u64,
        /// How many are claimed.
        claimed: u64,
        /// The first one that is held up.
        row: DispatchKey,
        /// Why.
        row_reason: RowReason,
    },
    /// A row of it was given up, and the workflow has not heard of it.
    UnheardDeadLetter {
        /// The row.
        row: DispatchKey,
        /// Why it was given up.
        row_reason: RowReason,
    },
    /// Its rows move.
    WaitingForRows {
        /// How many of its rows wait.
        pending: u64,
        /// How many are claimed.
        claimed: u64,
        /// The first of them.
        row: DispatchKey,
        /// How it stands.
        row_reason: RowReason,
    },
    /// A timer of it is due, and its engine has not fired it.
    TimerDue {
        /// The timer.
        timer: TimerId,
        /// When it was due.
        fire_at: Millis,
        /// For how long it has been.
        due_for_ms: u64,
        /// The node whose engine has to.
        owner: NodeName,
    },
    /// It waits for a timer.
    WaitingForTimer {
        /// The timer that is due first.
        timer: TimerId,
        /// When.
        fire_at: Millis,
        /// How long that is.
        due_in_ms: u64,
        /// How many timers it has armed.
        timers: u64,
    },
    /// Nothing is pending: its engine has not decided what comes next, or it waits for a signal.
    WaitingForEngine {
        /// The node whose engine drives it.
        owner: NodeName,
        /// Its shard.
        shard: ShardId,
        /// The epoch of the ownership.
        epoch: Epoch,
        /// The last event's number.
        head: u64,
    },
}

impl WorkflowReason {
    /// Whether somebody has to do something.
    pub fn outlook(&self) -> Outlook {
        match self {
            Self::NoSuchWorkflow => Outlook::Unknown,
            Self::BeingRemoved | Self::Finished { .. } => Outlook::Finished,
            Self::WaitingForRows { .. } | Self::WaitingForTimer { .. } | Self::WaitingForEngine { .. } => {
                Outlook::Moving
            }
            Self::NoQuorum(_)
            | Self::StorageFull { .. }
            | Self::Paused { .. }
            | Self::ShardWithoutOwner { .. }
            | Self::RowHeldUp { .. }
            | Self::UnheardDeadLetter { .. }
            | Self::TimerDue { .. } => Outlook::HeldUp,
        }
    }

    /// The row that the reason is about, with its own.
    pub fn row(&self) -> Option<(&DispatchKey, &RowReason)> {
        match self {
            Self::RowHeldUp { row, row_reason, .. }
            | Self::UnheardDeadLetter { row, row_reason }
            | Self::WaitingForRows { row, row_reason, .. } => Some((row, row_reason)),
            _ => None,
        }
    }
}

impl Machine {
    /// What a workflow waits for: the first reason that holds.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn explain_workflow(
        &self,
        archive: &dyn Archive,
        id: &WorkflowId,
        vantage: &Vantage,
    ) -> ArchiveResult<WorkflowReason> {
        if self.is_being_removed(id) {
            return Ok(WorkflowReason::BeingRemoved);
        }
        let workflow = self.workflow(archive, id)?;
        let counts = self.rows.counts_of(self.shard_of(id), id);
        if let Some(ended) = workflow.as_ref().filter(|workflow| workflow.status.is_terminal()) {
            let (status, closed_at, head) = (ended.status, ended.run.closed_at, ended.head);
            return Ok(WorkflowReason::Finished { status, closed_at, head });
        }
        if let Some(no_quorum) = &vantage.no_quorum {
            return Ok(WorkflowReason::NoQuorum(no_quorum.clone()));
        }
        let dead_letter = self.unheard_dead_letter(archive, id)?;
        if workflow.is_none() && counts.pending + counts.claimed == 0 && dead_letter.is_none() {
            return Ok(WorkflowReason::NoSuchWorkflow);
        }
        if let Some(node) = &vantage.storage_full {
            return Ok(WorkflowReason::StorageFull { node: node.clone() });
        }
        let (pending, claimed) = (counts.pending, counts.claimed);
        if self.is_held(id) {
            return Ok(WorkflowReason::Paused { since: self.paused_since(archive, id)?, pending, claimed });
        }
        let shard = self.shard_of(id);
        let (owner, epoch) = match self.explain_shard(shard, vantage) {
            ShardReason::Owned { owner, epoch, .. } => (owner, epoch),
            shard_reason => return Ok(WorkflowReason::ShardWithoutOwner { shard, shard_reason }),
        };
        let row = self.first_row(archive, id, vantage)?;
        match (row, dead_letter) {
            (Some((row, row_reason)), _) if row_reason.outlook() == Outlook::HeldUp => {
                return Ok(WorkflowReason::RowHeldUp { pending, claimed, row, row_reason });
            }
            (_, Some(row)) => {
                let row_reason = self.explain_row(archive, &row, vantage)?;
                return Ok(WorkflowReason::UnheardDeadLetter { row, row_reason });
            }
            (Some((row, row_reason)), None) => {
                return Ok(WorkflowReason::WaitingForRows { pending, claimed, row, row_reason });
            }
            (None, None) => {}
        }
        if let Some(reason) = self.timer_reason(id, &owner, vantage.now) {
            return Ok(reason);
        }
        let head = workflow.map_or(0, |workflow| workflow.head);
        Ok(WorkflowReason::WaitingForEngine { owner, shard, epoch, head })
    }

    /// The first row that is held up, or the first one if none is.
    fn first_row(
        &self,
        archive: &dyn Archive,
        id: &WorkflowId,
        vantage: &Vantage,
    ) -> ArchiveResult<Option<(DispatchKey, RowReason)>> {
        let (mut first, mut routes) = (None, BTreeMap::new());
        for (key, row) in self.rows.of_workflow(self.shard_of(id), id).take(ROWS_LOOKED_AT_MAX) {
            let reason = self.row_reason(archive, key, row, vantage, &mut routes)?;
            if reason.outlook() == Outlook::HeldUp {
                return Ok(Some((key.clone(), reason)));
            }
            first = first.or_else(|| Some((key.clone(), reason)));
        }
        Ok(first)
    }

    fn unheard_dead_letter(&self, archive: &dyn Archive, id: &WorkflowId) -> ArchiveResult<Option<DispatchKey>> {
        let letters = self.dead_letters_of(archive, id, None, DEAD_LETTERS_LOOKED_AT_MAX)?.rows;
        Ok(letters.into_iter().find(|(_, row)| !row.failure_delivered).map(|(key, _)| key))
    }

    fn timer_reason(&self, id: &WorkflowId, owner: &NodeName, now: Millis) -> Option<WorkflowReason> {
        let timers = self.timers_of(id, None, TIMERS_LOOKED_AT_MAX);
        let first = timers.iter().min_by_key(|arming| arming.fire_at)?;
        let (timer, fire_at) = (first.timer.clone(), first.fire_at);
        // An engine that has just been told needs a moment.
        Some(if since(now, fire_at) > OVERDUE_GRACE_MS {
            let (due_for_ms, owner) = (since(now, fire_at), owner.clone());
            WorkflowReason::TimerDue { timer, fire_at, due_for_ms, owner }
        } else {
            let (due_in_ms, timers) = (until(now, fire_at), timers.len() as u64);
            WorkflowReason::WaitingForTimer { timer, fire_at, due_in_ms, timers }
        })
    }
}
