//! What can be asked of the state machine. Each variant says since which version it exists; variants
//! are only ever added at the end, because the log keeps them by number.

use serde::{Deserialize, Serialize};

use crate::history::{EventKind, NewEvent};
use crate::id::{
    ActivityType, BootId, ClaimToken, Claimant, DispatchKey, Epoch, ErrorType, IdempotencyKey, Millis, Namespace,
    NodeName, SessionId, ShardId, TaskQueue, WorkflowId,
};
use crate::namespace::NamespaceSettings;
use crate::outbox::NewRow;
use crate::payload::Payload;
use crate::session::SessionChange;
use crate::timer::TimerChange;

/// One log entry: the commands that were waiting when the leader built it, and its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The leader's wall clock. Log time is the largest one seen so far.
    pub at: Millis,
    /// The commands, in order. Each gets a reply of its own.
    pub requests: Vec<Request>,
}

/// One command with what guards it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// A retry under the same key gets the first reply and changes nothing.
    pub idempotency_key: Option<IdempotencyKey>,
    /// The ownership that the caller believes in; refused with `not_owner` if it is not so.
    pub fence: Option<Fence>,
    /// What to do.
    pub command: Command,
}

impl From<Command> for Request {
    fn from(command: Command) -> Self {
        Self { idempotency_key: None, fence: None, command }
    }
}

/// The owner and epoch that a write was made under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fence {
    /// The node that the writer takes for the owner of the workflow's shard.
    pub owner: NodeName,
    /// The epoch of that ownership.
    pub epoch: Epoch,
}

