//! Bodies of the workflow routes.

use holdfast_machine::{
    Attributes, Commit, Fence, HistoryEvent, NewEvent, NewRow, Run, ShardId, TimerChange, Transition, Workflow,
    WorkflowId,
};
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/workflows/{id}/append`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AppendBody {
    /// The head that the caller has seen; 0 creates the workflow.
    pub expected_seq: u64,
    /// The events, numbered from `expected_seq + 1`.
    pub events: Vec<NewEvent>,
}

/// Body of `POST /v1/workflows/{id}/commit`; see [`holdfast_machine::Commit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CommitBody {
    /// The head that the caller has seen; 0 creates the workflow.
    pub expected_seq: u64,
    /// The events, numbered from `expected_seq + 1`.
    #[serde(default)]
    pub events: Vec<NewEvent>,
    /// Rows to stage.
    #[serde(default)]
    pub rows: Vec<NewRow>,
    /// Ordinals whose live rows are to be cancelled.
    #[serde(default)]
    pub settle: Vec<u64>,
    /// Transitions of rows; the outcomes that they record stand behind `events`.
    #[serde(default)]
    pub transitions: Vec<Transition>,
    /// Timers to arm and to retire.
    #[serde(default)]
    pub timers: Vec<TimerChange>,
}

/// Body of `POST /v1/workflows/{id}/rearm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RearmBody {
    /// The rows, as they are to be if they are missing.
    pub rows: Vec<NewRow>,
}

/// Body of `POST /v1/workflows/{id}/settle`, whose path says everything. It is asked for all the same: only with a
/// JSON body does a browser ask before it sends a call to another site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SettleBody {}

impl CommitBody {
    /// The body of a commit, and the workflow, which stands beside it.
    pub fn of(commit: Commit) -> (WorkflowId, Self) {
        let Commit { workflow, expected_seq, events, rows, settle, transitions, timers } = commit;
        (workflow, Self { expected_seq, events, rows, settle, transitions, timers })
    }

    /// The commit that this body asks for.
    pub fn into_commit(self, workflow: WorkflowId) -> Commit {
        let Self { expected_seq, events, rows, settle, transitions, timers } = self;
        Commit { workflow, expected_seq, events, rows, settle, transitions, timers }
    }
}

/// Answer of `GET /v1/workflows/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkflowView {
    /// The workflow.
    pub id: WorkflowId,
    /// Its shard.
    pub shard: ShardId,
    /// The shard's owner and epoch; null if nobody owns it.
    pub fence: Option<Fence>,
    /// Its projection; null if it has no history.
    pub workflow: Option<Workflow>,
    /// Its search attributes.
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = std::collections::BTreeMap<String, holdfast_machine::AttributeValue>)
    )]
    pub search_attributes: Attributes,
}

/// Answer of `GET /v1/workflows/{id}/history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistoryPage {
    /// In order; empty for an unknown workflow and beyond the head.
    pub events: Vec<HistoryEvent>,
}

/// Answer of `GET /v1/workflows/{id}/runs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Runs {
    /// Oldest first.
    pub runs: Vec<Run>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}
