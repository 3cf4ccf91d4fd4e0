//! Why a row does not move.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::route::RouteOf;
use super::{NoQuorum, Outlook, Vantage, until};
use crate::archive::{Archive, ArchiveResult};
use crate::history::EventKind;
use crate::id::{ActivityType, Claimant, DispatchKey, Millis, Namespace, NodeName, SessionId, TaskQueue, WorkflowId};
use crate::outbox::{Row, RowStatus};
use crate::payload::{JSON, Payload};
use crate::row_index::Route;
use crate::state::Machine;

/// Events behind which a pause is looked for, from the head back.
const PAUSE_LOOKED_FOR_IN: u64 = 64;
/// Characters of a failed attempt's words that are shown.
const SAID_CHARS_MAX: usize = 200;

/// Why a row is where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum RowReason {
    /// There is no such row.
    NoSuchRow {
        /// Whether its workflow has a history.
        workflow_known: bool,
        /// True while the workflow is being removed.
        being_removed: bool,
    },
    /// It is done or cancelled.
    Finished {
        /// Which of the two.
        status: RowStatus,
        /// The event that recorded its outcome.
        outcome_seq: Option<u64>,
    },
    /// Its budget is spent, or it failed for good.
    DeadLetter {
        /// The event that recorded its failure; none if only the budget is spent.
        outcome_seq: Option<u64>,
        /// How often it came back.
        deliveries: u32,
        /// How often it may.
        deliveries_max: u32,
        /// True once its workflow has heard of it.
        failure_delivered: bool,
        /// The first words of its last failed attempt.
        last_said: Option<String>,
    },
    /// The node that answers does not reach a majority, so nothing can be written through it.
    NoQuorum(NoQuorum),
    /// A disk is full, so nothing can be written.
    StorageFull {
        /// The node whose disk it is.
        node: NodeName,
    },
    /// Its workflow is paused.
    WorkflowPaused {
        /// The workflow.
        workflow: WorkflowId,
        /// Since when; none if the pause is far behind in its history.
        since: Option<Millis>,
    },
    /// Its time has not come.
    NotYetVisible {
        /// When it comes.
        visible_after: Millis,
        /// How long that is.
        visible_in_ms: u64,
    },
    /// It waits for its next attempt.
    WaitingForRetry {
        /// When that is due.
        visible_after: Millis,
        /// How long that is.
        visible_in_ms: u64,
        /// Which attempt comes next.
        attempt: u32,
        /// How often it came back.
        deliveries: u32,
        /// How often it may.
        deliveries_max: u32,
        /// The first words of its last failed attempt.
        last_said: Option<String>,
    },
    /// It is pinned to a node that is away, and nobody else takes that node's rows.
    PinnedNodeAway {
        /// The node.
        node: NodeName,
        /// Since when it is committed as down; none if it is no member.
        down_since: Option<Millis>,
    },
    /// It is pinned to a node, and no worker takes that node's rows.
    PinnedNodeUnserved {
        /// The node.
        node: NodeName,
        /// The task queue.
        task_queue: TaskQueue,
    },
    /// Its namespace has as many claimed rows as it may.
    NamespaceFull {
        /// The namespace.
        namespace: Namespace,
        /// How many rows are claimed.
        claimed: u64,
        /// How many may be.
        claimed_max: u32,
    },
    /// Its namespace may have no claimed rows at all.
    NamespaceStopped {
        /// The namespace.
        namespace: Namespace,
        /// How many rows are claimed all the same, from before.
        claimed: u64,
    },
    /// No worker serves its task queue.
    NoWorker {
        /// The namespace.
        namespace: Namespace,
        /// The task queue.
        task_queue: TaskQueue,
    },
    /// Workers serve its task queue, and none of them takes its activity type.
    NoWorkerForActivity {
        /// The task queue.
        task_queue: TaskQueue,
        /// The activity type.
        activity_type: ActivityType,
        /// How many workers serve the queue.
        workers: u64,
    },
    /// The workers that could take it hold as many rows as they can.
    WorkersFull {
        /// The task queue.
        task_queue: TaskQueue,
        /// How many workers there are.
        workers: u64,
        /// How many rows they hold.
        rows: u64,
        /// How many they can hold.
        slots: u64,
    },
    /// The workers that could take it take nothing new.
    WorkersDraining {
        /// The task queue.
        task_queue: TaskQueue,
        /// How many workers there are.
        workers: u64,
    },
    /// The workers that could take it have lost their connections.
    WorkersAway {
        /// The task queue.
        task_queue: TaskQueue,
        /// How many workers there are.
        workers: u64,
    },
    /// A worker's session holds it.
    ClaimedBySession {
        /// The session.
        session: SessionId,
        /// Who, in the worker's words.
        identity: Claimant,
        /// The node that it is attached to.
        node: NodeName,
        /// For how long.
        claimed_for_ms: u64,
        /// How long its lease goes on without a heartbeat.
        lease_left_ms: u64,
        /// How long ago the session's last heartbeat was.
        heartbeat_ago_ms: u64,
        /// Which attempt this is.
        attempt: u32,
    },
    /// A worker's session holds it, and has no connection to any node.
    SessionAway {
        /// The session.
        session: SessionId,
        /// Who, in the worker's words.
        identity: Claimant,
        /// For how long.
        claimed_for_ms: u64,
        /// When the row is handed out again if the worker does not come back.
        ends_in_ms: u64,
    },
    /// A plain lease holds it.
    ClaimedByLease {
        /// Who, in its own words.
        claimant: Claimant,
        /// For how long.
        claimed_for_ms: u64,
        /// How long the lease goes on without a heartbeat.
        lease_left_ms: u64,
        /// Which attempt this is.
        attempt: u32,
    },
    /// A node's own engine holds it.
    ClaimedByNode {
        /// The node.
        node: NodeName,
        /// For how long.
        claimed_for_ms: u64,
        /// Which attempt this is.
        attempt: u32,
    },
    /// The node that holds it is away; it is pending again once its shard has been adopted.
    HolderAway {
        /// The node.
        node: NodeName,
        /// Since when it is committed as down; none if it has started again or is no member.
        down_since: Option<Millis>,
        /// Who is to adopt the shard.
        adopter: Option<NodeName>,
    },
    /// Its lease, its session or a timeout has ended, and nothing has come of it: log time stands still.
    DeadlineOverdue {
        /// When it ended.
        passed_at: Millis,
        /// How long ago that was.
        overdue_ms: u64,
    },
    /// Nothing holds it up.
    AboutToBeDelivered,
}

