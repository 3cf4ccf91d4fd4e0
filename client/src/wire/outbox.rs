//! Bodies of the outbox routes.

use holdfast_machine::{
    ActivityType, ClaimToken, Claimant, DispatchKey, ErrorType, Millis, Namespace, Payload, Returned, Row, RunId,
    Scope, TaskQueue, Timeouts, WorkflowId,
};
use serde::{Deserialize, Serialize};

/// A claim. Body of `POST /v1/outbox/claim`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimCall {
    /// Which rows.
    #[serde(default)]
    pub scope: Scope,
    /// Most rows to take; at least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: u32,
    /// Who takes them.
    pub holder: ClaimHolder,
    /// Workflows whose rows are to be passed over.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub hold: Vec<WorkflowId>,
    /// How long to wait for work, in milliseconds of wall clock; 0 answers at once. The node has a cap.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Who takes rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ClaimHolder {
    /// A plain lease: rows of any shard; ends with its time unless a heartbeat extends it.
    Lease {
        /// Who, in the caller's words.
        claimant: Claimant,
        /// The length, from log time on.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86400000))]
        lease_ms: u64,
    },
    /// The node itself in its current boot: only rows of shards that it owns, without a deadline. For the
    /// embedded `Store`; refused over HTTP.
    Node,
}

/// A claimed row, with what its executor needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// The row.
    pub key: DispatchKey,
    /// The proof of this claim, for heartbeat, complete, fail and retry.
    pub token: ClaimToken,
    /// When the lease ends; none for a node's own claim, and for a session's, whose rows end with it.
    pub deadline: Option<Millis>,
    /// The run that staged the row.
    pub run_id: RunId,
    /// The namespace.
    pub namespace: Namespace,
    /// The task queue.
    pub task_queue: TaskQueue,
    /// What to run.
    pub activity_type: ActivityType,
    /// The activity's own attempt, from 1; redelivery does not change it.
    pub attempt: u32,
    /// How often the row came back before.
    pub deliveries: u32,
    /// Log time at which the row was staged, or put back after it had finished.
    pub scheduled_at: Millis,
    /// How long the activity and its attempts may take. Each heartbeat has to come within `heartbeat_ms`.
    pub timeouts: Timeouts,
    /// When the attempt has to have its outcome at the latest, whatever its lease and its heartbeats say.
    pub finish_by: Option<Millis>,
    /// What to run it on.
    pub input: Payload,
}

/// Answer of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Deliveries {
    /// The rows taken, oldest first; empty if the wait ended without work.
    pub deliveries: Vec<Delivery>,
}

/// Body of `.../heartbeat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HeartbeatBody {
    /// The claim.
    pub token: ClaimToken,
    /// The new length, from log time on.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86400000))]
    pub lease_ms: u64,
    /// Progress to show to people.
    #[serde(default)]
    pub details: Payload,
}

/// Answer of a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Extended {
    /// When the lease ends now.
    pub deadline: Millis,
}

/// Body of `.../complete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CompleteBody {
    /// The claim; without one the row is driven by key.
    #[serde(default)]
    pub token: Option<ClaimToken>,
    /// The result.
    #[serde(default)]
    pub result: Payload,
}

/// Answer of `.../complete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Completed {
    /// The number of the ActivityCompleted event; null if there is no such row and nothing changed.
    pub seq: Option<u64>,
}

/// What went wrong with an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error.
    pub error: Payload,
    /// Its type; if the row's retry policy calls it non-retryable, there is no further attempt.
    pub error_type: Option<ErrorType>,
    /// False: no further attempt.
    pub retryable: bool,
}

impl Failure {
    /// One that another attempt may mend.
    pub fn retryable(error: Payload) -> Self {
        Self { error, error_type: None, retryable: true }
    }

    /// One that no further attempt can mend.
    pub fn for_good(error: Payload) -> Self {
        Self { error, error_type: None, retryable: false }
    }

    /// The same with the type of its error.
    #[must_use]
    pub fn of_type(self, error_type: ErrorType) -> Self {
        Self { error_type: Some(error_type), ..self }
    }
}

/// Body of `.../fail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FailBody {
    /// As in [`CompleteBody`].
    #[serde(default)]
    pub token: Option<ClaimToken>,
    /// The error.
    #[serde(default)]
    pub error: Payload,
    /// Its type; if the row's retry policy calls it non-retryable, there is no further attempt.
    #[serde(default)]
    pub error_type: Option<ErrorType>,
    /// False: no further attempt.
    pub retryable: bool,
}

/// Body of `.../retry`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryBody {
    /// As in [`CompleteBody`].
    #[serde(default)]
    pub token: Option<ClaimToken>,
    /// How long the row stays invisible, in milliseconds.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 86400000))]
    pub delay_ms: u64,
}

/// Answer of `.../fail` and `.../retry`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReturnedRow {
    /// What became of the row; null if there is no such row and nothing changed.
    pub returned: Option<Returned>,
}

/// Body of `POST /v1/outbox/reconcile`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReconcileBody {
    /// Rows claimed at least this long ago, in milliseconds.
    pub older_than_ms: u64,
    /// Most rows to look at.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: u32,
    /// Rows that a live delivery still holds.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub excluded: Vec<DispatchKey>,
}

/// What a reconciliation did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reconciled {
    /// Pending again.
    pub rearmed: Vec<DispatchKey>,
    /// Cancelled, because their workflow has ended.
    pub settled: Vec<DispatchKey>,
    /// Left claimed, because nothing is known of their workflow.
    pub unknown: Vec<DispatchKey>,
}

/// Answer of `.../settle` and `.../rearm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Keys {
    /// The rows that changed.
    pub keys: Vec<DispatchKey>,
}

/// A row as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedRow {
    /// Its key.
    pub key: DispatchKey,
    /// The row.
    pub row: Row,
}

/// Answer of `GET /v1/outbox/stale`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StaleRows {
    /// By time of claim, then key.
    pub rows: Vec<ListedRow>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// Answer of `GET /v1/outbox/rows/{key}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RowView {
    /// Its key.
    pub key: DispatchKey,
    /// The row.
    pub row: Row,
    /// Its input.
    pub input: Payload,
    /// What its last heartbeat, or its last failed attempt, said.
    pub details: Payload,
}
