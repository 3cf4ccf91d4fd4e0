//! Payloads as the bytes that they are: a result or an error that is the body itself, with the body's content type, and
//! payloads read without what is around them.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_client::wire::{Encoding, FENCE_HEADER, IDEMPOTENCY_HEADER, INDEX_HEADER};
use holdfast_machine::{OCTETS, Payload, WorkflowId};
use serde::de::DeserializeOwned;

use super::error::{ApiError, Refusal};
use super::extract::{Body, content_type, read};
use crate::Answer;

/// What a form in a page can send to another site without the browser asking that site first.
const SENT_BY_FORMS: [&str; 3] = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];

/// A body that says everything in JSON or postcard, or one that is a payload, with the rest in the parameters.
pub(crate) enum Given<T, P> {
    Said(T),
    Raw(Payload, P),
}

impl<S: Send + Sync, T: DeserializeOwned, P: DeserializeOwned + Send> FromRequest<S> for Given<T, P> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let content_type = content_type(request.headers()).to_owned();
        if Encoding::of(&content_type).is_some() {
            if request.uri().query().is_some_and(|query| !query.is_empty()) {
                return Err(ApiError::invalid("with a body in this content type, nothing is said in parameters"));
            }
            return Body::from_request(request, state).await.map(|Body(body)| Self::Said(body));
        }
        check_raw(&content_type, request.headers())?;
        let Query(params) =
            Query::try_from_uri(request.uri()).map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
        let data = read(request, state).await?;
        Ok(Self::Raw(Payload { content_type, data }, params))
    }
}

/// Refuses what a page elsewhere could have sent: with a header of ours, a browser would have asked before.
fn check_raw(content_type: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_lowercase();
    if !media_type.contains('/') || media_type.starts_with("application/vnd.holdfast.") {
        let detail = "a body needs a Content-Type that this node takes: JSON, or that of the payload that it is";
        return Err(ApiError::new(Refusal::UnsupportedMediaType, detail));
    }
    let is_ours = [IDEMPOTENCY_HEADER, FENCE_HEADER].into_iter().any(|name| headers.contains_key(name));
    if SENT_BY_FORMS.contains(&media_type.as_str()) && !is_ours {
        let detail = "a payload of this content type is taken with the header Idempotency-Key only";
        return Err(ApiError::new(Refusal::UnsupportedMediaType, detail));
    }
    Ok(())
}

/// Answers a payload as it is. It is somebody else's: a browser must not take it for a page of this node, nor run it.
pub(crate) fn raw(payload: Answer<Payload>) -> Response {
    let Answer { index, value: Payload { content_type, data } } = payload;
    let index = [(HeaderName::from_static(INDEX_HEADER), HeaderValue::from(index))];
    if content_type.is_empty() && data.is_empty() {
        return (StatusCode::NO_CONTENT, index).into_response();
    }
    let content_type = HeaderValue::from_str(&content_type).ok().filter(|value| !value.is_empty());
    let safe = [
        (CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static(OCTETS))),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    (index, safe, data).into_response()
}

/// A workflow and the number of one of its events, from the path.
pub(crate) struct EventOf(pub WorkflowId, pub u64);

impl<S: Send + Sync> FromRequestParts<S> for EventOf {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path((workflow, seq)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| ApiError::invalid(format!("the path cannot be read: {rejection}")))?;
        let workflow = workflow.parse().map_err(|error| ApiError::invalid(format!("path: {error}")))?;
        let seq = seq.parse().map_err(|error| ApiError::invalid(format!("path: {error}")))?;
        Ok(Self(workflow, seq))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_a_page_elsewhere_can_send_is_refused() {
        let ours = HeaderMap::from_iter([(HeaderName::from_static(IDEMPOTENCY_HEADER), HeaderValue::from_static("k"))]);
        for bad in ["", "x", "text/plain", "Text/Plain;charset=utf-8", "multipart/form-data; boundary=x"] {
            assert!(check_raw(bad, &HeaderMap::new()).is_err(), "{bad}");
        }
        assert!(check_raw("application/vnd.holdfast.postcard;version=9", &ours).is_err());
        assert!(check_raw("image/png", &HeaderMap::new()).is_ok());
        assert!(check_raw("text/plain", &ours).is_ok());
    }

    #[test]
    fn no_payload_is_run_on_this_origin() {
        let answer = |content_type: &str, data: &'static [u8]| {
            let value = Payload { content_type: content_type.to_owned(), data: Bytes::from_static(data) };
            raw(Answer { index: 7, value })
        };
        let page = answer("text/html", b"<script>");
        let headers = page.headers();
        assert_eq!((&headers[CONTENT_TYPE], &headers[INDEX_HEADER]), (&"text/html".parse().unwrap(), &7.into()));
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert!(headers[CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("sandbox"));
        assert_eq!(headers[CONTENT_DISPOSITION], "attachment");
        for odd in ["a\nb", "é\u{7f}", ""] {
            assert_eq!(answer(odd, b"x").headers()[CONTENT_TYPE], OCTETS, "{odd:?}");
        }
        assert_eq!(answer("", b"").status(), StatusCode::NO_CONTENT);
    }
}
