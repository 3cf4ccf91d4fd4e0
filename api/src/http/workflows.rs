//! Routes of workflows.

use std::time::Duration;

use axum::extract::State;
use holdfast_client::wire::{
    AppendBody, CommitBody, Consistency, HistoryPage, Keys, RearmBody, Runs, SettleBody, WorkflowView,
};
use holdfast_machine::{Committed, WorkflowId};
use serde::Deserialize;

use super::error::{Handled, Success};
use super::extract::{Body, Freshness, Guard, PAGE, Params, Segment};
use crate::store::Store;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryParams {
    #[serde(default)]
    from_seq: u64,
    limit: Option<u32>,
    #[serde(default)]
    wait_ms: u64,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunsParams {
    limit: Option<u32>,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

pub(crate) async fn workflow(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Params(freshness): Params<Freshness>,
) -> Handled<WorkflowView> {
    Ok(Success(store.workflow(&id, freshness.mode()?).await?))
}

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

pub(crate) async fn runs(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Params(params): Params<RunsParams>,
) -> Handled<Runs> {
    let RunsParams { limit, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    let runs = store.runs(&id, limit.unwrap_or(PAGE), mode).await?;
    Ok(Success(runs.map(|runs| Runs { runs })))
}

pub(crate) async fn append(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(body): Body<AppendBody>,
) -> Handled<Committed> {
    Ok(Success(store.append(&id, body.expected_seq, body.events, write).await?))
}

pub(crate) async fn commit(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(body): Body<CommitBody>,
) -> Handled<Committed> {
    Ok(Success(store.commit(body.into_commit(id), write).await?))
}

pub(crate) async fn settle(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(SettleBody {}): Body<SettleBody>,
) -> Handled<Keys> {
    let keys = store.settle(&id, write).await?;
    Ok(Success(keys.map(|keys| Keys { keys })))
}

pub(crate) async fn rearm(
    State(store): State<Store>,
    Segment(id): Segment<WorkflowId>,
    Guard(write): Guard,
    Body(body): Body<RearmBody>,
) -> Handled<Keys> {
    let keys = store.rearm(&id, body.rows, write).await?;
    Ok(Success(keys.map(|keys| Keys { keys })))
}
