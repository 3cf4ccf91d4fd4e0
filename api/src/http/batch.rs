//! Routes that take many calls in one request.

use axum::extract::{FromRequest, Request, State};
use holdfast_client::wire::{Batch, BatchedCommit, BatchedResult, Completed, Encoding, Outcome, Outcomes};
use holdfast_machine::{Committed, Reject};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;

use super::error::{ApiError, Handled, Success};
use super::extract::{Guard, encoding, read, read_as};
use crate::error::StoreError;
use crate::store::{Store, StoreResult};
use crate::{Answer, Write};

/// Many commits at once, each by itself; one that cannot be read has its problem among the outcomes.
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
    calls: Calls<BatchedCommit>,
) -> Handled<Outcomes<Committed>> {
    check_unguarded(&write)?;
    let (calls, problems) = calls.split();
    let results = store.commit_all(calls.into_iter().map(BatchedCommit::into_call).collect()).await;
    Ok(outcomes(problems, results, |committed| committed))
}

/// Records the results of many activities, each by itself; as for many commits.
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
    calls: Calls<BatchedResult>,
) -> Handled<Outcomes<Completed>> {
    check_unguarded(&write)?;
    let (calls, problems) = calls.split();
    let results = store.complete_all(calls.into_iter().map(BatchedResult::into_call).collect()).await;
    Ok(outcomes(problems, results, |seq| Completed { seq }))
}

/// The calls of a batch, if there are not too many, each as far as it can be read. Postcard has no marks at which one could
/// go on behind a call that cannot, so there it is all of them or none.
pub(crate) struct Calls<T>(Vec<Result<T, ApiError>>);

impl<T: DeserializeOwned> FromRequest<Store> for Calls<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, store: &Store) -> Result<Self, ApiError> {
        let encoding = encoding(request.headers())?;
        let bytes = read(request, store).await?;
        let unreadable = |error| ApiError::invalid(format!("body: {error}"));
        if encoding != Encoding::Json {
            let Batch { calls } = read_as(encoding, &bytes).map_err(unreadable)?;
            check_number(store, calls.len())?;
            return Ok(Self(calls.into_iter().map(Ok).collect()));
        }
        // Counted before anything is kept of them: a body has room for millions of calls that are none.
        let counted: Batch<IgnoredAny> = read_as(encoding, &bytes).map_err(unreadable)?;
        check_number(store, counted.calls.len())?;
        let batch: Batch<Box<RawValue>> = read_as(encoding, &bytes).map_err(unreadable)?;
        let call = |(number, call): (usize, Box<RawValue>)| {
            let call = read_as(encoding, call.get().as_bytes());
            call.map_err(|error| ApiError::invalid(format!("calls[{number}]: {error}")))
        };
        Ok(Self(batch.calls.into_iter().enumerate().map(call).collect()))
    }
}

impl<T> Calls<T> {
    /// Those that can be read; and for each call of the batch what stands in the way of that, if so.
    fn split(self) -> (Vec<T>, Vec<Option<ApiError>>) {
        let mut readable = Vec::new();
        let problems = self.0.into_iter().map(|call| call.map(|call| readable.push(call)).err()).collect();
        (readable, problems)
    }
}

fn check_number(store: &Store, actual: usize) -> Result<(), ApiError> {
    let limit = store.limits().batch_max;
    if actual > limit {
        let what = "the number of calls in a batch".to_owned();
        return Err(StoreError::from(Reject::LimitExceeded { what, limit: limit as u64, actual: actual as u64 }).into());
    }
    Ok(())
}

/// What guards a call of a batch stands beside it: a header would speak of all.
fn check_unguarded(write: &Write) -> Result<(), ApiError> {
    if *write != Write::default() {
        return Err(ApiError::invalid(
            "idempotency_key and fence stand beside each call of a batch, not in the headers",
        ));
    }
    Ok(())
}

/// The outcomes of all calls, as of the last entry that one of them is from: for those that could not be read their problems,
/// for the others what came of them, in turn.
fn outcomes<T, U>(
    problems: Vec<Option<ApiError>>,
    results: Vec<StoreResult<T>>,
    shape: impl Fn(T) -> U,
) -> Success<Outcomes<U>> {
    let index = results.iter().flatten().map(|answer| answer.index).max().unwrap_or_default();
    let mut results = results.into_iter();
    let outcome = |problem: Option<ApiError>| {
        let result =
            problem.map_or_else(|| results.next().map(|result| result.map_err(ApiError::from)), |it| Some(Err(it)));
        Some(match result? {
            Ok(Answer { index, value }) => Outcome::Answer { index, value: shape(value) },
            Err(error) => Outcome::Problem(error.problem()),
        })
    };
    Success(Answer { index, value: Outcomes { outcomes: problems.into_iter().filter_map(outcome).collect() } })
}
