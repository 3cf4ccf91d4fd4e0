//! Taking requests apart: path segments, parameters, guards and bodies. What does not fit is a problem
//! document like any other refusal.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
pub(crate) use holdfast_client::wire::PAGE;
use holdfast_client::wire::{Consistency, Encoding, FENCE_HEADER, IDEMPOTENCY_HEADER};
use holdfast_machine::{Epoch, Fence, IdempotencyKey, NodeName, Reject};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::{Object, Required, Type};
use utoipa::{IntoParams, PartialSchema};

use super::error::{ApiError, Refusal};
use crate::{ReadMode, StoreError, Write};

/// In which a [`BodyBudget`] is counted, in bytes.
const BUDGET_UNIT: usize = 1024;
/// Bodies up to this are not counted.
const SMALL_BODY_BYTES: u64 = 64 * 1024;

/// The one variable segment of a path, percent-decoded and read as a `T`; the last one where a route has none that
/// varies, because it is for a thing of this very name.
pub(crate) struct Segment<T>(pub T);

impl<S: Send + Sync, T: FromStr<Err: Display>> FromRequestParts<S> for Segment<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let params = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|rejection| ApiError::invalid(format!("the path cannot be read: {rejection}")))?;
        let varying = params.iter().next().map(|(_, value)| value);
        let text = varying.or_else(|| parts.uri.path().rsplit('/').next()).unwrap_or_default();
        text.parse().map(Self).map_err(|error: T::Err| ApiError::invalid(format!("path: {error}")))
    }
}

/// The parameters after the question mark. Unknown ones are refused, so that a misspelt one is noticed.
pub(crate) struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(params) = Query::<T>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
        Ok(Self(params))
    }
}

/// The parameters of a route that takes none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// The parameters of a read that has no others.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Freshness {
    pub consistency: Option<Consistency>,
    pub min_index: Option<u64>,
}

impl Freshness {
    /// The read mode that these parameters ask for.
    pub fn mode(self) -> Result<ReadMode, ApiError> {
        match (self.consistency, self.min_index) {
            (None | Some(Consistency::Linearizable), None) => Ok(ReadMode::Linearizable),
            (Some(Consistency::Stale), None) => Ok(ReadMode::Stale),
            (None, Some(index)) => Ok(ReadMode::AtLeast(index)),
            (Some(_), Some(_)) => Err(ApiError::invalid("consistency and min_index exclude each other")),
        }
    }
}

/// What guards a write: its idempotency key and its fence, from the headers.
pub(crate) struct Guard(pub Write);

impl<S: Send + Sync> FromRequestParts<S> for Guard {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let idempotency_key = text(&parts.headers, IDEMPOTENCY_HEADER)?
            .map(|key| IdempotencyKey::new(key).map_err(|error| ApiError::invalid(error.to_string())))
            .transpose()?;
        let fence = text(&parts.headers, FENCE_HEADER)?.map(fence).transpose()?;
        Ok(Self(Write { fence, idempotency_key }))
    }
}

impl IntoParams for Guard {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let header = |name, schema, description| {
            let header = Parameter::builder().name(name).parameter_in(ParameterIn::Header).required(Required::False);
            header.schema(Some(schema)).description(Some(description)).build()
        };
        let key = "The same call under the same key gets the first answer. Send one with each write";
        let fence = "`owner/epoch`: refused with `not_owner` unless the directory says the same";
        vec![
            header(IDEMPOTENCY_HEADER, IdempotencyKey::schema(), key),
            header(
                FENCE_HEADER,
                Object::builder().schema_type(Type::String).pattern(Some("^.{1,255}/[0-9]{1,20}$")).into(),
                fence,
            ),
        ]
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes());
    text.map(Some).map_err(|_| ApiError::invalid(format!("the header {name} is no UTF-8")))
}

fn fence(text: &str) -> Result<Fence, ApiError> {
    let parse = || {
        let (owner, epoch) = text.rsplit_once('/')?;
        Some(Fence { owner: NodeName::new(owner).ok()?, epoch: Epoch(epoch.parse().ok()?) })
    };
    parse().ok_or_else(|| ApiError::invalid(format!("the header {FENCE_HEADER} must be owner/epoch, not {text:?}")))
}

/// A body, as JSON or as postcard.
pub(crate) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let encoding = encoding(request.headers())?;
        let bytes = read(request, state).await?;
        read_as(encoding, &bytes).map(Self).map_err(|error| ApiError::invalid(format!("body: {error}")))
    }
}

