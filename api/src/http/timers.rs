//! Routes of timers.

use axum::extract::State;
use holdfast_client::wire::{Consistency, DueTimers, ExpiredCall, RetiredTimer, Scheduled, TimerPage};
use holdfast_machine::{Arming, Millis, Namespace, NodeName, WorkflowId};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{Handled, Success};
use super::extract::{Body, Freshness, Guard, PAGE, Params, Segment};
use super::listings::{ListingParams, page};
use crate::store::Store;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpiredParams {
    /// Only timers of the shards that this node owns
    owner: Option<NodeName>,
    /// Only timers of workflows of this namespace
    namespace: Option<Namespace>,
    /// Timers that are due at this time, in unix milliseconds; log time if nothing is said
    as_of: Option<Millis>,
    limit: Option<u32>,
    /// How long to wait for the first of these timers, in milliseconds
    #[serde(default)]
    wait_ms: u64,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

/// Arms a timer of an open workflow; an arming that stands under the same name is overwritten.
#[utoipa::path(
    post,
    path = "/workflows/{id}/timers/schedule",
    tag = "timers",
    params(("id" = WorkflowId, Path), Guard),
    request_body = Arming,
    responses(
        (status = 200, body = Scheduled),
        (status = 404, description = "workflow_not_found"),
        (status = 409, description = "workflow_ended"),
    )
)]
pub(crate) async fn schedule_timer(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(arming): Body<Arming>,
) -> Handled<Scheduled> {
    Ok(Success(store.schedule_timer(&id, arming, write).await?.map(|()| Scheduled {})))
}

/// Removes this very arming; another one of the same name is left alone.
#[utoipa::path(
    post,
    path = "/workflows/{id}/timers/retire",
    tag = "timers",
    params(("id" = WorkflowId, Path), Guard),
    request_body = Arming,
    responses((status = 200, body = RetiredTimer))
)]
pub(crate) async fn retire_timer(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(arming): Body<Arming>,
) -> Handled<RetiredTimer> {
    let retirement = store.retire_timer(&id, arming, write).await?;
    Ok(Success(retirement.map(|retirement| RetiredTimer { retirement })))
}

/// A workflow's armed timers, by name.
#[utoipa::path(
    get,
    path = "/workflows/{id}/timers",
    tag = "timers",
    params(("id" = WorkflowId, Path), ListingParams),
    responses((status = 200, body = TimerPage))
)]
pub(crate) async fn timers(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Params(params): Params<ListingParams>,
) -> Handled<TimerPage> {
    let ListingParams { limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.timers(&id, &page(limit, cursor), mode).await?))
}

/// Timers that are due and not retired, by time, then workflow, then name; may wait for the first one.
#[utoipa::path(
    get,
    path = "/timers/expired",
    tag = "timers",
    params(ExpiredParams),
    responses((status = 200, body = DueTimers))
)]
pub(crate) async fn expired_timers(
    State(store): State<Store>,
    Params(params): Params<ExpiredParams>,
) -> Handled<DueTimers> {
    let ExpiredParams { owner, namespace, as_of, limit, wait_ms, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    let call = ExpiredCall { owner, namespace, as_of, limit: limit.unwrap_or(PAGE), wait_ms };
    Ok(Success(store.expired_timers(call, mode).await?))
}
