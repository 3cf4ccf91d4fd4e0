//! Bodies of the routes that find workflows.

use holdfast_machine::{
    AttributeFilter, ListedWorkflow, Namespace, SortOrder, TimeRange, WorkflowFilter, WorkflowQuery, WorkflowSort,
    WorkflowStatus, WorkflowType,
};
use serde::{Deserialize, Serialize};

use super::PAGE;

/// Body of `POST /v1/workflows/list`: a [`WorkflowFilter`], the order, and which page. (The body of
/// `POST /v1/workflows/count` is the filter alone.)
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ListCall {
    /// The namespace.
    pub namespace: Namespace,
    /// One of these types; empty for all.
    pub workflow_types: Vec<WorkflowType>,
    /// One of these statuses; empty for all.
    pub statuses: Vec<WorkflowStatus>,
    /// When the last run started.
    pub started: TimeRange,
    /// When the last run closed; any bound leaves only closed workflows.
    pub closed: TimeRange,
    /// Search attributes, all of them.
    pub attributes: Vec<AttributeFilter>,
    /// The time that the listing goes by.
    pub sort: WorkflowSort,
    /// Which end comes first.
    pub order: SortOrder,
    /// Most workflows in the page; at least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000))]
    pub limit: u32,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

impl Default for ListCall {
    fn default() -> Self {
        Self::new(WorkflowQuery::default())
    }
}

impl ListCall {
    /// The first page of a listing.
    pub fn new(query: WorkflowQuery) -> Self {
        let WorkflowQuery { filter, sort, order } = query;
        let WorkflowFilter { namespace, workflow_types, statuses, started, closed, attributes } = filter;
        let (limit, cursor) = (PAGE, None);
        Self { namespace, workflow_types, statuses, started, closed, attributes, sort, order, limit, cursor }
    }

    /// What is listed, without the page.
    pub fn query(&self) -> WorkflowQuery {
        let Self { namespace, workflow_types, statuses, started, closed, attributes, sort, order, .. } = self.clone();
        let filter = WorkflowFilter { namespace, workflow_types, statuses, started, closed, attributes };
        WorkflowQuery { filter, sort, order }
    }
}

/// Answer of `POST /v1/workflows/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkflowList {
    /// In the listing's order. There may be fewer than asked for, even none, and more on later pages.
    pub workflows: Vec<ListedWorkflow>,
    /// The cursor of the next page; null at the end of the listing.
    pub next_cursor: Option<String>,
}

/// Answer of `POST /v1/workflows/count`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Counted {
    /// How many there are.
    pub count: u64,
}
