//! The streams as server-sent events: cluster events, and the heads of histories that grow.
//!
//! Of cluster events the name of a message is `snapshot`, `event` or `lagged`, its
//! data is JSON, and its id is where a reader resumes with `Last-Event-ID` (or `?from=`).

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream::{Stream, StreamExt};
use holdfast_client::wire::{EventId, EventMessage, HeadMessage, HeadScope};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::extract::Params;
use crate::store::Store;

/// How often a comment is sent when nothing happens, so that both sides notice a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsParams {
    /// Where to resume
    from: Option<EventId>,
}

/// The event stream, as server-sent events.
#[utoipa::path(
    get,
    path = "/events",
    tag = "events",
    params(EventsParams, ("Last-Event-ID" = Option<EventId>, Header, description = "Where to resume; goes before `from`")),
    responses(
        (
            status = 200,
            content_type = "text/event-stream",
            body = String,
            description = "Messages `snapshot`, `event` and `lagged`, without end",
        ),
    )
)]
pub(crate) async fn events(
    State(store): State<Store>,
    headers: HeaderMap,
    Params(params): Params<EventsParams>,
) -> Result<Sse<impl Stream<Item = Result<Event, serde_json::Error>>>, ApiError> {
    let from = match last_event_id(&headers)? {
        Some(id) => Some(id),
        None => params.from,
    };
    let messages = store.events(from).map(encode);
    Ok(Sse::new(messages).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Heads as they grow; a stream that is cut off begins anew with `resync`.
#[utoipa::path(
    get,
    path = "/heads/watch",
    tag = "events",
    params(HeadScope),
    responses(
        (
            status = 200,
            content_type = "text/event-stream",
            body = String,
            description = "Messages `resync`, `grew` and `dead_letter`, without end",
        ),
    )
)]
pub(crate) async fn heads(
    State(store): State<Store>,
    Params(scope): Params<HeadScope>,
) -> Sse<impl Stream<Item = Result<Event, serde_json::Error>>> {
    let encode = |message: HeadMessage| message.encode().map(|(name, data)| Event::default().event(name).data(data));
    Sse::new(store.watch_heads(scope).map(encode)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<EventId>, ApiError> {
    let Some(value) = headers.get("last-event-id").filter(|value| !value.is_empty()) else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(|text| text.parse().ok());
    parsed.map(Some).ok_or_else(|| ApiError::invalid("the header Last-Event-ID must be an id that this stream gave"))
}

fn encode(message: EventMessage) -> Result<Event, serde_json::Error> {
    let id = message.id();
    let (name, data) = message.encode()?;
    let event = Event::default().event(name).data(data);
    Ok(match id {
        Some(id) => event.id(id.to_string()),
        None => event,
    })
}
