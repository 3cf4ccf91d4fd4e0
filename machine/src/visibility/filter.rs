//! What can be asked of listings and counts.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::Lane;
use crate::attributes::{AttributeValue, Attributes, check_text, first_form, forms, integer_form, time_form};
use crate::history::WorkflowStatus;
use crate::id::{AttributeName, Millis, Namespace, WorkflowId, WorkflowType};
use crate::limits::{FILTER_ATTRIBUTES_MAX, FILTER_TYPES_MAX};
use crate::reject::Reject;
use crate::validate::at_most;

/// Which workflows: those for which everything holds that is said here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WorkflowFilter {
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
}

/// A stretch of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TimeRange {
    /// This time or later.
    pub from: Option<Millis>,
    /// Before this time.
    pub to: Option<Millis>,
}

/// A condition on a search attribute: one of `equals` and `range`. A workflow without the attribute, or with one
/// of another type, does not fulfil it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AttributeFilter {
    /// The attribute.
    pub name: AttributeName,
    /// It is this value; one of its texts is, if it has several.
    #[serde(default)]
    pub equals: Option<AttributeValue>,
    /// It is within this range.
    #[serde(default)]
    pub range: Option<AttributeRange>,
}

/// From a value on, up to before another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AttributeRange {
    /// Of whole numbers.
    Integer {
        /// This number or more.
        #[serde(default)]
        from: Option<i64>,
        /// Less than this number.
        #[serde(default)]
        to: Option<i64>,
    },
    /// Of times.
    Time {
        /// This time or later.
        #[serde(default)]
        from: Option<Millis>,
        /// Before this time.
        #[serde(default)]
        to: Option<Millis>,
    },
}

/// The time that a listing goes by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkflowSort {
    /// Start of the last run.
    #[default]
    Started,
    /// Close of the last run; only closed workflows are listed.
    Closed,
}

/// Which end comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SortOrder {
    /// Latest first; at the same time, the highest id first.
    #[default]
    Newest,
    /// Earliest first; at the same time, the lowest id first.
    Oldest,
}

/// A listing: which workflows, in which order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowQuery {
    /// Which.
    pub filter: WorkflowFilter,
    /// By which time.
    pub sort: WorkflowSort,
    /// From which end.
    pub order: SortOrder,
}

/// A place in a listing: all before it has been looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The time that the listing goes by.
    pub at: Millis,
    /// The workflow.
    pub workflow: WorkflowId,
}

impl WorkflowFilter {
    /// Refuses a filter that makes no sense or says too much.
    ///
    /// # Errors
    /// [`Reject::InvalidArgument`] or [`Reject::LimitExceeded`].
    pub fn check(&self) -> Result<(), Reject> {
        at_most("the number of workflow types", self.workflow_types.len() as u64, FILTER_TYPES_MAX as u64)?;
        at_most("the number of statuses", self.statuses.len() as u64, WorkflowStatus::ALL.len() as u64)?;
        at_most("the number of attributes", self.attributes.len() as u64, FILTER_ATTRIBUTES_MAX as u64)?;
        check_order("started", self.started.from, self.started.to)?;
        check_order("closed", self.closed.from, self.closed.to)?;
        self.attributes.iter().try_for_each(AttributeFilter::check)
    }

    /// True if a lane's workflows may be wanted. With `closed_only` those of an open lane are not.
    pub(super) fn takes_lane(&self, lane: &Lane, closed_only: bool) -> bool {
        let types = &self.workflow_types;
        lane.namespace == self.namespace
            && (types.is_empty() || lane.workflow_type.as_ref().is_some_and(|of| types.contains(of)))
            && (self.statuses.is_empty() || self.statuses.contains(&lane.status))
            && (!closed_only || lane.status.is_terminal())
    }

    /// True if the lanes alone tell what is wanted.
    pub(super) fn is_of_lanes(&self) -> bool {
        self.started.is_all() && self.closed.is_all() && self.attributes.is_empty()
    }
}

impl TimeRange {
    /// True if it has no bound.
    pub(super) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// True if a time is in it; a time that there is not is only in the range without bounds.
    pub(super) fn takes(&self, at: Option<Millis>) -> bool {
        let Some(at) = at else { return self.is_all() };
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at < to)
    }
}

impl AttributeFilter {
    fn check(&self) -> Result<(), Reject> {
        let name = &self.name;
        match (&self.equals, &self.range) {
            (Some(AttributeValue::Texts(_)), None) => {
                Err(Reject::invalid(format!("attributes: {name} can equal one text, not several")))
            }
            (Some(AttributeValue::Text(text)), None) => check_text(name, text),
            (Some(_), None) => Ok(()),
            (None, Some(AttributeRange::Integer { from, to })) => check_order(name.as_str(), *from, *to),
            (None, Some(AttributeRange::Time { from, to })) => check_order(name.as_str(), *from, *to),
            _ => Err(Reject::invalid(format!("attributes: {name} needs one of `equals` and `range`"))),
        }
    }

    /// True if a workflow with these attributes is wanted.
    pub(super) fn takes(&self, attributes: &Attributes) -> bool {
        let (from, to) = self.forms();
        let value = attributes.get(&self.name);
        value.is_some_and(|value| forms(value).iter().any(|form| *form >= from && *form < to))
    }

    /// The form that is wanted, if it is one.
    pub(super) fn form(&self) -> Option<Vec<u8>> {
        forms(self.equals.as_ref()?).pop_first()
    }

    /// The forms that are wanted: from this one on, up to before that one.
    pub(super) fn forms(&self) -> (Vec<u8>, Vec<u8>) {
        if let Some(form) = self.form() {
            // No form begins another, so nothing but itself is below this.
            let end = [form.as_slice(), &[0]].concat();
            return (form, end);
        }
        let bounds = |is_time, from: Option<Vec<u8>>, to: Option<Vec<u8>>| {
            let (first, end) = first_form(is_time);
            (from.unwrap_or(first), to.unwrap_or(end))
        };
        match &self.range {
            Some(AttributeRange::Integer { from, to }) => bounds(false, from.map(integer_form), to.map(integer_form)),
            Some(AttributeRange::Time { from, to }) => bounds(true, from.map(time_form), to.map(time_form)),
            None => Default::default(),
        }
    }
}

impl SortOrder {
    /// How two things stand in this order.
    pub(super) fn compare<T: Ord>(self, one: &T, other: &T) -> Ordering {
        match self {
            Self::Newest => other.cmp(one),
            Self::Oldest => one.cmp(other),
        }
    }
}

fn check_order<T: PartialOrd + std::fmt::Display>(what: &str, from: Option<T>, to: Option<T>) -> Result<(), Reject> {
    match (from, to) {
        (Some(from), Some(to)) if from > to => Err(Reject::invalid(format!("{what}: from {from} is after to {to}"))),
        _ => Ok(()),
    }
}
