//! Routes of the outbox.

use axum::extract::State;
use axum::response::Response;
use holdfast_client::wire::{
    ClaimCall, ClaimHolder, CompleteBody, Completed, Consistency, Deliveries, Extended, FailBody, HeartbeatBody,
    ReconcileBody, Reconciled, RetryBody, ReturnedRow, RowView, StaleRows,
};
use holdfast_machine::{ClaimToken, DispatchKey, ErrorType};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{ApiError, Handled, Success};
use super::extract::{Body, Freshness, Guard, Params, Segment};
use super::listings::page;
use super::payload::{Given, raw};
use crate::Failure;
use crate::store::Store;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct StaleParams {
    /// Rows claimed at least this long ago, in milliseconds
    older_than_ms: u64,
    limit: Option<u32>,
    cursor: Option<String>,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

/// What a result as the body itself leaves to be said.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompleteParams {
    /// The claim, where the body is the result itself
    token: Option<ClaimToken>,
}

/// What an error as the body itself leaves to be said.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailParams {
    /// The claim, where the body is the error itself
    token: Option<ClaimToken>,
    /// The type of the error, where the body is the error itself
    error_type: Option<ErrorType>,
    /// False: no further attempt. Has to be there where the body is the error itself
    retryable: Option<bool>,
}

/// Takes due rows under a lease; may wait for some.
#[utoipa::path(
    post,
    path = "/outbox/claim",
    tag = "outbox",
    params(Guard),
    request_body = ClaimCall,
    responses((status = 200, body = Deliveries), (status = 409, description = "node_state"))
)]
pub(crate) async fn claim(
    State(store): State<Store>,
    Guard(write): Guard,
    Body(call): Body<ClaimCall>,
) -> Handled<Deliveries> {
    if call.holder == ClaimHolder::Node {
        return Err(ApiError::invalid("holder: over HTTP a claim is a lease; a node claims in its own process"));
    }
    let deliveries = store.claim(call, write).await?;
    Ok(Success(deliveries.map(|deliveries| Deliveries { deliveries })))
}

/// One row, live or finished.
#[utoipa::path(
    get,
    path = "/outbox/rows/{key}",
    tag = "outbox",
    params(("key" = DispatchKey, Path), Freshness),
    responses((status = 200, body = RowView), (status = 404, description = "row_not_found"))
)]
pub(crate) async fn row(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Params(freshness): Params<Freshness>,
) -> Handled<RowView> {
    Ok(Success(store.row(&key, freshness.mode()?).await?))
}

/// The input of a row, as it is.
#[utoipa::path(
    get,
    path = "/outbox/rows/{key}/input",
    tag = "outbox",
    params(("key" = DispatchKey, Path), Freshness),
    responses(
        (status = 200, content_type = "*/*", description = "The payload, in its own content type"),
        (status = 204, description = "There is none"),
        (status = 404, description = "row_not_found"),
    )
)]
pub(crate) async fn row_input(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Params(freshness): Params<Freshness>,
) -> Result<Response, ApiError> {
    Ok(raw(store.row(&key, freshness.mode()?).await?.map(|row| row.input)))
}

/// Extends the lease of a claim.
#[utoipa::path(
    post,
    path = "/outbox/rows/{key}/heartbeat",
    tag = "outbox",
    params(("key" = DispatchKey, Path), Guard),
    request_body = HeartbeatBody,
    responses(
        (status = 200, body = Extended),
        (status = 404, description = "row_not_found"),
        (status = 409, description = "claim_lost already_terminal row_not_claimed"),
    )
)]
pub(crate) async fn heartbeat(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    Body(body): Body<HeartbeatBody>,
) -> Handled<Extended> {
    let HeartbeatBody { token, lease_ms, details } = body;
    let deadline = store.heartbeat(&key, token, lease_ms, details, write).await?;
    Ok(Success(deadline.map(|deadline| Extended { deadline })))
}

/// Records the result of an activity.
#[utoipa::path(
    post,
    path = "/outbox/rows/{key}/complete",
    tag = "outbox",
    params(("key" = DispatchKey, Path), Guard, CompleteParams),
    request_body(content((CompleteBody = "application/json"), (Vec<u8> = "application/octet-stream"))),
    responses(
        (status = 200, body = Completed),
        (status = 404, description = "row_not_found"),
        (status = 409, description = "claim_lost already_terminal row_not_claimed"),
    )
)]
pub(crate) async fn complete(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    given: Given<CompleteBody, CompleteParams>,
) -> Handled<Completed> {
    let CompleteBody { token, result } = match given {
        Given::Said(body) => body,
        Given::Raw(result, CompleteParams { token }) => CompleteBody { token, result },
    };
    let seq = store.complete(&key, token, result, write).await?;
    Ok(Success(seq.map(|seq| Completed { seq })))
}

/// Records a failed attempt: due again later, or failed for good.
#[utoipa::path(
    post,
    path = "/outbox/rows/{key}/fail",
    tag = "outbox",
    params(("key" = DispatchKey, Path), Guard, FailParams),
    request_body(content((FailBody = "application/json"), (Vec<u8> = "application/octet-stream"))),
    responses(
        (status = 200, body = ReturnedRow),
        (status = 404, description = "row_not_found"),
        (status = 409, description = "claim_lost already_terminal row_not_claimed"),
    )
)]
pub(crate) async fn fail(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    given: Given<FailBody, FailParams>,
) -> Handled<ReturnedRow> {
    let FailBody { token, error, error_type, retryable } = match given {
        Given::Said(body) => body,
        Given::Raw(error, FailParams { token, error_type, retryable }) => {
            let retryable = retryable.ok_or_else(|| ApiError::invalid("retryable must be said: true or false"))?;
            FailBody { token, error, error_type, retryable }
        }
    };
    let returned = store.fail(&key, token, Failure { error, error_type, retryable }, write).await?;
    Ok(Success(returned.map(|returned| ReturnedRow { returned })))
}

/// Hands a row back undone.
#[utoipa::path(
    post,
    path = "/outbox/rows/{key}/retry",
    tag = "outbox",
    params(("key" = DispatchKey, Path), Guard),
    request_body = RetryBody,
    responses(
        (status = 200, body = ReturnedRow),
        (status = 404, description = "row_not_found"),
        (status = 409, description = "claim_lost already_terminal row_not_claimed"),
    )
)]
pub(crate) async fn retry(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    Body(body): Body<RetryBody>,
) -> Handled<ReturnedRow> {
    let returned = store.retry(&key, body.token, body.delay_ms, write).await?;
    Ok(Success(returned.map(|returned| ReturnedRow { returned })))
}

/// Rows that have been claimed for long, by time of claim.
#[utoipa::path(
    get,
    path = "/outbox/stale",
    tag = "outbox",
    params(StaleParams),
    responses((status = 200, body = StaleRows))
)]
pub(crate) async fn stale(State(store): State<Store>, Params(params): Params<StaleParams>) -> Handled<StaleRows> {
    let StaleParams { older_than_ms, limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.stale(older_than_ms, &page(limit, cursor), mode).await?))
}

/// Puts rows right that have been claimed for long.
#[utoipa::path(
    post,
    path = "/outbox/reconcile",
    tag = "outbox",
    params(Guard),
    request_body = ReconcileBody,
    responses((status = 200, body = Reconciled))
)]
pub(crate) async fn reconcile(
    State(store): State<Store>,
    Guard(write): Guard,
    Body(body): Body<ReconcileBody>,
) -> Handled<Reconciled> {
    Ok(Success(store.reconcile(body.older_than_ms, body.limit, body.excluded, write).await?))
}
