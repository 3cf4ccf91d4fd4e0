//! Namespaces: tenants with a ceiling of claimed rows and a retention of finished workflows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{Millis, WorkflowType};

/// How long finished workflows are kept where nothing else is set: 7 days, in milliseconds.
pub const RETENTION_MS_DEFAULT: u64 = 7 * 24 * 60 * 60 * 1_000;

/// What an operator sets for a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceSettings {
    /// For people.
    pub description: String,
    /// True: no new workflows; those that are there go on.
    pub deprecated: bool,
    /// Most rows claimed at a time, over the whole cluster; none for no ceiling, 0 stops delivery.
    pub claimed_max: Option<u32>,
    /// How long a finished workflow is kept, in milliseconds of log time; none keeps it for ever.
    pub retention_ms: Option<u64>,
    /// The same for single workflow types; goes before `retention_ms`. Null keeps that type for ever.
    pub retention_ms_by_type: BTreeMap<WorkflowType, Option<u64>>,
}

impl Default for NamespaceSettings {
    fn default() -> Self {
        Self {
            description: String::new(),
            deprecated: false,
            claimed_max: None,
            retention_ms: Some(RETENTION_MS_DEFAULT),
            retention_ms_by_type: BTreeMap::new(),
        }
    }
}

/// A namespace as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NamespaceState {
    /// Log time of its first use or creation.
    pub created_at: Millis,
    /// Its settings.
    pub settings: NamespaceSettings,
}
