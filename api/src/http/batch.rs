//! Routes that take many calls in one request.

use axum::extract::State;
use holdfast_client::wire::{Batch, BatchedCommit, BatchedResult, Completed, Outcome, Outcomes};
use holdfast_machine::{Committed, Reject};

use super::error::{ApiError, Handled, Success};
use super::extract::{Body, Guard};
use crate::error::StoreError;
use crate::store::{Store, StoreResult};
use crate::{Answer, Write};

/// Many commits at once, each by itself.
#[utoipa::path(
    post,
    path = "/batch/commit",
    tag = "batch",
    request_body = Batch<BatchedCommit>,
    responses((status = 200, body = Outcomes<Committed>), (status = 429, description = "overloaded"))
)]
pub(crate) async fn commit_all(
    State(store): State<Store>,
    Guard(write): Guard,
    Body(batch): Body<Batch<BatchedCommit>>,
) -> Handled<Outcomes<Committed>> {
    let calls = calls(&store, write, batch)?.into_iter().map(BatchedCommit::into_call).collect();
    Ok(outcomes(store.commit_all(calls).await, |committed| committed))
}

/// Records the results of many activities, each by itself.
#[utoipa::path(
    post,
    path = "/batch/complete",
    tag = "batch",
    request_body = Batch<BatchedResult>,
    responses((status = 200, body = Outcomes<Completed>), (status = 429, description = "overloaded"))
)]
pub(crate) async fn complete_all(
    State(store): State<Store>,
    Guard(write): Guard,
    Body(batch): Body<Batch<BatchedResult>>,
) -> Handled<Outcomes<Completed>> {
    let calls = calls(&store, write, batch)?.into_iter().map(BatchedResult::into_call).collect();
    Ok(outcomes(store.complete_all(calls).await, |seq| Completed { seq }))
}

/// The calls of a batch, if there are not too many. What guards one stands beside it: a header would speak of all.
fn calls<T>(store: &Store, write: Write, batch: Batch<T>) -> Result<Vec<T>, ApiError> {
    if write != Write::default() {
        return Err(ApiError::invalid(
            "idempotency_key and fence stand beside each call of a batch, not in the headers",
        ));
    }
    let (limit, actual) = (store.limits().batch_max, batch.calls.len());
    if actual > limit {
        let what = "the number of calls in a batch".to_owned();
        return Err(StoreError::from(Reject::LimitExceeded { what, limit: limit as u64, actual: actual as u64 }).into());
    }
    Ok(batch.calls)
}

/// The outcomes, as of the last entry that one of them is from.
fn outcomes<T, U>(results: Vec<StoreResult<T>>, shape: impl Fn(T) -> U) -> Success<Outcomes<U>> {
    let index = results.iter().flatten().map(|answer| answer.index).max().unwrap_or_default();
    let outcome = |result: StoreResult<T>| match result {
        Ok(Answer { index, value }) => Outcome::Answer { index, value: shape(value) },
        Err(error) => Outcome::Problem(ApiError::from(error).problem()),
    };
    Success(Answer { index, value: Outcomes { outcomes: results.into_iter().map(outcome).collect() } })
}
