//! Routes that say why something does not move.

use axum::extract::State;
use holdfast_client::wire::Explanation;
use holdfast_machine::{DispatchKey, RowReason, ShardId, ShardReason, WorkflowId, WorkflowReason};

use super::error::{ApiError, InJson};
use super::extract::{Nothing, Params, Segment};
use super::shards::ShardNumber;
use crate::store::Store;

/// Why a row is where it is, and what to do. Answered without a majority too.
#[utoipa::path(
    get,
    path = "/explain/rows/{key}",
    tag = "explain",
    params(("key" = DispatchKey, Path)),
    responses((status = 200, body = Explanation<RowReason>))
)]
pub(crate) async fn explain_row(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Params(Nothing {}): Params<Nothing>,
) -> Result<InJson<Explanation<RowReason>>, ApiError> {
    Ok(InJson(store.explain_row(&key).await?))
}

/// What a workflow waits for, and what to do. Answered without a majority too.
#[utoipa::path(
    get,
    path = "/explain/workflows/{id}",
    tag = "explain",
    params(("id" = WorkflowId, Path)),
    responses((status = 200, body = Explanation<WorkflowReason>))
)]
pub(crate) async fn explain_workflow(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Params(Nothing {}): Params<Nothing>,
) -> Result<InJson<Explanation<WorkflowReason>>, ApiError> {
    Ok(InJson(store.explain_workflow(&id).await?))
}

/// How a shard stands, and what to do. Answered without a majority too.
#[utoipa::path(
    get,
    path = "/explain/shards/{shard}",
    tag = "explain",
    params(("shard" = ShardId, Path)),
    responses((status = 200, body = Explanation<ShardReason>))
)]
pub(crate) async fn explain_shard(
    State(store): State<Store>,
    Segment(ShardNumber(shard)): Segment<ShardNumber>,
    Params(Nothing {}): Params<Nothing>,
) -> Result<InJson<Explanation<ShardReason>>, ApiError> {
    Ok(InJson(store.explain_shard(shard).await?))
}
