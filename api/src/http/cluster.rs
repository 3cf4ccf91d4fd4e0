//! The cluster as this node sees it.

use axum::extract::State;
use holdfast_client::wire::ClusterView;

use super::error::{Handled, Success};
use crate::store::Store;

pub(crate) async fn cluster(State(store): State<Store>) -> Handled<ClusterView> {
    Ok(Success(store.cluster().await?))
}
