//! Routes of worker sessions. `worker_socket.rs` is what goes on once a stream is open.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use holdfast_client::wire::{Consistency, NodeMessage, SessionFilter, SessionPage, SessionWithRows};
use holdfast_machine::{Namespace, SessionId, TaskQueue};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{ApiError, Handled, Refusal, Success};
use super::extract::{Freshness, Params, Segment};
use super::listings::page;
use super::worker_socket;
use crate::store::Store;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionsParams {
    /// Only workers that work for this namespace
    namespace: Option<Namespace>,
    /// Only workers that serve this task queue
    task_queue: Option<TaskQueue>,
    limit: Option<u32>,
    cursor: Option<String>,
    consistency: Option<Consistency>,
    min_index: Option<u64>,
}

/// A worker's stream, as a WebSocket. The worker sends `WorkerMessage`s, the first of them `attach`, and is sent
/// `NodeMessage`s; each is one JSON text.
#[utoipa::path(
    get,
    path = "/sessions/stream",
    operation_id = "session_stream",
    tag = "sessions",
    responses(
        (status = 101, body = NodeMessage, description = "The stream is open; this is what each of the node's messages is"),
        (status = 426, description = "upgrade_required"),
    )
)]
pub(crate) async fn stream(
    State(store): State<Store>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|rejection| match rejection {
        WebSocketUpgradeRejection::InvalidWebSocketVersionHeader(_)
        | WebSocketUpgradeRejection::WebSocketKeyHeaderMissing(_) => ApiError::invalid(rejection.body_text()),
        _ => {
            ApiError::new(Refusal::UpgradeRequired, "a worker's stream is a WebSocket, and this request asks for none")
        }
    })?;
    let (upgrade, closed) = (worker_socket::bounded(upgrade), *store.shared.closed.borrow());
    if closed {
        return Err(crate::StoreError::Stopped.into());
    }
    Ok(upgrade.on_upgrade(|socket| worker_socket::serve(store, socket)))
}

/// Worker sessions, by name.
#[utoipa::path(
    get,
    path = "/sessions",
    tag = "sessions",
    params(SessionsParams),
    responses((status = 200, body = SessionPage))
)]
pub(crate) async fn sessions(
    State(store): State<Store>,
    Params(params): Params<SessionsParams>,
) -> Handled<SessionPage> {
    let SessionsParams { namespace, task_queue, limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    let filter = SessionFilter { namespace, task_queue };
    Ok(Success(store.sessions(&filter, &page(limit, cursor), mode).await?))
}

/// One session and the rows that it holds.
#[utoipa::path(
    get,
    path = "/sessions/{session}",
    tag = "sessions",
    params(("session" = SessionId, Path), Freshness),
    responses((status = 200, body = SessionWithRows), (status = 404, description = "session_not_found"))
)]
pub(crate) async fn session(
    State(store): State<Store>,
    Segment(session): Segment<SessionId>,
    Params(freshness): Params<Freshness>,
) -> Handled<SessionWithRows> {
    Ok(Success(store.session(&session, freshness.mode()?).await?))
}
