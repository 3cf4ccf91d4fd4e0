//! What an orchestrator asks: is the process alive, may it have traffic, what does it count.

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use holdfast_client::DiskSpace;
use metrics_exporter_prometheus::PrometheusHandle;

use super::error::{ApiError, Refusal};
use crate::metrics::refresh;
use crate::store::Store;

/// 200 as long as the node can go on.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "node",
    responses((status = 200, body = String), (status = 503, description = "stopped"))
)]
pub(crate) async fn alive(State(store): State<Store>) -> Result<&'static str, ApiError> {
    match store.fatal() {
        None => Ok("ok\n"),
        Some(reason) => Err(ApiError::stopped(reason)),
    }
}

/// 200 once the node can serve what it is asked.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "node",
    responses((status = 200, body = String), (status = 503, description = "not_ready"))
)]
pub(crate) async fn ready(State(store): State<Store>) -> Result<&'static str, ApiError> {
    if let Some(reason) = store.unreadiness() {
        return Err(ApiError::new(Refusal::NotReady, reason));
    }
    // It still reads, finishes work, and passes calls on; no traffic need be kept from it.
    Ok(match store.disk_space() {
        DiskSpace::Plenty => "ready\n",
        DiskSpace::Low => "ready, but the disk is low on space\n",
        DiskSpace::Out => "ready, but the disk is full\n",
    })
}

/// Counters and gauges in Prometheus' text format.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "node",
    responses((status = 200, body = String), (status = 404, description = "not_found"))
)]
pub(crate) async fn metrics(
    State(store): State<Store>,
    Extension(handle): Extension<Option<PrometheusHandle>>,
) -> Result<impl IntoResponse, ApiError> {
    let Some(handle) = handle else {
        return Err(ApiError::new(Refusal::NotFound, "this node counts nothing"));
    };
    refresh(&store);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], handle.render()))
}
