//! In which form an answer goes out. A handler hands over the value itself ([`super::error::Success`]); what the
//! request's `Accept` asks for is known out here, and only one form is ever made.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use holdfast_client::wire::Encoding;
use serde::Serialize;

use super::error::ApiError;
use crate::StoreError;

/// The value of an answer that has no body yet.
#[derive(Clone)]
pub(crate) struct Unwritten(Arc<dyn Written>);

trait Written: Send + Sync {
    fn written(&self, encoding: Encoding) -> Result<Vec<u8>, String>;
}

impl<T: Serialize + Send + Sync> Written for T {
    fn written(&self, encoding: Encoding) -> Result<Vec<u8>, String> {
        encoding.write(self)
    }
}

impl Unwritten {
    pub fn new<T: Serialize + Send + Sync + 'static>(value: T) -> Self {
        Self(Arc::new(value))
    }
}

/// Writes the answer as it was asked for.
pub(crate) async fn write(request: Request, next: Next) -> Response {
    let encoding = wanted(request.headers());
    let mut response = next.run(request).await;
    let Some(Unwritten(value)) = response.extensions_mut().remove() else { return response };
    match value.written(encoding) {
        Ok(bytes) => {
            *response.body_mut() = bytes.into();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(encoding.content_type()));
            response
        }
        // No value of the wire is like that.
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written");
            ApiError::from(StoreError::WrongReply { command: "an answer that cannot be written" }).into_response()
        }
    }
}

/// Postcard for those who name it; JSON for everybody else, whatever they would rather have.
fn wanted(headers: &HeaderMap) -> Encoding {
    let mut named = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    let is_named = named.any(|content_type| Encoding::of(content_type) == Some(Encoding::Postcard));
    if is_named { Encoding::Postcard } else { Encoding::Json }
}
