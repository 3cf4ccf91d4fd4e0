//! Routes of shards.

use std::num::ParseIntError;
use std::str::FromStr;

use axum::extract::State;
use holdfast_client::wire::{AdoptBody, Adoption, Directory, TransferBody};
use holdfast_machine::{Moved, ShardId};

use super::error::{Handled, Success};
use super::extract::{Body, Freshness, Guard, Params, Segment};
use crate::store::Store;

/// A shard's number in a path.
pub(crate) struct ShardNumber(pub ShardId);

impl FromStr for ShardNumber {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(|number| Self(ShardId(number)))
    }
}

/// Who owns which shard, under which epoch.
#[utoipa::path(
    get,
    path = "/shards",
    tag = "shards",
    params(Freshness),
    responses((status = 200, body = Directory))
)]
pub(crate) async fn shards(State(store): State<Store>, Params(freshness): Params<Freshness>) -> Handled<Directory> {
    Ok(Success(store.shards(freshness.mode()?).await?))
}

/// Moves a shard to another live node.
#[utoipa::path(
    post,
    path = "/shards/{shard}/transfer",
    tag = "shards",
    params(("shard" = ShardId, Path), Guard),
    request_body = TransferBody,
    responses(
        (status = 200, body = Moved),
        (status = 404, description = "no_such_shard"),
        (status = 409, description = "epoch_conflict node_state"),
    )
)]
pub(crate) async fn transfer(
    State(store): State<Store>,
    Segment(ShardNumber(shard)): Segment<ShardNumber>,
    Guard(write): Guard,
    Body(body): Body<TransferBody>,
) -> Handled<Moved> {
    Ok(Success(store.transfer(shard, &body.to, body.expected_epoch, write).await?))
}

/// Takes a shard from a node that is committed as down.
#[utoipa::path(
    post,
    path = "/shards/{shard}/adopt",
    tag = "shards",
    params(("shard" = ShardId, Path), Guard),
    request_body = AdoptBody,
    responses(
        (status = 200, body = Adoption),
        (status = 404, description = "no_such_shard"),
        (status = 409, description = "epoch_conflict node_state"),
    )
)]
pub(crate) async fn adopt(
    State(store): State<Store>,
    Segment(ShardNumber(shard)): Segment<ShardNumber>,
    Guard(write): Guard,
    Body(body): Body<AdoptBody>,
) -> Handled<Adoption> {
    Ok(Success(store.adopt(shard, &body.from, &body.by, body.expected_epoch, write).await?))
}
