//! Errors and answers as HTTP sees them, in one place.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, UPGRADE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use holdfast_client::Problem;
use holdfast_client::wire::INDEX_HEADER;
use holdfast_machine::Reject;
use serde::Serialize;

use super::answer::Unwritten;
use crate::Answer;
use crate::error::StoreError;

/// When to come back after an answer that says "not now", in seconds. The shortest that HTTP can say.
const RETRY_AFTER_SECONDS: &str = "1";

/// A refusal of the HTTP side itself; all others are the store's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    MethodNotAllowed,
    BodyUnread,
    UnsupportedMediaType,
    UpgradeRequired,
    NotReady,
}

impl Refusal {
    #[cfg(test)]
    pub const ALL: [Self; 6] = [
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyUnread,
        Self::UnsupportedMediaType,
        Self::UpgradeRequired,
        Self::NotReady,
    ];

    /// The stable name of the error.
    pub fn code(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::BodyUnread => "body_unread",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::UpgradeRequired => "upgrade_required",
            Self::NotReady => "not_ready",
        }
    }

    /// The HTTP status of the error.
    pub fn status(self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::BodyUnread => 408,
            Self::UnsupportedMediaType => 415,
            Self::UpgradeRequired => 426,
            Self::NotReady => 503,
        }
    }
}

/// An error answer.
#[derive(Debug)]
pub(crate) struct ApiError(Box<Problem>);

impl ApiError {
    pub fn new(refusal: Refusal, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(refusal.status(), refusal.code(), detail)))
    }

    /// The document that it answers.
    pub fn problem(self) -> Problem {
        *self.0
    }

    /// This node has stopped serving.
    pub fn stopped(reason: impl Into<String>) -> Self {
        let stopped = StoreError::Stopped;
        Self(Box::new(Problem::new(stopped.status(), stopped.code(), reason)))
    }

    /// Something in the request makes no sense.
    pub fn invalid(what: impl Into<String>) -> Self {
        StoreError::from(Reject::InvalidArgument { what: what.into() }).into()
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if error.status() == 500 {
            tracing::error!(%error, "a call failed inside the node");
        }
        Self(Box::new(error.problem()))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // Every status here comes from a constant.
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.0)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        if status == StatusCode::UPGRADE_REQUIRED {
            response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        response
    }
}

/// A success: the value, in the form that was asked for, and its log index as a header.
#[derive(Debug)]
pub(crate) struct Success<T>(pub Answer<T>);

impl<T: Serialize + Send + Sync + 'static> IntoResponse for Success<T> {
    fn into_response(self) -> Response {
        let Answer { index, value } = self.0;
        ([(HeaderName::from_static(INDEX_HEADER), HeaderValue::from(index))], Extension(Unwritten::new(value)))
            .into_response()
    }
}

/// A success that is JSON whatever is asked for.
#[derive(Debug)]
pub(crate) struct InJson<T>(pub Answer<T>);

impl<T: Serialize> IntoResponse for InJson<T> {
    fn into_response(self) -> Response {
        let Answer { index, value } = self.0;
        ([(HeaderName::from_static(INDEX_HEADER), HeaderValue::from(index))], Json(value)).into_response()
    }
}

/// What a handler returns.
pub(crate) type Handled<T> = Result<Success<T>, ApiError>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn not_now_says_when_to_come_back() {
        for (error, status, again) in [
            (StoreError::NoQuorum { waited_ms: 2_000 }, 503, true),
            (StoreError::IndexNotReached { min_index: 9, applied: 5 }, 503, true),
            (StoreError::Stopped, 503, true),
            (Reject::BeingRemoved { workflow: "w".parse().unwrap() }.into(), 503, true),
            (StoreError::Overloaded, 429, true),
            (StoreError::Unknown, 504, false),
            (StoreError::StorageFull, 507, false),
            (Reject::IdempotencyConflict.into(), 409, false),
        ] {
            let response = ApiError::from(error).into_response();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers().contains_key(RETRY_AFTER), again);
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        }
    }
}
