//! Routes of workflows.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use holdfast_client::wire::{
    AppendBody, CommitBody, Consistency, Deleted, HistoryPage, Keys, RearmBody, Runs, SettleBody, WorkflowView,
};
use holdfast_machine::{Committed, WorkflowId};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{ApiError, Handled, Refusal, Success};
use super::extract::{Body, Freshness, Guard, PAGE, Params, Segment};
use super::listings::{ListingParams, page};
use super::payload::{EventOf, raw};
use crate::Answer;
use crate::store::Store;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryParams {
    /// The number of the first event
    #[serde(default)]
    from_seq: u64,
    limit: Option<u32>,
    /// How long to wait for the first of these events, in milliseconds
    #[serde(default)]
    wait_ms: u64,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

/// Status, head, current run, shard and owner of a workflow.
#[utoipa::path(
    get,
    path = "/workflows/{id}",
    tag = "workflows",
    params(("id" = WorkflowId, Path), Freshness),
    responses((status = 200, body = WorkflowView))
)]
pub(crate) async fn workflow(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Params(freshness): Params<Freshness>,
) -> Handled<WorkflowView> {
    Ok(Success(store.workflow(&id, freshness.mode()?).await?))
}

/// Events of a workflow, in order.
#[utoipa::path(
    get,
    path = "/workflows/{id}/history",
    tag = "workflows",
    params(("id" = WorkflowId, Path), HistoryParams),
    responses((status = 200, body = HistoryPage))
)]
pub(crate) async fn history(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Params(params): Params<HistoryParams>,
) -> Handled<HistoryPage> {
    let HistoryParams { from_seq, limit, wait_ms, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    let wait = Duration::from_millis(wait_ms);
    let events = store.next_events(&id, from_seq, limit.unwrap_or(PAGE), wait, mode).await?;
    Ok(Success(events.map(|events| HistoryPage { events })))
}

/// Removes a finished workflow before its retention runs out.
#[utoipa::path(
    delete,
    path = "/workflows/{id}",
    tag = "workflows",
    params(("id" = WorkflowId, Path), Guard),
    responses(
        (status = 200, body = Deleted),
        (status = 404, description = "workflow_not_found"),
        (status = 409, description = "workflow_open"),
    )
)]
pub(crate) async fn delete(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
) -> Handled<Deleted> {
    let deleted = store.delete(&id, write).await?;
    Ok(Success(deleted.map(|()| Deleted {})))
}

/// The payload of one event, as it is.
#[utoipa::path(
    get,
    path = "/workflows/{id}/events/{seq}/payload",
    tag = "workflows",
    params(("id" = WorkflowId, Path), ("seq" = u64, Path), Freshness),
    responses(
        (status = 200, content_type = "*/*", description = "The payload, in its own content type"),
        (status = 204, description = "There is none"),
        (status = 404, description = "not_found"),
    )
)]
pub(crate) async fn event_payload(
    State(store): State<Store>,
    EventOf(id, seq): EventOf,
    Params(freshness): Params<Freshness>,
) -> Result<Response, ApiError> {
    let Answer { index, value } = store.history(&id, seq, 1, freshness.mode()?).await?;
    let event = value.into_iter().find(|event| event.seq == seq);
    let payload = event.ok_or_else(|| ApiError::new(Refusal::NotFound, format!("{id} has no event {seq}")))?.payload;
    Ok(raw(Answer { index, value: payload }))
}

/// Runs of a workflow, oldest first.
#[utoipa::path(
    get,
    path = "/workflows/{id}/runs",
    tag = "workflows",
    params(("id" = WorkflowId, Path), ListingParams),
    responses((status = 200, body = Runs))
)]
pub(crate) async fn runs(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Params(params): Params<ListingParams>,
) -> Handled<Runs> {
    let ListingParams { limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.runs(&id, &page(limit, cursor), mode).await?))
}

/// Appends events: all or nothing.
#[utoipa::path(
    post,
    path = "/workflows/{id}/append",
    tag = "workflows",
    params(("id" = WorkflowId, Path), Guard),
    request_body = AppendBody,
    responses(
        (status = 200, body = Committed),
        (status = 409, description = "sequence_conflict workflow_status already_terminal namespace_deprecated"),
    )
)]
pub(crate) async fn append(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(body): Body<AppendBody>,
) -> Handled<Committed> {
    Ok(Success(store.append(&id, body.expected_seq, body.events, write).await?))
}

/// Appends events, stages, settles and moves rows, arms and retires timers: all or nothing.
#[utoipa::path(
    post,
    path = "/workflows/{id}/commit",
    tag = "workflows",
    params(("id" = WorkflowId, Path), Guard),
    request_body = CommitBody,
    responses(
        (status = 200, body = Committed),
        (status = 404, description = "row_not_found"),
        (
            status = 409,
            description = "sequence_conflict workflow_status already_terminal claim_lost row_not_claimed workflow_ended \
                namespace_deprecated"
        ),
    )
)]
pub(crate) async fn commit(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(body): Body<CommitBody>,
) -> Handled<Committed> {
    Ok(Success(store.commit(body.into_commit(id), write).await?))
}

/// Cancels a workflow's pending and claimed rows.
#[utoipa::path(
    post,
    path = "/workflows/{id}/settle",
    tag = "workflows",
    params(("id" = WorkflowId, Path), Guard),
    request_body = SettleBody,
    responses((status = 200, body = Keys))
)]
pub(crate) async fn settle(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(SettleBody {}): Body<SettleBody>,
) -> Handled<Keys> {
    let keys = store.settle(&id, write).await?;
    Ok(Success(keys.map(|keys| Keys { keys })))
}

/// Puts rows back to pending whatever their status; inserts missing ones.
#[utoipa::path(
    post,
    path = "/workflows/{id}/rearm",
    tag = "workflows",
    params(("id" = WorkflowId, Path), Guard),
    request_body = RearmBody,
    responses(
        (status = 200, body = Keys),
        (status = 404, description = "workflow_not_found"),
        (status = 409, description = "workflow_ended"),
    )
)]
pub(crate) async fn rearm(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(body): Body<RearmBody>,
) -> Handled<Keys> {
    let keys = store.rearm(&id, body.rows, write).await?;
    Ok(Success(keys.map(|keys| Keys { keys })))
}