/// The encoding that a body is declared to have. A browser sends neither of them to another site without asking it
/// first, so a page elsewhere cannot write here.
pub(crate) fn encoding(headers: &HeaderMap) -> Result<Encoding, ApiError> {
    Encoding::of(content_type(headers)).ok_or_else(|| {
        let [json, postcard] = [Encoding::Json, Encoding::Postcard].map(Encoding::content_type);
        let detail = format!("the body must be JSON, with the header Content-Type: {json}, or of the type {postcard}");
        ApiError::new(Refusal::UnsupportedMediaType, detail)
    })
}

/// The value that a body, or a part of it, is. In JSON that is an object always; serde would take an array too, for the
/// members in their order, and a member that is added later would change what it means.
pub(crate) fn read_as<T: DeserializeOwned>(encoding: Encoding, bytes: &[u8]) -> Result<T, String> {
    if encoding == Encoding::Json && bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err("an array stands where an object has to be".to_owned());
    }
    encoding.read(bytes)
}

/// What a body is declared to be; empty if nothing is said.
pub(crate) fn content_type(headers: &HeaderMap) -> &str {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The largest body that this node takes, inflated.
#[derive(Clone, Copy)]
pub(crate) struct BodyBytesMax(pub usize);

/// What the bodies that are being read at a time may take in memory; clones share it.
#[derive(Clone)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl BodyBudget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / BUDGET_UNIT)))
    }

    /// A part of the budget for a body of so many bytes. Small ones need none.
    fn take(&self, bytes: u64) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        if bytes <= SMALL_BODY_BYTES {
            return Ok(None);
        }
        let units = u32::try_from(bytes / BUDGET_UNIT as u64).unwrap_or(u32::MAX);
        let taken = self.0.clone().try_acquire_many_owned(units);
        taken.map(Some).map_err(|_| StoreError::Overloaded.into())
    }
}

/// The whole body, inflated if it was compressed.
pub(crate) async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    let headers = request.headers();
    if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let detail = "of the encodings of a body, this node takes gzip alone";
        return Err(ApiError::new(Refusal::UnsupportedMediaType, detail));
    }
    let limit = request.extensions().get::<BodyBytesMax>().map_or(usize::MAX, |most| most.0) as u64;
    let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    // What has no declared length is taken for a quarter of what it may have.
    let expected: u64 = declared.unwrap_or(limit / 4).min(limit);
    let budget = request.extensions().get::<BodyBudget>().cloned();
    let _part = budget.map(|budget| budget.take(expected)).transpose()?;
    Bytes::from_request(request, state).await.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let actual = declared.unwrap_or(0).max(limit.saturating_add(1));
            let what = "the size of the body".to_owned();
            return StoreError::from(Reject::LimitExceeded { what, limit, actual }).into();
        }
        if is_damaged(&rejection) {
            return ApiError::invalid("the body is no gzip, as its Content-Encoding says");
        }
        ApiError::new(Refusal::BodyUnread, format!("the body did not arrive: {rejection}"))
    })
}

/// Whether a body could not be inflated, rather than not be read.
fn is_damaged(rejection: &BytesRejection) -> bool {
    let mut source = rejection.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof);
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn fences_are_an_owner_and_an_epoch() {
        let read = fence("a/b/7").unwrap();
        assert_eq!((read.owner.as_str(), read.epoch), ("a/b", Epoch(7)));
        for bad in ["", "a", "a/", "/1", "a/-1", "a/18446744073709551616"] {
            assert!(fence(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn large_bodies_share_a_budget_and_small_ones_are_let_through() {
        let budget = BodyBudget::new(10 << 20);
        let large = budget.take(8 << 20).unwrap();
        let refused = budget.take(4 << 20);
        assert_eq!(axum::response::IntoResponse::into_response(refused.unwrap_err()).status().as_u16(), 429);
        assert!(budget.take(SMALL_BODY_BYTES).unwrap().is_none());
        drop(large);
        assert!(budget.take(4 << 20).unwrap().is_some());
    }

    #[test]
    fn freshness_is_one_of_three() {
        let mode = |consistency, min_index| Freshness { consistency, min_index }.mode();
        assert_eq!(mode(None, None).unwrap(), ReadMode::Linearizable);
        assert_eq!(mode(Some(Consistency::Stale), None).unwrap(), ReadMode::Stale);
        assert_eq!(mode(None, Some(3)).unwrap(), ReadMode::AtLeast(3));
        assert!(mode(Some(Consistency::Stale), Some(3)).is_err());
    }
}
