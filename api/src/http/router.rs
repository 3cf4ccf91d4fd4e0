//! All routes, and what holds for each of them.
//!
//! To add a route: write its handler with `#[utoipa::path]` in the file of its group and name it in [`routes`] (methods
//! of one path in one `routes!`). The attribute says what is the route's own: its parameters (a write has `Guard`
//! among them, a read `Freshness` or a struct that derives `IntoParams`), its body, the type of its answer, and for
//! each status the codes of its refusals, as in `(status = 409, description = "claim_lost already_terminal")`.
//! What all reads or writes have in common is added in `document.rs`. Types that a route carries derive `ToSchema`
//! under the feature `openapi` of their crate. Then `UPDATE_OPENAPI=1 cargo test -p holdfast-api --test openapi`.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware::from_fn;
use axum::routing::get;
use axum::{Extension, Router};
use holdfast_client::wire::BACKUP_CONTENT_TYPE;
use metrics_exporter_prometheus::PrometheusHandle;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;
use tower_http::trace::{DefaultOnFailure, TraceLayer};
use tracing::Level;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::document::{Frame, Text};
use super::error::{ApiError, Refusal};
use super::extract::{BodyBudget, BodyBytesMax};
use super::{
    answer, backup, batch, cluster, document, errors, events, explain, health, listings, namespaces, outbox, rows,
    sessions, shards, swagger_ui, timers, unread, visibility, workflows,
};
use crate::store::Store;

/// Answers below this size are sent as they are.
const COMPRESSED_BYTES_MIN: u16 = 1_024;

const BACKUPS: NotForContentType = NotForContentType::const_new(BACKUP_CONTENT_TYPE);

/// What the HTTP side of a node may be told.
#[derive(Clone)]
pub struct HttpOptions {
    /// Largest request body, in bytes.
    pub body_bytes_max: usize,
    /// All request bodies that are being read at a time, in bytes; what does not fit is refused as `overloaded`.
    pub bodies_bytes_max: usize,
    /// The longest that a client may take between two pieces of its body.
    pub body_timeout: Duration,
    /// The way to what is counted; without it `/metrics` is not there.
    pub metrics: Option<PrometheusHandle>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            body_bytes_max: 32 * 1024 * 1024,
            bodies_bytes_max: 256 * 1024 * 1024,
            body_timeout: Duration::from_secs(10),
            metrics: None,
        }
    }
}

/// The store over HTTP.
pub fn router(store: Store, options: HttpOptions) -> Router {
    let HttpOptions { body_bytes_max, bodies_bytes_max, body_timeout, metrics } = options;
    let (router, document) = routes().split_for_parts();
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(answer::write))
        .layer(Extension(metrics))
        .layer(Extension(Text::of(&document)))
        .layer(Extension(BodyBytesMax(body_bytes_max)))
        .layer(Extension(BodyBudget::new(bodies_bytes_max)))
        // The limit is inside of the decompression: it holds for what a body becomes.
        .layer(DefaultBodyLimit::max(body_bytes_max))
        // What it does not know is left as it is, for the handler's own refusal.
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(RequestBodyTimeoutLayer::new(body_timeout))
        .layer(from_fn(unread::tell))
        // Never event streams, whose readers would wait for a full buffer, nor backups, which are compressed and whose
        // length shows whether all has come; and nothing that fits in a packet anyway.
        .layer(CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(compressible()))
        // A refusal is told to its caller; to the log it is no failure of this node, so spans and `debug` are enough.
        .layer(TraceLayer::new_for_http().on_failure(DefaultOnFailure::new().level(Level::DEBUG)))
        .with_state(store)
}

fn compressible() -> impl Predicate {
    SizeAbove::new(COMPRESSED_BYTES_MIN).and(NotForContentType::SSE).and(NotForContentType::IMAGES).and(BACKUPS)
}

/// The OpenAPI document of the routes, as `/openapi.json` has it.
pub fn openapi() -> Bytes {
    Text::of(&routes().into_openapi()).bytes().clone()
}

fn routes() -> OpenApiRouter<Store> {
    OpenApiRouter::with_openapi(Frame::openapi())
        .nest("/v1", version_1())
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(document::document))
        .routes(routes!(errors::error_index))
        .routes(routes!(errors::error_page))
        .routes(routes!(swagger_ui::docs))
        .routes(routes!(swagger_ui::docs_file))
}

fn version_1() -> OpenApiRouter<Store> {
    OpenApiRouter::new()
        .routes(routes!(workflows::workflow, workflows::delete))
        .routes(routes!(visibility::list))
        .routes(routes!(visibility::count))
        // A workflow may have these names as well.
        .route("/workflows/list", get(workflows::workflow).delete(workflows::delete))
        .route("/workflows/count", get(workflows::workflow).delete(workflows::delete))
        .routes(routes!(workflows::history))
        .routes(routes!(workflows::event_payload))
        .routes(routes!(workflows::runs))
        .routes(routes!(workflows::append))
        .routes(routes!(workflows::commit))
        .routes(routes!(workflows::settle))
        .routes(routes!(workflows::rearm))
        .routes(routes!(rows::stage))
        .routes(routes!(rows::dead_letters))
        .routes(routes!(listings::heads))
        .routes(routes!(namespaces::namespaces))
        .routes(routes!(namespaces::namespace, namespaces::put_namespace))
        .routes(routes!(outbox::claim))
        .routes(routes!(outbox::row))
        .routes(routes!(outbox::row_input))
        .routes(routes!(outbox::heartbeat))
        .routes(routes!(outbox::complete))
        .routes(routes!(outbox::fail))
        .routes(routes!(outbox::retry))
        .routes(routes!(outbox::stale))
        .routes(routes!(outbox::reconcile))
        .routes(routes!(rows::dead_letters_in))
        .routes(routes!(rows::mark_failure_delivered))
        .routes(routes!(rows::redrive))
        .routes(routes!(listings::unsettled))
        .routes(routes!(listings::routes))
        .routes(routes!(listings::counts))
        .routes(routes!(timers::schedule_timer))
        .routes(routes!(timers::retire_timer))
        .routes(routes!(timers::timers))
        .routes(routes!(timers::expired_timers))
        .routes(routes!(sessions::stream))
        .routes(routes!(sessions::sessions))
        .routes(routes!(sessions::session))
        .routes(routes!(batch::commit_all))
        .routes(routes!(batch::complete_all))
        .routes(routes!(shards::shards))
        .routes(routes!(shards::transfer))
        .routes(routes!(shards::adopt))
        .routes(routes!(cluster::cluster))
        .routes(routes!(backup::backup))
        .routes(routes!(cluster::replace_member))
        .routes(routes!(explain::explain_row))
        .routes(routes!(explain::explain_workflow))
        .routes(routes!(explain::explain_shard))
        .routes(routes!(events::events))
        .routes(routes!(events::heads))
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(Refusal::NotFound, format!("there is nothing at {}", uri.path()))
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    let detail = format!("{} does not take {method}", uri.path());
    ApiError::new(Refusal::MethodNotAllowed, detail)
}
