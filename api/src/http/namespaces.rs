//! Routes of namespaces.

use axum::extract::State;
use holdfast_client::wire::{NamespacePage, NamespaceView};
use holdfast_machine::{Namespace, NamespaceSettings, NamespaceState};

use super::error::{Handled, Success};
use super::extract::{Body, Freshness, Guard, Params, Segment};
use super::listings::{ListingParams, page};
use crate::store::Store;

/// Namespaces, by name.
#[utoipa::path(
    get,
    path = "/namespaces",
    tag = "namespaces",
    params(ListingParams),
    responses((status = 200, body = NamespacePage))
)]
pub(crate) async fn namespaces(
    State(store): State<Store>,
    Params(params): Params<ListingParams>,
) -> Handled<NamespacePage> {
    let ListingParams { limit, cursor, consistency, min_index } = params;
    let mode = Freshness { consistency, min_index }.mode()?;
    Ok(Success(store.namespaces(&page(limit, cursor), mode).await?))
}

/// One namespace, with what lives in it.
#[utoipa::path(
    get,
    path = "/namespaces/{namespace}",
    tag = "namespaces",
    params(("namespace" = Namespace, Path), Freshness),
    responses((status = 200, body = NamespaceView), (status = 404, description = "namespace_not_found"))
)]
pub(crate) async fn namespace(
    State(store): State<Store>,
    Segment(namespace): Segment<Namespace>,
    Params(freshness): Params<Freshness>,
) -> Handled<NamespaceView> {
    Ok(Success(store.namespace(&namespace, freshness.mode()?).await?))
}

/// Creates a namespace or gives it other settings, all at once: what is left out is as by default.
#[utoipa::path(
    put,
    path = "/namespaces/{namespace}",
    tag = "namespaces",
    params(("namespace" = Namespace, Path), Guard),
    request_body = NamespaceSettings,
    responses((status = 200, body = NamespaceState))
)]
pub(crate) async fn put_namespace(
    State(store): State<Store>,
    Segment(namespace): Segment<Namespace>,
    Guard(write): Guard,
    Body(settings): Body<NamespaceSettings>,
) -> Handled<NamespaceState> {
    Ok(Success(store.put_namespace(&namespace, &settings, write).await?))
}
