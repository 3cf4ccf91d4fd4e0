//! Bodies of the batch routes: many calls of one kind in one request. Each has a guard of its own and an outcome of its
//! own; what becomes of one is nothing to the others.

use holdfast_machine::{ClaimToken, Commit, DispatchKey, Fence, IdempotencyKey, Payload, WorkflowId};
use serde::{Deserialize, Serialize};

use super::{CommitBody, Write};
use crate::problem::Problem;

/// Body of `POST /v1/batch/commit` and of `POST /v1/batch/complete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Batch<T> {
    /// The calls, in no order that counts.
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub calls: Vec<T>,
}

/// One commit of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchedCommit {
    /// The workflow.
    pub workflow: WorkflowId,
    /// What is committed.
    pub commit: CommitBody,
    /// The ownership that it is made under.
    #[serde(default)]
    pub fence: Option<Fence>,
    /// The same call under the same key gets the first answer.
    #[serde(default)]
    pub idempotency_key: Option<IdempotencyKey>,
}

/// One result of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchedResult {
    /// The row.
    pub key: DispatchKey,
    /// The claim; without one the row is driven by key.
    #[serde(default)]
    pub token: Option<ClaimToken>,
    /// The result.
    #[serde(default)]
    pub result: Payload,
    /// The ownership that it is given under.
    #[serde(default)]
    pub fence: Option<Fence>,
    /// The same call under the same key gets the first answer.
    #[serde(default)]
    pub idempotency_key: Option<IdempotencyKey>,
}

/// Answer of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcomes<T> {
    /// One for each call, in their order.
    pub outcomes: Vec<Outcome<T>>,
}

/// What became of one call of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// What it would have been answered by itself.
    Answer {
        /// The log index of its entry.
        index: u64,
        /// The answer.
        value: T,
    },
    /// Why it has no answer.
    Problem(Problem),
}

/// A result for a row, as `Store::complete_all` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowResult {
    /// The row.
    pub key: DispatchKey,
    /// The claim; without one the row is driven by key.
    pub token: Option<ClaimToken>,
    /// The result.
    pub result: Payload,
}

impl BatchedCommit {
    /// The call as it goes over the wire.
    pub fn new(commit: Commit, write: Write) -> Self {
        let Write { fence, idempotency_key } = write;
        let (workflow, commit) = CommitBody::of(commit);
        Self { workflow, commit, fence, idempotency_key }
    }

    /// The call as the store takes it.
    pub fn into_call(self) -> (Commit, Write) {
        let Self { workflow, commit, fence, idempotency_key } = self;
        (commit.into_commit(workflow), Write { fence, idempotency_key })
    }
}

impl BatchedResult {
    /// The call as it goes over the wire.
    pub fn new(row: RowResult, write: Write) -> Self {
        let RowResult { key, token, result } = row;
        let Write { fence, idempotency_key } = write;
        Self { key, token, result, fence, idempotency_key }
    }

    /// The call as the store takes it.
    pub fn into_call(self) -> (RowResult, Write) {
        let Self { key, token, result, fence, idempotency_key } = self;
        (RowResult { key, token, result }, Write { fence, idempotency_key })
    }
}
