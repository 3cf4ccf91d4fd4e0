//! Routes of listings: what is under way, and where histories end.

use axum::extract::State;
use holdfast_client::wire::{Consistency, CountPage, HeadPage, PageCall, RoutePage, UnsettledPage};
use holdfast_machine::ShardId;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{Handled, Success};
use super::extract::{Freshness, PAGE, Params};
use crate::store::Store;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnsettledParams {
    /// Only workflows of this shard
    shard: Option<ShardId>,
    limit: Option<u32>,
    cursor: Option<String>,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListingParams {
    pub limit: Option<u32>,
    pub cursor: Option<String>,
    pub consistency: Option<Consistency>,
    pub min_index: Option<u64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeadParams {
    /// Only workflows of this shard
    shard: Option<ShardId>,
    /// Only open workflows
    #[serde(default)]
    open: bool,
    limit: Option<u32>,
    cursor: Option<String>,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

/// The page that these parameters ask for.
pub(crate) fn page(limit: Option<u32>, cursor: Option<String>) -> PageCall {
    PageCall { limit: limit.unwrap_or(PAGE), cursor }
}

/// Workflows that have pending or claimed rows, by shard, then by id.
#[utoipa::path(
    get,
    path = "/outbox/unsettled",
    tag = "outbox",
    params(UnsettledParams),
    responses((status = 200, body = UnsettledPage), (status = 404, description = "no_such_shard"))
)]
pub(crate) async fn unsettled(
    State(store): State<Store>,
    Params(params): Params<UnsettledParams>,
) -> Handled<UnsettledPage> {
    let UnsettledParams { shard, limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.unsettled(shard, &page(limit, cursor), mode).await?))
}

/// Routes that have rows waiting, by namespace, task queue, node and activity type.
#[utoipa::path(
    get,
    path = "/outbox/routes",
    operation_id = "pending_routes",
    tag = "outbox",
    params(ListingParams),
    responses((status = 200, body = RoutePage))
)]
pub(crate) async fn routes(State(store): State<Store>, Params(params): Params<ListingParams>) -> Handled<RoutePage> {
    let ListingParams { limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.pending_routes(&page(limit, cursor), mode).await?))
}

/// Live rows by namespace.
#[utoipa::path(
    get,
    path = "/outbox/counts",
    operation_id = "row_counts",
    tag = "outbox",
    params(ListingParams),
    responses((status = 200, body = CountPage))
)]
pub(crate) async fn counts(State(store): State<Store>, Params(params): Params<ListingParams>) -> Handled<CountPage> {
    let ListingParams { limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.row_counts(&page(limit, cursor), mode).await?))
}

/// Where histories end, by workflow.
#[utoipa::path(
    get,
    path = "/heads",
    operation_id = "list_heads",
    tag = "workflows",
    params(HeadParams),
    responses((status = 200, body = HeadPage), (status = 404, description = "no_such_shard"))
)]
pub(crate) async fn heads(State(store): State<Store>, Params(params): Params<HeadParams>) -> Handled<HeadPage> {
    let HeadParams { shard, open, limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.heads(shard, open, &page(limit, cursor), mode).await?))
}