/// A change of the replicated state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Since 0.1. Records how many shards the cluster has. Only the first one counts.
    Create {
        /// 1..=[`crate::limits::SHARDS_MAX`].
        shard_count: u32,
    },
    /// Since 0.1. A node's process has started: rows that its last process held become pending, and
    /// the epochs of the shards it owns grow by one.
    Boot {
        /// The node.
        node: NodeName,
        /// This start of it.
        boot: BootId,
    },
    /// Since 0.1. First owners for shards that have none; owned shards are left alone.
    Assign {
        /// Shard and owner.
        owners: Vec<(ShardId, NodeName)>,
    },
    /// Since 0.1. Takes a shard over from a node that is committed as down.
    Adopt {
        /// The shard.
        shard: ShardId,
        /// The owner that died.
        from: NodeName,
        /// The survivor that takes it.
        by: NodeName,
        /// The epoch under which `from` owned it.
        expected_epoch: Epoch,
    },
    /// Since 0.1. Moves a shard between live nodes.
    Transfer {
        /// The shard.
        shard: ShardId,
        /// The new owner.
        to: NodeName,
        /// The epoch it is moved from.
        expected_epoch: Epoch,
    },
    /// Since 0.1. Appends events, stages and settles rows of one workflow: all or nothing.
    Commit(Commit),
    /// Since 0.1. Takes due rows.
    Claim(Claim),
    /// Since 0.1. Extends the lease of a claim.
    Heartbeat {
        /// The row.
        key: DispatchKey,
        /// The claim.
        token: ClaimToken,
        /// The new length from log time on.
        lease_ms: u64,
        /// Progress to show to people; replaces what was there.
        details: Payload,
    },
    /// Since 0.1. Records an activity's result.
    Complete {
        /// The row.
        key: DispatchKey,
        /// The claim; without one the row is driven by key, which an engine's own dispatcher may do.
        token: Option<ClaimToken>,
        /// The result.
        result: Payload,
    },
    /// Since 0.1. Records a failed attempt.
    Fail {
        /// The row.
        key: DispatchKey,
        /// As in `Complete`.
        token: Option<ClaimToken>,
        /// The error. If there is a further attempt, it is kept as the row's details.
        error: Payload,
        /// Its type; if the row's retry policy calls it non-retryable, there is no further attempt.
        error_type: Option<ErrorType>,
        /// False: no further attempt; the workflow hears `ActivityFailed` at once.
        retryable: bool,
    },
    /// Since 0.1. Hands a claimed row back undelivered: pending again, delivery count + 1.
    Retry {
        /// The row.
        key: DispatchKey,
        /// As in `Complete`.
        token: Option<ClaimToken>,
        /// How long the row stays invisible.
        delay_ms: u64,
    },
    /// Since 0.1. Cancels all pending and claimed rows of a workflow.
    Settle {
        /// The workflow.
        workflow: WorkflowId,
    },
    /// Since 0.1. Puts rows back to pending whatever their status; missing ones are inserted.
    Rearm {
        /// The workflow.
        workflow: WorkflowId,
        /// The rows, as they are to be if they are missing.
        rows: Vec<NewRow>,
    },
    /// Since 0.1. Goes over rows that have been claimed for long: cancelled if the workflow has ended,
    /// pending if it lives, left alone if nothing is known of it.
    Reconcile {
        /// Rows claimed at least this long ago.
        older_than_ms: u64,
        /// Most rows to look at.
        limit: u32,
        /// Rows that a live delivery still holds.
        excluded: Vec<DispatchKey>,
    },
    /// Since 0.1. Lets log time reach the entry's time, so that leases end while nothing else happens.
    Tick,
    /// Since 0.1. Stages rows without events of their own; a key that has a row is left as it is.
    Stage {
        /// The workflow; it may have no history yet.
        workflow: WorkflowId,
        /// The namespace of a workflow without a history; one with a history has its own.
        namespace: Namespace,
        /// The rows.
        rows: Vec<NewRow>,
    },
    /// Since 0.1. Arms or retires a timer.
    Timer {
        /// The workflow.
        workflow: WorkflowId,
        /// What to do.
        change: TimerChange,
    },
    /// Since 0.1. Notes that the workflow has heard of a dead letter.
    MarkFailureDelivered {
        /// The row.
        key: DispatchKey,
    },
    /// Since 0.1. Puts a dead letter back to pending, with a delivery count of 0.
    Redrive {
        /// The row.
        key: DispatchKey,
        /// Even if the workflow has heard of the failure.
        forced: bool,
    },
    /// Since 0.1. Creates a namespace or gives it other settings.
    PutNamespace {
        /// The namespace.
        namespace: Namespace,
        /// All of its settings.
        settings: NamespaceSettings,
    },
    /// Since 0.1. Takes those of these workflows out of sight whose retention has run out, and clears away a portion
    /// of what removed workflows left. [`crate::Machine::due_purge`] makes it.
    Purge {
        /// The workflows, in order; at most [`crate::limits::WORKFLOWS_PURGED_PER_ENTRY_MAX`] of them count.
        workflows: Vec<WorkflowId>,
    },
    /// Since 0.1. Removes one finished workflow before its time.
    Delete {
        /// The workflow.
        workflow: WorkflowId,
    },
    /// Since 0.1. Changes a worker's session.
    Session {
        /// The session.
        session: SessionId,
        /// What to do.
        change: SessionChange,
    },
    /// Since 0.1. States what the rolling hash was once the entry at `index` was applied, by a majority of the voters'
    /// count. It changes nothing; a node that had another hash has a state that must not be served.
    Checkpoint {
        /// A log index before this entry's own.
        index: u64,
        /// [`crate::Machine::state_hash`] as of it.
        hash: u64,
    },
}

impl Command {
    /// The workflow that the command writes to, if it is about one; its shard's fence applies then.
    pub fn workflow(&self) -> Option<&WorkflowId> {
        match self {
            Self::Commit(commit) => Some(&commit.workflow),
            Self::Heartbeat { key, .. }
            | Self::Complete { key, .. }
            | Self::Fail { key, .. }
            | Self::Retry { key, .. } => Some(&key.workflow),
            Self::Settle { workflow }
            | Self::Rearm { workflow, .. }
            | Self::Stage { workflow, .. }
            | Self::Timer { workflow, .. }
            | Self::Delete { workflow } => Some(workflow),
            Self::MarkFailureDelivered { key } | Self::Redrive { key, .. } => Some(&key.workflow),
            Self::Create { .. }
            | Self::Boot { .. }
            | Self::Assign { .. }
            | Self::Adopt { .. }
            | Self::Transfer { .. }
            | Self::Claim(_)
            | Self::Reconcile { .. }
            | Self::Tick
            | Self::PutNamespace { .. }
            | Self::Purge { .. }
            | Self::Session { .. }
            | Self::Checkpoint { .. } => None,
        }
    }
}