impl RowReason {
    /// Whether somebody has to do something.
    pub fn outlook(&self) -> Outlook {
        match self {
            Self::NoSuchRow { .. } => Outlook::Unknown,
            Self::Finished { .. } | Self::DeadLetter { outcome_seq: Some(_), .. } => Outlook::Finished,
            Self::NotYetVisible { .. }
            | Self::WaitingForRetry { .. }
            | Self::ClaimedBySession { .. }
            | Self::ClaimedByLease { .. }
            | Self::ClaimedByNode { .. }
            | Self::AboutToBeDelivered => Outlook::Moving,
            Self::DeadLetter { .. }
            | Self::NoQuorum(_)
            | Self::StorageFull { .. }
            | Self::WorkflowPaused { .. }
            | Self::PinnedNodeAway { .. }
            | Self::PinnedNodeUnserved { .. }
            | Self::NamespaceFull { .. }
            | Self::NamespaceStopped { .. }
            | Self::NoWorker { .. }
            | Self::NoWorkerForActivity { .. }
            | Self::WorkersFull { .. }
            | Self::WorkersDraining { .. }
            | Self::WorkersAway { .. }
            | Self::SessionAway { .. }
            | Self::HolderAway { .. }
            | Self::DeadlineOverdue { .. } => Outlook::HeldUp,
        }
    }
}

