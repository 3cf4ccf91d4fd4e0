//! Answers of the routes of namespaces.

use holdfast_machine::{Millis, Namespace, NamespaceSettings};
use serde::{Deserialize, Serialize};

/// A namespace, with what lives in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NamespaceView {
    /// Its name.
    pub namespace: Namespace,
    /// Log time of its first use or creation.
    pub created_at: Millis,
    /// Its settings.
    pub settings: NamespaceSettings,
    /// Rows that wait, due or not, held or not.
    pub pending: u64,
    /// Rows that are claimed; the ceiling is about these.
    pub claimed: u64,
}

/// Answer of `GET /v1/namespaces`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NamespacePage {
    /// The namespaces, by name.
    pub namespaces: Vec<NamespaceView>,
    /// Where the next page begins; none at the end.
    pub next_cursor: Option<String>,
}

/// Answer of `DELETE /v1/workflows/{id}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Deleted {}
