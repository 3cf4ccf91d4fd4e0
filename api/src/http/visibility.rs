//! Routes that find workflows. They are reads, with a body because a filter is more than parameters can say.

use axum::extract::State;
use holdfast_client::wire::{Counted, ListCall, WorkflowList};
use holdfast_machine::WorkflowFilter;

use super::error::{Handled, Success};
use super::extract::{Body, Freshness, Params};
use crate::store::Store;

/// A page of the workflows that a filter takes, in the order of time.
#[utoipa::path(
    post,
    path = "/workflows/list",
    operation_id = "list_workflows",
    tag = "workflows",
    params(Freshness),
    request_body = ListCall,
    responses((status = 200, body = WorkflowList))
)]
pub(crate) async fn list(
    State(store): State<Store>,
    Params(freshness): Params<Freshness>,
    Body(call): Body<ListCall>,
) -> Handled<WorkflowList> {
    Ok(Success(store.list_workflows(&call, freshness.mode()?).await?))
}

/// How many workflows a filter takes.
#[utoipa::path(
    post,
    path = "/workflows/count",
    operation_id = "count_workflows",
    tag = "workflows",
    params(Freshness),
    request_body = WorkflowFilter,
    responses((status = 200, body = Counted))
)]
pub(crate) async fn count(
    State(store): State<Store>,
    Params(freshness): Params<Freshness>,
    Body(filter): Body<WorkflowFilter>,
) -> Handled<Counted> {
    let count = store.count_workflows(&filter, freshness.mode()?).await?;
    Ok(Success(count.map(|count| Counted { count })))
}