impl Machine {
    /// Why a row is where it is: the first reason that holds.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn explain_row(&self, archive: &dyn Archive, key: &DispatchKey, vantage: &Vantage) -> ArchiveResult<RowReason> {
        let Some(row) = self.row(archive, key)? else {
            return Ok(match &vantage.no_quorum {
                // It may be there by now.
                Some(no_quorum) => RowReason::NoQuorum(no_quorum.clone()),
                None => RowReason::NoSuchRow {
                    workflow_known: self.workflow(archive, &key.workflow)?.is_some(),
                    being_removed: self.is_being_removed(&key.workflow),
                },
            });
        };
        self.row_reason(archive, key, &row, vantage, &mut BTreeMap::new())
    }

    /// The reason of a row that is there. `routes` keeps what was found for routes, for who asks for many rows.
    pub(super) fn row_reason(
        &self,
        archive: &dyn Archive,
        key: &DispatchKey,
        row: &Row,
        vantage: &Vantage,
        routes: &mut BTreeMap<Route, Option<RowReason>>,
    ) -> ArchiveResult<RowReason> {
        if !row.status.is_live() {
            return self.ended(archive, key, row);
        }
        if let Some(no_quorum) = &vantage.no_quorum {
            return Ok(RowReason::NoQuorum(no_quorum.clone()));
        }
        if let Some(node) = &vantage.storage_full {
            return Ok(RowReason::StorageFull { node: node.clone() });
        }
        let moves = row.claim.is_some() || !self.is_held(&key.workflow);
        if let Some(overdue) = self.overdue(row, vantage.now).filter(|_| moves) {
            return Ok(overdue);
        }
        if let Some(claim) = &row.claim {
            return Ok(self.claimed(key, row, claim, vantage.now));
        }
        if !moves {
            let since = self.paused_since(archive, &key.workflow)?;
            return Ok(RowReason::WorkflowPaused { workflow: key.workflow.clone(), since });
        }
        if row.visible_after > vantage.now {
            return self.invisible(archive, key, row, vantage.now);
        }
        let route = Route {
            namespace: row.namespace.clone(),
            task_queue: row.task_queue.clone(),
            node: row.node.clone(),
            activity_type: row.activity_type.clone(),
        };
        let owner = self.shard(self.shard_of(&key.workflow)).map(|entry| &entry.owner);
        let of = RouteOf { route: &route, owner, workflow: Some(&key.workflow) };
        let known = routes.get(&route).cloned();
        let reason = known.unwrap_or_else(|| self.route_reason(&of, vantage));
        routes.entry(route).or_insert_with(|| reason.clone());
        Ok(reason.unwrap_or(RowReason::AboutToBeDelivered))
    }

    fn ended(&self, archive: &dyn Archive, key: &DispatchKey, row: &Row) -> ArchiveResult<RowReason> {
        let outcome_seq = row.outcome_seq;
        if row.status != RowStatus::Failed {
            return Ok(RowReason::Finished { status: row.status, outcome_seq });
        }
        Ok(RowReason::DeadLetter {
            outcome_seq,
            deliveries: row.deliveries,
            deliveries_max: row.retry.deliveries_max,
            failure_delivered: row.failure_delivered,
            last_said: self.last_said(archive, key)?,
        })
    }

    fn invisible(&self, archive: &dyn Archive, key: &DispatchKey, row: &Row, now: Millis) -> ArchiveResult<RowReason> {
        let (visible_after, visible_in_ms) = (row.visible_after, until(now, row.visible_after));
        if row.deliveries == 0 {
            return Ok(RowReason::NotYetVisible { visible_after, visible_in_ms });
        }
        Ok(RowReason::WaitingForRetry {
            visible_after,
            visible_in_ms,
            attempt: row.attempt,
            deliveries: row.deliveries,
            deliveries_max: row.retry.deliveries_max,
            last_said: self.last_said(archive, key)?,
        })
    }

    /// Since when a paused workflow is paused, if that is not far behind its head.
    pub(super) fn paused_since(&self, archive: &dyn Archive, workflow: &WorkflowId) -> ArchiveResult<Option<Millis>> {
        let Some(head) = self.workflow(archive, workflow)?.map(|workflow| workflow.head) else { return Ok(None) };
        let from = head.saturating_sub(PAUSE_LOOKED_FOR_IN - 1);
        let events = self.history(archive, workflow, from, PAUSE_LOOKED_FOR_IN as usize)?;
        Ok(events.iter().rev().find(|event| event.kind == EventKind::WorkflowPaused).map(|event| event.at))
    }

    fn last_said(&self, archive: &dyn Archive, key: &DispatchKey) -> ArchiveResult<Option<String>> {
        Ok(self.details(archive, key)?.as_ref().and_then(first_words))
    }
}

/// The first words of a payload that people can read.
fn first_words(payload: &Payload) -> Option<String> {
    if payload.content_type != JSON && !payload.content_type.starts_with("text/") {
        return None;
    }
    let text = std::str::from_utf8(&payload.data).ok()?;
    Some(text.chars().take(SAID_CHARS_MAX).collect())
}
