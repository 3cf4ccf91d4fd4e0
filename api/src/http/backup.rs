//! A backup, as a file that is streamed from the disk.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::IntoResponse;
use holdfast_client::wire::{BACKUP_CONTENT_TYPE, INDEX_HEADER};

use super::error::ApiError;
use super::extract::{Freshness, Params};
use crate::Answer;
use crate::store::Store;

/// A backup of the whole cluster's state, from this node: consistent as of one log index, taken while everything goes on.
#[utoipa::path(
    get,
    path = "/cluster/backup",
    tag = "cluster",
    params(Freshness),
    responses(
        (
            status = 200,
            content_type = "application/vnd.holdfast.backup",
            body = String,
            description = "A file for `holdfast backup verify` and `holdfast restore`; cut off if it is shorter than `Content-Length`",
        ),
        (status = 507, description = "storage_full"),
    )
)]
pub(crate) async fn backup(
    State(store): State<Store>,
    Params(freshness): Params<Freshness>,
) -> Result<impl IntoResponse, ApiError> {
    let Answer { index, value: backup } = store.backup(freshness.mode()?).await?;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(BACKUP_CONTENT_TYPE));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(backup.length()));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(HeaderName::from_static(INDEX_HEADER), HeaderValue::from(index));
    Ok((headers, Body::from_stream(backup.into_chunks())))
}