/// The parts of [`Command::Commit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The head that the caller has seen; 0 creates the workflow.
    pub expected_seq: u64,
    /// The events, numbered from `expected_seq + 1`.
    #[serde(default)]
    pub events: Vec<NewEvent>,
    /// Rows to stage. Each needs its ActivityScheduled and ActivityStarted among `events`.
    #[serde(default)]
    pub rows: Vec<NewRow>,
    /// Ordinals of this workflow whose pending or claimed rows are to be cancelled.
    #[serde(default)]
    pub settle: Vec<u64>,
    /// Transitions of this workflow's rows. The outcomes that they record stand behind `events`, in order.
    #[serde(default)]
    pub transitions: Vec<Transition>,
    /// Timers of this workflow to arm and to retire, in order.
    #[serde(default)]
    pub timers: Vec<TimerChange>,
}

/// What becomes of one row, as part of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Transition {
    /// The row.
    pub ordinal: u64,
    /// The claim; without one the row is driven by key.
    #[serde(default)]
    pub token: Option<ClaimToken>,
    /// What to do.
    pub action: RowAction,
}

/// The transitions that a commit can make. Variants are only added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RowAction {
    /// As [`Command::Complete`].
    Complete {
        /// The result.
        #[serde(default)]
        result: Payload,
    },
    /// As [`Command::Fail`].
    Fail {
        /// The error.
        #[serde(default)]
        error: Payload,
        /// Its type.
        #[serde(default)]
        error_type: Option<ErrorType>,
        /// False: no further attempt.
        retryable: bool,
    },
    /// As [`Command::Retry`].
    Retry {
        /// How long the row stays invisible.
        delay_ms: u64,
    },
}

impl Commit {
    /// A commit of nothing yet, to a history that ends at `expected_seq`.
    pub fn new(workflow: WorkflowId, expected_seq: u64) -> Self {
        let (events, rows, settle) = (Vec::new(), Vec::new(), Vec::new());
        Self { workflow, expected_seq, events, rows, settle, transitions: Vec::new(), timers: Vec::new() }
    }

    /// The same with one more event.
    #[must_use]
    pub fn event(mut self, event: NewEvent) -> Self {
        self.events.push(event);
        self
    }

    /// The same with one more activity: its row, and the two events that announce it.
    #[must_use]
    pub fn activity(mut self, row: NewRow) -> Self {
        let announced = [EventKind::ActivityScheduled, EventKind::ActivityStarted];
        self.events.extend(announced.map(|kind| NewEvent::activity(kind, row.ordinal)));
        self.rows.push(row);
        self
    }
}

/// The parts of [`Command::Claim`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Which rows.
    pub scope: Scope,
    /// Most rows to take; at least 1.
    pub limit: u32,
    /// Who takes them.
    pub holder: NewHolder,
    /// Workflows whose rows are to be passed over.
    pub hold: Vec<WorkflowId>,
}

/// Which rows a claim is about. By default the unpinned rows of the default pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// The namespace.
    #[serde(default)]
    pub namespace: Namespace,
    /// The task queue.
    #[serde(default)]
    pub task_queue: TaskQueue,
    /// Only these activity types; empty for all.
    #[serde(default)]
    pub activity_types: Vec<ActivityType>,
    /// The claimant's node. Rows pinned to it are included; without one only unpinned rows are.
    #[serde(default)]
    pub node: Option<NodeName>,
}

impl Scope {
    /// True if it takes rows of its queue that have this pin and this activity type.
    pub(crate) fn takes(&self, pin: Option<&NodeName>, activity_type: &ActivityType) -> bool {
        let placed = pin.is_none() || pin == self.node.as_ref();
        placed && (self.activity_types.is_empty() || self.activity_types.contains(activity_type))
    }
}

/// Who takes rows, as a claim says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewHolder {
    /// Since 0.1. A node's own dispatcher or engine: only rows of shards that it owns; ends with the
    /// node or its ownership.
    Node {
        /// The node.
        node: NodeName,
        /// Its current boot.
        boot: BootId,
    },
    /// Since 0.1. A plain lease: rows of any shard, through any node; ends with its time.
    Lease {
        /// Who, in the caller's words.
        claimant: Claimant,
        /// The length from log time on.
        lease_ms: u64,
    },
}
