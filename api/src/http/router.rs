//! All routes, and what holds for each of them.

use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use tower_http::timeout::RequestBodyTimeoutLayer;
use tower_http::trace::{DefaultOnFailure, TraceLayer};
use tracing::Level;

use super::error::ApiError;
use super::{cluster, events, health, outbox, shards, workflows};
use crate::store::Store;

/// What the HTTP side of a node may be told.
#[derive(Clone)]
pub struct HttpOptions {
    /// Largest request body, in bytes.
    pub body_bytes_max: usize,
    /// The longest that a client may take between two pieces of its body.
    pub body_timeout: Duration,
    /// The way to what is counted; without it `/metrics` is not there.
    pub metrics: Option<PrometheusHandle>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { body_bytes_max: 32 * 1024 * 1024, body_timeout: Duration::from_secs(10), metrics: None }
    }
}

/// The store over HTTP.
pub fn router(store: Store, options: HttpOptions) -> Router {
    let HttpOptions { body_bytes_max, body_timeout, metrics } = options;
    let mut router = Router::new()
        .nest("/v1", version_1())
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready));
    if let Some(handle) = metrics {
        router = router.route("/metrics", get(move |store| health::metrics(store, handle)));
    }
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(body_bytes_max))
        .layer(RequestBodyTimeoutLayer::new(body_timeout))
        // A refusal is told to its caller; to the log it is no failure of this node, so spans and `debug` are enough.
        .layer(TraceLayer::new_for_http().on_failure(DefaultOnFailure::new().level(Level::DEBUG)))
        .with_state(store)
}

fn version_1() -> Router<Store> {
    Router::new()
        .route("/workflows/{id}", get(workflows::workflow))
        .route("/workflows/{id}/history", get(workflows::history))
        .route("/workflows/{id}/runs", get(workflows::runs))
        .route("/workflows/{id}/append", post(workflows::append))
        .route("/workflows/{id}/commit", post(workflows::commit))
        .route("/workflows/{id}/settle", post(workflows::settle))
        .route("/workflows/{id}/rearm", post(workflows::rearm))
        .route("/outbox/claim", post(outbox::claim))
        .route("/outbox/rows/{key}", get(outbox::row))
        .route("/outbox/rows/{key}/heartbeat", post(outbox::heartbeat))
        .route("/outbox/rows/{key}/complete", post(outbox::complete))
        .route("/outbox/rows/{key}/fail", post(outbox::fail))
        .route("/outbox/rows/{key}/retry", post(outbox::retry))
        .route("/outbox/stale", get(outbox::stale))
        .route("/outbox/reconcile", post(outbox::reconcile))
        .route("/shards", get(shards::shards))
        .route("/shards/{id}/transfer", post(shards::transfer))
        .route("/shards/{id}/adopt", post(shards::adopt))
        .route("/cluster", get(cluster::cluster))
        .route("/events", get(events::events))
        .route("/heads/watch", get(events::heads))
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", format!("there is nothing at {}", uri.path()))
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    let detail = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}
