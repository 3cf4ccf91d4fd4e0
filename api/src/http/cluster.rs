//! The cluster as this node sees it.

use axum::extract::State;
use holdfast_client::wire::{ClusterView, ReplaceBody, Replacement};
use holdfast_machine::NodeName;

use super::error::{ApiError, Handled, Refusal, Success};
use super::extract::{Body, Segment};
use crate::store::Store;

/// The cluster as this node sees it.
#[utoipa::path(
    get,
    path = "/cluster",
    tag = "cluster",
    responses((status = 200, body = ClusterView))
)]
pub(crate) async fn cluster(State(store): State<Store>) -> Handled<ClusterView> {
    Ok(Success(store.cluster().await?))
}

/// Has a member replaced that has lost its data and waits for that.
#[utoipa::path(
    post,
    path = "/cluster/members/{name}/replace",
    tag = "cluster",
    params(("name" = NodeName, Path)),
    request_body = ReplaceBody,
    responses((status = 200, body = Replacement), (status = 409, description = "node_state"), (status = 503, description = "not_ready"))
)]
pub(crate) async fn replace_member(
    State(store): State<Store>,
    Segment(name): Segment<NodeName>,
    Body(body): Body<ReplaceBody>,
) -> Handled<Replacement> {
    // It may be the very node that waits for this.
    if let Some(reason) = store.outside() {
        let detail = format!(
            "this node takes no part in the cluster, so it cannot have anybody replaced; ask another one. {reason}"
        );
        return Err(ApiError::new(Refusal::NotReady, detail));
    }
    Ok(Success(store.replace_member(&name, body.dry_run).await?))
}
