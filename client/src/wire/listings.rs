//! Answers of the listings that an engine reads right after a start or an adoption.

use holdfast_machine::{
    ActivityType, Millis, Namespace, NodeName, RunId, ShardId, TaskQueue, WorkflowId, WorkflowStatus, WorkflowType,
};
use serde::{Deserialize, Serialize};

/// A workflow that has pending or claimed rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnsettledWorkflow {
    /// The workflow.
    pub workflow: WorkflowId,
    /// How many of its rows wait.
    pub pending: u64,
    /// How many are held by somebody.
    pub claimed: u64,
}

/// Answer of `GET /v1/outbox/unsettled`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnsettledPage {
    /// By shard, then by id.
    pub workflows: Vec<UnsettledWorkflow>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// What a claim has to name to get certain rows, and how many of them wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaitingRoute {
    /// The namespace.
    pub namespace: Namespace,
    /// The task queue.
    pub task_queue: TaskQueue,
    /// The node that the rows are pinned to.
    pub node: Option<NodeName>,
    /// What to run.
    pub activity_type: ActivityType,
    /// How many rows wait, due or not.
    pub pending: u64,
    /// When the first of them is or was due.
    pub next_due: Millis,
}

/// Answer of `GET /v1/outbox/routes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoutePage {
    /// By namespace, task queue, node and activity type.
    pub routes: Vec<WaitingRoute>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// The live rows of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RowsInNamespace {
    /// The namespace.
    pub namespace: Namespace,
    /// How many wait, due or not, held or not.
    pub pending: u64,
    /// How many are held by somebody.
    pub claimed: u64,
    /// Both together.
    pub in_flight: u64,
}

/// Answer of `GET /v1/outbox/counts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CountPage {
    /// Namespaces that have live rows, by name.
    pub namespaces: Vec<RowsInNamespace>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// Where a history ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Head {
    /// The workflow.
    pub workflow: WorkflowId,
    /// Its shard.
    pub shard: ShardId,
    /// Its last event's number.
    pub head: u64,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its status.
    pub status: WorkflowStatus,
    /// The run that is open, or was open last.
    pub run_id: RunId,
    /// The type of that run; null if it was not opened with WorkflowStarted.
    pub workflow_type: Option<WorkflowType>,
}

/// Answer of `GET /v1/heads`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeadPage {
    /// By id. There may be fewer than asked for, even none, and more on later pages.
    pub heads: Vec<Head>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}
