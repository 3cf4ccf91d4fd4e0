//! Bodies of the routes that stage rows by themselves, and of those about dead letters.

use holdfast_machine::{Namespace, NewRow, Staged};
use serde::{Deserialize, Serialize};

use super::ListedRow;

/// Body of `POST /v1/workflows/{id}/stage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StageBody {
    /// The namespace of a workflow without a history; one with a history has its own.
    #[serde(default)]
    pub namespace: Namespace,
    /// The rows.
    pub rows: Vec<NewRow>,
}

/// Answer of `POST /v1/workflows/{id}/stage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StagedRows {
    /// Each row of the request, and whether it was written.
    pub staged: Vec<Staged>,
}

/// Answer of `GET /v1/workflows/{id}/dead-letters` and `GET /v1/outbox/dead-letters`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadLetterPage {
    /// By workflow, then by ordinal.
    pub rows: Vec<ListedRow>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// Body of `POST /v1/outbox/rows/{key}/failure-delivered`, whose path says everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FailureDeliveredBody {}

/// Answer of `POST /v1/outbox/rows/{key}/failure-delivered`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureDelivered {
    /// False if there is no such row and nothing changed.
    pub found: bool,
}

/// Which dead letters a redrive takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RedriveMode {
    /// One that its workflow has not heard of.
    #[default]
    Eligible,
    /// One that its workflow has heard of as well.
    Forced,
}

/// Body of `POST /v1/outbox/rows/{key}/redrive`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RedriveBody {
    /// Which dead letters.
    #[serde(default)]
    pub mode: RedriveMode,
}

/// Answer of `POST /v1/outbox/rows/{key}/redrive`: the row is pending again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Redriven {}
