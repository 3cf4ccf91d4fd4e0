//! The cluster as this node sees it.

use axum::extract::State;
use holdfast_client::wire::ClusterView;

use super::error::{Handled, Success};
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
