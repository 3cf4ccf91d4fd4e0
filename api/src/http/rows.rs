//! Routes that stage rows by themselves, and those about dead letters.

use axum::extract::State;
use holdfast_client::wire::{
    Consistency, DeadLetterPage, FailureDelivered, FailureDeliveredBody, RedriveBody, Redriven, StageBody, StagedRows,
};
use holdfast_machine::{DispatchKey, Namespace, WorkflowId};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{Handled, Success};
use super::extract::{Body, Freshness, Guard, Params, Segment};
use super::listings::{ListingParams, page};
use crate::store::Store;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamespaceParams {
    /// The namespace; `default` if nothing is said
    #[serde(default)]
    namespace: Namespace,
    limit: Option<u32>,
    cursor: Option<String>,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

/// Stages rows without events of their own; a key that has a row is left as it is.
#[utoipa::path(
    post,
    path = "/workflows/{id}/stage",
    tag = "workflows",
    params(("id" = WorkflowId, Path), Guard),
    request_body = StageBody,
    responses(
        (status = 200, body = StagedRows),
        (status = 409, description = "workflow_ended namespace_deprecated"),
    )
)]
pub(crate) async fn stage(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(body): Body<StageBody>,
) -> Handled<StagedRows> {
    let staged = store.stage(&id, body.namespace, body.rows, write).await?;
    Ok(Success(staged.map(|staged| StagedRows { staged })))
}

/// Dead letters of a workflow, by ordinal.
#[utoipa::path(
    get,
    path = "/workflows/{id}/dead-letters",
    tag = "outbox",
    params(("id" = WorkflowId, Path), ListingParams),
    responses((status = 200, body = DeadLetterPage))
)]
pub(crate) async fn dead_letters(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Params(params): Params<ListingParams>,
) -> Handled<DeadLetterPage> {
    let ListingParams { limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.dead_letters(&id, &page(limit, cursor), mode).await?))
}

/// Dead letters of a namespace, by workflow, then by ordinal.
#[utoipa::path(
    get,
    path = "/outbox/dead-letters",
    tag = "outbox",
    params(NamespaceParams),
    responses((status = 200, body = DeadLetterPage))
)]
pub(crate) async fn dead_letters_in(
    State(store): State<Store>,
    Params(params): Params<NamespaceParams>,
) -> Handled<DeadLetterPage> {
    let NamespaceParams { namespace, limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.dead_letters_in(&namespace, &page(limit, cursor), mode).await?))
}

/// Notes that a workflow has heard of a dead letter.
#[utoipa::path(
    post,
    path = "/outbox/rows/{key}/failure-delivered",
    tag = "outbox",
    params(("key" = DispatchKey, Path), Guard),
    request_body = FailureDeliveredBody,
    responses((status = 200, body = FailureDelivered), (status = 409, description = "not_dead_letter"))
)]
pub(crate) async fn mark_failure_delivered(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    Body(FailureDeliveredBody {}): Body<FailureDeliveredBody>,
) -> Handled<FailureDelivered> {
    let found = store.mark_failure_delivered(&key, write).await?;
    Ok(Success(found.map(|found| FailureDelivered { found })))
}

/// Puts a dead letter back to pending, with a delivery count of 0.
#[utoipa::path(
    post,
    path = "/outbox/rows/{key}/redrive",
    tag = "outbox",
    params(("key" = DispatchKey, Path), Guard),
    request_body = RedriveBody,
    responses(
        (status = 200, body = Redriven),
        (status = 404, description = "row_not_found"),
        (status = 409, description = "not_dead_letter already_judged workflow_ended"),
    )
)]
pub(crate) async fn redrive(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    Body(body): Body<RedriveBody>,
) -> Handled<Redriven> {
    Ok(Success(store.redrive(&key, body.mode, write).await?.map(|()| Redriven {})))
}
