//! Routes of the outbox.

use axum::extract::State;
use holdfast_client::wire::{
    ClaimCall, ClaimHolder, CompleteBody, Completed, Consistency, Deliveries, Extended, FailBody, HeartbeatBody,
    ReconcileBody, Reconciled, RetryBody, ReturnedRow, RowView, StaleRows,
};
use holdfast_machine::DispatchKey;
use serde::Deserialize;

use super::error::{ApiError, Handled, Success};
use super::extract::{Body, Freshness, Guard, PAGE, Params, Segment};
use crate::store::Store;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StaleParams {
    older_than_ms: u64,
    limit: Option<u32>,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

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

pub(crate) async fn row(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Params(freshness): Params<Freshness>,
) -> Handled<RowView> {
    Ok(Success(store.row(&key, freshness.mode()?).await?))
}

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

pub(crate) async fn complete(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    Body(body): Body<CompleteBody>,
) -> Handled<Completed> {
    let seq = store.complete(&key, body.token, body.result, write).await?;
    Ok(Success(seq.map(|seq| Completed { seq })))
}

pub(crate) async fn fail(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    Body(body): Body<FailBody>,
) -> Handled<ReturnedRow> {
    let returned = store.fail(&key, body.token, body.error, body.retryable, write).await?;
    Ok(Success(returned.map(|returned| ReturnedRow { returned })))
}

pub(crate) async fn retry(
    State(store): State<Store>,
    Segment(key): Segment<DispatchKey>,
    Guard(write): Guard,
    Body(body): Body<RetryBody>,
) -> Handled<ReturnedRow> {
    let returned = store.retry(&key, body.token, body.delay_ms, write).await?;
    Ok(Success(returned.map(|returned| ReturnedRow { returned })))
}

pub(crate) async fn stale(State(store): State<Store>, Params(params): Params<StaleParams>) -> Handled<StaleRows> {
    let StaleParams { older_than_ms, limit, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    let rows = store.stale(older_than_ms, limit.unwrap_or(PAGE), mode).await?;
    Ok(Success(rows.map(|rows| StaleRows { rows })))
}

pub(crate) async fn reconcile(
    State(store): State<Store>,
    Guard(write): Guard,
    Body(body): Body<ReconcileBody>,
) -> Handled<Reconciled> {
    Ok(Success(store.reconcile(body.older_than_ms, body.limit, body.excluded, write).await?))
}
